// Knows independently what was committed, and holds against it what reaches the device, the workers
// and the peers.
#ifndef TESTS_SIMULATION_CHECKER_H_
#define TESTS_SIMULATION_CHECKER_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/driver/queue_driver.h"
#include "tests/simulation/context.h"
#include "tests/simulation/sim_device.h"
#include "worker/worker.h"

namespace baton::simulation {

class Checker final : public DeviceObserver {
 public:
  Checker(Context* context, const arena::Arena* arena);

  // A correct worker in `slot` has just moved the tail of some shard's commit log.
  void OnPublished(uint32_t slot);
  // Whenever something has run: what the records say of ended epochs.
  void CheckRecords();
  // A worker was given a shard.
  void OnAdopted(uint32_t shard, uint64_t epoch);

  // The owner of the shard was given memory of its heap.
  void OnAllocated(uint32_t shard, const Buffer& buffer);

  void OnSendPosted(const verbs::SendRequest& request) override;
  void OnReceivePosted(const verbs::ReceiveRequest& request) override;
  void OnCompleted(const verbs::Completion& completion) override;

  // The peer with this number may be refused or disconnected.
  void Excuse(uint64_t client) { excused_.insert(client); }
  void ExcuseConnection(uint32_t index) {
    Connection& connection = At(index, arena_->connection(index).generation);
    connection.excused = true;
    Excuse(connection.client);
  }
  bool Excused(uint64_t client);
  // A peer sends what kills its service, and whoever serves it may be killed at random, too, or
  // only between two calls of Poll. So many deaths on one completion fail its connection.
  void ExpectPoison(uint32_t deaths, bool random_deaths) {
    poison_deaths_ = deaths;
    random_deaths_ = random_deaths;
  }
  void OnPoison(uint64_t client) { poisoners_.insert(client); }
  // The owner of a shard has died.
  void OnOwnerDied(uint32_t shard);
  // The engine fails a connection, and says that it was for its entry `completion` of the shard's
  // log; `guessed`: or for want of a better one.
  void OnPoisoned(uint32_t shard, uint32_t connection, uint64_t completion, bool guessed);
  // The service connects to a peer.
  void OnConnect(uint64_t tag) { tags_.insert(tag); }
  bool KnowsTag(uint64_t tag) const { return tags_.contains(tag); }
  void OnReply(uint64_t shard, uint64_t shard_count);

  // Nothing is under way any more.
  void CheckEnd(bool all_replies_seen);

  // How many shared receives the device has at last.
  void CheckShared(uint32_t shard, size_t at_device);

  // What operators are told of a shard.
  void CheckCounters(uint32_t shard, const driver::ShardCounters& counters);

  uint64_t poisonings() const { return poisonings_; }
  uint64_t commits() const { return commits_; }
  uint64_t cuts() const { return cuts_; }

 private:
  bool MayBeOf(uint32_t index, uint64_t client) const;
  struct Queue {
    std::vector<arena::WorkRequest> committed;
    std::vector<uint64_t> receives;  // of sends: that are posted before it
    uint64_t posted = 0;
    uint64_t spared = 0;  // messages in spare receives, each in the place of one that is not posted
  };
  struct Connection {
    uint32_t generation = 0;
    uint64_t client = 0;   // 0: not known yet
    bool ended = false;    // its end was published
    bool excused = false;  // as soon as it is
    Queue send, receive;
  };
  struct Shard {
    uint64_t epoch = 0;  // that published last,
    uint64_t tail = 0;   // and how much
    uint64_t seen_cut = 0;
    uint64_t seen_completions = 0;
    uint64_t adopted = 0;  // the last epoch that a worker was given
    std::set<uint64_t> counts;
    // Each death of an owner adds what that owner left behind, [acknowledged, published).
    std::vector<std::pair<uint64_t, uint64_t>> deaths;
    // Shared receives, by slot.
    struct SharedReceive {
      arena::WorkRequest committed;
      uint64_t commits = 0, posts = 0;
    };
    std::vector<SharedReceive> shared;
    std::vector<arena::HeapBlock> heap;  // as committed, by page
  };
  struct Range {
    uint64_t begin, end, wr_id;
  };

  Connection& At(uint32_t index, uint32_t generation);
  void CheckPublished(uint32_t shard);
  bool HaveOneOwner(uint32_t shard, uint32_t other) const;
  void Fold(uint32_t shard, const arena::CommitEntry& entry);
  void Commit(Queue& queue, const arena::CommitEntry& entry, bool receive);
  const arena::WorkRequest* Post(uint64_t wr_id);
  void CommitShared(uint32_t shard, const arena::CommitEntry& entry);
  const arena::WorkRequest* PostShared(uint64_t wr_id);
  void CommitHeap(uint32_t shard, const arena::CommitEntry& entry);
  void CheckHeap(uint32_t shard);
  bool HasSpare(uint32_t index) const;
  void HoldBuffers(uint64_t wr_id, absl::Span<const verbs::ScatterGather> sges,
                   const arena::WorkRequest& committed);
  void Hold(uint64_t wr_id, const verbs::ScatterGather& sge);

  Context* const context_;
  const arena::Arena* const arena_;
  std::vector<Connection> connections_;
  std::vector<Shard> shards_;
  std::vector<Range> held_;  // buffers that the device may touch
  std::set<uint64_t> excused_;
  std::set<uint64_t> tags_;
  std::set<uint64_t> poisoners_;
  uint32_t poison_deaths_ = 0;  // 0: none is expected
  bool random_deaths_ = false;
  bool failed_unknown_ = false;
  uint64_t commits_ = 0, cuts_ = 0, poisonings_ = 0;
};

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_CHECKER_H_

// The files of transfers, as the service's driver holds them: a successor goes on with one that was
// renamed or deleted meanwhile. FileReads has one for its worker, and FileSender uses it.
//
//   absl::Status OnAdopt(Shard& shard) override {
//     …FileSender::Load for each connection that has a transfer…
//     reads->held_files().Adopt(shard);
//   }
//
// A number in a state names a file. The driver knows nothing of transactions. So a file is dropped
// only when no committed state needs it, and an owner that dies before that leaves files that its
// successor drops. With CommitMode::kManual the service commits the end of a transfer before the
// next Poll.
#ifndef WORKER_HELD_FILES_H_
#define WORKER_HELD_FILES_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "worker/file_reads.h"
#include "worker/region_cache.h"
#include "worker/worker.h"

namespace baton {

// The keeper is asked for one thing at a time, and nobody waits for its answer, except when a shard
// is adopted.
class HeldFiles {
 public:
  // A file that the driver is asked to hold. Its sender has it, and wants the file as long as this
  // lives.
  class Order {
   public:
    ~Order();
    Order(const Order&) = delete;
    Order& operator=(const Order&) = delete;

    bool done() const { return result_.has_value(); }
    // The number, which is in use, or why the file is not held. An error is no reason to send
    // nothing: a quota, or the file is not one that can be held, or the keeper does not answer, or
    // it has not answered a while ago, and is not asked. REQUIRES: done().
    absl::StatusOr<uint64_t> TakeResult();

   private:
    friend class HeldFiles;
    Order() = default;

    HeldFiles* files_ = nullptr;
    Shard* shard_ = nullptr;
    uint64_t epoch_ = 0;
    int fd_ = -1;
    FileRequester* requester_ = nullptr;
    std::chrono::steady_clock::time_point deadline_;
    std::optional<absl::StatusOr<uint64_t>> result_;
  };

  // The library holds a shard's files with the tag kTag + Shard::index(). Hold nothing else with
  // it.
  static constexpr uint64_t kTag = uint64_t{0x73656c6966} << 24;  // "files"

  explicit HeldFiles(FileReads* reads);
  ~HeldFiles();

  // Call it in each epoch, when every file that a committed state names was loaded or kept: at the
  // end of OnAdopt. From then on the files that no transfer has are dropped: their owners died, or
  // a transaction was forgotten. Before it, no file is dropped that a former owner has left.
  void Adopt(Shard& shard);
  // For a service that loads a transfer later than that: a committed state has `number`. It stays
  // until a FileSender that has it ends, or until Discard. 0: there is none.
  void Keep(Shard& shard, uint64_t number);
  // The open transaction replaces the state that has `number`, and no FileSender was loaded with
  // it. Drops the file after the commit. Does nothing if it was not kept.
  void Discard(Connection& connection, uint64_t number);

  // The rest is for FileSender and FileReads.

  // Has the driver hold the file. `requester` is woken when the order is done. It outlives the
  // order, as `fd` does. A keeper that does not answer is given up after 20 s at most.
  std::unique_ptr<Order> Hold(Shard& shard, int fd, FileRequester& requester);
  absl::StatusOr<FileDescriptor> Take(uint64_t number);
  // A FileSender has `number`.
  void Use(Shard& shard, uint64_t number);
  // It has ended. Releases the region, and the file if Hold has held it, when the sends that are
  // staged by now have completed and that is committed, or the connection has ended. 0: there is no
  // file.
  void End(Connection& connection, uint64_t number, RegionCache::Lease region);
  // The shard is another worker's now, with what is left to be dropped.
  void Forget(const Shard& shard);

 private:
  using Clock = std::chrono::steady_clock;

  struct Ended {
    Connection* connection = nullptr;
    uint32_t generation = 0;
    uint64_t sends = 0;  // the sequence number behind the last one
    uint64_t number = 0;
    RegionCache::Lease region;
  };
  struct User {
    uint32_t shard = 0;
    uint32_t senders = 0;
    bool is_kept = false;
  };
  // The work that is left for a shard.
  struct Place {
    Shard* shard = nullptr;
    uint64_t epoch = 0;
    bool is_listed = false;   // `held` has what former owners left
    bool drops_lost = false;  // Adopt was called
    uint32_t retry_ms = FileReads::kRetryMs;
    std::vector<Ended> ended;
    std::vector<uint64_t> to_drop;
    std::set<uint64_t> held;  // with the shard's tag: others are the application's
    std::unique_ptr<FileRequester> requester;
  };

  Place& PlaceOf(Shard& shard);
  Place* FindPlace(uint32_t shard, uint64_t epoch);
  void WakeSoon(Place& place);
  void Settle(Place& place);
  static bool IsOver(const Ended& ended);
  void AskNext();
  void DropNext();
  void AskToHold();
  void OnHeld(uint32_t shard, uint64_t epoch, const absl::StatusOr<uint64_t>& number);
  void Finish(Order* order, const absl::StatusOr<uint64_t>& result);
  void Withdraw(Order* order);
  void AskToDrop(Place& place);
  void OnDropped(uint32_t shard, uint64_t epoch, uint64_t number, const absl::Status& dropped);
  void List(Place& place);
  absl::Status ListHeld(Place& place);
  void NoteRefusal(const absl::Status& why);

  FileReads* const reads_;
  Worker& worker_;
  std::map<uint64_t, User> users_;  // by number
  std::vector<Place> places_;       // by shard
  bool is_asked_ = false;           // the keeper has something to answer
  bool drops_first_ = false;        // it was asked to hold the last time
  Order* asked_ = nullptr;          // null: it is a drop, or nobody wants the file any more
  std::deque<Order*> orders_;       // those that are to be asked next
  Clock::time_point refused_until_ = {};
};

}  // namespace baton

#endif  // WORKER_HELD_FILES_H_

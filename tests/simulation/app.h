// The service on the worker library: answers each request of the protocol, with its whole state in
// the arena, and looks for completions that are lost or delivered again after their
// acknowledgement.
#ifndef TESTS_SIMULATION_APP_H_
#define TESTS_SIMULATION_APP_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lib/arena/arena.h"
#include "tests/simulation/checker.h"
#include "tests/simulation/context.h"
#include "tests/simulation/heap_user.h"
#include "tests/simulation/protocol.h"
#include "worker/worker.h"

namespace baton::simulation {

// Defects of an application, which the checkers have to find.
struct AppDefects {
  bool acknowledge_first = false;   // completions are acknowledged before their effects are staged
  bool state_after_commit = false;  // effects and state are in two transactions
  bool reuse_buffer_early = false;  // a receive is posted with a buffer that another one holds
};

// What the buffers of a service have to hold, both by sequence and in pools.
uint64_t BufferBytes(const arena::Shape& shape);

struct AppOptions {
  bool pools = false;   // buffers from free lists, which a successor derives; else by sequence
  bool decides = true;  // sometimes rejects, disconnects, answers later or into another shard
  AppDefects defects;
};

class App final : public Service {
 public:
  App(Context* context, Checker* checker, const arena::Arena* arena, const AppOptions& options);

  absl::Status OnAdopt(Shard& shard) override;
  void OnCompletion(Shard& shard, const Completion& completion) override;
  void OnRelease(Shard& shard) override;
  void OnLost(Shard& shard) override;

  // A shard that is ours, for Worker::Connect; null: there is none.
  Shard* SomeShard();
  void OnConnecting(Connection& connection);

  // Between two calls of Poll: answers requests that were left for later. With `commit`, as one
  // transaction with everything staged.
  void Idle(bool commit);
  // Shards and epochs that this worker was given and has not given back by itself.
  const std::vector<std::pair<uint32_t, uint64_t>>& held() const { return held_; }
  // What was staged is committed, and with it the release that OnRelease told of.
  void Published() { std::erase(held_, released_); }
  bool undecided() const { return !undecided_.empty(); }
  void StopDeciding() { options_.decides = false; }

 private:
  struct Peer {
    Account account = {};
    bool closing = false;  // a decision is staged
  };

  Peer& PeerOf(Connection& connection);
  void ReadClient(const Connection& connection, Account& account);
  void OnRequest(Shard& shard, const Completion& completion, Peer& peer);
  void OnReceive(Shard& shard, const Completion& completion, Peer& peer);
  void Answer(Shard& shard, Connection& connection, Peer& peer);
  void TopUp(Shard& shard, Connection& connection, Peer& peer);
  bool shared() const { return arena::HasSharedReceives(arena_->shape()); }
  void TopUpShared(Shard& shard);
  void SendReply(Shard& shard, Connection& connection, Peer& peer);
  void Save(Shard& shard, Connection& connection, Peer& peer);
  uint64_t Count(Shard& shard);
  void SaveTotals(Shard& shard);
  void Forget(Shard& shard);
  void FillPools(Shard& shard);
  uint64_t TakeBuffer(Shard& shard, const Connection& connection, bool send);
  void GiveRest(Shard& shard, Connection& connection, const Account& account);
  void GiveBuffer(Shard& shard, const Completion& done, bool send);
  void Need(const absl::Status& status, const char* what);

  Context* const context_;
  Checker* const checker_;
  const arena::Arena* const arena_;
  AppOptions options_;
  HeapUser heap_;
  std::vector<Peer> peers_;                                  // by connection
  std::vector<uint64_t> processed_;                          // by shard: as staged
  std::vector<Shard*> owned_;                                // by shard; null: not ours
  std::vector<std::array<std::vector<uint64_t>, 2>> pools_;  // by shard: of receives, of sends
  std::vector<Connection*> undecided_;
  std::vector<std::pair<uint32_t, uint64_t>> held_;
  std::pair<uint32_t, uint64_t> released_;
};

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_APP_H_

// Correct workers, which go on whatever others do: an echo service with its peers, and a worker
// among hostile ones.
#ifndef TESTS_FUZZ_HONEST_WORKER_H_
#define TESTS_FUZZ_HONEST_WORKER_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "tests/fuzz/brokered_service.h"
#include "tests/lib/driver/commit_writer.h"
#include "worker/worker_impl.h"

namespace baton::fuzz {

// A correct echo service and its peers: every message comes back once and in order, whatever else
// happens in the process.
class HonestWorker {
 public:
  // Owns shard 0 in this epoch, and makes connections to it.
  HonestWorker(arena::Arena* arena, MemoryDevice* device, uint64_t epoch, uint32_t connections);

  // One step each of the peers, on the thread that turns the device, and of the worker.
  void PeersTurn();
  void WorkerTurn();
  // Both, and the driver's.
  void Turn(BrokeredService* service);

  uint64_t echoes() const { return echoes_; }

 private:
  struct Peer {
    uint64_t sent = 0;
    std::deque<std::string> expected;  // replies
  };
  uint64_t Buffer(uint32_t connection, uint64_t sequence) const;

  arena::Arena* const arena_;
  MemoryDevice* const device_;
  driver::testing::CommitWriter writer_;
  uint64_t read_ = 0;
  uint64_t echoes_ = 0;
  std::vector<Peer> peers_;  // by queue pair, in the order of their numbers
};

// A correct worker, on the worker library, in a service whose other workers write whatever they
// like: it looks at all that it inherits, ends the connections, and never fails itself.
class HonestHeir final : private Service {
 public:
  // `wake`: its end of the pair that wakes it and the engine.
  HonestHeir(const arena::Arena* arena, FileDescriptor wake, uint64_t id, uint32_t slot);
  ~HonestHeir() override;

  void Turn();

 private:
  absl::Status OnAdopt(Shard& shard) override;
  void OnCompletion(Shard& shard, const Completion& completion) override;
  void OnLost(Shard& shard) override;
  void Look(Shard& shard, Connection& connection);

  FileDescriptor keeper_;  // the other end of its socket: nobody is there
  std::vector<Shard*> shards_;
  WorkerImpl worker_;
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_HONEST_WORKER_H_

// A correct echo service and its peers: every message comes back once and in order, whatever else
// happens in the process.
#ifndef TESTS_FUZZ_HONEST_WORKER_H_
#define TESTS_FUZZ_HONEST_WORKER_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tests/fuzz/brokered_service.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::fuzz {

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

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_HONEST_WORKER_H_

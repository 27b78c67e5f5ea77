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
  // Owns shard 0 of the service, and makes connections to it.
  HonestWorker(BrokeredService* service, uint32_t connections);

  // Peers, driver and worker do one step each.
  void Turn();

 private:
  struct Peer {
    uint64_t sent = 0;
    std::deque<std::string> expected;  // replies
  };
  void PeersTurn();
  void WorkerTurn();
  uint64_t Buffer(uint32_t connection, uint64_t sequence) const;

  BrokeredService* const service_;
  driver::testing::CommitWriter writer_;
  uint64_t read_ = 0;
  std::vector<Peer> peers_;  // by queue pair, in the order of their numbers
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_HONEST_WORKER_H_

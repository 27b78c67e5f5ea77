// Messages of a correct client of a NIC: each arrives once, whole and in order, whatever other
// clients do.
#ifndef TESTS_FUZZ_HONEST_TRAFFIC_H_
#define TESTS_FUZZ_HONEST_TRAFFIC_H_

#include <cstdint>
#include <functional>

#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/mlx5/queue_pair.h"
#include "lib/verbs/verbs.h"

namespace baton::fuzz {

// Numbers of a correct client that a thief knows.
struct Victim {
  uint32_t queue_pairs[2] = {};
  uint32_t completion_queue = 0;
  uint32_t key = 0;
  uint64_t address = 0;
};

class HonestTraffic {
 public:
  static constexpr uint64_t kDataBytes = 4096;

  // All of it outlives the traffic.
  struct Parts {
    verbs::mlx5::QueuePair* sender;  // connected to the receiver
    verbs::mlx5::QueuePair* receiver;
    verbs::mlx5::CompletionQueue* queue;  // of both
    uint8_t* data;                        // kDataBytes, which only this traffic is to change
    uint64_t address;                     // what requests call `data`
    uint32_t key;
    std::function<void()> turn;  // of the NIC
  };
  explicit HonestTraffic(Parts parts);

  // Sends a message from one queue pair to the other.
  void Send();
  // Turns the NIC until all messages have arrived, and aborts if one does not arrive, differs, or
  // if memory has changed that none was sent to.
  void Check();

 private:
  verbs::ScatterGather SgeOf(const uint8_t* at) const;
  void Take();

  const Parts parts_;
  uint64_t posted_ = 0;
  uint64_t sent_ = 0;  // completions of sends
  uint64_t received_ = 0;
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_HONEST_TRAFFIC_H_

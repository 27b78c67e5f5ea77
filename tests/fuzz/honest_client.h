// A correct client of a NIC: each of its messages arrives once, whole and in order, whatever other
// clients do.
#ifndef TESTS_FUZZ_HONEST_CLIENT_H_
#define TESTS_FUZZ_HONEST_CLIENT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/nic/client.h"
#include "lib/nic/nic.h"
#include "tests/lib/nic/harness.h"

namespace baton::fuzz {

class HonestClient {
 public:
  // The NIC is turned by this thread, and outlives the client.
  explicit HonestClient(nic::Nic* nic);

  // Sends a message from one of its queue pairs to the other.
  void Send();
  // Turns the NIC until all messages have arrived, and aborts if one does not arrive, differs, or
  // if memory has changed that none was sent to.
  void Check();

  // Numbers that a thief knows.
  uint32_t queue_pair(size_t index) const { return shard_.number(index); }
  uint32_t completion_queue() const { return shard_.completion_queue(); }
  uint32_t key() const { return shard_.key(); }
  uint64_t address() const { return shard_.AddressOf(shard_.data()); }

 private:
  void Take();

  nic::Nic* const nic_;
  const std::unique_ptr<nic::Client> client_;
  nic::Shard shard_;
  nic::Driver driver_;
  uint64_t posted_ = 0;
  uint64_t sent_ = 0;  // completions of sends
  uint64_t received_ = 0;
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_HONEST_CLIENT_H_

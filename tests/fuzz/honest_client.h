#ifndef TESTS_FUZZ_HONEST_CLIENT_H_
#define TESTS_FUZZ_HONEST_CLIENT_H_

#include <memory>

#include "lib/nic/client.h"
#include "lib/nic/nic.h"
#include "tests/fuzz/honest_traffic.h"
#include "tests/lib/nic/harness.h"

namespace baton::fuzz {

// A correct client of a NIC, over its socket.
class HonestClient {
 public:
  // The NIC is turned by this thread, and outlives the client.
  explicit HonestClient(nic::Nic* nic);

  void Send() { traffic_.Send(); }
  void Check() { traffic_.Check(); }
  const Victim& victim() const { return victim_; }

 private:
  const std::unique_ptr<nic::Client> client_;
  nic::Shard shard_;
  nic::Driver driver_;
  const Victim victim_;
  HonestTraffic traffic_;
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_HONEST_CLIENT_H_

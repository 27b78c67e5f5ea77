// A peer of the ledger that asks for amounts of its test's choosing, of which workers may die: one
// connection, on a device of its own, turned by the calls below.
//
// Thread-safety: none.
#ifndef TESTS_HARNESS_POISON_PEER_H_
#define TESTS_HARNESS_POISON_PEER_H_

#include <chrono>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::harness {

// What a worker with --crash-on-amount or --hang-on-amount is given, and no other peer asks for.
inline constexpr uint64_t kPoisonAmount = 0x6e6f'7369'6f70;

class PoisonPeer {
 public:
  // `client`: number of its account, which no other peer has.
  explicit PoisonPeer(uint64_t client,
                      const verbs::testing::Fabric& fabric = verbs::testing::FabricUnderTest())
      : client_(client), peer_(driver::testing::RawPeer::kSlots, fabric) {}

  // Returns when it is established.
  absl::Status Connect(uint16_t port);
  // A request for each of `amounts`, all of them before anybody waits: a service that is slow finds
  // them in one batch. At most 32 until WaitReplies.
  absl::Status Send(absl::Span<const uint64_t> amounts);
  // Until it has so many replies in all. Each is checked.
  absl::Status WaitReplies(size_t count);
  absl::Status WaitDisconnected(std::chrono::milliseconds timeout = std::chrono::seconds(60));
  bool disconnected() const { return peer_.disconnected; }

 private:
  absl::Status Turn(const char* what, std::chrono::milliseconds timeout,
                    const std::function<bool()>& done);

  const uint64_t client_;
  driver::testing::RawPeer peer_;
  uint64_t sequence_ = 0;
  uint64_t total_ = 0;  // of the replies that were checked
  size_t checked_ = 0;
};

}  // namespace baton::harness

#endif  // TESTS_HARNESS_POISON_PEER_H_

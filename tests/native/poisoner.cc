// poisoner PORT: connects to a ledger of which workers die by kPoisonAmount, asks for something
// harmless, for that, and for something more, and waits until its connection has ended. On the
// device of BATON_TEST_DEVICE and BATON_TEST_HOST.
#include <cstdlib>
#include <iostream>
#include <string>

#include "lib/base/status.h"
#include "tests/harness/poison_peer.h"

namespace baton {
namespace {

constexpr uint64_t kClient = uint64_t{1} << 62;
constexpr std::chrono::seconds kEnd{300};  // workers are loaded anew in between, on a slow machine

absl::Status Run(uint16_t port) {
  harness::PoisonPeer peer(kClient);
  BATON_RETURN_IF_ERROR(peer.Connect(port));
  BATON_RETURN_IF_ERROR(peer.Send({1}));
  BATON_RETURN_IF_ERROR(peer.WaitReplies(1));
  BATON_RETURN_IF_ERROR(peer.Send({harness::kPoisonAmount, 2}));
  return peer.WaitDisconnected(kEnd);
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const absl::Status status = baton::Run(static_cast<uint16_t>(std::atoi(argv[1])));
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

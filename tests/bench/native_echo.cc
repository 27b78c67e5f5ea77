#include "tests/bench/native_echo.h"

#include <sched.h>

#include <chrono>
#include <future>
#include <utility>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/queue_owner.h"

namespace baton::bench {
namespace {

constexpr uint64_t kPatienceNs = 60'000'000'000;
// Turns of the NIC and of the peer without effect, after which nothing more comes.
constexpr int kIdleTurns = 64;

}  // namespace

template <typename Owner>
absl::StatusOr<std::unique_ptr<NativeEcho>> NativeEcho::StartWith() {
  auto echo = std::make_unique<NativeEcho>();
  BATON_ASSIGN_OR_RETURN(NicClient sockets, MakeNicClient());
  std::vector<NicSockets> clients;
  clients.push_back(std::move(sockets.nic));
  BATON_ASSIGN_OR_RETURN(echo->nic_, ThreadedNic::Start(std::move(clients)));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device,
                         OpenDevice(std::move(sockets.client)));
  BATON_ASSIGN_OR_RETURN(echo->owner_, Owner::Start(std::move(device)));
  BATON_RETURN_IF_ERROR(echo->Establish());
  echo->nic_->Stop();
  return echo;
}

absl::StatusOr<std::unique_ptr<NativeEcho>> NativeEcho::Start() { return StartWith<NativeOwner>(); }
absl::StatusOr<std::unique_ptr<NativeEcho>> NativeEcho::StartRaw() { return StartWith<RawOwner>(); }

absl::Status NativeEcho::Establish() {
  auto peer = std::async(std::launch::async, [port = owner_->port()] {
    return native::PeerConnection::Connect("127.0.0.1", port);
  });
  const uint64_t deadline = MonotonicNanoseconds() + kPatienceNs;
  while (!owner_->established()) {
    BATON_RETURN_IF_ERROR(owner_->Establish());
    if (peer_ != nullptr) {
      BATON_RETURN_IF_ERROR(peer_->Poll().status());  // its last word is still to be sent
    } else if (peer.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
      BATON_ASSIGN_OR_RETURN(peer_, peer.get());
    }
    if (MonotonicNanoseconds() > deadline) return absl::DeadlineExceededError("no connection");
  }
  return absl::OkStatus();
}

// TCP of the loopback device delivers in the call that sends, or soon.
void NativeEcho::Settle() {
  for (int idle = 0; idle < kIdleTurns; ++idle) {
    sched_yield();  // to the kernel's thread that delivers where the processor is busy
    if (nic_->Progress()) idle = 0;
    const auto slots = peer_->Poll();
    BATON_CHECK(slots.ok());
    for (const uint32_t slot : *slots) {
      idle = 0;
      ++peer_received_;
      BATON_CHECK(
          peer_->Receive(slot, kReceiveOffset + slot * sizeof(Message), sizeof(Message)).ok());
    }
  }
}

void NativeEcho::Ask(uint32_t messages) {
  for (uint32_t i = 0; i < messages; ++i) {
    BATON_CHECK(peer_->Send(kSendOffset + i * sizeof(Message), sizeof(Message)).ok());
  }
  BATON_CHECK(peer_->Flush().ok());
  Settle();
}

void NativeEcho::Turn() {
  const absl::StatusOr<int> work = owner_->Turn();
  BATON_CHECK(work.ok() && *work > 0);
}

void NativeEcho::Answer(uint32_t messages) {
  const uint64_t wanted = peer_received_ + messages;
  Settle();
  BATON_CHECK(peer_received_ == wanted);
}

}  // namespace baton::bench

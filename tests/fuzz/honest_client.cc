#include "tests/fuzz/honest_client.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/check.h"

namespace baton::fuzz {
namespace {

constexpr uint64_t kOpen = 4;  // messages that are sent and not checked; their buffers take turns
constexpr uint32_t kBytes = 64;
constexpr uint64_t kReceive = uint64_t{1} << 32;  // added to a message's number in its receive
constexpr uint64_t kDataBytes = 4096;
constexpr uint8_t kUntouched = 0x5c;  // what lies behind the buffers
constexpr int kMaxTurns = 10'000;

std::unique_ptr<nic::Client> Open(nic::Nic* nic) {
  int ends[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  BATON_CHECK(nic->Add(FileDescriptor(ends[0])).ok());
  auto client = nic::Client::Open(FileDescriptor(ends[1]), [nic] { nic->Progress(); });
  BATON_CHECK(client.ok());
  return *std::move(client);
}

}  // namespace

HonestClient::HonestClient(nic::Nic* nic)
    : nic_(nic), client_(Open(nic)), shard_(client_.get(), {}), driver_(&shard_) {
  std::memset(shard_.data(), kUntouched, kDataBytes);
}

// The first kOpen buffers are sent from, the next ones received to.
void HonestClient::Send() {
  if (posted_ - received_ == kOpen || posted_ - sent_ == kOpen) Check();
  uint8_t* const from = shard_.data() + posted_ % kOpen * kBytes;
  uint8_t* const to = from + kOpen * kBytes;
  std::memset(from, static_cast<uint8_t>(posted_), kBytes);
  std::memset(to, kUntouched, kBytes);
  const verbs::ScatterGather receive_at = shard_.SgeOf(to, kBytes);
  verbs::ReceiveRequest receive;
  receive.wr_id = kReceive + posted_;
  receive.sges = {&receive_at, 1};
  size_t done = 0;
  BATON_CHECK(driver_[1].PostReceive({&receive, 1}, &done).ok() && done == 1);
  const verbs::ScatterGather send_from = shard_.SgeOf(from, kBytes);
  const verbs::SendRequest send = nic::RequestOf(verbs::Opcode::kSend, posted_, send_from);
  BATON_CHECK(driver_[0].PostSend({&send, 1}, &done).ok() && done == 1);
  ++posted_;
}

void HonestClient::Take() {
  for (;;) {
    verbs::Completion completion;
    completion.wr_id = 0;
    const absl::StatusOr<size_t> taken = driver_.queue().Take({&completion, 1});
    BATON_CHECK(taken.ok());
    if (*taken == 0) return;
    BATON_CHECK(completion.status == verbs::CompletionStatus::kSuccess);
    if (completion.wr_id < kReceive) {
      BATON_CHECK(completion.wr_id == sent_++);
      continue;
    }
    BATON_CHECK(completion.wr_id - kReceive == received_ && completion.byte_len == kBytes);
    const uint8_t* const at = shard_.data() + (kOpen + received_ % kOpen) * kBytes;
    const auto is_sent = [this](uint8_t byte) { return byte == static_cast<uint8_t>(received_); };
    BATON_CHECK(std::all_of(at, at + kBytes, is_sent));
    ++received_;
  }
}

void HonestClient::Check() {
  for (int turn = 0; sent_ < posted_ || received_ < posted_; ++turn) {
    BATON_CHECK(turn < kMaxTurns);
    nic_->Progress();
    Take();
  }
  BATON_CHECK(driver_[0].state() == verbs::QueuePairState::kReadyToSend);
  const uint8_t* const data = shard_.data();
  BATON_CHECK(std::all_of(data + 2 * kOpen * kBytes, data + kDataBytes,
                          [](uint8_t byte) { return byte == kUntouched; }));
}

}  // namespace baton::fuzz

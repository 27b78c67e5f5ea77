#include "tests/fuzz/honest_traffic.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/check.h"

namespace baton::fuzz {
namespace {

constexpr uint64_t kOpen = 4;  // messages that are sent and not checked; their buffers take turns
constexpr uint32_t kBytes = 64;
constexpr uint64_t kReceive = uint64_t{1} << 32;  // added to a message's number in its receive
constexpr uint8_t kUntouched = 0x5c;              // what lies behind the buffers
constexpr int kMaxTurns = 10'000;

}  // namespace

HonestTraffic::HonestTraffic(Parts parts) : parts_(std::move(parts)) {
  std::memset(parts_.data, kUntouched, kDataBytes);
}

// The first kOpen buffers are sent from, the next ones received to.
void HonestTraffic::Send() {
  if (posted_ - received_ == kOpen || posted_ - sent_ == kOpen) Check();
  uint8_t* const from = parts_.data + posted_ % kOpen * kBytes;
  uint8_t* const to = from + kOpen * kBytes;
  std::memset(from, static_cast<uint8_t>(posted_), kBytes);
  std::memset(to, kUntouched, kBytes);
  const verbs::ScatterGather receive_at = SgeOf(to);
  verbs::ReceiveRequest receive;
  receive.wr_id = kReceive + posted_;
  receive.sges = {&receive_at, 1};
  size_t done = 0;
  BATON_CHECK(parts_.receiver->PostReceive({&receive, 1}, &done).ok() && done == 1);
  const verbs::ScatterGather send_from = SgeOf(from);
  verbs::SendRequest send;
  send.opcode = verbs::Opcode::kSend;
  send.wr_id = posted_;
  send.sges = {&send_from, 1};
  BATON_CHECK(parts_.sender->PostSend({&send, 1}, &done).ok() && done == 1);
  ++posted_;
}

void HonestTraffic::Take() {
  for (;;) {
    verbs::Completion completion;
    completion.wr_id = 0;
    const absl::StatusOr<size_t> taken = parts_.queue->Take({&completion, 1});
    BATON_CHECK(taken.ok());
    if (*taken == 0) return;
    BATON_CHECK(completion.status == verbs::CompletionStatus::kSuccess);
    if (completion.wr_id < kReceive) {
      BATON_CHECK(completion.wr_id == sent_++);
      continue;
    }
    BATON_CHECK(completion.wr_id - kReceive == received_ && completion.byte_len == kBytes);
    const uint8_t* const at = parts_.data + (kOpen + received_ % kOpen) * kBytes;
    const auto is_sent = [this](uint8_t byte) { return byte == static_cast<uint8_t>(received_); };
    BATON_CHECK(std::all_of(at, at + kBytes, is_sent));
    ++received_;
  }
}

void HonestTraffic::Check() {
  for (int turn = 0; sent_ < posted_ || received_ < posted_; ++turn) {
    BATON_CHECK(turn < kMaxTurns);
    parts_.turn();
    Take();
  }
  BATON_CHECK(parts_.sender->state() == verbs::QueuePairState::kReadyToSend);
  const uint8_t* const data = parts_.data;
  BATON_CHECK(std::all_of(data + 2 * kOpen * kBytes, data + kDataBytes,
                          [](uint8_t byte) { return byte == kUntouched; }));
}

verbs::ScatterGather HonestTraffic::SgeOf(const uint8_t* at) const {
  return {parts_.address + static_cast<uint64_t>(at - parts_.data), kBytes, parts_.key};
}

}  // namespace baton::fuzz

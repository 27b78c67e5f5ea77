#include "tests/bench/owner_peer.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "tests/harness/quantile.h"

namespace baton::bench {
namespace {

constexpr uint64_t kPatienceNs = 10'000'000'000;

}  // namespace

absl::StatusOr<std::unique_ptr<OwnerPeer>> OwnerPeer::Connect(
    std::unique_ptr<verbs::Device> device, uint16_t port,
    const std::function<absl::Status()>& give_up) {
  std::unique_ptr<OwnerPeer> peer(new OwnerPeer(std::move(device)));
  BATON_ASSIGN_OR_RETURN(peer->queues_, EchoQueues::Make(peer->device_.get()));
  BATON_ASSIGN_OR_RETURN(
      peer->id_, peer->device_->Connect({"127.0.0.1", port}, peer->queues_->queue_pair(), {}));
  const uint64_t deadline = MonotonicNanoseconds() + kPatienceNs;
  while (MonotonicNanoseconds() < deadline) {
    BATON_RETURN_IF_ERROR(give_up());
    peer->device_->Progress();
    verbs::CmEvent event;
    if (!peer->device_->NextEvent(&event)) continue;
    if (event.type == verbs::CmEventType::kEstablished) return peer;
    return absl::UnavailableError(absl::StrCat("not established: ", event.status.message()));
  }
  return absl::DeadlineExceededError("not established in time");
}

// The message begins with its number.
void OwnerPeer::Ask() {
  const auto place = static_cast<uint32_t>(sent_ % EchoQueues::kReceiveBuffers);
  const uint32_t buffer = EchoQueues::kReceiveBuffers + place;
  std::memcpy(queues_->buffer(buffer), &sent_, sizeof(sent_));
  sent_ns_[place] = MonotonicNanoseconds();
  ++sent_;
  queues_->Send(buffer);
}

absl::Status OwnerPeer::TakeAnswer(const verbs::Completion& receive, uint64_t now) {
  uint64_t number = 0;
  std::memcpy(&number, queues_->buffer(EchoQueues::BufferOf(receive)), sizeof(number));
  if (receive.byte_len != kEchoBytes || number != received_) {
    return absl::InternalError(absl::StrCat("answer ", received_, " is wrong: it has ",
                                            receive.byte_len, " bytes and number ", number));
  }
  const uint64_t took = now - sent_ns_[received_ % EchoQueues::kReceiveBuffers];
  took_ns_.push_back(static_cast<uint32_t>(std::min<uint64_t>(took, UINT32_MAX)));
  ++received_;
  queues_->Receive();
  return absl::OkStatus();
}

absl::StatusOr<Exchanged> OwnerPeer::Exchange(uint32_t count, uint32_t window, uint64_t pause_ns,
                                              const std::function<void()>& turn) {
  took_ns_.clear();
  took_ns_.reserve(count);
  slices_ns_.clear();
  const uint64_t first = sent_;
  const uint64_t last = sent_ + count;
  const uint64_t began = MonotonicNanoseconds();
  uint64_t heard = began, slice_began = began, slice_end = first + Exchanged::kSlice;
  for (uint32_t i = 0; i < std::min(window, count); ++i) Ask();
  BATON_RETURN_IF_ERROR(queues_->Flush());
  while (received_ < last) {
    turn();
    BATON_ASSIGN_OR_RETURN(const absl::Span<const verbs::Completion> taken, queues_->Poll());
    const uint64_t now = MonotonicNanoseconds();
    if (taken.empty()) {
      if (now - heard < kPatienceNs) continue;
      return absl::DeadlineExceededError(
          absl::StrCat("the owner has not answered message ", received_, " within 10 s"));
    }
    heard = now;
    for (const verbs::Completion& one : taken) {
      if (one.opcode != verbs::CompletionOpcode::kReceive) continue;
      BATON_RETURN_IF_ERROR(TakeAnswer(one, now));
      while (pause_ns > 0 && MonotonicNanoseconds() - now < pause_ns) turn();
      if (sent_ < last) Ask();
    }
    BATON_RETURN_IF_ERROR(queues_->Flush());
    if (received_ >= slice_end) {
      slices_ns_.push_back((now - slice_began) * Exchanged::kSlice /
                           (received_ - slice_end + Exchanged::kSlice));
      slice_began = now;
      slice_end = received_ + Exchanged::kSlice;
    }
  }
  return Summarize(MonotonicNanoseconds() - began);
}

absl::StatusOr<Exchanged> OwnerPeer::Summarize(uint64_t all_ns) {
  if (took_ns_.empty()) return absl::InternalError("no message was sent");
  Exchanged exchanged;
  exchanged.p50_us = *Quantile(took_ns_, 0.5) * 1e-3;
  exchanged.p99_us = *Quantile(took_ns_, 0.99) * 1e-3;
  const std::optional<uint64_t> slice_ns = Quantile(slices_ns_, 0.5);
  exchanged.per_second =
      slice_ns.has_value()
          ? Exchanged::kSlice * 1e9 / static_cast<double>(*slice_ns)
          : static_cast<double>(took_ns_.size()) * 1e9 / static_cast<double>(all_ns);
  return exchanged;
}

}  // namespace baton::bench

#include "tests/bench/bench_server.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/harness/quantile.h"

namespace baton::bench {

BenchServer::BenchServer(uint8_t* slab, Queue* queue, std::function<uint64_t()> nanoseconds)
    : slab_(slab),
      queue_(queue),
      nanoseconds_(std::move(nanoseconds)),
      released_ns_(kMaxRemoteWindow) {
  took_ns_.reserve(kMaxRemotes);
}

absl::Status BenchServer::Start() {
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    BATON_RETURN_IF_ERROR(
        queue_->Receive(slot, kReceiveOffset + slot * sizeof(Message), sizeof(Message)));
  }
  return absl::OkStatus();
}

absl::Status BenchServer::OnReceived(uint32_t slot) {
  const size_t offset = kReceiveOffset + slot * sizeof(Message);
  Message request;
  std::memcpy(&request, slab_ + offset, sizeof(request));
  // First, so that it is there when the client gets the reply.
  BATON_RETURN_IF_ERROR(queue_->Receive(slot, offset, sizeof(Message)));
  resting_ = Op(request.op) == Op::kRest;
  switch (Op(request.op)) {
    case Op::kEcho:
    case Op::kRest:
      return Reply(request);
    case Op::kWrite:
    case Op::kRead:
    case Op::kFetchAdd:
      return BeginRemote(request);
  }
  request.failed = 1;
  return Reply(request);
}

absl::Status BenchServer::OnSent() {
  --unsent_;
  return absl::OkStatus();
}

absl::Status BenchServer::Reply(const Message& reply) {
  if (unsent_ == kSlots) {
    return absl::ResourceExhaustedError(absl::StrCat("a client has more than ", kMaxEchoWindow,
                                                     " requests open: there is no room to reply"));
  }
  const size_t offset = kSendOffset + replies_ % kSlots * sizeof(Message);
  std::memcpy(slab_ + offset, &reply, sizeof(reply));
  ++replies_;
  ++unsent_;
  return queue_->Send(offset, sizeof(Message));
}

absl::Status BenchServer::BeginRemote(const Message& request) {
  const bool is_atomic = Op(request.op) == Op::kFetchAdd;
  const bool possible = request.size >= 1 && request.size <= kMaxRemoteBytes &&
                        (!is_atomic || request.size == kAtomicBytes) && request.count >= 1 &&
                        request.count <= kMaxRemotes && request.window >= 1 &&
                        request.window <= kMaxRemoteWindow && done_ == released_;
  if (!possible) {
    Message reply = request;
    reply.failed = 1;
    return Reply(reply);
  }
  job_ = request;
  released_ = done_ = 0;
  took_ns_.clear();
  const int filler = Op(request.op) == Op::kWrite ? static_cast<int>(request.sequence & 0xff) : 0;
  std::memset(slab_ + kPayloadOffset, filler, request.size);
  job_began_ns_ = nanoseconds_();
  while (released_ < std::min(job_.window, job_.count)) BATON_RETURN_IF_ERROR(ReleaseOne());
  return absl::OkStatus();
}

absl::Status BenchServer::ReleaseOne() {
  released_ns_[released_ % kMaxRemoteWindow] = nanoseconds_();
  ++released_;
  return queue_->Remote(Op(job_.op), kPayloadOffset, job_.size, job_.remote_address, job_.rkey);
}

absl::Status BenchServer::OnRemoteDone() {
  if (done_ == released_) {
    return absl::InternalError("a write, read or atomic completed that was not released");
  }
  const uint64_t took = nanoseconds_() - released_ns_[done_ % kMaxRemoteWindow];
  took_ns_.push_back(static_cast<uint32_t>(std::min<uint64_t>(took, UINT32_MAX)));
  ++done_;
  if (released_ < job_.count) return ReleaseOne();
  return done_ == job_.count ? EndRemote() : absl::OkStatus();
}

absl::Status BenchServer::EndRemote() {
  if (took_ns_.empty()) return absl::InternalError("a job ended of which nothing was timed");
  Message reply = job_;
  reply.total_ns = nanoseconds_() - job_began_ns_;
  reply.p50_ns = *Quantile(took_ns_, 0.5);
  reply.p99_ns = *Quantile(took_ns_, 0.99);
  reply.p999_ns = *Quantile(took_ns_, 0.999);
  reply.last_byte = slab_[kPayloadOffset + job_.size - 1];
  return Reply(reply);
}

}  // namespace baton::bench

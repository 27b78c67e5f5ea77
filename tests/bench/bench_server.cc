#include "tests/bench/bench_server.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "tests/bench/quantile.h"

namespace baton::bench {

BenchServer::BenchServer(uint8_t* slab, Queue* queue, std::function<uint64_t()> nanoseconds)
    : slab_(slab),
      queue_(queue),
      nanoseconds_(std::move(nanoseconds)),
      released_ns_(kMaxWriteWindow) {
  took_ns_.reserve(kMaxWrites);
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
      return BeginWrites(request);
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

absl::Status BenchServer::BeginWrites(const Message& request) {
  const bool possible = request.size >= 1 && request.size <= kMaxWriteBytes && request.count >= 1 &&
                        request.count <= kMaxWrites && request.window >= 1 &&
                        request.window <= kMaxWriteWindow && written_ == released_;
  if (!possible) {
    Message reply = request;
    reply.failed = 1;
    return Reply(reply);
  }
  job_ = request;
  released_ = written_ = 0;
  took_ns_.clear();
  std::memset(slab_ + kPayloadOffset, static_cast<int>(request.sequence & 0xff), request.size);
  job_began_ns_ = nanoseconds_();
  while (released_ < std::min(job_.window, job_.count)) BATON_RETURN_IF_ERROR(WriteOne());
  return absl::OkStatus();
}

absl::Status BenchServer::WriteOne() {
  released_ns_[released_ % kMaxWriteWindow] = nanoseconds_();
  ++released_;
  return queue_->Write(kPayloadOffset, job_.size, job_.remote_address, job_.rkey);
}

absl::Status BenchServer::OnWritten() {
  if (written_ == released_) return absl::InternalError("a write completed that was not released");
  const uint64_t took = nanoseconds_() - released_ns_[written_ % kMaxWriteWindow];
  took_ns_.push_back(static_cast<uint32_t>(std::min<uint64_t>(took, UINT32_MAX)));
  ++written_;
  if (released_ < job_.count) return WriteOne();
  return written_ == job_.count ? EndWrites() : absl::OkStatus();
}

absl::Status BenchServer::EndWrites() {
  Message reply = job_;
  reply.total_ns = nanoseconds_() - job_began_ns_;
  reply.p50_ns = Quantile(took_ns_, 0.5);
  reply.p99_ns = Quantile(took_ns_, 0.99);
  return Reply(reply);
}

}  // namespace baton::bench

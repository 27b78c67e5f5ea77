#include "tests/bench/side.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace baton::bench {

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& host, uint16_t port) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<RawConnection> connection,
                         RawConnection::Connect(host, port));
  return std::unique_ptr<Client>(new Client(std::move(connection)));
}

absl::Status Client::Stage(Message request) {
  request.sequence = sent_;
  const size_t offset = kSendOffset + sent_ % kSlots * sizeof(Message);
  std::memcpy(connection_->slab() + offset, &request, sizeof(request));
  sent_ns_[sent_ % kSlots] = MonotonicNanoseconds();
  ++sent_;
  return connection_->Send(offset, sizeof(Message));
}

// Into last_; the receive is staged again.
absl::Status Client::TakeReply(const ibv_wc& done) {
  const auto slot = static_cast<uint32_t>(done.wr_id);
  const size_t offset = kReceiveOffset + slot * sizeof(Message);
  std::memcpy(&last_, connection_->slab() + offset, sizeof(last_));
  if (done.byte_len != sizeof(Message) || last_.sequence != received_ || last_.failed != 0) {
    return absl::InternalError(absl::StrCat("reply ", received_, " is wrong: sequence number ",
                                            last_.sequence, ", failed: ", last_.failed));
  }
  ++received_;
  return connection_->Receive(slot, offset, sizeof(Message));
}

absl::StatusOr<Timing> Client::Echo(uint32_t count, uint32_t window) {
  if (window == 0 || window > kMaxEchoWindow) return absl::InvalidArgumentError("window");
  Message request;
  request.op = static_cast<uint32_t>(Op::kEcho);
  took_ns_.clear();
  took_ns_.reserve(count);
  const uint64_t last = sent_ + count;
  const uint64_t began = MonotonicNanoseconds();
  for (uint32_t i = 0; i < std::min(window, count); ++i) BATON_RETURN_IF_ERROR(Stage(request));
  BATON_RETURN_IF_ERROR(connection_->Flush());
  while (received_ < last) {
    BATON_ASSIGN_OR_RETURN(const absl::Span<const ibv_wc> taken, connection_->Poll());
    if (taken.empty()) {
      sched_yield();
      continue;
    }
    const uint64_t now = MonotonicNanoseconds();
    for (const ibv_wc& done : taken) {
      if (done.opcode != IBV_WC_RECV) continue;
      const uint64_t took = now - sent_ns_[received_ % kSlots];
      took_ns_.push_back(static_cast<uint32_t>(std::min<uint64_t>(took, UINT32_MAX)));
      BATON_RETURN_IF_ERROR(TakeReply(done));
      if (sent_ < last) BATON_RETURN_IF_ERROR(Stage(request));
    }
    BATON_RETURN_IF_ERROR(connection_->Flush());
  }
  return TimingOf(MonotonicNanoseconds() - began, took_ns_);
}

// The reply to the one request that is open.
absl::StatusOr<Message> Client::Await() {
  BATON_RETURN_IF_ERROR(connection_->Flush());
  while (received_ < sent_) {
    BATON_ASSIGN_OR_RETURN(const absl::Span<const ibv_wc> taken, connection_->Await());
    for (const ibv_wc& done : taken) {
      if (done.opcode == IBV_WC_RECV) BATON_RETURN_IF_ERROR(TakeReply(done));
    }
    BATON_RETURN_IF_ERROR(connection_->Flush());
  }
  return last_;
}

absl::StatusOr<Timing> Client::Remote(Op op, uint32_t count, uint32_t window, uint32_t size) {
  Message request;
  request.op = static_cast<uint32_t>(op);
  request.count = count;
  request.window = window;
  request.size = size;
  request.remote_address = connection_->payload_address();
  request.rkey = connection_->rkey();
  request.sequence = sent_;  // as Stage sets it
  uint8_t* const payload = connection_->slab() + kPayloadOffset;
  std::memset(payload, op == Op::kRead ? static_cast<int>(sent_ & 0x7f) + 1 : 0, size);
  BATON_RETURN_IF_ERROR(Stage(request));
  BATON_ASSIGN_OR_RETURN(const Message reply, Await());
  BATON_RETURN_IF_ERROR(CheckRemote(request, reply));
  return Timing{static_cast<double>(reply.total_ns) * 1e-9, reply.p50_ns * 1e-3,
                reply.p99_ns * 1e-3, reply.p999_ns * 1e-3};
}

absl::Status Client::CheckRemote(const Message& request, const Message& reply) const {
  const uint8_t* const payload = connection_->slab() + kPayloadOffset;
  const auto byte = static_cast<uint8_t>(request.sequence & 0xff);
  uint64_t sum = 0;
  switch (Op(request.op)) {
    case Op::kWrite:
      if (payload[0] == byte && payload[request.size - 1] == byte) return absl::OkStatus();
      return absl::InternalError("what was to be written is not there");
    case Op::kRead:
      if (reply.last_byte == (request.sequence & 0x7f) + 1) return absl::OkStatus();
      return absl::InternalError("what was to be read was not");
    default:
      std::memcpy(&sum, payload, sizeof(sum));
      if (sum == request.count) return absl::OkStatus();
      return absl::InternalError(
          absl::StrCat(request.count, " times 1 was to be added, and the sum is ", sum));
  }
}

absl::Status Client::Rest() {
  Message request;
  request.op = static_cast<uint32_t>(Op::kRest);
  BATON_RETURN_IF_ERROR(Stage(request));
  return Await().status();
}

absl::StatusOr<std::unique_ptr<Side>> Side::Start(SideName name, const ServerOptions& options) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Start(name, options));
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options.host, server->port());
  if (!client.ok()) {
    server->DumpLogs();
    return client.status();
  }
  return std::unique_ptr<Side>(new Side(std::move(server), *std::move(client)));
}

}  // namespace baton::bench

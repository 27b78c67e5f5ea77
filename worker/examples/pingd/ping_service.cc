#include "worker/examples/pingd/ping_service.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/end_text.h"

namespace baton::pingd {
namespace {

// A client has one message on the way. The second receive is for a client that sends out of turn.
constexpr uint32_t kReceives = 2;
// The last message's completion may be outstanding when the WRITE or READ after it is staged. The
// rest is room for completions that were not acknowledged.
constexpr uint32_t kMinQueueDepth = 4;
// Slabs begin on cache lines.
constexpr uint64_t kSlabAlignment = 64;

// Names of a step's crash points, which depend on the completion and the phase.
struct StepPoints {
  const char* begin;   // nothing was done
  const char* staged;  // the work requests are staged
  const char* end;     // the state is staged, too: all but the commit
};

[[maybe_unused]] StepPoints PointsOf(const Completion& completion, Phase phase) {
  if (completion.kind == Completion::Kind::kReceive) {
    if (phase == Phase::kAwaitSource) {
      return {"pingd-source-begin", "pingd-source-staged", "pingd-source-end"};
    }
    if (phase == Phase::kAwaitSink) {
      return {"pingd-sink-begin", "pingd-sink-staged", "pingd-sink-end"};
    }
    return {"pingd-message-begin", "pingd-message-staged", "pingd-message-end"};
  }
  if (completion.opcode == verbs::CompletionOpcode::kRead) {
    return {"pingd-read-begin", "pingd-read-staged", "pingd-read-end"};
  }
  if (completion.opcode == verbs::CompletionOpcode::kWrite) {
    return {"pingd-written-begin", "pingd-written-staged", "pingd-written-end"};
  }
  return {"pingd-sent-begin", "pingd-sent-staged", "pingd-sent-end"};
}

}  // namespace

absl::Status PingService::Fit(const Worker& worker) {
  const Capacity& capacity = worker.capacity();
  shared_slots_ = uint64_t{2} * capacity.shared_receive_queue_depth;
  const uint32_t receives = shared_slots_ != 0 ? kMinQueueDepth : capacity.receive_queue_depth;
  if (std::min(capacity.send_queue_depth, receives) < kMinQueueDepth) {
    return absl::InvalidArgumentError(absl::StrCat("queues of ", capacity.send_queue_depth,
                                                   " sends and ", capacity.receive_queue_depth,
                                                   " receives: raise the service's "
                                                   "send_queue_depth and receive_queue_depth to ",
                                                   kMinQueueDepth));
  }
  if (capacity.connection_state_bytes < sizeof(PositionState)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the service keeps ", capacity.connection_state_bytes,
        " bytes of state per connection: raise connection_state_bytes to ", sizeof(PositionState)));
  }
  receive_ring_ = shared_slots_ != 0 ? 0 : uint64_t{2} * capacity.receive_queue_depth;
  message_ring_ = uint64_t{2} * capacity.send_queue_depth;
  const uint64_t messages = (receive_ring_ + message_ring_) * kMessageBytes;
  const auto aligned = [](uint64_t bytes) {
    return (bytes + kSlabAlignment - 1) / kSlabAlignment * kSlabAlignment;
  };
  shared_bytes_ = aligned(capacity.shards * shared_slots_ * kMessageBytes);
  const uint64_t rest = worker.buffers().size() - std::min(shared_bytes_, worker.buffers().size());
  slab_bytes_ = rest / capacity.connections / kSlabAlignment * kSlabAlignment;
  const uint64_t needed = aligned(messages + options_.max_data_bytes);
  if (slab_bytes_ < needed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the service's ", worker.buffers().size(), " bytes of buffers are too few for ",
        capacity.connections, " connections with ", options_.max_data_bytes,
        " bytes of data: raise buffer_bytes to ", shared_bytes_ + needed * capacity.connections,
        ", or lower max_connections or --max-size"));
  }
  return absl::OkStatus();
}

uint64_t PingService::SharedOffset(const Shard& shard, uint64_t slot) const {
  return (shard.index() * shared_slots_ + slot) * kMessageBytes;
}

uint64_t PingService::SlabOffset(const Connection& connection) const {
  return shared_bytes_ + connection.index() * slab_bytes_;
}

uint64_t PingService::ReceiveOffset(const Connection& connection, uint64_t sequence) const {
  if (shared_slots_ != 0) return SharedOffset(connection.shard(), sequence);
  return SlabOffset(connection) + sequence % receive_ring_ * kMessageBytes;
}

uint64_t PingService::MessageOffset(const Connection& connection, uint64_t sequence) const {
  return SlabOffset(connection) + (receive_ring_ + sequence % message_ring_) * kMessageBytes;
}

uint64_t PingService::DataOffset(const Connection& connection) const {
  return SlabOffset(connection) + (receive_ring_ + message_ring_) * kMessageBytes;
}

absl::Status PingService::OnAdopt(Shard& shard) { return PostShared(shard); }

void PingService::OnCompletion(Shard& shard, const Completion& completion) {
  Connection& connection = *completion.connection;
  switch (completion.kind) {
    case Completion::Kind::kConnectRequest:
      OnConnectRequest(shard, connection);
      break;
    case Completion::Kind::kReceive:
    case Completion::Kind::kSend:
      // An error ends the connection by itself: its kDisconnected follows.
      if (completion.status == verbs::CompletionStatus::kSuccess) {
        const absl::Status status = Step(shard, completion);
        if (!status.ok()) Drop(shard, connection, status);
      } else if (completion.status != verbs::CompletionStatus::kFlushError) {
        spdlog::error("connection {} of {}: request {} failed: {}", connection.index(),
                      std::string(connection.peer_address()), completion.sequence,
                      std::string(verbs::CompletionStatusName(completion.status)));
      }
      // A shared receive is posted again whatever became of its connection.
      if (completion.kind == Completion::Kind::kReceive) (void)PostShared(shard);
      break;
    case Completion::Kind::kEstablished:
      break;
    case Completion::Kind::kDisconnected:
    case Completion::Kind::kConnectFailed: {
      const auto position = PingPosition::Load(connection.state(), connection.state_version());
      spdlog::info("connection {} of {} ended after {} messages: {}", connection.index(),
                   std::string(connection.peer_address()), position.ok() ? position->messages() : 0,
                   std::string(examples::EndText(completion)));
      break;
    }
  }
}

void PingService::OnConnectRequest(Shard& shard, Connection& connection) {
  BATON_CRASH_POINT("pingd-accept-begin");
  const absl::Status status = Accept(shard, connection);
  if (!status.ok()) {
    shard.Abandon();
    spdlog::error("connection {} of {} is refused: {}", connection.index(),
                  std::string(connection.peer_address()), std::string(status.message()));
    const absl::Status rejected = shard.Reject(connection, MessageOf(status).substr(0, 100));
    if (!rejected.ok()) Drop(shard, connection, rejected);
  }
  BATON_CRASH_POINT("pingd-accept-end");
}

absl::Status PingService::Accept(Shard& shard, Connection& connection) {
  BATON_RETURN_IF_ERROR(shard.Accept(connection));
  for (uint32_t i = 0; shared_slots_ == 0 && i < kReceives; ++i) {
    BATON_RETURN_IF_ERROR(PostReceive(shard, connection));
  }
  return shard.SetState(connection, PingPosition::Begin(options_.protocol).Save(),
                        kPositionStateVersion);
}

absl::Status PingService::PostReceive(Shard& shard, Connection& connection) {
  const Buffer buffer{ReceiveOffset(connection, connection.next_receive()), kMessageBytes};
  return shard.Receive(connection, {&buffer, 1});
}

absl::Status PingService::PostShared(Shard& shard) {
  while (shared_slots_ != 0 && shard.shared_receive_room() > 0) {
    const Buffer buffer{SharedOffset(shard, shard.next_shared_receive()), kMessageBytes};
    BATON_RETURN_IF_ERROR(shard.ReceiveShared({&buffer, 1}));
  }
  return absl::OkStatus();
}

absl::Status PingService::Step(Shard& shard, const Completion& completion) {
  Connection& connection = *completion.connection;
  BATON_ASSIGN_OR_RETURN(PingPosition position,
                         PingPosition::Load(connection.state(), connection.state_version()));
  if (position.phase() == Phase::kEnding) return absl::OkStatus();
  [[maybe_unused]] const StepPoints points = PointsOf(completion, position.phase());
  BATON_CRASH_POINT(points.begin);
  BATON_ASSIGN_OR_RETURN(const Action action, Advance(shard, completion, position));
  if (completion.kind == Completion::Kind::kReceive && shared_slots_ == 0) {
    BATON_RETURN_IF_ERROR(PostReceive(shard, connection));
  }
  BATON_RETURN_IF_ERROR(Stage(shard, connection, position, action));
  BATON_CRASH_POINT(points.staged);
  if (action.kind != Action::Kind::kNone) {
    BATON_RETURN_IF_ERROR(shard.SetState(connection, position.Save(), kPositionStateVersion));
  }
  BATON_CRASH_POINT(points.end);
  return absl::OkStatus();  // and the library commits
}

absl::StatusOr<Action> PingService::Advance(Shard& shard, const Completion& completion,
                                            PingPosition& position) {
  Connection& connection = *completion.connection;
  const uint8_t* buffers = shard.worker().buffers().data();
  if (completion.kind == Completion::Kind::kReceive) {
    // Judges a copy, which nobody can change meanwhile.
    uint8_t message[kMessageBytes];
    std::memcpy(message, buffers + ReceiveOffset(connection, completion.sequence), sizeof(message));
    return position.OnMessage({message, std::min(completion.byte_len, kMessageBytes)},
                              options_.max_data_bytes);
  }
  switch (completion.opcode) {
    case verbs::CompletionOpcode::kRead:
      return position.OnRead({buffers + DataOffset(connection), position.data_bytes()});
    case verbs::CompletionOpcode::kWrite:
      return position.OnWritten();
    default:
      return position.OnSent();
  }
}

absl::Status PingService::Stage(Shard& shard, Connection& connection, const PingPosition& position,
                                const Action& action) {
  Buffer buffer{DataOffset(connection), action.remote.size};
  SendWork work;
  switch (action.kind) {
    case Action::Kind::kNone:
      return absl::OkStatus();
    case Action::Kind::kDisconnect:
      return shard.Disconnect(connection);
    case Action::Kind::kRead:
    case Action::Kind::kWrite:
      work.opcode =
          action.kind == Action::Kind::kRead ? verbs::Opcode::kRead : verbs::Opcode::kWrite;
      work.remote_address = action.remote.address;
      work.rkey = action.remote.rkey;
      break;
    case Action::Kind::kSend: {
      const ServerMessage message{position.messages(), options_.version, 0};
      buffer = {MessageOffset(connection, connection.next_send()), kMessageBytes};
      std::memcpy(shard.worker().buffers().data() + buffer.offset, &message, sizeof(message));
      break;
    }
  }
  work.buffers = {&buffer, 1};
  return StageSend(shard, connection, work, position);
}

#ifdef BATON_TEST_HOOKS
absl::Status PingService::StageSend(Shard& shard, Connection& connection, const SendWork& work,
                                    const PingPosition& position) {
  const bool message = work.opcode == verbs::Opcode::kSend;
  const std::string name = message                               ? "message"
                           : work.opcode == verbs::Opcode::kRead ? "read"
                                                                 : "write";
  // A transfer counts as part of the message after it.
  const bool now = position.messages() + (message ? 0 : 1) == options_.fault_at;
  SendWork made = work;
  if (now && options_.fault == "lose-" + name) made.buffers = {};  // transfers nothing
  BATON_RETURN_IF_ERROR(shard.Send(connection, made));
  if (now && options_.fault == "repeat-" + name) return shard.Send(connection, made);
  return absl::OkStatus();
}
#else
absl::Status PingService::StageSend(Shard& shard, Connection& connection, const SendWork& work,
                                    const PingPosition&) {
  return shard.Send(connection, work);
}
#endif

void PingService::Drop(Shard& shard, Connection& connection, const absl::Status& why) {
  spdlog::error("connection {} of {} is disconnected: {}", connection.index(),
                std::string(connection.peer_address()), std::string(why.message()));
  shard.Abandon();  // drops what the step has staged
  absl::Status status = shard.Disconnect(connection);
  if (auto position = PingPosition::Load(connection.state(), connection.state_version());
      status.ok() && position.ok()) {
    position->End();
    status = shard.SetState(connection, position->Save(), kPositionStateVersion);
  }
  if (!status.ok()) {
    spdlog::error("connection {}: disconnecting failed: {}", connection.index(),
                  std::string(status.message()));
  }
}

void PingService::OnLost(Shard& shard) { spdlog::warn("shard {} was taken away", shard.index()); }

void PingService::OnShutdown(std::string_view reason) {
  spdlog::info("asked to end: {}", std::string(reason));
}

}  // namespace baton::pingd

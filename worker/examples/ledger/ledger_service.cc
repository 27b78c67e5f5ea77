#include "worker/examples/ledger/ledger_service.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/end_text.h"

namespace baton::ledger {

absl::Status LedgerService::Validate(const LedgerServiceOptions& options) {
  if (options.message_bytes < kMinMessageBytes || options.message_bytes > kMaxMessageBytes ||
      options.message_bytes % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("message size ", options.message_bytes,
                                                   ": choose a multiple of 8 from ",
                                                   kMinMessageBytes, " to ", kMaxMessageBytes));
  }
  if (options.window == 0) return absl::InvalidArgumentError("window 0: choose 1 or more");
  return absl::OkStatus();
}

absl::Status LedgerService::Fit(const Capacity& capacity) {
  // Each request in the window may need a place in the send queue for its reply.
  const bool shared = capacity.shared_receive_queue_depth != 0;
  const uint32_t depth = shared ? capacity.send_queue_depth
                                : std::min(capacity.send_queue_depth, capacity.receive_queue_depth);
  if (options_.window > depth) {
    return absl::InvalidArgumentError(absl::StrCat(
        "window ", options_.window, ": choose 1 to ", depth,
        ", the service's queue depth, or raise its send_queue_depth and receive_queue_depth"));
  }
  shared_slots_ = uint64_t{2} * capacity.shared_receive_queue_depth;
  shared_bytes_ = capacity.shards * shared_slots_ * options_.message_bytes;
  request_ring_ = uint64_t{2} * capacity.receive_queue_depth;
  reply_ring_ = uint64_t{2} * capacity.send_queue_depth;
  return absl::OkStatus();
}

uint64_t LedgerService::SlabBytes() const {
  return request_ring_ * options_.message_bytes + reply_ring_ * kReplyBytes;
}

uint64_t LedgerService::SlabOffset(uint32_t connection) const {
  return shared_bytes_ + connection * SlabBytes();
}

uint64_t LedgerService::SharedOffset(const Shard& shard, uint64_t slot) const {
  return (shard.index() * shared_slots_ + slot) * options_.message_bytes;
}

uint64_t LedgerService::RequestOffset(const Connection& connection, uint64_t sequence) const {
  if (shared_slots_ != 0) return SharedOffset(connection.shard(), sequence);
  return SlabOffset(connection.index()) + sequence % request_ring_ * options_.message_bytes;
}

uint64_t LedgerService::ReplyOffset(const Connection& connection, uint64_t sequence) const {
  return SlabOffset(connection.index()) + request_ring_ * options_.message_bytes +
         sequence % reply_ring_ * kReplyBytes;
}

LedgerService::Peer& LedgerService::PeerOf(Connection& connection) {
  const size_t index = connection.index();
  if (index >= peers_.size()) peers_.resize(index + 1);
  if (peers_[index] == nullptr) peers_[index] = std::make_unique<Peer>();
  return *peers_[index];
}

LedgerService::Peer& LedgerService::NewPeer(const Shard& shard, Connection& connection) {
  Peer& peer = PeerOf(connection);
  peer = Peer();
  peer.adoption = adoptions_[shard.index()];
  return peer;
}

absl::StatusOr<LedgerAccount> LedgerService::Load(const Connection& connection) const {
  const uint32_t version = connection.state_version();
  const bool declared =
      options_.reads_state_version_min <= version && version <= options_.reads_state_version_max;
  return LedgerAccount::Load(connection.state(), declared ? kAccountStateVersion : version);
}

absl::Status LedgerService::OnAdopt(Shard& shard) {
  if (shard.index() >= adoptions_.size()) adoptions_.resize(shard.index() + 1);
  adoptions_[shard.index()] = ++last_adoption_;
  return shared_slots_ == 0 ? absl::OkStatus() : PostShared(shard);
}

void LedgerService::OnCompletion(Shard& shard, const Completion& completion) {
  Connection& connection = *completion.connection;
  switch (completion.kind) {
    case Completion::Kind::kConnectRequest:
      OnConnectRequest(shard, connection);
      break;
    case Completion::Kind::kReceive:
      if (completion.status == verbs::CompletionStatus::kSuccess) OnRequest(shard, completion);
      // Posts a shared receive again also if its connection failed, for the other connections.
      if (shared_slots_ != 0) (void)PostShared(shard);
      break;
    case Completion::Kind::kSend:
      if (completion.status != verbs::CompletionStatus::kSuccess &&
          completion.status != verbs::CompletionStatus::kFlushError) {
        spdlog::error("connection {}: reply {} failed: {}", connection.index(), completion.sequence,
                      std::string(verbs::CompletionStatusName(completion.status)));
      }
      break;
    case Completion::Kind::kEstablished:
      break;
    case Completion::Kind::kDisconnected:
    case Completion::Kind::kConnectFailed:
      spdlog::info("connection {} of {} ended: {}", connection.index(),
                   std::string(connection.peer_address()),
                   std::string(examples::EndText(completion)));
      PeerOf(connection) = Peer();
      break;
  }
}

void LedgerService::OnConnectRequest(Shard& shard, Connection& connection) {
  NewPeer(shard, connection);
  const absl::Status status = Accept(shard, connection);
  if (status.ok()) return;
  spdlog::error("connection {} of {} is refused: {}", connection.index(),
                std::string(connection.peer_address()), std::string(status.message()));
  PeerOf(connection).closing = true;
  const absl::Status rejected = shard.Reject(connection, MessageOf(status).substr(0, 100));
  if (!rejected.ok()) Drop(shard, connection, rejected);
}

absl::Status LedgerService::Accept(Shard& shard, Connection& connection) {
  const uint64_t needed = SlabOffset(connection.index() + 1);
  if (needed > shard.worker().buffers().size()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the service's ", shard.worker().buffers().size(), " bytes of buffers, of ",
                     needed, " needed, are too few: raise buffer_bytes"));
  }
  BATON_RETURN_IF_ERROR(shard.Accept(connection));
  for (uint32_t i = 0; shared_slots_ == 0 && i < options_.window; ++i) {
    BATON_RETURN_IF_ERROR(PostReceive(shard, connection));
  }
  BATON_CRASH_POINT("ledger-after-accept");
  return absl::OkStatus();
}

absl::Status LedgerService::PostShared(Shard& shard) {
  if (shared_bytes_ > shard.worker().buffers().size()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the service's ", shard.worker().buffers().size(), " bytes of buffers, of ", shared_bytes_,
        " needed for shared receives, are too few: raise buffer_bytes"));
  }
  while (shard.shared_receive_room() > 0) {
    const Buffer buffer{SharedOffset(shard, shard.next_shared_receive()), options_.message_bytes};
    BATON_RETURN_IF_ERROR(shard.ReceiveShared({&buffer, 1}));
  }
  return absl::OkStatus();
}

absl::Status LedgerService::PostReceive(Shard& shard, Connection& connection) {
  if (shared_slots_ != 0) return PostShared(shard);
  const Buffer buffer{RequestOffset(connection, connection.next_receive()), options_.message_bytes};
  return shard.Receive(connection, {&buffer, 1});
}

void LedgerService::OnRequest(Shard& shard, const Completion& completion) {
  Connection& connection = *completion.connection;
  if (PeerOf(connection).adoption != adoptions_[shard.index()]) {
    Peer& peer = NewPeer(shard, connection);
    const absl::StatusOr<LedgerAccount> account = Load(connection);
    // An account that cannot be read fails its connection, not the shard.
    if (!account.ok()) return Drop(shard, connection, account.status());
    peer.account = *account;
  }
  Peer& peer = PeerOf(connection);
  if (peer.closing) return;
  const absl::Status status = Process(shard, completion, peer);
  if (!status.ok()) Drop(shard, connection, status);
}

absl::Status LedgerService::Process(Shard& shard, const Completion& completion, Peer& peer) {
  Connection& connection = *completion.connection;
  uint8_t* buffers = shard.worker().buffers().data();
  const uint64_t request_offset = RequestOffset(connection, completion.sequence);
  const uint32_t length = std::min(completion.byte_len, options_.message_bytes);

  BATON_CRASH_POINT("ledger-before-apply");
  SufferFrom({buffers + request_offset, length});
  BATON_ASSIGN_OR_RETURN(const Reply reply,
                         peer.account.Apply({buffers + request_offset, length}, options_.version,
                                            ResumePolicy::kRefuse));
  BATON_CRASH_POINT("ledger-after-apply");

  const Buffer buffer{ReplyOffset(connection, connection.next_send()), kReplyBytes};
  std::memcpy(buffers + buffer.offset, &reply, sizeof(reply));
  SendWork work;
  work.buffers = {&buffer, 1};
  // No room means that this peer has more requests open than the window allows. The reply cannot
  // wait, because the end of the batch acknowledges this request.
  BATON_RETURN_IF_ERROR(shard.Send(connection, work));
  BATON_CRASH_POINT("ledger-after-stage");
  BATON_RETURN_IF_ERROR(PostReceive(shard, connection));
  BATON_CRASH_POINT("ledger-before-state");
  BATON_RETURN_IF_ERROR(
      shard.SetState(connection, peer.account.Save(), options_.writes_state_version));
  BATON_CRASH_POINT("ledger-after-state");
  return absl::OkStatus();
}

// Simulates a defect that a message triggers.
void LedgerService::SufferFrom([[maybe_unused]] absl::Span<const uint8_t> message) const {
#ifdef BATON_TEST_HOOKS
  Request request = {};
  std::memcpy(&request, message.data(), std::min(message.size(), sizeof(request)));
  if (request.amount == 0) return;
  if (request.amount == options_.crash_on_amount) raise(SIGKILL);
  while (request.amount == options_.hang_on_amount) pause();
#endif
}

void LedgerService::Drop(Shard& shard, Connection& connection, const absl::Status& why) {
  spdlog::error("connection {} of {} is disconnected: {}", connection.index(),
                std::string(connection.peer_address()), std::string(why.message()));
  PeerOf(connection).closing = true;
  const absl::Status status = shard.Disconnect(connection);
  if (!status.ok()) {
    spdlog::error("connection {}: disconnecting failed: {}", connection.index(),
                  std::string(status.message()));
  }
}

void LedgerService::OnLost(Shard& shard) { spdlog::warn("shard {} was taken away", shard.index()); }

void LedgerService::OnShutdown(std::string_view reason) {
  spdlog::info("asked to end: {}", std::string(reason));
}

}  // namespace baton::ledger

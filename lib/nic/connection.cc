#include "lib/nic/connection.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "lib/nic/listener.h"

namespace baton::verbs::soft {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint8_t kMaxOutstandingReads = 128;

ConnectHead HeadOf(const ConnectionParameters& parameters, uint32_t qp_number) {
  ConnectHead head = {};
  head.magic = kWireMagic;
  head.qp_number = qp_number;
  head.responder_resources = parameters.responder_resources;
  head.initiator_depth = parameters.initiator_depth;
  head.retry_count = parameters.retry_count;
  head.rnr_retry_count = parameters.rnr_retry_count;
  return head;
}

// Head and private data of a management frame; false when they do not fit together.
bool ParseHead(const FrameHeader& header, const uint8_t* body, ConnectHead* head,
               std::string* private_data) {
  std::memcpy(head, body, sizeof(*head));
  if (head->magic != kWireMagic || head->retry_count > 7 || head->rnr_retry_count > 7 ||
      header.length != sizeof(*head) + head->private_data_length) {
    return false;
  }
  private_data->assign(reinterpret_cast<const char*>(body) + sizeof(*head),
                       head->private_data_length);
  return true;
}

}  // namespace

ConnectionCore::~ConnectionCore() = default;

SoftConnection::SoftConnection(ConnectionCore* core) : core_(core), stream_(this) {
  timer_.context = stall_timer_.context = this;
  timer_.fire = [](void* self) { static_cast<SoftConnection*>(self)->OnTimer(); };
  stall_timer_.fire = [](void* self) { static_cast<SoftConnection*>(self)->StallOver(); };
}

SoftConnection::~SoftConnection() {
  if (phase_ == Phase::kRequested) {
    mine_ = HeadOf({}, 0);
    SendHead(FrameType::kReject, "");
    TransmitNow();
  } else if (phase_ == Phase::kEstablished || phase_ == Phase::kAwaitReady) {
    TransmitNow();  // acknowledgements that are due
    if (queue_pair_ != nullptr) queue_pair_->Break();
    SendManagement(FrameType::kDisconnectRequest);
    TransmitNow();
  }
  Close();
  core_->engine->Forget(this);
}

absl::Status SoftConnection::CheckParameters(const ConnectionParameters& parameters, uint32_t limit,
                                             absl::string_view call) const {
  const auto too_large = [call](absl::string_view what, size_t value, size_t maximum) {
    return absl::InvalidArgumentError(
        absl::StrCat(call, ": ", what, " is ", value, ", the limit is ", maximum));
  };
  if (parameters.private_data.size() > limit) {
    return too_large("the size of the private data", parameters.private_data.size(), limit);
  }
  if (parameters.retry_count > 7) return too_large("retry_count", parameters.retry_count, 7);
  if (parameters.rnr_retry_count > 7) {
    return too_large("rnr_retry_count", parameters.rnr_retry_count, 7);
  }
  if (parameters.responder_resources > kMaxOutstandingReads) {
    return too_large("responder_resources", parameters.responder_resources, kMaxOutstandingReads);
  }
  if (parameters.initiator_depth > kMaxOutstandingReads) {
    return too_large("initiator_depth", parameters.initiator_depth, kMaxOutstandingReads);
  }
  return absl::OkStatus();
}

absl::Status SoftConnection::Connect(const Address& address, WireQueuePair* queue_pair,
                                     const ConnectionParameters& parameters) {
  BATON_RETURN_IF_ERROR(CheckParameters(parameters, kMaxConnectPrivateData, "connect"));
  BATON_RETURN_IF_ERROR(queue_pair->Bind(this));
  queue_pair_ = queue_pair;
  mine_ = HeadOf(parameters, queue_pair->number());
  private_data_ = parameters.private_data;
  peer_ = address;
  phase_ = Phase::kConnecting;
  core_->engine->Arm(&timer_, core_->options.connect_timeout_ms * kNsPerMs);
  if (const absl::Status status = StartConnecting(address); !status.ok()) Lose(status);
  return absl::OkStatus();
}

absl::Status SoftConnection::StartConnecting(const Address& address) {
  BATON_ASSIGN_OR_RETURN(const SocketAddress to, ToSocketAddress(address));
  BATON_ASSIGN_OR_RETURN(FileDescriptor socket, OpenSocket(to));
  SetNoDelay(socket.get());
  if (connect(socket.get(), to.get(), to.size) != 0 && errno != EINPROGRESS) {
    return ErrnoStatus(errno, absl::StrCat("connect to ", ToString(address)));
  }
  stream_.Open(std::move(socket));
  interest_ = EPOLLOUT;
  return core_->engine->Watch(stream_.fd(), interest_, this);
}

void SoftConnection::FinishConnecting() {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(stream_.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    Lose(ErrnoStatus(error, absl::StrCat("connect to ", ToString(peer_))));
    return;
  }
  local_ = BoundAddressOf(stream_.fd());
  core_->RouteKnown(this);
  if (!ask_route_) return SendRequest();
  phase_ = Phase::kAwaitRoute;
  UpdateInterest();
}

absl::Status SoftConnection::Proceed(absl::Status may) {
  if (phase_ != Phase::kAwaitRoute) {
    return absl::FailedPreconditionError("proceed: this connection does not ask for its route");
  }
  if (may.ok()) {
    SendRequest();
  } else {
    Lose(std::move(may));
  }
  return absl::OkStatus();
}

void SoftConnection::SendRequest() {
  phase_ = Phase::kAwaitReply;
  SendHead(FrameType::kConnectRequest, std::exchange(private_data_, {}));
  TransmitNow();
}

absl::Status SoftConnection::Adopt(FileDescriptor socket, SoftListener* listener) {
  SetNoDelay(socket.get());
  listener_ = listener;
  stream_.Open(std::move(socket));
  local_ = BoundAddressOf(stream_.fd());
  peer_ = PeerAddressOf(stream_.fd());
  phase_ = Phase::kAwaitRequest;
  interest_ = EPOLLIN;
  BATON_RETURN_IF_ERROR(core_->engine->Watch(stream_.fd(), interest_, this));
  core_->engine->Arm(&timer_, core_->options.handshake_timeout_ms * kNsPerMs);
  return absl::OkStatus();
}

absl::Status SoftConnection::Accept(WireQueuePair* queue_pair,
                                    const ConnectionParameters& parameters) {
  if (phase_ == Phase::kClosed) {
    return absl::UnavailableError(absl::StrCat(ToString(peer_), " has given up its request"));
  }
  if (phase_ != Phase::kRequested) {
    return absl::FailedPreconditionError("accept: this is no open connection request");
  }
  BATON_RETURN_IF_ERROR(CheckParameters(parameters, kMaxAcceptPrivateData, "accept"));
  BATON_RETURN_IF_ERROR(queue_pair->Bind(this));
  queue_pair_ = queue_pair;
  mine_ = HeadOf(parameters, queue_pair->number());
  queue_pair->Activate(Negotiate(theirs_.retry_count));
  phase_ = Phase::kAwaitReady;
  core_->engine->Arm(&timer_, core_->options.handshake_timeout_ms * kNsPerMs);
  SendHead(FrameType::kConnectReply, parameters.private_data);
  TransmitNow();
  return absl::OkStatus();
}

absl::Status SoftConnection::Reject(std::string_view private_data) {
  if (phase_ == Phase::kClosed) {
    return absl::UnavailableError(absl::StrCat(ToString(peer_), " has given up its request"));
  }
  if (phase_ != Phase::kRequested) {
    return absl::FailedPreconditionError("reject: this is no open connection request");
  }
  ConnectionParameters parameters;
  parameters.private_data = std::string(private_data);
  BATON_RETURN_IF_ERROR(CheckParameters(parameters, kMaxRejectPrivateData, "reject"));
  mine_ = HeadOf(parameters, 0);
  SendHead(FrameType::kReject, private_data);
  TransmitNow();
  Close();
  return absl::OkStatus();
}

absl::Status SoftConnection::Disconnect() {
  // The peer was first, and our user has not heard of it yet.
  if (phase_ == Phase::kClosed && disconnected_ && events_queued_ > 0) return absl::OkStatus();
  if (phase_ != Phase::kEstablished && phase_ != Phase::kAwaitReady) {
    return absl::FailedPreconditionError("disconnect: there is no connection");
  }
  TransmitNow();  // acknowledgements that are due
  if (phase_ == Phase::kClosed) return absl::OkStatus();
  if (queue_pair_ != nullptr) {
    queue_pair_->Break();
    stream_.Keep(PayloadSource::kResponse);
    queue_pair_ = nullptr;
  }
  SendManagement(FrameType::kDisconnectRequest);
  phase_ = Phase::kDisconnecting;
  core_->engine->Arm(&timer_, core_->options.disconnect_timeout_ms * kNsPerMs);
  TransmitNow();
  return absl::OkStatus();
}

ReadDepths SoftConnection::depths() const {
  return {std::min(mine_.initiator_depth, theirs_.responder_resources),
          std::min(mine_.responder_resources, theirs_.initiator_depth)};
}

// rdma_cm's rule: rnr_retry_count is the peer's to say.
WireQueuePair::Connection SoftConnection::Negotiate(uint8_t retry_count) {
  WireQueuePair::Connection connection;
  connection.requester.initiator_depth = depths().ours;
  connection.requester.retry_count = retry_count;
  connection.requester.rnr_retry_count = theirs_.rnr_retry_count;
  connection.requester.rnr_timer_us = core_->options.min_rnr_timer_us;
  connection.requester.ack_timeout_ns = core_->options.ack_timeout_ms * kNsPerMs;
  connection.requester.faults = FaultSequence(&core_->options.faults, core_->connections++);
  connection.responder_resources = mine_.responder_resources;
  connection.rnr_timer_us = core_->options.min_rnr_timer_us;
  return connection;
}

void SoftConnection::SendHead(FrameType type, std::string_view private_data) {
  OutFrame frame(type, 0, 0);
  mine_.private_data_length = static_cast<uint8_t>(private_data.size());
  frame.SetBody(mine_);
  frame.payload_size = static_cast<uint32_t>(private_data.size());
  frame.source = PayloadSource::kOwned;
  frame.owned = std::make_unique<uint8_t[]>(private_data.size());
  std::copy(private_data.begin(), private_data.end(), frame.owned.get());
  stream_.Enqueue(std::move(frame));
}

void SoftConnection::SendManagement(FrameType type) { stream_.Enqueue(OutFrame(type, 0, 0)); }

void SoftConnection::Posted() {
  if (stream_.blocked() || stalled_) return;  // goes on by itself when that ends
  if (transmitted_turn_ == core_->engine->turn()) {
    core_->engine->MarkDirty(this);
    return;
  }
  transmitted_turn_ = core_->engine->turn();
  TransmitNow();
}

void SoftConnection::WantTransmit() {
  if (!stream_.blocked()) core_->engine->MarkDirty(this);
}

void SoftConnection::OnTransmit() {
  if (cut_ && phase_ != Phase::kClosed) {
    const linger reset = {1, 0};
    setsockopt(stream_.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    Lose(absl::UnavailableError("link cut by the fault plan"));
    return;
  }
  TransmitNow();
}

void SoftConnection::TransmitNow() {
  if (phase_ == Phase::kClosed || phase_ == Phase::kConnecting || phase_ == Phase::kAwaitRoute) {
    return;
  }
  if (stalled_ || cut_) return;
  const uint64_t before = stream_.bytes_sent();
  if (stream_.Transmit() == StreamState::kBroken) {
    Lose(absl::DataLossError(absl::string_view(stream_.error().data(), stream_.error().size())));
    return;
  }
  if (queue_pair_ != nullptr) queue_pair_->AfterTransmit(stream_.bytes_sent() != before);
  UpdateInterest();
}

void SoftConnection::UpdateInterest() {
  if (!stream_.open()) return;
  const uint32_t wanted = stalled_ ? 0u : EPOLLIN | (stream_.blocked() ? EPOLLOUT : 0u);
  if (wanted == interest_) return;
  if (wanted == 0) {
    core_->engine->Unwatch(stream_.fd());  // an error on a watched socket is always reported
  } else if (interest_ == 0) {
    if (const absl::Status status = core_->engine->Watch(stream_.fd(), wanted, this);
        !status.ok()) {
      Lose(status);
      return;
    }
  } else {
    core_->engine->Rewatch(stream_.fd(), wanted, this);
  }
  interest_ = wanted;
}

void SoftConnection::OnReady(uint32_t events) {
  if (phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kConnecting) {
    FinishConnecting();
    return;
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) {
    const StreamState state = stream_.Receive();
    if (phase_ == Phase::kClosed) return;
    if (state == StreamState::kEnded) {
      Lose(absl::UnavailableError(absl::StrCat(ToString(peer_), " closed the connection")));
      return;
    }
    if (state == StreamState::kBroken) {
      Lose(absl::UnavailableError(
          absl::StrCat(ToString(peer_), ": ",
                       absl::string_view(stream_.error().data(), stream_.error().size()))));
      return;
    }
  }
  if ((events & EPOLLOUT) != 0) {
    stream_.Unblock();
    TransmitNow();
  }
}

void SoftConnection::Stall(uint64_t duration_us) {
  stalled_ = true;
  core_->engine->Arm(&stall_timer_, duration_us * 1000);
}

void SoftConnection::StallOver() {
  stalled_ = false;
  UpdateInterest();
  TransmitNow();
}

bool SoftConnection::NextFrame(OutFrame* frame) {
  if (queue_pair_ == nullptr || stalled_ || cut_) return false;
  if (phase_ != Phase::kEstablished && phase_ != Phase::kAwaitReady) return false;
  return queue_pair_->NextFrame(frame);
}

int SoftConnection::GatherPayload(const OutFrame& frame, uint32_t skip, iovec* iovecs, int max) {
  return queue_pair_ == nullptr ? -1 : queue_pair_->GatherPayload(frame, skip, iovecs, max);
}

int SoftConnection::PayloadTarget(uint32_t done, uint32_t length, iovec* iovecs, int max) {
  if (queue_pair_ == nullptr || phase_ != Phase::kEstablished) return 0;
  return queue_pair_->PayloadTarget(done, length, iovecs, max);
}

bool SoftConnection::OnFrame(const FrameHeader& header, const uint8_t* body) {
  if (header.type < static_cast<uint8_t>(FrameType::kSend)) {
    return OnManagementFrame(header, body);
  }
  if (phase_ == Phase::kDisconnecting) return true;
  if (phase_ != Phase::kEstablished) return false;
  return queue_pair_ == nullptr || queue_pair_->OnFrame(header, body);
}

bool SoftConnection::OnFrameEnd() {
  if (queue_pair_ == nullptr || phase_ != Phase::kEstablished) return true;
  return queue_pair_->OnFrameEnd();
}

bool SoftConnection::OnManagementFrame(const FrameHeader& header, const uint8_t* body) {
  switch (static_cast<FrameType>(header.type)) {
    case FrameType::kConnectRequest:
      return OnRequest(header, body);
    case FrameType::kConnectReply:
      return OnReply(header, body);
    case FrameType::kReject:
      return OnRejected(header, body);
    case FrameType::kReadyToUse:
      if (phase_ != Phase::kAwaitReady) return phase_ == Phase::kDisconnecting;
      core_->engine->Cancel(&timer_);
      phase_ = Phase::kEstablished;
      Report(CmEventType::kEstablished, absl::OkStatus(), "");
      return true;
    case FrameType::kDisconnectRequest:
      return OnDisconnectRequest();
    case FrameType::kDisconnectReply:
      if (phase_ != Phase::kDisconnecting) return false;
      Close();
      Report(CmEventType::kDisconnected, absl::OkStatus(), "");
      return true;
    default:
      return false;
  }
}

bool SoftConnection::OnRequest(const FrameHeader& header, const uint8_t* body) {
  ConnectionEvent event;
  if (phase_ != Phase::kAwaitRequest || !ParseHead(header, body, &theirs_, &event.private_data)) {
    return false;
  }
  core_->engine->Cancel(&timer_);
  phase_ = Phase::kRequested;
  const auto owned = core_->half_open.find(this);
  event.type = CmEventType::kConnectRequest;
  event.listener = listener_;
  event.new_id = std::move(owned->second);
  core_->half_open.erase(owned);
  listener_->RequestQueued();
  core_->PushEvent(std::move(event));
  return true;
}

bool SoftConnection::OnReply(const FrameHeader& header, const uint8_t* body) {
  std::string private_data;
  if (phase_ != Phase::kAwaitReply || !ParseHead(header, body, &theirs_, &private_data)) {
    return false;
  }
  core_->engine->Cancel(&timer_);
  phase_ = Phase::kEstablished;
  if (queue_pair_ != nullptr) queue_pair_->Activate(Negotiate(mine_.retry_count));
  SendManagement(FrameType::kReadyToUse);
  core_->engine->MarkDirty(this);
  Report(CmEventType::kEstablished, absl::OkStatus(), std::move(private_data));
  return true;
}

bool SoftConnection::OnRejected(const FrameHeader& header, const uint8_t* body) {
  std::string private_data;
  if (phase_ != Phase::kAwaitReply || !ParseHead(header, body, &theirs_, &private_data)) {
    return false;
  }
  if (queue_pair_ != nullptr) std::exchange(queue_pair_, nullptr)->Break();
  Close();
  Report(CmEventType::kRejected,
         absl::AbortedError(absl::StrCat(ToString(peer_), " rejected the connection")),
         std::move(private_data));
  return true;
}

bool SoftConnection::OnDisconnectRequest() {
  if (phase_ != Phase::kEstablished && phase_ != Phase::kDisconnecting) return false;
  SendManagement(FrameType::kDisconnectReply);
  TransmitNow();
  if (phase_ == Phase::kClosed) return true;
  Close();
  Report(CmEventType::kDisconnected, absl::OkStatus(), "");
  return true;
}

void SoftConnection::ReleaseRequests() {
  stream_.DropRequests();
  stream_.Detach(PayloadSource::kRequest);
}

void SoftConnection::QueuePairGone() {
  ReleaseRequests();
  stream_.Keep(PayloadSource::kResponse);
  queue_pair_ = nullptr;
  if (phase_ == Phase::kEstablished || phase_ == Phase::kAwaitReady) {
    SendManagement(FrameType::kDisconnectRequest);
    TransmitNow();
  }
  if (phase_ != Phase::kClosed) Lose(absl::CancelledError("the queue pair was destroyed"));
}

void SoftConnection::OnTimer() {
  switch (phase_) {
    case Phase::kConnecting:
    case Phase::kAwaitRoute:
    case Phase::kAwaitReply:
      Lose(absl::DeadlineExceededError(absl::StrCat("no answer from ", ToString(peer_), " within ",
                                                    core_->options.connect_timeout_ms, " ms")));
      return;
    default:
      Lose(absl::DeadlineExceededError(absl::StrCat(ToString(peer_), " fell silent")));
      return;
  }
}

void SoftConnection::Lose(absl::Status why) {
  const Phase before = phase_;
  const bool unconnected =
      before == Phase::kConnecting || before == Phase::kAwaitRoute || before == Phase::kAwaitReply;
  if (unconnected && queue_pair_ != nullptr) {
    std::exchange(queue_pair_, nullptr)->Unbind();  // stays in INIT
  }
  Close();
  if (before == Phase::kAwaitRequest) {
    const auto owned = core_->half_open.find(this);
    if (owned == core_->half_open.end()) return;
    core_->engine->Bury(std::move(owned->second));
    core_->half_open.erase(owned);
  } else if (unconnected || before == Phase::kAwaitReady) {
    Report(CmEventType::kUnreachable, std::move(why), "");
  } else if (before == Phase::kEstablished || before == Phase::kDisconnecting) {
    Report(CmEventType::kDisconnected, std::move(why), "");
  }
}

void SoftConnection::Close() {
  phase_ = Phase::kClosed;
  core_->engine->Cancel(&timer_);
  core_->engine->Cancel(&stall_timer_);
  if (queue_pair_ != nullptr) std::exchange(queue_pair_, nullptr)->Break();
  if (!stream_.open()) return;
  if (interest_ != 0) core_->engine->Unwatch(stream_.fd());
  interest_ = 0;
  stream_.Close();
}

void SoftConnection::Report(CmEventType type, absl::Status status, std::string private_data) {
  ConnectionEvent event;
  event.type = type;
  event.id = this;
  event.status = std::move(status);
  event.private_data = std::move(private_data);
  disconnected_ = type == CmEventType::kDisconnected;
  ++events_queued_;
  core_->PushEvent(std::move(event));
}

}  // namespace baton::verbs::soft

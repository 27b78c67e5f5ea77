#include "lib/nic/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/nic/listener.h"
#include "lib/verbs/socket_address.h"

namespace baton::verbs::soft {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint8_t kMaxOutstandingReads = 128;
constexpr int kMostFlushes = 16;  // of FrameStream's budget, before a connection ends

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

uint8_t FeaturesOf(const SoftDeviceOptions& options) {
  return options.max_memory_wires > 0 ? kTakesMemoryOffers : 0;
}

// Returns whether a connection between these addresses may be within this machine.
bool MayBeLocal(const Address& local, const Address& peer) {
  const auto loopback = [](const Address& address) { return address.host.rfind("127.", 0) == 0; };
  return local.host == peer.host || (loopback(local) && loopback(peer));
}

// Reads the head and private data of a management frame. Returns false if they are invalid.
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

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

// Defined here, where SoftConnection is complete.
ConnectionCore::ConnectionCore(const SoftDeviceOptions* device_options, EventLoop* device_loop)
    : options(*device_options), loop(device_loop) {}

ConnectionCore::~ConnectionCore() = default;

std::unique_ptr<SoftConnection> ConnectionCore::TakeHalfOpen(const SoftConnection* connection) {
  const auto found =
      std::find_if(half_open.begin(), half_open.end(),
                   [connection](const auto& entry) { return entry.get() == connection; });
  if (found == half_open.end()) return nullptr;
  std::unique_ptr<SoftConnection> taken = std::move(*found);
  half_open.erase(found);
  return taken;
}

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
  core_->loop->Forget(this);
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
  struct Bounded {
    absl::string_view what;
    uint8_t value;
    uint8_t limit;
  };
  for (const Bounded& one :
       {Bounded{"retry_count", parameters.retry_count, 7},
        Bounded{"rnr_retry_count", parameters.rnr_retry_count, 7},
        Bounded{"responder_resources", parameters.responder_resources, kMaxOutstandingReads},
        Bounded{"initiator_depth", parameters.initiator_depth, kMaxOutstandingReads}}) {
    if (one.value > one.limit) return too_large(one.what, one.value, one.limit);
  }
  return absl::OkStatus();
}

absl::Status SoftConnection::Connect(const Address& address, WireQueuePair* queue_pair,
                                     const ConnectionParameters& parameters) {
  BATON_RETURN_IF_ERROR(CheckParameters(parameters, kMaxConnectPrivateData, "connect"));
  BATON_RETURN_IF_ERROR(queue_pair->Bind(this));
  queue_pair_ = queue_pair;
  mine_ = HeadOf(parameters, queue_pair->number());
  mine_.features = FeaturesOf(core_->options);
  private_data_ = parameters.private_data;
  peer_ = address;
  phase_ = Phase::kConnecting;
  core_->loop->Arm(&timer_, core_->options.connect_timeout_ms * kNsPerMs);
  if (const absl::Status status = StartConnecting(address); !status.ok()) Lose(status);
  return absl::OkStatus();
}

absl::Status SoftConnection::StartConnecting(const Address& address) {
  BATON_ASSIGN_OR_RETURN(const SocketAddress to, ToSocketAddress(address));
  BATON_ASSIGN_OR_RETURN(FileDescriptor socket, OpenTcpSocket(to, SOCK_NONBLOCK));
  SetNoDelay(socket.get());
  if (connect(socket.get(), to.get(), to.size) != 0 && errno != EINPROGRESS) {
    return ErrnoStatus(errno, absl::StrCat("connect to ", ToString(address)));
  }
  stream_.Open(std::move(socket));
  interest_ = EPOLLOUT;
  return core_->loop->Watch(stream_.fd(), interest_, this);
}

void SoftConnection::FinishConnecting() {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(stream_.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return Lose(ErrnoStatus(error, absl::StrCat("connect to ", ToString(peer_))));
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

absl::Status SoftConnection::TakeSocket(FileDescriptor socket, SoftListener* listener) {
  SetNoDelay(socket.get());
  listener_ = listener;
  accepted_ns_ = core_->loop->now();
  stream_.Open(std::move(socket));
  local_ = BoundAddressOf(stream_.fd());
  peer_ = PeerAddressOf(stream_.fd());
  phase_ = Phase::kAwaitRequest;
  interest_ = EPOLLIN;
  BATON_RETURN_IF_ERROR(core_->loop->Watch(stream_.fd(), interest_, this));
  core_->loop->Arm(&timer_, core_->options.handshake_timeout_ms * kNsPerMs);
  return absl::OkStatus();
}

void SoftConnection::MakeRoom() {
  Lose(absl::ResourceExhaustedError("its peer was silent, and another one came"));
}

absl::Status SoftConnection::CheckRequested(absl::string_view call) const {
  if (phase_ == Phase::kRequested) return absl::OkStatus();
  if (phase_ == Phase::kClosed) {
    return absl::UnavailableError(absl::StrCat(ToString(peer_), " has given up its request"));
  }
  return absl::FailedPreconditionError(absl::StrCat(call, ": this is no open connection request"));
}

absl::Status SoftConnection::Accept(WireQueuePair* queue_pair,
                                    const ConnectionParameters& parameters) {
  BATON_RETURN_IF_ERROR(CheckRequested("accept"));
  BATON_RETURN_IF_ERROR(CheckParameters(parameters, kMaxAcceptPrivateData, "accept"));
  BATON_RETURN_IF_ERROR(queue_pair->Bind(this));
  queue_pair_ = queue_pair;
  mine_ = HeadOf(parameters, queue_pair->number());
  mine_.features = FeaturesOf(core_->options);
  if (mine_.features != 0) memory_ = Memory::kMayAsk;
  queue_pair->Activate(Negotiate(theirs_.retry_count));
  phase_ = Phase::kAwaitReady;
  unaccepted_ = false;
  core_->loop->Arm(&timer_, core_->options.handshake_timeout_ms * kNsPerMs);
  SendHead(FrameType::kConnectReply, parameters.private_data);
  TransmitNow();
  return absl::OkStatus();
}

absl::Status SoftConnection::Reject(std::string_view private_data) {
  BATON_RETURN_IF_ERROR(CheckRequested("reject"));
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
  // The peer disconnected first, and the user has not taken the event yet.
  if (phase_ == Phase::kClosed && disconnected_ && events_queued_ > 0) return absl::OkStatus();
  if (phase_ != Phase::kEstablished && phase_ != Phase::kAwaitReady) {
    return absl::FailedPreconditionError("disconnect: there is no connection");
  }
  // Acknowledgements that are due may be behind the answer to a large READ.
  int flushes = 0;
  do {
    TransmitNow();
  } while (++flushes < kMostFlushes && stream_.has_more() && phase_ != Phase::kClosed);
  if (phase_ == Phase::kClosed) return absl::OkStatus();
  if (queue_pair_ != nullptr) {
    queue_pair_->Break();
    KeepResponses();
    queue_pair_ = nullptr;
  }
  SendManagement(FrameType::kDisconnectRequest);
  phase_ = Phase::kDisconnecting;
  core_->loop->Arm(&timer_, core_->options.disconnect_timeout_ms * kNsPerMs);
  TransmitNow();
  return absl::OkStatus();
}

ReadDepths SoftConnection::depths() const {
  return {std::min(mine_.initiator_depth, theirs_.responder_resources),
          std::min(mine_.responder_resources, theirs_.initiator_depth)};
}

// The peer chooses our rnr_retry_count. This is rdma_cm's rule.
WireQueuePair::Connection SoftConnection::Negotiate(uint8_t retry_count) {
  WireQueuePair::Connection connection;
  connection.requester.initiator_depth = depths().ours;
  connection.requester.retry_count = retry_count;
  connection.requester.rnr_retry_count = theirs_.rnr_retry_count;
  connection.requester.rnr_timer_us = core_->options.min_rnr_timer_us;
  connection.requester.ack_timeout_ns = core_->options.ack_timeout_ms * kNsPerMs;
  connection.requester.receivers_not_ready = core_->options.receivers_not_ready;
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
  if (stream_.blocked() || stalled_) return;  // transmission resumes when that ends
  if (transmitted_turn_ == core_->loop->turn()) return core_->loop->MarkDirty(this);
  transmitted_turn_ = core_->loop->turn();
  TransmitNow();
}

void SoftConnection::WantTransmit() {
  if (!stream_.blocked()) core_->loop->MarkDirty(this);
}

void SoftConnection::OnTransmit() {
  if (cut_ && phase_ != Phase::kClosed) {
    const linger reset = {1, 0};
    setsockopt(stream_.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    return Lose(absl::UnavailableError("link cut by the fault plan"));
  }
  TransmitNow();
  if (!core_->loop->hot(this)) LookAtMemory();
}

void SoftConnection::TransmitNow() {
  if (phase_ == Phase::kClosed || phase_ == Phase::kConnecting || phase_ == Phase::kAwaitRoute) {
    return;
  }
  if (stalled_ || cut_) return;
  const uint64_t before = stream_.bytes_sent();
  if (stream_.Transmit() == StreamState::kBroken) {
    return Lose(absl::DataLossError(View(stream_.error())));
  }
  const bool wrote = stream_.bytes_sent() != before;
  // The peer is expected to answer soon.
  if (wrote && stream_.reads_memory()) core_->loop->Heat(this);
  if (queue_pair_ != nullptr) queue_pair_->AfterTransmit(wrote);
  if (stream_.has_more()) core_->loop->MarkDirty(this);
  UpdateInterest();
}

void SoftConnection::UpdateInterest() {
  if (!stream_.open()) return;
  const uint32_t wanted = stalled_ ? 0u : EPOLLIN | (stream_.blocked_by_socket() ? EPOLLOUT : 0u);
  if (wanted == interest_) return;
  if (wanted == 0) {
    core_->loop->Unwatch(stream_.fd());  // an error on a watched socket is always reported
  } else if (interest_ == 0) {
    const absl::Status watched = core_->loop->Watch(stream_.fd(), wanted, this);
    if (!watched.ok()) return Lose(watched);
  } else {
    core_->loop->Rewatch(stream_.fd(), wanted, this);
  }
  interest_ = wanted;
}

void SoftConnection::OnReady(uint32_t events) {
  if (phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kConnecting) return FinishConnecting();
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) {
    const StreamState state = stream_.Receive();
    if (phase_ == Phase::kClosed) return;
    // Requests that the peer wrote to the memory before it ended are executed, like those that it
    // sent.
    if (state != StreamState::kOpen && stream_.reads_memory()) ReadMemory();
    if (!Survives(state)) return;
    LookAtMemory();
    if (phase_ == Phase::kClosed) return;
  }
  if ((events & EPOLLOUT) != 0) {
    stream_.Unblock();
    TransmitNow();
  }
}

// Returns false if the connection has ended, now or before.
bool SoftConnection::Survives(StreamState state) {
  if (phase_ == Phase::kClosed) return false;
  if (state == StreamState::kOpen) return true;
  Lose(absl::UnavailableError(state == StreamState::kEnded
                                  ? absl::StrCat(ToString(peer_), " closed the connection")
                                  : absl::StrCat(ToString(peer_), ": ", View(stream_.error()))));
  return false;
}

void SoftConnection::Stall(uint64_t duration_us) {
  stalled_ = true;
  core_->loop->Arm(&stall_timer_, duration_us * 1000);
}

void SoftConnection::StallOver() {
  stalled_ = false;
  UpdateInterest();
  TransmitNow();
  LookAtMemory();
}

// ---------------------------------------------------------------- memory

bool SoftConnection::ReserveMemory() {
  if (core_->memory_wires >= core_->options.max_memory_wires) return false;
  ++core_->memory_wires;
  return true;
}

void SoftConnection::ReleaseMemory() {
  const Memory before = std::exchange(memory_, Memory::kNever);
  if (before == Memory::kOffered) core_->rendezvous->Withdraw(this);
  if (memory_request_ != nullptr) {
    memory_request_->Cancel();
    core_->loop->Bury(std::move(memory_request_));
  }
  if (before == Memory::kOffered || before == Memory::kAsked || before == Memory::kShared) {
    --core_->memory_wires;
  }
}

void SoftConnection::CountFrame() {
  if (memory_ != Memory::kMayOffer || ++frames_ < core_->options.memory_wire_after) return;
  frames_ = 0;  // if memory cannot be offered now, then later
  OfferMemory();
}

void SoftConnection::OfferMemory() {
  if (core_->rendezvous == nullptr) {
    auto made = nic::Rendezvous::Make(core_->loop, core_->options.handshake_timeout_ms * kNsPerMs);
    if (!made.ok()) {
      memory_ = Memory::kNever;
      return;
    }
    core_->rendezvous = *std::move(made);
  }
  if (!ReserveMemory()) return;
  memory_ = Memory::kOffered;
  const absl::StatusOr<MemoryOffer> offer = core_->rendezvous->Offer(this);
  if (!offer.ok()) {
    ReleaseMemory();
    memory_ = Memory::kMayOffer;
    return;
  }
  OutFrame frame(FrameType::kMemoryOffer, 0, 0);
  frame.SetBody(*offer);
  stream_.Enqueue(std::move(frame));
  core_->loop->MarkDirty(this);
}

absl::StatusOr<FileDescriptor> SoftConnection::MakeMemory() {
  FileDescriptor memfd;
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<nic::MemoryWire> wire, nic::MemoryWire::Make(&memfd));
  stream_.Share(std::move(wire));
  memory_ = Memory::kShared;
  return memfd;
}

bool SoftConnection::OnMemoryOffer(const uint8_t* body) {
  if (phase_ == Phase::kDisconnecting) return true;
  if (phase_ != Phase::kEstablished || (memory_ != Memory::kMayAsk && memory_ != Memory::kNever)) {
    return false;
  }
  // Each answer waits here until the peer reads, so a peer has no more than one (wire.md).
  if (std::exchange(peer_offered_, true)) return false;
  MemoryOffer offer;
  std::memcpy(&offer, body, sizeof(offer));
  if (memory_ == Memory::kNever || !AskForMemory(offer).ok()) RefuseMemory();
  return true;
}

absl::Status SoftConnection::AskForMemory(const MemoryOffer& offer) {
  if (!MayBeLocal(local_, peer_)) return absl::UnavailableError("the peer is elsewhere");
  if (!ReserveMemory()) return absl::ResourceExhaustedError("max_memory_wires");
  memory_ = Memory::kAsked;
  BATON_ASSIGN_OR_RETURN(memory_request_, nic::MemoryRequest::Make(core_->loop, offer, this));
  return absl::OkStatus();
}

void SoftConnection::RefuseMemory() {
  ReleaseMemory();
  SendManagement(FrameType::kMemoryRefused);
  core_->loop->MarkDirty(this);
}

void SoftConnection::OnMemory(absl::StatusOr<FileDescriptor> memfd) {
  core_->loop->Bury(std::move(memory_request_));
  if (phase_ != Phase::kEstablished) return;  // the connection ends on TCP
  if (!UseMemory(std::move(memfd)).ok()) RefuseMemory();
}

// The maker of the memory may write to it as soon as it has this side's kMemoryReady, which is
// queued here. This side's later frames go through the memory.
absl::Status SoftConnection::UseMemory(absl::StatusOr<FileDescriptor> memfd) {
  BATON_RETURN_IF_ERROR(memfd.status());
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<nic::MemoryWire> wire, nic::MemoryWire::Map(memfd->get()));
  stream_.Share(std::move(wire));
  memory_ = Memory::kShared;
  stream_.SwitchOut();
  core_->loop->MarkDirty(this);
  return absl::OkStatus();
}

// The side that made the memory switches its own direction when its peer has switched. Called
// between two frames that were read from TCP.
bool SoftConnection::OnMemoryReady() {
  if (memory_ != Memory::kShared || stream_.reads_memory()) return false;
  stream_.SwitchIn();
  if (phase_ == Phase::kEstablished && !stream_.switched_out()) stream_.SwitchOut();
  core_->loop->MarkDirty(this);
  core_->loop->Heat(this);
  return true;
}

// The peer may have failed after it got the memory. Then it has written nothing there.
bool SoftConnection::OnMemoryRefused() {
  if (phase_ == Phase::kDisconnecting) return true;
  if ((memory_ != Memory::kOffered && memory_ != Memory::kShared) || stream_.switched_out()) {
    return false;
  }
  ReleaseMemory();
  stream_.Unshare();
  return true;
}

bool SoftConnection::ReadMemory() {
  bool any = false;
  const StreamState state = stream_.ReceiveFromMemory(&any);
  Survives(state);
  return any;
}

bool SoftConnection::OnPoll() {
  if (phase_ == Phase::kClosed || stalled_ || cut_) return false;
  bool any = stream_.reads_memory() && ReadMemory();
  if (phase_ != Phase::kClosed && stream_.UnblockMemory()) {
    any = true;
    TransmitNow();
  }
  return any;
}

// A stalled connection looks at the memory when the stall is over.
bool SoftConnection::OnCool() {
  return phase_ == Phase::kClosed || stalled_ || !stream_.reads_memory() ||
         stream_.PrepareToSleep();
}

// Called after a wake-up. If too many connections are polled already, this one sleeps again, and is
// woken for each message.
void SoftConnection::LookAtMemory() {
  if (!stream_.shared() || stalled_ || cut_) return;
  const bool hot = stream_.reads_memory() && core_->loop->Heat(this);
  OnPoll();
  if (!hot && stream_.reads_memory() && !stream_.PrepareToSleep()) core_->loop->MarkDirty(this);
}

// ---------------------------------------------------------------- frames

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
  CountFrame();
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
      core_->loop->Cancel(&timer_);
      phase_ = Phase::kEstablished;
      Report(CmEventType::kEstablished, absl::OkStatus(), "");
      return true;
    case FrameType::kMemoryOffer:
      return OnMemoryOffer(body);
    case FrameType::kMemoryReady:
      return OnMemoryReady();
    case FrameType::kMemoryRefused:
      return OnMemoryRefused();
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
  core_->loop->Cancel(&timer_);
  phase_ = Phase::kRequested;
  unaccepted_ = true;
  event.type = CmEventType::kConnectRequest;
  event.listener = listener_;
  event.new_id = core_->TakeHalfOpen(this);
  listener_->RequestQueued();
  core_->PushEvent(std::move(event));
  return true;
}

bool SoftConnection::OnReply(const FrameHeader& header, const uint8_t* body) {
  std::string private_data;
  if (phase_ != Phase::kAwaitReply || !ParseHead(header, body, &theirs_, &private_data)) {
    return false;
  }
  core_->loop->Cancel(&timer_);
  phase_ = Phase::kEstablished;
  if (queue_pair_ != nullptr) queue_pair_->Activate(Negotiate(mine_.retry_count));
  SendManagement(FrameType::kReadyToUse);
  core_->loop->MarkDirty(this);
  if (mine_.features != 0 && (theirs_.features & kTakesMemoryOffers) != 0 &&
      MayBeLocal(local_, peer_)) {
    memory_ = Memory::kMayOffer;
    if (core_->options.memory_wire_after == 0) OfferMemory();
  }
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
  KeepResponses();
  queue_pair_ = nullptr;
  if (phase_ == Phase::kEstablished || phase_ == Phase::kAwaitReady) {
    SendManagement(FrameType::kDisconnectRequest);
    TransmitNow();
  }
  if (phase_ != Phase::kClosed) Lose(absl::CancelledError("the queue pair was destroyed"));
}

void SoftConnection::OnTimer() {
  Lose(absl::DeadlineExceededError(
      IsConnecting() ? absl::StrCat("no answer from ", ToString(peer_), " within ",
                                    core_->options.connect_timeout_ms, " ms")
                     : absl::StrCat(ToString(peer_), " fell silent")));
}

bool SoftConnection::IsConnecting() const {
  return phase_ == Phase::kConnecting || phase_ == Phase::kAwaitRoute ||
         phase_ == Phase::kAwaitReply;
}

void SoftConnection::Lose(absl::Status why) {
  const Phase before = phase_;
  const bool unconnected = IsConnecting();
  if (unconnected && queue_pair_ != nullptr) {
    std::exchange(queue_pair_, nullptr)->Unbind();  // stays in INIT
  }
  Close();
  if (before == Phase::kAwaitRequest) {
    std::unique_ptr<SoftConnection> self = core_->TakeHalfOpen(this);
    if (self != nullptr) core_->loop->Bury(std::move(self));
  } else if (unconnected || before == Phase::kAwaitReady) {
    Report(CmEventType::kUnreachable, std::move(why), "");
  } else if (before == Phase::kEstablished || before == Phase::kDisconnecting) {
    Report(CmEventType::kDisconnected, std::move(why), "");
  }
}

void SoftConnection::Close() {
  phase_ = Phase::kClosed;
  core_->loop->Cancel(&timer_);
  core_->loop->Cancel(&stall_timer_);
  if (queue_pair_ != nullptr) std::exchange(queue_pair_, nullptr)->Break();
  ReleaseMemory();
  core_->loop->Cool(this);
  if (!stream_.open()) return;
  if (interest_ != 0) core_->loop->Unwatch(stream_.fd());
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

#include "lib/verbs/rdma/connection.h"

#include <endian.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/verbs/port_taken.h"
#include "lib/verbs/rdma/cm_event_number.h"
#include "lib/verbs/rdma/port.h"
#include "lib/verbs/socket_address.h"

namespace baton::verbs::rdma {
namespace {

// Nobody listens at the port: IB_CM_REJ_INVALID_SERVICE_ID (InfiniBand specification, table 117).
// If a listener's program rejects, the reason is another one.
constexpr int kRejectedByNobody = 8;

// During the removal the kernel waits until nobody has the device open any more
// (ib_uverbs_remove_one), unless the device's driver can do without.
constexpr char kRemoved[] = "it is being removed from the machine";

constexpr char kAddressChange[] = "the network interface has another hardware address";

// The most ports chosen by TCP that are tried until one is free in rdma_cm, too.
constexpr size_t kPortTries = 32;

// retry_count and rnr_retry_count are fields of three bits.
constexpr uint8_t kMaxRetryCount = 7;

static_assert(uint32_t{RDMA_CM_EVENT_CONNECT_REQUEST} == uint32_t(CmEventNumber::kConnectRequest));
static_assert(uint32_t{RDMA_CM_EVENT_CONNECT_ERROR} == uint32_t(CmEventNumber::kConnectError));
static_assert(uint32_t{RDMA_CM_EVENT_UNREACHABLE} == uint32_t(CmEventNumber::kUnreachable));
static_assert(uint32_t{RDMA_CM_EVENT_REJECTED} == uint32_t(CmEventNumber::kRejected));
static_assert(uint32_t{RDMA_CM_EVENT_DISCONNECTED} == uint32_t(CmEventNumber::kDisconnected));
static_assert(uint32_t{RDMA_CM_EVENT_DEVICE_REMOVAL} == uint32_t(CmEventNumber::kDeviceRemoval));

absl::Status CheckLength(std::string_view private_data, size_t limit) {
  if (private_data.size() <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("private_data: ", private_data.size(), " bytes, at most ", limit));
}

absl::Status CheckParameters(const ConnectionParameters& parameters, size_t limit) {
  if (parameters.retry_count > kMaxRetryCount || parameters.rnr_retry_count > kMaxRetryCount) {
    return absl::InvalidArgumentError(
        absl::StrCat("retry_count is ", parameters.retry_count, " and rnr_retry_count ",
                     parameters.rnr_retry_count, ", the limit is ", kMaxRetryCount));
  }
  return CheckLength(parameters.private_data, limit);
}

std::string PrivateDataOf(const rdma_cm_event& event) {
  const rdma_conn_param& parameters = event.param.conn;
  if (parameters.private_data == nullptr) return {};
  return std::string(static_cast<const char*>(parameters.private_data),
                     parameters.private_data_len);
}

// Compares names, because librdmacm has a context of its own for each device.
bool IsOf(const DeviceCore& core, const rdma_cm_id& id) {
  return id.verbs != nullptr && std::strcmp(ibv_get_device_name(id.verbs->device),
                                            ibv_get_device_name(core.context->device)) == 0;
}

// A port in TCP's port space, held for an RDMA listener. rdma_cm has its own port space, so an RDMA
// listener and a TCP listener can have the same port. On an iWARP card, whose connections are TCP
// on the wire, they would take each other's connections.
//
// It is held until every process that has `socket` has closed it. TCP refuses connections to it.
struct PortClaim {
  FileDescriptor socket;
  uint16_t port = 0;
};

bool SetReuse(int fd, int on) {
  return setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0;
}

// Binds although earlier connections of a TCP server are still at the port (TIME_WAIT, for a
// minute), which SO_REUSEADDR permits. Two sockets with SO_REUSEADDR can both be bound, but only
// one of them can start to listen (inet_csk_listen_start). It then gives SO_REUSEADDR up, and from
// then on keeps all others out, even those that are bound already and do not listen yet. The caller
// named the port, so the socket keeps it when the listening ends (SOCK_BINDPORT_LOCK).
bool BindBesideEndedConnections(int fd, const SocketAddress& at) {
  return SetReuse(fd, 1) && bind(fd, at.get(), at.size) == 0 && listen(fd, 0) == 0 &&
         SetReuse(fd, 0) && shutdown(fd, SHUT_RDWR) == 0;
}

// Claims a port; 0: TCP chooses one. If several processes claim a port, at most one gets it.
// kAlreadyExists: it is taken (port_taken.h).
absl::StatusOr<PortClaim> ClaimPort(const Address& address) {
  BATON_ASSIGN_OR_RETURN(const SocketAddress at, ToSocketAddress(address));
  PortClaim claim;
  BATON_ASSIGN_OR_RETURN(claim.socket, OpenTcpSocket(at, 0));
  int error = bind(claim.socket.get(), at.get(), at.size) == 0 ? 0 : errno;
  if (error == EADDRINUSE && address.port != 0) {
    BATON_ASSIGN_OR_RETURN(claim.socket, OpenTcpSocket(at, 0));
    error = BindBesideEndedConnections(claim.socket.get(), at) ? 0 : errno;
  }
  if (error != 0) {
    return TcpBindError(error, address,
                        absl::StrCat("bind to ", ToString(address),
                                     " in TCP's port space, where a listener holds it, too"));
  }
  claim.port = BoundAddressOf(claim.socket.get()).port;
  return claim;
}

// Replaces a wildcard by the address of a device that is used at one address only.
absl::Status ChooseSource(const DeviceCore& core, Address* address) {
  if (core.source.empty() || address->host == core.source) return absl::OkStatus();
  if (address->host != "0.0.0.0" && address->host != "::") {
    return absl::InvalidArgumentError(absl::StrCat("host: ", address->host,
                                                   " is not the address of the GID that gid_index "
                                                   "names, which is ",
                                                   core.source));
  }
  address->host = core.source;
  return absl::OkStatus();
}

// A message sent while the port is down would be the last one (DeviceCore::Dispose).
absl::Status PortIsDown(const DeviceCore& core) {
  return absl::UnavailableError(absl::StrCat(
      "port ", core.port, " of device ", ibv_get_device_name(core.context->device), " is down"));
}

absl::Status ListenError(const char* call, int error, const Address& address) {
  if (error == EADDRINUSE) return PortTakenError({PortSpace::kRdma, address});
  return ErrnoStatus(error, absl::StrCat(call, " at ", ToString(address)));
}

absl::StatusOr<CmId> NewId(DeviceCore* core, CmEndpoint* endpoint) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(core->event_channel.get(), &id, endpoint, RDMA_PS_TCP) != 0) {
    return ErrnoStatus(errno, "rdma_create_id");
  }
  return CmId(id);
}

}  // namespace

// ---------------------------------------------------------------- listener

absl::StatusOr<std::unique_ptr<RdmaListener>> RdmaListener::Bind(DeviceCore* core,
                                                                 const Address& address) {
  BATON_ASSIGN_OR_RETURN(SocketAddress parsed, ToSocketAddress(address));
  std::unique_ptr<RdmaListener> listener(new RdmaListener(core));
  BATON_ASSIGN_OR_RETURN(listener->id_, NewId(core, listener.get()));
  if (rdma_bind_addr(listener->id_.get(), parsed.get()) != 0) {
    return ListenError("rdma_bind_addr", errno, address);
  }
  return listener;
}

absl::StatusOr<std::unique_ptr<RdmaListener>> RdmaListener::Create(DeviceCore* core,
                                                                   const Address& address,
                                                                   int backlog) {
  Address at = address;
  BATON_RETURN_IF_ERROR(ChooseSource(*core, &at));
  std::vector<PortClaim> passed_over;  // which TCP does not choose again
  while (passed_over.size() < kPortTries) {
    BATON_ASSIGN_OR_RETURN(PortClaim claim, ClaimPort(at));
    absl::StatusOr<std::unique_ptr<RdmaListener>> listener = Bind(core, {at.host, claim.port});
    if (at.port == 0 && TakenPortOf(listener.status())) {
      passed_over.push_back(std::move(claim));
      continue;
    }
    BATON_RETURN_IF_ERROR(listener.status());
    (*listener)->claim_ = std::move(claim.socket);
    if (rdma_listen((*listener)->id_.get(), backlog) == 0) return listener;
    return ListenError("rdma_listen", errno, at);
  }
  return NoPortFreeError(at);
}

Address RdmaListener::address() const { return FromSocketAddress(*rdma_get_local_addr(id_.get())); }

bool RdmaListener::OnEvent(const rdma_cm_event& event, CmEvent* out) {
  if (event.event == RDMA_CM_EVENT_DEVICE_REMOVAL && IsOf(*core_, *id_)) core_->Lose(kRemoved);
  if (event.event == RDMA_CM_EVENT_ADDR_CHANGE) core_->PushAddressChange(kAddressChange);
  if (event.event != RDMA_CM_EVENT_CONNECT_REQUEST) return false;
  auto requested = std::make_unique<RdmaConnectionId>(core_, event.id, event.param.conn);
  // A listener at a wildcard address gets requests of all devices.
  if (!IsOf(*core_, *event.id)) return false;
  out->type = CmEventType::kConnectRequest;
  out->listener = this;
  out->private_data = PrivateDataOf(event);
  out->new_id = std::move(requested);
  return true;
}

// ---------------------------------------------------------------- connection

RdmaConnectionId::RdmaConnectionId(DeviceCore* core, rdma_cm_id* requested,
                                   const rdma_conn_param& theirs)
    : core_(core),
      id_(requested),
      phase_(Phase::kRequested),
      joined_(true),
      asked_{theirs.initiator_depth, theirs.responder_resources} {
  id_->context = static_cast<CmEndpoint*>(this);
}

absl::StatusOr<std::unique_ptr<RdmaConnectionId>> RdmaConnectionId::Connect(
    DeviceCore* core, const Address& address, RdmaQueuePair* queue_pair,
    const ConnectionParameters& parameters) {
  BATON_RETURN_IF_ERROR(CheckParameters(parameters, kMaxConnectData));
  std::unique_ptr<RdmaConnectionId> connection(new RdmaConnectionId(core));
  BATON_ASSIGN_OR_RETURN(connection->id_, NewId(core, connection.get()));
  BATON_RETURN_IF_ERROR(queue_pair->Bind(connection.get()));
  connection->queue_pair_ = queue_pair;
  connection->parameters_ = parameters;
  connection->Negotiate({UINT8_MAX, UINT8_MAX});  // what we ask for
  core->unanswered.Add(connection.get());
  CmEvent event;
  if (const absl::Status status = connection->StartConnecting(address);
      !status.ok() && connection->OnUnreachable(status, &event)) {
    core->PushEvent(std::move(event));
  }
  return connection;
}

// Destroying the id makes the kernel end the connection. The peer sees a reject or a disconnect.
RdmaConnectionId::~RdmaConnectionId() {
  if (core_->forked) {
    (void)id_.release();
    return;
  }
  core_->unanswered.Remove(this);
  LeaveQueuePair();
  core_->ForgetEventsOf(this);
  if (joined_) core_->Dispose(std::move(id_));
}

absl::Status RdmaConnectionId::StartConnecting(const Address& address) {
  BATON_ASSIGN_OR_RETURN(SocketAddress parsed, ToSocketAddress(address));
  SocketAddress source;
  if (!core_->source.empty()) {
    BATON_ASSIGN_OR_RETURN(source, ToSocketAddress({core_->source, 0}));
  }
  if (rdma_resolve_addr(id_.get(), core_->source.empty() ? nullptr : source.get(), parsed.get(),
                        core_->resolve_timeout_ms) != 0) {
    return ErrnoStatus(errno, absl::StrCat("rdma_resolve_addr of ", address.host));
  }
  return absl::OkStatus();
}

Address RdmaConnectionId::local_address() const {
  return FromSocketAddress(*rdma_get_local_addr(id_.get()));
}
Address RdmaConnectionId::peer_address() const {
  return FromSocketAddress(*rdma_get_peer_addr(id_.get()));
}

// rdma_cm has 0 as RoCE's P_Key, because RoCE has no partitions.
Route RdmaConnectionId::route() const {
  Route route = ConnectionId::route();
  const rdma_ib_addr& address = id_->route.addr.addr.ibaddr;
  constexpr ibv_gid kNone = {};
  if (std::memcmp(address.sgid.raw, kNone.raw, sizeof(kNone.raw)) != 0) {
    route.gid = GidText(address.sgid);
  }
  if (IsInfiniBand(core_->context.get(), core_->port)) route.p_key = be16toh(address.pkey);
  if (id_->route.num_paths > 0) route.service_level = id_->route.path_rec[0].sl;
  return route;
}

// `theirs` is from an event: how many READs and atomics the peer lets us have outstanding, and how
// many it wants to have (rdma_get_cm_event(3)).
void RdmaConnectionId::Negotiate(const ReadDepths& theirs) {
  depths_.ours = std::min({parameters_.initiator_depth, core_->max_initiator_depth, theirs.ours});
  depths_.theirs =
      std::min({parameters_.responder_resources, core_->max_responder_resources, theirs.theirs});
}

rdma_conn_param RdmaConnectionId::ParametersFor(const QueuePair& queue_pair) const {
  rdma_conn_param wanted = {};
  wanted.private_data = parameters_.private_data.data();
  wanted.private_data_len = static_cast<uint8_t>(parameters_.private_data.size());
  wanted.responder_resources = depths_.theirs;
  wanted.initiator_depth = depths_.ours;
  wanted.flow_control = 1;
  wanted.retry_count = parameters_.retry_count;
  wanted.rnr_retry_count = parameters_.rnr_retry_count;
  wanted.qp_num = queue_pair.number();
  return wanted;
}

absl::Status RdmaConnectionId::CheckRequested(const char* call) const {
  BATON_RETURN_IF_ERROR(core_->CheckOpener(call));
  if (phase_ == Phase::kRequested) return absl::OkStatus();
  if (phase_ == Phase::kEnded) {
    return absl::UnavailableError(absl::StrCat(call, ": the peer has given up its request"));
  }
  return absl::FailedPreconditionError(absl::StrCat(call, ": this is no open connection request"));
}

absl::Status RdmaConnectionId::JoinQueuePair() {
  joined_ = true;
  BATON_RETURN_IF_ERROR(queue_pair_->Advance(id_.get(), QueuePairState::kInit));
  BATON_RETURN_IF_ERROR(queue_pair_->Advance(id_.get(), QueuePairState::kReadyToReceive, depths_));
  return queue_pair_->Advance(id_.get(), QueuePairState::kReadyToSend, depths_);
}

void RdmaConnectionId::LeaveQueuePair() {
  if (queue_pair_ == nullptr) return;
  (void)queue_pair_->SetError();
  std::exchange(queue_pair_, nullptr)->Unbind();
}

absl::Status RdmaConnectionId::Accept(QueuePair* queue_pair,
                                      const ConnectionParameters& parameters) {
  BATON_RETURN_IF_ERROR(CheckRequested("accept"));
  BATON_RETURN_IF_ERROR(CheckParameters(parameters, kMaxAcceptData));
  if (core_->IsPortDown()) return PortIsDown(*core_);
  auto* const own = static_cast<RdmaQueuePair*>(queue_pair);
  BATON_RETURN_IF_ERROR(own->Bind(this));
  queue_pair_ = own;
  parameters_ = parameters;
  Negotiate(asked_);
  phase_ = Phase::kAccepted;
  absl::Status status = JoinQueuePair();
  if (status.ok()) {
    rdma_conn_param wanted = ParametersFor(*own);
    if (rdma_accept(id_.get(), &wanted) == 0) return status;
    status = ErrnoStatus(errno, "rdma_accept");
  }
  phase_ = Phase::kEnded;
  LeaveQueuePair();
  return status;
}

absl::Status RdmaConnectionId::Reject(std::string_view private_data) {
  BATON_RETURN_IF_ERROR(CheckRequested("reject"));
  BATON_RETURN_IF_ERROR(CheckLength(private_data, kMaxRejectData));
  phase_ = Phase::kEnded;
  if (core_->IsPortDown()) return absl::OkStatus();  // the peer is told later (DeviceCore::Dispose)
  if (rdma_reject(id_.get(), private_data.data(), static_cast<uint8_t>(private_data.size())) != 0) {
    return ErrnoStatus(errno, "rdma_reject");
  }
  return absl::OkStatus();
}

absl::Status RdmaConnectionId::Disconnect() {
  BATON_RETURN_IF_ERROR(core_->CheckOpener("disconnect"));
  if (phase_ != Phase::kEstablished && phase_ != Phase::kAccepted) {
    return absl::FailedPreconditionError("disconnect: there is no connection");
  }
  phase_ = Phase::kDisconnecting;
  LeaveQueuePair();
  if (core_->IsPortDown()) {  // the peer is told later (DeviceCore::Dispose)
    CmEvent event;
    if (End(CmEventType::kDisconnected, absl::OkStatus(), &event)) {
      core_->PushEvent(std::move(event));
    }
    return absl::OkStatus();
  }
  // EINVAL: the peer was first, and its event is on its way to us.
  if (rdma_disconnect(id_.get()) != 0 && errno != EINVAL) {
    return ErrnoStatus(errno, "rdma_disconnect");
  }
  return absl::OkStatus();
}

absl::Status RdmaConnectionId::OnResolved(bool route) {
  if (!IsOf(*core_, *id_)) {
    return absl::UnavailableError("the peer is not reached through this device");
  }
  if (queue_pair_ == nullptr) return absl::CancelledError("the queue pair was destroyed");
  if (core_->IsPortDown()) return PortIsDown(*core_);
  if (!route) {
    return rdma_resolve_route(id_.get(), core_->resolve_timeout_ms) == 0
               ? absl::OkStatus()
               : ErrnoStatus(errno, "rdma_resolve_route");
  }
  if (parameters_.check_route) BATON_RETURN_IF_ERROR(parameters_.check_route(this->route()));
  rdma_conn_param wanted = ParametersFor(*queue_pair_);
  return rdma_connect(id_.get(), &wanted) == 0 ? absl::OkStatus()
                                               : ErrnoStatus(errno, "rdma_connect");
}

// The peer has accepted. The queue pair is not rdma_cm's, so this side makes it ready and tells the
// peer itself.
absl::Status RdmaConnectionId::OnResponse(const rdma_conn_param& theirs) {
  if (queue_pair_ == nullptr) return absl::CancelledError("the queue pair was destroyed");
  Negotiate({theirs.initiator_depth, theirs.responder_resources});
  BATON_RETURN_IF_ERROR(JoinQueuePair());
  return rdma_establish(id_.get()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "rdma_establish");
}

bool RdmaConnectionId::End(CmEventType type, absl::Status why, CmEvent* out) {
  core_->unanswered.Remove(this);
  phase_ = Phase::kEnded;
  out->type = type;
  out->id = this;
  out->status = std::move(why);
  return true;
}

bool RdmaConnectionId::OnUnreachable(absl::Status why, CmEvent* out) {
  const Phase before = std::exchange(phase_, Phase::kEnded);
  if (before == Phase::kRequested || before == Phase::kEnded) return false;
  if (before == Phase::kDisconnecting) return End(CmEventType::kDisconnected, {}, out);
  // A queue pair that was not used yet stays in INIT, and can still be used.
  if (queue_pair_ != nullptr && queue_pair_->state() == QueuePairState::kInit) {
    std::exchange(queue_pair_, nullptr)->Unbind();
  }
  LeaveQueuePair();
  return End(CmEventType::kUnreachable, std::move(why), out);
}

// The kernel goes on requesting until the id is destroyed. Its later events are ignored.
bool RdmaConnectionId::OnNoAnswer(CmEvent* out) {
  return OnUnreachable(
      absl::DeadlineExceededError(absl::StrCat(ToString(peer_address()), " has not answered for ",
                                               core_->unanswered.timeout_ms(),
                                               " ms: is its machine up and the way there whole, "
                                               "and does its service take connections?")),
      out);
}

bool RdmaConnectionId::OnRejected(const rdma_cm_event& event, CmEvent* out) {
  // The peer accepted, and ended before it had our answer.
  if (phase_ == Phase::kEstablished) return OnDisconnected(out);
  if (phase_ != Phase::kConnecting) {
    return OnUnreachable(absl::UnavailableError("the peer has given up its request"), out);
  }
  if (event.status == kRejectedByNobody) {
    return OnUnreachable(absl::UnavailableError("nobody listens at that port"), out);
  }
  LeaveQueuePair();
  out->private_data = PrivateDataOf(event);
  return End(
      CmEventType::kRejected,
      absl::AbortedError(absl::StrCat("the peer rejected the connection, reason ", event.status)),
      out);
}

bool RdmaConnectionId::OnEstablished(const rdma_cm_event& event, CmEvent* out) {
  // The kernel did not tell the peer of an earlier disconnect, because the peer had not answered
  // the accept yet.
  if (phase_ == Phase::kDisconnecting || queue_pair_ == nullptr) (void)rdma_disconnect(id_.get());
  if (phase_ != Phase::kConnecting && phase_ != Phase::kAccepted) return false;
  core_->unanswered.Remove(this);
  phase_ = Phase::kEstablished;
  out->type = CmEventType::kEstablished;
  out->id = this;
  out->private_data = PrivateDataOf(event);
  return true;
}

bool RdmaConnectionId::OnDisconnected(CmEvent* out) {
  if (phase_ == Phase::kEnded) return false;
  if (phase_ == Phase::kConnecting || phase_ == Phase::kRequested) {
    return OnUnreachable(absl::UnavailableError("the peer has given up"), out);
  }
  LeaveQueuePair();
  (void)rdma_disconnect(id_.get());  // answers the peer, if it was first
  return End(CmEventType::kDisconnected, absl::OkStatus(), out);
}

// The kernel destroys its side of the id itself (ucma_close_id), which tells the peer.
bool RdmaConnectionId::OnRemoval(CmEvent* out) {
  core_->Lose(kRemoved);
  if (phase_ == Phase::kEnded) return false;
  const absl::Status why = absl::UnavailableError("the device is being removed");
  if (phase_ == Phase::kConnecting || phase_ == Phase::kRequested) return OnUnreachable(why, out);
  LeaveQueuePair();
  return End(CmEventType::kDisconnected, why, out);
}

bool RdmaConnectionId::OnEvent(const rdma_cm_event& event, CmEvent* out) {
  absl::Status status;
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      status = OnResolved(event.event == RDMA_CM_EVENT_ROUTE_RESOLVED);
      return !status.ok() && OnUnreachable(std::move(status), out);
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      status = OnResponse(event.param.conn);
      return status.ok() ? OnEstablished(event, out) : OnUnreachable(std::move(status), out);
    case RDMA_CM_EVENT_ESTABLISHED:
      return OnEstablished(event, out);
    case RDMA_CM_EVENT_REJECTED:
      return OnRejected(event, out);
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
      return OnUnreachable(absl::UnavailableError(absl::StrCat(rdma_event_str(event.event),
                                                               ", status ", event.status)),
                           out);
    case RDMA_CM_EVENT_DISCONNECTED:
      return OnDisconnected(out);
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return OnRemoval(out);
    case RDMA_CM_EVENT_ADDR_CHANGE:
      // The interface has another hardware address (a bond switched over). The queue pair's packets
      // have the old one, and may or may not arrive. If they do not, its retries run out.
      core_->PushAddressChange(kAddressChange);
      return false;
    default:  // RDMA_CM_EVENT_TIMEWAIT_EXIT: the user of a queue pair waits longer to reuse it
      return false;
  }
}

void RdmaConnectionId::QueuePairGone() {
  queue_pair_ = nullptr;
  if (phase_ != Phase::kEstablished && phase_ != Phase::kAccepted) return;
  if (!core_->IsPortDown()) (void)rdma_disconnect(id_.get());
}

void RdmaConnectionId::PeerIsReady() {
  if (phase_ == Phase::kAccepted) (void)rdma_notify(id_.get(), IBV_EVENT_COMM_EST);
}

}  // namespace baton::verbs::rdma

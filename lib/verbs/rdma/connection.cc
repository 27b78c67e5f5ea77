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

// The field above the service level is the class of service (PathRecord of InfiniBand's subnet
// administration).
constexpr uint16_t kServiceLevelMask = 0xf;

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

std::string PrivateDataOf(const CmEventSlot& event) {
  return std::string(reinterpret_cast<const char*>(event.connection.private_data),
                     event.connection.private_data_length);
}

// An id is at a device once it is bound to one of its addresses. Kernels before 5.8 do not say the
// device's index, and several functions of one card may have the same GUID.
bool IsOf(const DeviceCore& core, const CmAddresses& addresses) {
  if (addresses.port == 0) return false;
  const int index = ibv_get_device_index(core.context->device);
  if (index >= 0 && addresses.device_index != CmAddresses::kNoIndex) {
    return addresses.device_index == static_cast<uint32_t>(index);
  }
  return addresses.node_guid == ibv_get_device_guid(core.context->device);
}

// Why a connection will not be, as an event says: its status is a negative errno.
absl::Status Unreachable(const CmEventSlot& event) {
  std::string_view what = "the connection failed";
  if (event.number() == CmEventNumber::kAddressError) what = "no way to the peer's address";
  if (event.number() == CmEventNumber::kRouteError) what = "no route to the peer";
  if (event.number() == CmEventNumber::kUnreachable) what = "the peer does not answer";
  return absl::UnavailableError(ErrnoStatus(-event.status, what).message());
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

absl::Status ListenError(const absl::Status& status, const Address& address) {
  if (CmErrno(status) == EADDRINUSE) return PortTakenError({PortSpace::kRdma, address});
  return absl::Status(status.code(), absl::StrCat(ToString(address), ": ", status.message()));
}

}  // namespace

// ---------------------------------------------------------------- listener

absl::StatusOr<std::unique_ptr<RdmaListener>> RdmaListener::Bind(DeviceCore* core,
                                                                 const Address& address) {
  std::unique_ptr<RdmaListener> listener(new RdmaListener(core));
  listener->at_ = address;
  BATON_RETURN_IF_ERROR(listener->BindId());
  return listener;
}

absl::Status RdmaListener::BindId() {
  BATON_ASSIGN_OR_RETURN(const SocketAddress at, ToSocketAddress(at_));
  BATON_ASSIGN_OR_RETURN(id_, core_->cm.Create(this, /*listens=*/true));
  const absl::Status bound = core_->cm->Bind(id_.number(), at);
  if (!bound.ok()) return ListenError(bound, at_);
  const absl::StatusOr<CmAddresses> addresses = core_->cm->QueryAddresses(id_.number());
  is_at_device_ = addresses.ok() && IsOf(*core_, *addresses);
  return absl::OkStatus();
}

absl::Status RdmaListener::Listen(int backlog) {
  backlog_ = backlog;
  const absl::Status listens = core_->cm->Listen(id_.number(), static_cast<uint32_t>(backlog));
  return listens.ok() ? listens : ListenError(listens, at_);
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
    BATON_RETURN_IF_ERROR((*listener)->Listen(backlog));
    return listener;
  }
  return NoPortFreeError(at);
}

Address RdmaListener::address() const {
  const absl::StatusOr<CmAddresses> addresses = core_->cm->QueryAddresses(id_.number());
  return addresses.ok() ? FromSocketAddress(*addresses->local.get()) : Address{};
}

bool RdmaListener::IsAtItsAddress() const {
  const absl::StatusOr<CmAddresses> addresses = core_->cm->QueryAddresses(id_.number());
  return addresses.ok() && FromSocketAddress(*addresses->peer.get()).port == 0 &&
         (at_.port == 0 || FromSocketAddress(*addresses->local.get()).port == at_.port);
}

// The dead process may have stopped to listen. Its id is no more then, and another one may have the
// number. The port in TCP's port space is held by this process, too.
void RdmaListener::Rejoin() {
  if (core_->cm.Adopt(id_.number()).ok() && IsAtItsAddress()) return;
  id_.Release();
  const absl::Status bound = BindId();
  if (backlog_ == 0) return;  // see RdmaDevice::WatchRemoval
  const absl::Status listens = bound.ok() ? Listen(backlog_) : bound;
  if (listens.ok()) return;
  core_->PushDeviceEvent(
      {.type = DeviceEventType::kAddressesChanged,
       .port = core_->port,
       .text = absl::StrCat("nobody listens any more at ", absl::string_view(ToString(at_)), ": ",
                            listens.message(), "; restart the service to try again")});
}

bool RdmaListener::OnEvent(const CmEventSlot& event, CmEvent* out) {
  if (event.number() == CmEventNumber::kDeviceRemoval && is_at_device_) core_->Lose(kRemoved);
  if (event.number() == CmEventNumber::kAddressChange) core_->PushAddressChange(kAddressChange);
  if (event.number() != CmEventNumber::kConnectRequest) return false;
  const absl::StatusOr<CmAddresses> addresses = core_->cm->QueryAddresses(event.id);
  auto requested = std::make_unique<RdmaConnectionId>(
      core_, event.id, addresses.ok() ? *addresses : CmAddresses{}, event.connection);
  // A listener at a wildcard address gets requests of all devices.
  if (!addresses.ok() || !IsOf(*core_, *addresses)) return false;
  out->type = CmEventType::kConnectRequest;
  out->listener = this;
  out->private_data = PrivateDataOf(event);
  out->new_id = std::move(requested);
  return true;
}

// ---------------------------------------------------------------- connection

RdmaConnectionId::RdmaConnectionId(DeviceCore* core, uint32_t requested,
                                   const CmAddresses& addresses, const CmParameters& theirs)
    : core_(core),
      id_(&core->cm, requested, this),
      phase_(Phase::kRequested),
      joined_(true),
      local_(FromSocketAddress(*addresses.local.get())),
      peer_(FromSocketAddress(*addresses.peer.get())),
      asked_{theirs.initiator_depth, theirs.responder_resources} {}

absl::StatusOr<std::unique_ptr<RdmaConnectionId>> RdmaConnectionId::Connect(
    DeviceCore* core, const Address& address, RdmaQueuePair* queue_pair,
    const ConnectionParameters& parameters) {
  BATON_RETURN_IF_ERROR(CheckParameters(parameters, kMaxConnectData));
  std::unique_ptr<RdmaConnectionId> connection(new RdmaConnectionId(core));
  BATON_ASSIGN_OR_RETURN(connection->id_, core->cm.Create(connection.get(), /*listens=*/false));
  connection->peer_ = address;
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
    id_.Release();
    return;
  }
  if (!id_) return;  // the id is not this object's any more
  core_->unanswered.Remove(this);
  LeaveQueuePair();
  core_->ForgetEventsOf(this);
  if (joined_) core_->Dispose(std::move(id_));
}

// ---------------------------------------------------------------- after a former opener's death

void RdmaConnectionId::OnFormer() {
  core_->unanswered.Remove(this);
  if (queue_pair_ != nullptr) std::exchange(queue_pair_, nullptr)->Unbind();
  phase_ = Phase::kEnded;
  id_.Release();
}

absl::StatusOr<Device::AdoptedId> RdmaConnectionId::Adopt(DeviceCore* core,
                                                          const Device::FormerId& former) {
  if (former.number == 0) return absl::NotFoundError("no connection has number 0");
  const uint32_t number = former.number - 1;
  BATON_RETURN_IF_ERROR(core->cm.Adopt(number));
  std::unique_ptr<RdmaConnectionId> id(new RdmaConnectionId(core));
  id->id_ = CmId(&core->cm, number, id.get());
  id->joined_ = true;
  id->parameters_.check_route = former.check_route;
  id->queue_pair_ = static_cast<RdmaQueuePair*>(former.queue_pair);
  const absl::StatusOr<CmAddresses> addresses = core->cm->QueryAddresses(number);
  if (addresses.ok()) {
    id->local_ = FromSocketAddress(*addresses->local.get());
    id->peer_ = FromSocketAddress(*addresses->peer.get());
  }
  if (const absl::Status status = id->GoOn(former.stage); !status.ok()) {
    return absl::NotFoundError(status.message());
  }
  if (id->queue_pair_ != nullptr) id->queue_pair_->Rejoin(id.get());
  const bool unaccepted = id->phase_ == Phase::kRequested;
  return Device::AdoptedId{std::move(id), unaccepted};
}

absl::Status RdmaConnectionId::GoOn(Device::IdStage stage) {
  switch (stage) {
    case Device::IdStage::kRequested:
      return GoOnRequested();
    case Device::IdStage::kAccepting: {
      // A request that was accepted is established by this, although its peer may not know yet.
      BATON_ASSIGN_OR_RETURN(const CmAnswer answer, core_->cm->NotifyEstablished(id_.number()));
      if (answer == CmAnswer::kNone) return GoOnRequested();
      break;
    }
    case Device::IdStage::kConnecting:
      return GoOnConnecting();
    case Device::IdStage::kOpen:
      break;
    case Device::IdStage::kEnded:
      return GoOnEnding();
  }
  if (queue_pair_ == nullptr) return absl::InternalError("no queue pair is known");
  // Events that the dead process had not read, or had read last, tell what becomes of it.
  depths_ = queue_pair_->AskDepths();
  phase_ = Phase::kAccepted;
  return absl::OkStatus();
}

absl::Status RdmaConnectionId::GoOnRequested() {
  phase_ = Phase::kRequested;
  half_joined_ = std::exchange(queue_pair_, nullptr);
  return ReadDepthsOfRequest();
}

// The kernel was told, unless the port was down.
absl::Status RdmaConnectionId::GoOnEnding() {
  phase_ = Phase::kAccepted;
  if (core_->cm->QueuePairAttributes(id_.number(), IBV_QPS_RTS).ok()) return Disconnect();
  phase_ = Phase::kDisconnecting;
  return absl::OkStatus();
}

// The dead process alone knew what it had asked the peer for, so the attempt ends, unless the peer
// has answered and was answered.
absl::Status RdmaConnectionId::GoOnConnecting() {
  BATON_ASSIGN_OR_RETURN(const CmAnswer answer, core_->cm->NotifyEstablished(id_.number()));
  CmEvent event;
  phase_ = Phase::kConnecting;
  if (answer == CmAnswer::kEstablished && queue_pair_ != nullptr) {
    depths_ = queue_pair_->AskDepths();
    phase_ = Phase::kEstablished;
    event.type = CmEventType::kEstablished;
    event.id = this;
    const CmEventSlot* const last = core_->cm.LastOf(id_.number());
    if (last != nullptr) event.private_data = PrivateDataOf(*last);
    core_->PushEvent(std::move(event));
  } else if (OnUnreachable(absl::UnavailableError("the baton-driver that was connecting has died: "
                                                  "connect again"),
                           &event)) {
    core_->PushEvent(std::move(event));
  }
  return absl::OkStatus();
}

// The kernel has them for the queue pair (cm_req_handler, cm_init_qp_rts_attr).
absl::Status RdmaConnectionId::ReadDepthsOfRequest() {
  const auto to_receive = core_->cm->QueuePairAttributes(id_.number(), IBV_QPS_RTR);
  const auto to_send = core_->cm->QueuePairAttributes(id_.number(), IBV_QPS_RTS);
  // The peer has given up. The kernel says so when it is accepted.
  if (!to_receive.ok() || !to_send.ok()) return absl::OkStatus();
  asked_ = {to_send->attributes.max_rd_atomic, to_receive->attributes.max_dest_rd_atomic};
  return absl::OkStatus();
}

absl::Status RdmaConnectionId::StartConnecting(const Address& address) {
  BATON_ASSIGN_OR_RETURN(const SocketAddress parsed, ToSocketAddress(address));
  SocketAddress source;
  if (!core_->source.empty()) {
    BATON_ASSIGN_OR_RETURN(source, ToSocketAddress({core_->source, 0}));
  }
  return core_->cm->ResolveAddress(id_.number(), core_->source.empty() ? nullptr : &source, parsed,
                                   core_->resolve_timeout_ms);
}

// rdma_cm has 0 as RoCE's P_Key, because RoCE has no partitions.
Route RdmaConnectionId::route() const {
  Route route = ConnectionId::route();
  constexpr ibv_gid kNone = {};
  const absl::StatusOr<CmGids> gids = core_->cm->QueryGids(id_.number());
  if (gids.ok() && std::memcmp(gids->local.raw, kNone.raw, sizeof(kNone.raw)) != 0) {
    route.gid = GidText(gids->local);
  }
  if (IsInfiniBand(core_->context.get(), core_->port)) {
    const absl::StatusOr<CmAddresses> addresses = core_->cm->QueryAddresses(id_.number());
    if (addresses.ok()) route.p_key = be16toh(addresses->p_key);
  }
  ibv_path_data path;
  const absl::StatusOr<int> paths = core_->cm->QueryPaths(id_.number(), &path, 1);
  if (paths.ok() && *paths == 1) {
    route.service_level = static_cast<uint8_t>(be16toh(path.path.qosclass_sl) & kServiceLevelMask);
  }
  return route;
}

// `theirs` is from an event: how many READs and atomics the peer lets us have outstanding, and how
// many it wants to have (rdma_get_cm_event(3)).
void RdmaConnectionId::Negotiate(const ReadDepths& theirs) {
  depths_.ours = std::min({parameters_.initiator_depth, core_->max_initiator_depth, theirs.ours});
  depths_.theirs =
      std::min({parameters_.responder_resources, core_->max_responder_resources, theirs.theirs});
}

CmParameters RdmaConnectionId::ParametersFor(const QueuePair& queue_pair) const {
  CmParameters wanted;
  parameters_.private_data.copy(reinterpret_cast<char*>(wanted.private_data),
                                sizeof(wanted.private_data));
  wanted.private_data_length = static_cast<uint8_t>(parameters_.private_data.size());
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

// A former opener may have come half of the way with the queue pair, for this id.
absl::Status RdmaConnectionId::JoinQueuePair() {
  joined_ = true;
  const bool is_half = std::exchange(half_joined_, nullptr) == queue_pair_;
  const QueuePairState at = is_half ? queue_pair_->state() : QueuePairState::kInit;
  if (at == QueuePairState::kReadyToSend) return absl::OkStatus();
  if (at != QueuePairState::kReadyToReceive) {
    BATON_RETURN_IF_ERROR(queue_pair_->Advance(id_.number(), QueuePairState::kInit));
    BATON_RETURN_IF_ERROR(
        queue_pair_->Advance(id_.number(), QueuePairState::kReadyToReceive, depths_));
  }
  return queue_pair_->Advance(id_.number(), QueuePairState::kReadyToSend, depths_);
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
  if (own == half_joined_) {
    own->Rejoin(this);
  } else {
    // The former one is not used any more, and shows it.
    if (half_joined_ != nullptr) (void)half_joined_->SetError();
    BATON_RETURN_IF_ERROR(own->Bind(this));
  }
  queue_pair_ = own;
  parameters_ = parameters;
  Negotiate(asked_);
  phase_ = Phase::kAccepted;
  absl::Status status = JoinQueuePair();
  if (status.ok()) {
    status = core_->cm->Accept(id_.number(), CmIds::kConnectionUid, ParametersFor(*own));
    if (status.ok()) return status;
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
  return core_->cm->Reject(id_.number(), CmRejection::kConsumerDefined, private_data);
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
  const absl::Status status = core_->cm->Disconnect(id_.number());
  return CmErrno(status) == EINVAL ? absl::OkStatus() : status;
}

absl::Status RdmaConnectionId::OnResolved(bool route) {
  BATON_ASSIGN_OR_RETURN(const CmAddresses addresses, core_->cm->QueryAddresses(id_.number()));
  if (!IsOf(*core_, addresses)) {
    return absl::UnavailableError("the peer is not reached through this device");
  }
  local_ = FromSocketAddress(*addresses.local.get());
  if (queue_pair_ == nullptr) return absl::CancelledError("the queue pair was destroyed");
  if (core_->IsPortDown()) return PortIsDown(*core_);
  if (!route) return core_->cm->ResolveRoute(id_.number(), core_->resolve_timeout_ms);
  if (parameters_.check_route) BATON_RETURN_IF_ERROR(parameters_.check_route(this->route()));
  return core_->cm->Connect(id_.number(), ParametersFor(*queue_pair_));
}

// The peer has accepted. The queue pair is not rdma_cm's, so this side makes it ready and tells the
// peer itself.
absl::Status RdmaConnectionId::OnResponse(const CmParameters& theirs) {
  if (queue_pair_ == nullptr) return absl::CancelledError("the queue pair was destroyed");
  Negotiate({theirs.initiator_depth, theirs.responder_resources});
  BATON_RETURN_IF_ERROR(JoinQueuePair());
  return core_->cm->Establish(id_.number());
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

bool RdmaConnectionId::OnRejected(const CmEventSlot& event, CmEvent* out) {
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

bool RdmaConnectionId::OnEstablished(const CmEventSlot& event, CmEvent* out) {
  // The kernel did not tell the peer of an earlier disconnect, because the peer had not answered
  // the accept yet.
  if (phase_ == Phase::kDisconnecting || queue_pair_ == nullptr)
    (void)core_->cm->Disconnect(id_.number());
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
  (void)core_->cm->Disconnect(id_.number());  // answers the peer, if it was first
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

bool RdmaConnectionId::OnEvent(const CmEventSlot& event, CmEvent* out) {
  absl::Status status;
  switch (event.number()) {
    case CmEventNumber::kAddressResolved:
    case CmEventNumber::kRouteResolved:
      status = OnResolved(event.number() == CmEventNumber::kRouteResolved);
      return !status.ok() && OnUnreachable(std::move(status), out);
    case CmEventNumber::kConnectResponse:
      if (phase_ != Phase::kConnecting) return false;  // a follower has found it established
      status = OnResponse(event.connection);
      return status.ok() ? OnEstablished(event, out) : OnUnreachable(std::move(status), out);
    case CmEventNumber::kEstablished:
      return OnEstablished(event, out);
    case CmEventNumber::kRejected:
      return OnRejected(event, out);
    case CmEventNumber::kAddressError:
    case CmEventNumber::kRouteError:
    case CmEventNumber::kConnectError:
    case CmEventNumber::kUnreachable:
      return OnUnreachable(Unreachable(event), out);
    case CmEventNumber::kDisconnected:
      return OnDisconnected(out);
    case CmEventNumber::kDeviceRemoval:
      return OnRemoval(out);
    case CmEventNumber::kAddressChange:
      // The interface has another hardware address (a bond switched over). The queue pair's packets
      // have the old one, and may or may not arrive. If they do not, its retries run out.
      core_->PushAddressChange(kAddressChange);
      return false;
    default:  // CmEventNumber::kTimeWaitExit: the user of a queue pair waits longer to reuse it
      return false;
  }
}

void RdmaConnectionId::QueuePairGone() {
  queue_pair_ = nullptr;
  if (phase_ != Phase::kEstablished && phase_ != Phase::kAccepted) return;
  if (!core_->IsPortDown()) (void)core_->cm->Disconnect(id_.number());
}

void RdmaConnectionId::PeerIsReady() {
  if (phase_ == Phase::kAccepted) (void)core_->cm->NotifyEstablished(id_.number());
}

}  // namespace baton::verbs::rdma

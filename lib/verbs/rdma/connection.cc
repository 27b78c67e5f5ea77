#include "lib/verbs/rdma/connection.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"

namespace baton::verbs::rdma {
namespace {

// What InfiniBand's messages have room for, less the header of rdma_cm (rdma_connect(3),
// rdma_accept(3), rdma_reject(3)).
constexpr size_t kMaxConnectData = 56;
constexpr size_t kMaxAcceptData = 196;
constexpr size_t kMaxRejectData = 148;
// "The port is nobody's": IB_CM_REJ_INVALID_SERVICE_ID (InfiniBand specification, table 117). What
// a listener's program rejects has another reason.
constexpr int kRejectedByNobody = 8;

absl::Status CheckLength(std::string_view private_data, size_t limit) {
  if (private_data.size() <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("private_data: ", private_data.size(), " bytes, at most ", limit));
}

absl::StatusOr<sockaddr_storage> Parse(const Address& address) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address.port);
  if (getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("host: \"", address.host, "\" is not an IPv4 or IPv6 address"));
  }
  sockaddr_storage parsed = {};
  std::copy_n(reinterpret_cast<const uint8_t*>(found->ai_addr), found->ai_addrlen,
              reinterpret_cast<uint8_t*>(&parsed));
  freeaddrinfo(found);
  return parsed;
}

Address Format(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> host = {};
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    inet_ntop(AF_INET, &v4->sin_addr, host.data(), host.size());
    return {host.data(), ntohs(v4->sin_port)};
  }
  if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    inet_ntop(AF_INET6, &v6->sin6_addr, host.data(), host.size());
    return {host.data(), ntohs(v6->sin6_port)};
  }
  return {};
}

std::string PrivateDataOf(const rdma_cm_event& event) {
  const rdma_conn_param& parameters = event.param.conn;
  if (parameters.private_data == nullptr) return {};
  return std::string(static_cast<const char*>(parameters.private_data),
                     parameters.private_data_len);
}

absl::StatusOr<CmId> NewId(rdma_event_channel* channel, CmEndpoint* endpoint) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(channel, &id, endpoint, RDMA_PS_TCP) != 0) {
    return ErrnoStatus(errno, "rdma_create_id");
  }
  return CmId(id);
}

}  // namespace

// ---------------------------------------------------------------- listener

absl::StatusOr<std::unique_ptr<RdmaListener>> RdmaListener::Create(rdma_event_channel* channel,
                                                                   const ConnectionLimits& limits,
                                                                   const Address& address,
                                                                   int backlog) {
  BATON_ASSIGN_OR_RETURN(sockaddr_storage parsed, Parse(address));
  std::unique_ptr<RdmaListener> listener(new RdmaListener(limits));
  BATON_ASSIGN_OR_RETURN(listener->id_, NewId(channel, listener.get()));
  const std::string what = absl::StrCat(address.host, ":", address.port);
  if (rdma_bind_addr(listener->id_.get(), reinterpret_cast<sockaddr*>(&parsed)) != 0) {
    if (errno == EADDRINUSE) return absl::AlreadyExistsError(absl::StrCat(what, " is taken"));
    return ErrnoStatus(errno, absl::StrCat("rdma_bind_addr to ", what));
  }
  if (rdma_listen(listener->id_.get(), backlog) != 0) {
    if (errno == EADDRINUSE) return absl::AlreadyExistsError(absl::StrCat(what, " is taken"));
    return ErrnoStatus(errno, absl::StrCat("rdma_listen at ", what));
  }
  return listener;
}

Address RdmaListener::address() const { return Format(rdma_get_local_addr(id_.get())); }

bool RdmaListener::OnEvent(const rdma_cm_event& event, CmEvent* out) {
  if (event.event != RDMA_CM_EVENT_CONNECT_REQUEST) return false;
  // A listener at any address hears of all devices.
  if (event.id->verbs != limits_.context) {
    const CmId refused(event.id);
    (void)rdma_reject(event.id, nullptr, 0);
    return false;
  }
  out->type = CmEventType::kConnectRequest;
  out->listener = this;
  out->private_data = PrivateDataOf(event);
  out->new_id = std::make_unique<RdmaConnectionId>(limits_, event.id);
  return true;
}

// ---------------------------------------------------------------- connection

RdmaConnectionId::RdmaConnectionId(const ConnectionLimits& limits, rdma_cm_id* requested)
    : limits_(limits), id_(requested) {
  id_->context = static_cast<CmEndpoint*>(this);
}

absl::StatusOr<std::unique_ptr<RdmaConnectionId>> RdmaConnectionId::Connect(
    rdma_event_channel* channel, const ConnectionLimits& limits, const Address& address,
    RdmaQueuePair* queue_pair, const ConnectionParameters& parameters) {
  BATON_RETURN_IF_ERROR(CheckLength(parameters.private_data, kMaxConnectData));
  BATON_ASSIGN_OR_RETURN(sockaddr_storage parsed, Parse(address));
  std::unique_ptr<RdmaConnectionId> connection(new RdmaConnectionId(limits));
  connection->queue_pair_ = queue_pair;
  connection->parameters_ = parameters;
  BATON_ASSIGN_OR_RETURN(connection->id_, NewId(channel, connection.get()));
  if (rdma_resolve_addr(connection->id_.get(), nullptr, reinterpret_cast<sockaddr*>(&parsed),
                        limits.resolve_timeout_ms) != 0) {
    return ErrnoStatus(errno, absl::StrCat("rdma_resolve_addr of ", address.host));
  }
  return connection;
}

Address RdmaConnectionId::local_address() const { return Format(rdma_get_local_addr(id_.get())); }
Address RdmaConnectionId::peer_address() const { return Format(rdma_get_peer_addr(id_.get())); }

rdma_conn_param RdmaConnectionId::ParametersFor(const RdmaQueuePair& queue_pair) const {
  rdma_conn_param wanted = {};
  wanted.private_data = parameters_.private_data.data();
  wanted.private_data_len = static_cast<uint8_t>(parameters_.private_data.size());
  wanted.responder_resources =
      std::min(parameters_.responder_resources, limits_.max_responder_resources);
  wanted.initiator_depth = std::min(parameters_.initiator_depth, limits_.max_initiator_depth);
  wanted.flow_control = 1;
  wanted.retry_count = parameters_.retry_count;
  wanted.rnr_retry_count = parameters_.rnr_retry_count;
  wanted.srq = queue_pair.has_shared_receive_queue() ? 1 : 0;
  wanted.qp_num = queue_pair.number();
  return wanted;
}

absl::Status RdmaConnectionId::Accept(QueuePair* queue_pair,
                                      const ConnectionParameters& parameters) {
  BATON_RETURN_IF_ERROR(CheckLength(parameters.private_data, kMaxAcceptData));
  queue_pair_ = static_cast<RdmaQueuePair*>(queue_pair);
  parameters_ = parameters;
  BATON_RETURN_IF_ERROR(queue_pair_->Advance(id_.get(), QueuePairState::kInit));
  BATON_RETURN_IF_ERROR(queue_pair_->Advance(id_.get(), QueuePairState::kReadyToReceive));
  BATON_RETURN_IF_ERROR(queue_pair_->Advance(id_.get(), QueuePairState::kReadyToSend));
  rdma_conn_param wanted = ParametersFor(*queue_pair_);
  if (rdma_accept(id_.get(), &wanted) != 0) return ErrnoStatus(errno, "rdma_accept");
  return absl::OkStatus();
}

absl::Status RdmaConnectionId::Reject(std::string_view private_data) {
  BATON_RETURN_IF_ERROR(CheckLength(private_data, kMaxRejectData));
  if (rdma_reject(id_.get(), private_data.data(), static_cast<uint8_t>(private_data.size())) != 0) {
    return ErrnoStatus(errno, "rdma_reject");
  }
  return absl::OkStatus();
}

absl::Status RdmaConnectionId::Disconnect() {
  if (queue_pair_ != nullptr) BATON_RETURN_IF_ERROR(queue_pair_->SetError());
  // EINVAL: the peer was first.
  if (rdma_disconnect(id_.get()) != 0 && errno != EINVAL) {
    return ErrnoStatus(errno, "rdma_disconnect");
  }
  return absl::OkStatus();
}

absl::Status RdmaConnectionId::OnResolved(bool route) {
  if (id_->verbs != limits_.context) {
    return absl::UnavailableError("the peer is not reached through this device");
  }
  if (!route) {
    return rdma_resolve_route(id_.get(), limits_.resolve_timeout_ms) == 0
               ? absl::OkStatus()
               : ErrnoStatus(errno, "rdma_resolve_route");
  }
  rdma_conn_param wanted = ParametersFor(*queue_pair_);
  return rdma_connect(id_.get(), &wanted) == 0 ? absl::OkStatus()
                                               : ErrnoStatus(errno, "rdma_connect");
}

// The peer has accepted; whose queue pair it is not rdma_cm's, it is told when that is ready.
absl::Status RdmaConnectionId::OnResponse() {
  BATON_RETURN_IF_ERROR(queue_pair_->Advance(id_.get(), QueuePairState::kInit));
  BATON_RETURN_IF_ERROR(queue_pair_->Advance(id_.get(), QueuePairState::kReadyToReceive));
  BATON_RETURN_IF_ERROR(queue_pair_->Advance(id_.get(), QueuePairState::kReadyToSend));
  return rdma_establish(id_.get()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "rdma_establish");
}

bool RdmaConnectionId::Fail(CmEventType type, absl::Status why, CmEvent* out) {
  if (ended_) return false;
  ended_ = true;
  out->type = type;
  out->id = this;
  out->status = std::move(why);
  return true;
}

bool RdmaConnectionId::OnEvent(const rdma_cm_event& event, CmEvent* out) {
  absl::Status status;
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      status = OnResolved(event.event == RDMA_CM_EVENT_ROUTE_RESOLVED);
      return !status.ok() && Fail(CmEventType::kUnreachable, status, out);
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      status = OnResponse();
      if (!status.ok()) return Fail(CmEventType::kUnreachable, status, out);
      [[fallthrough]];
    case RDMA_CM_EVENT_ESTABLISHED:
      out->type = CmEventType::kEstablished;
      out->id = this;
      out->private_data = PrivateDataOf(event);
      return true;
    case RDMA_CM_EVENT_REJECTED:
      if (event.status == kRejectedByNobody) {
        return Fail(CmEventType::kUnreachable,
                    absl::UnavailableError("nobody listens at that port"), out);
      }
      out->private_data = PrivateDataOf(event);
      if (queue_pair_ != nullptr) (void)queue_pair_->SetError();
      return Fail(CmEventType::kRejected,
                  absl::UnavailableError(absl::StrCat("rejected, reason ", event.status)), out);
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
      return Fail(CmEventType::kUnreachable,
                  absl::UnavailableError(
                      absl::StrCat(rdma_event_str(event.event), ", status ", event.status)),
                  out);
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      // Answers the peer, if it was first.
      (void)Disconnect();
      return Fail(CmEventType::kDisconnected, absl::OkStatus(), out);
    default:
      return false;
  }
}

}  // namespace baton::verbs::rdma

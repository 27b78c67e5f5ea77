// Connections, listeners and the connection manager's events of the rdma device.
#ifndef LIB_VERBS_RDMA_CONNECTION_H_
#define LIB_VERBS_RDMA_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/verbs/rdma/objects.h"
#include "lib/verbs/rdma/queue_pair.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

// What both sides of a connection have to know of the device.
struct ConnectionLimits {
  ibv_context* context = nullptr;
  uint8_t max_responder_resources = 0;
  uint8_t max_initiator_depth = 0;
  int resolve_timeout_ms = 2000;
};

// rdma_cm tells who an event is for through the id's context, which is this.
class CmEndpoint {
 public:
  virtual ~CmEndpoint() = default;
  // `event` is the library's, until the caller acknowledges it. True: *out is to be reported.
  virtual bool OnEvent(const rdma_cm_event& event, CmEvent* out) = 0;
};

class RdmaListener final : public Listener, public CmEndpoint {
 public:
  static absl::StatusOr<std::unique_ptr<RdmaListener>> Create(rdma_event_channel* channel,
                                                              const ConnectionLimits& limits,
                                                              const Address& address, int backlog);
  Address address() const override;
  bool OnEvent(const rdma_cm_event& event, CmEvent* out) override;

 private:
  explicit RdmaListener(const ConnectionLimits& limits) : limits_(limits) {}

  const ConnectionLimits limits_;
  CmId id_;
};

class RdmaConnectionId final : public ConnectionId, public CmEndpoint {
 public:
  // One that a listener was asked for.
  RdmaConnectionId(const ConnectionLimits& limits, rdma_cm_id* requested);
  // Starts connecting.
  static absl::StatusOr<std::unique_ptr<RdmaConnectionId>> Connect(
      rdma_event_channel* channel, const ConnectionLimits& limits, const Address& address,
      RdmaQueuePair* queue_pair, const ConnectionParameters& parameters);

  Address local_address() const override;
  Address peer_address() const override;
  absl::Status Accept(QueuePair* queue_pair, const ConnectionParameters& parameters) override;
  absl::Status Reject(std::string_view private_data) override;
  absl::Status Disconnect() override;
  bool OnEvent(const rdma_cm_event& event, CmEvent* out) override;

 private:
  explicit RdmaConnectionId(const ConnectionLimits& limits) : limits_(limits) {}

  rdma_conn_param ParametersFor(const RdmaQueuePair& queue_pair) const;
  absl::Status OnResolved(bool route);
  absl::Status OnResponse();
  bool Fail(CmEventType type, absl::Status why, CmEvent* out);

  const ConnectionLimits limits_;
  CmId id_;
  RdmaQueuePair* queue_pair_ = nullptr;
  ConnectionParameters parameters_;
  bool ended_ = false;  // its last event was reported
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_CONNECTION_H_

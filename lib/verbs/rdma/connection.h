// Connections, listeners and the connection manager's events of the rdma device.
#ifndef LIB_VERBS_RDMA_CONNECTION_H_
#define LIB_VERBS_RDMA_CONNECTION_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/rdma/cm_file.h"
#include "lib/verbs/rdma/cm_id.h"
#include "lib/verbs/rdma/device_core.h"
#include "lib/verbs/rdma/objects.h"
#include "lib/verbs/rdma/queue_pair.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

// The bytes that InfiniBand's messages can carry, less the header of rdma_cm (rdma_connect(3),
// rdma_accept(3), rdma_reject(3)).
inline constexpr uint32_t kMaxConnectData = 56;
inline constexpr uint32_t kMaxAcceptData = 196;
inline constexpr uint32_t kMaxRejectData = 148;

class RdmaListener final : public Listener, public CmEndpoint {
 public:
  static absl::StatusOr<std::unique_ptr<RdmaListener>> Create(DeviceCore* core,
                                                              const Address& address, int backlog);
  // Makes an endpoint that has the address in rdma_cm alone and does not listen. It receives the
  // device's events.
  static absl::StatusOr<std::unique_ptr<RdmaListener>> Bind(DeviceCore* core,
                                                            const Address& address);
  ~RdmaListener() override {
    if (core_->forked) id_.Release();
  }
  Address address() const override;
  bool OnEvent(const CmEventSlot& event, CmEvent* out) override;
  void Rejoin() override;

 private:
  explicit RdmaListener(DeviceCore* core) : core_(core) {}
  absl::Status BindId();
  absl::Status Listen(int backlog);
  bool IsAtItsAddress() const;

  DeviceCore* const core_;
  Address at_;
  int backlog_ = 0;  // 0: it does not listen
  // It is bound to an address of this device. The kernel says so no more once the device is
  // removed.
  bool is_at_device_ = false;
  FileDescriptor claim_;  // closed after the id, so that both port spaces are free by then
  CmId id_;
};

class RdmaConnectionId final : public ConnectionId, public CmEndpoint, private QueuePairLink {
 public:
  // Makes an id for a peer's request with these parameters.
  RdmaConnectionId(DeviceCore* core, uint32_t requested, const CmAddresses& addresses,
                   const CmParameters& theirs);
  // Starts connecting.
  static absl::StatusOr<std::unique_ptr<RdmaConnectionId>> Connect(
      DeviceCore* core, const Address& address, RdmaQueuePair* queue_pair,
      const ConnectionParameters& parameters);
  ~RdmaConnectionId() override;

  Address local_address() const override { return local_; }
  Address peer_address() const override { return peer_; }
  ReadDepths depths() const override { return depths_; }
  Route route() const override;
  absl::Status Accept(QueuePair* queue_pair, const ConnectionParameters& parameters) override;
  absl::Status Reject(std::string_view private_data) override;
  absl::Status Disconnect() override;
  bool OnEvent(const CmEventSlot& event, CmEvent* out) override;
  void OnFormer() override;
  static absl::StatusOr<Device::AdoptedId> Adopt(DeviceCore* core, const Device::FormerId& former);
  uint32_t number() const override { return NumberOf(id_); }
  // Called when the connect timeout has expired.
  bool OnNoAnswer(CmEvent* out);

 private:
  enum class Phase : uint8_t {
    kRequested,   // by the peer: neither accepted nor rejected
    kAccepted,    // not established yet
    kConnecting,  // by us
    kEstablished,
    kDisconnecting,  // by us
    kEnded,          // nothing more is reported
  };

  explicit RdmaConnectionId(DeviceCore* core) : core_(core) {}
  // The kernel's numbers begin with 0.
  static uint32_t NumberOf(const CmId& id) { return id.number() + 1; }
  absl::Status GoOn(Device::IdStage stage);
  absl::Status GoOnRequested();
  absl::Status GoOnConnecting();
  absl::Status GoOnEnding();
  absl::Status ReadDepthsOfRequest();
  absl::Status StartConnecting(const Address& address);
  absl::Status CheckRequested(const char* call) const;
  void Negotiate(const ReadDepths& theirs);
  absl::Status JoinQueuePair();  // to RTS
  void LeaveQueuePair();         // sets it to the error state
  CmParameters ParametersFor(const QueuePair& queue_pair) const;
  absl::Status OnResolved(bool route);
  absl::Status OnResponse(const CmParameters& theirs);
  bool OnRejected(const CmEventSlot& event, CmEvent* out);
  bool OnEstablished(const CmEventSlot& event, CmEvent* out);
  bool OnDisconnected(CmEvent* out);
  bool OnRemoval(CmEvent* out);
  bool OnUnreachable(absl::Status why, CmEvent* out);
  bool End(CmEventType type, absl::Status why, CmEvent* out);
  void QueuePairGone() override;
  void PeerIsReady() override;

  DeviceCore* const core_;
  CmId id_;
  Phase phase_ = Phase::kConnecting;
  bool joined_ = false;  // the peer may know of a connection
  Address local_, peer_;
  RdmaQueuePair* queue_pair_ = nullptr;
  // The queue pair with which a former opener was accepting. It is only compared, because another
  // connection may have it by now.
  RdmaQueuePair* half_joined_ = nullptr;
  ConnectionParameters parameters_;
  ReadDepths asked_;   // by the peer's request
  ReadDepths depths_;  // of the connection
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_CONNECTION_H_

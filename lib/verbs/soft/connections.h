// Connection ids and listeners of the soft device. The NIC holds their state.
#ifndef LIB_VERBS_SOFT_CONNECTIONS_H_
#define LIB_VERBS_SOFT_CONNECTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/call_socket.h"
#include "lib/nic/control_format.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

class SoftConnections;

class SoftConnectionId final : public ConnectionId {
 public:
  SoftConnectionId(SoftConnections* connections, uint32_t number);
  ~SoftConnectionId() override;

  Address local_address() const override { return local_; }
  Address peer_address() const override { return peer_; }
  ReadDepths depths() const override { return depths_; }
  absl::Status Accept(QueuePair* queue_pair, const ConnectionParameters& parameters) override;
  absl::Status Reject(std::string_view private_data) override;
  absl::Status Disconnect() override;
  uint32_t number() const override { return number_; }

 private:
  friend class SoftConnections;
  void Note(const nic::control::Event& event);

  SoftConnections* const connections_;
  const uint32_t number_;
  const uint32_t openers_;  // value of SoftConnections::openers_ when this was made
  QueuePair* queue_pair_ = nullptr;
  Address local_;
  Address peer_;
  ReadDepths depths_;
  std::function<absl::Status(const Route&)> check_route_;
  absl::Status refused_;  // the result of check_route_
};

// The ids and listeners of a device. It outlives them.
class SoftConnections {
 public:
  // `calls` has opened a file for ids (lib/nic/control.md).
  static absl::StatusOr<std::unique_ptr<SoftConnections>> Make(nic::CallSocket calls);

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const Address& address, int backlog);
  absl::StatusOr<std::unique_ptr<ConnectionId>> Connect(const Address& address,
                                                        QueuePair* queue_pair,
                                                        const ConnectionParameters& parameters);
  // See Device::NextEvent. Asks the NIC only if LookForEvents has found that there may be an event.
  bool NextEvent(CmEvent* event);
  // Returns whether there may be an event.
  bool LookForEvents();
  // See Device.
  absl::Status BeginTakeOver();
  absl::Status TakeOver();
  absl::StatusOr<Device::AdoptedId> AdoptId(Device::FormerId former);
  absl::Status DestroyUnknown();

  int event_fd() const { return channel_.get(); }
  nic::CallSocket& calls() { return calls_; }

 private:
  friend class SoftConnectionId;
  class SoftListener;

  SoftConnections(nic::CallSocket calls, FileDescriptor channel)
      : calls_(std::move(calls)), channel_(std::move(channel)) {}

  bool Translate(const nic::control::Event& message, CmEvent* event);
  bool TranslateRequest(const nic::control::Event& message, CmEvent* event);
  void AnswerRoute(SoftConnectionId* id);
  void Destroy(nic::control::Kind kind, uint32_t number);

  nic::CallSocket calls_;
  FileDescriptor channel_;
  bool more_ = false;     // the NIC may have events
  bool given_ = false;    // this process has taken an event, and handled it by the next call
  uint32_t openers_ = 0;  // that this process has followed: ids of before are none any more
  absl::flat_hash_map<uint32_t, SoftConnectionId*> ids_;
  absl::flat_hash_map<uint32_t, SoftListener*> listeners_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_CONNECTIONS_H_

// The state that the connections and listeners of one user share.
#ifndef LIB_NIC_CONNECTION_CORE_H_
#define LIB_NIC_CONNECTION_CORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "lib/nic/engine.h"
#include "lib/nic/rendezvous.h"
#include "lib/nic/soft_options.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

class SoftConnection;
class SoftListener;

// See CmEvent.
struct ConnectionEvent {
  CmEventType type = CmEventType::kConnectRequest;
  SoftListener* listener = nullptr;
  std::unique_ptr<SoftConnection> new_id;
  SoftConnection* id = nullptr;
  std::string private_data;
  absl::Status status;
};

class ConnectionCore {
 public:
  // Both outlive it.
  ConnectionCore(const SoftDeviceOptions* device_options, Engine* device_engine);
  virtual ~ConnectionCore();
  ConnectionCore(const ConnectionCore&) = delete;
  ConnectionCore& operator=(const ConnectionCore&) = delete;

  virtual void PushEvent(ConnectionEvent event) = 0;
  // Called when the local address of a connecting connection is known. If AskRoute was called, the
  // connection waits for Proceed.
  virtual void RouteKnown(SoftConnection* id) = 0;

  const SoftDeviceOptions& options;
  Engine* const engine;
  uint64_t connections = 0;                     // ordinal of the next one, for the fault plan
  uint32_t memory_wires = 0;                    // connections that have memory, or are about to
  std::unique_ptr<nic::Rendezvous> rendezvous;  // made for the first offer
  // Owns the connections of peers that have connected and not sent their request yet.
  absl::flat_hash_map<SoftConnection*, std::unique_ptr<SoftConnection>> half_open;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_CONNECTION_CORE_H_

#ifndef SUPERVISOR_DRIVER_ENGINE_ENGINE_LISTENER_H_
#define SUPERVISOR_DRIVER_ENGINE_ENGINE_LISTENER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "supervisor/driver/engine/reconciliation.h"

namespace baton::driver_process {

// Receives an engine's reports, on the engine's thread unless it says otherwise.
class EngineListener {
 public:
  virtual ~EngineListener() = default;
  virtual void OnEvent(std::string_view kind, const std::string& message, uint64_t worker_id,
                       int shard, int connection) = 0;
  // Called when the worker wrote what no correct worker writes. The listener must kill it.
  virtual void OnFenced(uint64_t worker_id) = 0;
  // Called, on any thread, when a thread of the worker ended with a lock of the worker held.
  virtual void OnThreadEnded(uint32_t /*slot*/, uint64_t /*worker_id*/) {}
  // Reports the outcome of a shard's work requests when an ownership ended. Called again when the
  // report changes.
  virtual void OnReport(uint32_t /*shard*/, const ReconciliationReport& /*report*/) {}
  // Called when the owner after that of `ended_epoch` has committed for the first time. Its own
  // epoch may be later than `ended_epoch` + 1: a brokered engine skips those whose commit bank is
  // not free.
  virtual void OnServed(uint32_t /*shard*/, uint64_t /*ended_epoch*/, uint64_t /*worker_id*/,
                        uint64_t /*blackout_ns*/) {}
  // Called when the device can no longer be used. A brokered engine has ended all connections, and
  // stops.
  virtual void OnDeviceLost(const absl::Status& why) = 0;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_ENGINE_LISTENER_H_

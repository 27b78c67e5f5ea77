// Drains a service, so that it takes no new connections: for the maintenance of its machine, or its
// end.
//
// Existing connections go on until their peers end them, or until the deadline. A file in the state
// directory records the drain, so that the next keeper drains, too.
#ifndef SUPERVISOR_KEEPER_POLICY_SERVICE_DRAIN_H_
#define SUPERVISOR_KEEPER_POLICY_SERVICE_DRAIN_H_

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/event_log.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
class ServiceDrain {
 public:
  // All references outlive it. Goes on with the drain that the state directory records, if any.
  ServiceDrain(boost::asio::io_context& loop, const internal::KeeperConfig& config,
               DriverClient& driver, EventLog& events);

  // Begins a drain, or changes the deadline of one that has begun. After an error (an invalid
  // request, or the record could not be written) nothing has changed.
  absl::StatusOr<v1::Drain> Begin(const internal::DrainService& request);
  // kFailedPrecondition: the service is not drained.
  absl::Status End();

  // Returns the drain's state; nothing if the service accepts new connections.
  std::optional<v1::Drain> Describe() const;

 private:
  void ReadRecord();
  // Returns how many keepers have begun to read the record before, without coming to its end.
  off_t CountReader() const;
  void SetRecordAside();
  absl::Status WriteRecord(const v1::Drain& drain, uint64_t deadline_ns) const;
  void Enforce();
  void Look();
  void OnDeadline(uint32_t left);

  const internal::KeeperConfig& config_;
  DriverClient& driver_;
  EventLog& events_;
  const std::string path_, readers_path_;
  boost::asio::steady_timer timer_;
  std::optional<v1::Drain> drain_;  // without what the engine counts, and without the deadline
  uint64_t deadline_ns_ = 0;        // monotonic, because the wall clock may be set; 0: none
  bool deadline_told_ = false;
  bool empty_told_ = false;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_POLICY_SERVICE_DRAIN_H_

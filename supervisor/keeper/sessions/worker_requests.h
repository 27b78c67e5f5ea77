// Serves the requests of workers for listeners, connections and grants.
#ifndef SUPERVISOR_KEEPER_SESSIONS_WORKER_REQUESTS_H_
#define SUPERVISOR_KEEPER_SESSIONS_WORKER_REQUESTS_H_

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/service_driver.h"

namespace baton::keeper {

// Requires attached workers. Thread-compatible: the management loop's thread. Each request blocks
// that thread for a turn of the engine, but not while memory is registered or deregistered.
class WorkerRequests {
 public:
  using Asker = ServiceDriver::Asker;

  // All references outlive it.
  WorkerRequests(boost::asio::io_context& loop, const internal::KeeperConfig& config,
                 ServiceDriver& driver)
      : loop_(loop), config_(config), driver_(driver) {}

  absl::Status Listen(const Asker& asker, const internal::ListenRequest& request,
                      internal::Listening* listening);
  absl::Status Connect(const Asker& asker, const internal::ConnectRequest& request,
                       internal::Connecting* connecting);
  // Both call `done` from the loop, unless the loop or the driver stops before.
  using Granted = std::function<void(absl::StatusOr<internal::Granted>)>;
  void Grant(const Asker& asker, const internal::GrantRequest& request, Granted done);
  void Revoke(const Asker& asker, uint32_t grant, std::function<void(absl::Status)> done);

 private:
  boost::asio::io_context& loop_;
  const internal::KeeperConfig& config_;
  ServiceDriver& driver_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_WORKER_REQUESTS_H_

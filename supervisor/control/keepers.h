// All keepers of this Baton, the events that they report, and what control asks of them.
//
// Thread-safe between Start and Stop.
#ifndef SUPERVISOR_CONTROL_KEEPERS_H_
#define SUPERVISOR_CONTROL_KEEPERS_H_

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "supervisor/control/event_log.h"
#include "supervisor/control/keeper_client.h"

namespace baton {

class Keepers {
 public:
  struct Observer {
    // A service's keeper was reached, for the first time or again.
    std::function<void(const std::string& service)> on_connected;
    // A keeper has reported an event that was not known yet.
    std::function<void(const std::string& service, const v1::Event&)> on_event;
  };
  Keepers(boost::asio::io_context& loop, const internal::ControlConfig& config,
          const Observer& observer);

  void Start();
  void Stop();  // REQUIRES: the loop has ended

  // kNotFound: there is no such service; the message names those that exist.
  absl::StatusOr<KeeperClient*> Find(const std::string& service);
  std::vector<KeeperClient*> All();
  EventLog& events() { return events_; }

  // Asks a keeper to describe its service. If the keeper hangs, returns kUnavailable after a few
  // seconds, or kDeadlineExceeded when `timeout_ns` is shorter.
  absl::StatusOr<internal::Description> Describe(const std::string& service, uint64_t timeout_ns);

  // Describes every service, in the order of their names. All keepers are asked at the same time.
  using Described = std::pair<std::string, absl::StatusOr<internal::Description>>;
  std::vector<Described> DescribeAll(uint64_t timeout_ns);

  // Calls `done` once everything that the keepers of `clients` had logged when asked has reached
  // events(), with the first problem if there was one.
  void SyncEvents(const std::vector<KeeperClient*>& clients,
                  const std::function<void(absl::Status)>& done);

 private:
  EventLog events_;
  std::map<std::string, std::unique_ptr<KeeperClient>> clients_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_KEEPERS_H_

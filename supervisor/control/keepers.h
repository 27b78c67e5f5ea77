#ifndef SUPERVISOR_CONTROL_KEEPERS_H_
#define SUPERVISOR_CONTROL_KEEPERS_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/pauses.h"
#include "lib/channel/framed_socket.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/control/event_log.h"
#include "supervisor/control/log_budget.h"

namespace baton {

// Control's end of one keeper's management socket, on control's loop. A hung keeper does not delay
// calls to others, because the loop never waits for it.
class KeeperClient {
 public:
  using Reply = absl::StatusOr<internal::ManagementReply>;
  using Done = std::function<void(Reply)>;

  struct Observer {
    // All are called by the loop.
    std::function<void(const v1::Event&)> on_event;
    std::function<void()> on_connected;  // the first time and after every reconnect
    // Returns the reason that a dead keeper left for its end; empty if it left none.
    std::function<std::string()> down_reason;
  };

  KeeperClient(boost::asio::io_context& loop, std::string service, std::string socket_path,
               Observer observer);
  KeeperClient(const KeeperClient&) = delete;
  KeeperClient& operator=(const KeeperClient&) = delete;

  const std::string& service() const { return service_; }
  const std::string& socket_path() const { return socket_path_; }

  void Start();
  // Fails pending calls and every later one with kUnavailable. REQUIRES: the loop has ended.
  void Stop();

  // Sends `request`, whose id it sets, and calls `done` exactly once, without locks held.
  // Thread-safe. The loop calls `done`, which must not block; at the end this thread or Stop's may
  // call it. kUnavailable: the keeper cannot be reached (a call tries to connect at once, whatever
  // the back-off). kDeadlineExceeded: no answer within `timeout_ns`. Other errors are the keeper's.
  void Call(internal::ManagementRequest request, uint64_t timeout_ns, Done done);
  // The same, with a future. The loop must not wait for the result.
  std::future<Reply> Ask(internal::ManagementRequest request, uint64_t timeout_ns);

 private:
  struct Outgoing {
    internal::ManagementRequest request;
    uint64_t deadline_ns;
    Done done;
  };
  struct Pending {
    uint64_t deadline_ns;
    Done done;
  };

  absl::Status Connect();
  absl::Status Subscribe();
  void ConnectLater();
  void Disconnect(const absl::Status& cause);
  void FailPending(const absl::Status& cause);
  void SendQueued();
  void Submit(Outgoing outgoing);
  absl::StatusOr<bool> TakeReply();
  void Dispatch(internal::ManagementReply reply);
  void AwaitExpiry(uint64_t deadline_ns);
  void ExpirePending();
  absl::Status Unreachable(const absl::Status& cause) const;

  boost::asio::io_context& loop_;
  const std::string service_;
  const std::string socket_path_;
  const Observer observer_;

  std::mutex mutex_;
  std::vector<Outgoing> queue_;  // guarded by mutex_
  bool stopping_ = false;        // guarded by mutex_

  // Used by the loop, and after its end by Stop.
  std::shared_ptr<FramedSocket> socket_;  // null: not connected
  std::map<uint64_t, Pending> pending_;
  uint64_t next_id_ = 1;
  BackOff back_off_{std::chrono::milliseconds(20), std::chrono::seconds(2)};
  boost::asio::steady_timer reconnect_;
  boost::asio::steady_timer expiry_;
  uint64_t expiry_ns_ = UINT64_MAX;  // when `expiry_` expires; UINT64_MAX: it does not run
  bool problem_logged_ = false;
  LogBudget log_budget_;
};

// All keepers of this Baton, the events that they report, and what control asks of them.
//
// Thread-safe between Start and Stop.
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

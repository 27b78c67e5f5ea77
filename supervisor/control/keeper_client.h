// Control's end of one keeper's management socket. A thread of its own per keeper, so that one
// which hangs delays nobody else's calls.
#ifndef SUPERVISOR_CONTROL_KEEPER_CLIENT_H_
#define SUPERVISOR_CONTROL_KEEPER_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "lib/waiting/back_off.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/control/log_budget.h"

namespace baton {

class KeeperClient {
 public:
  using Done = std::function<void(absl::StatusOr<internal::ManagementReply>)>;

  struct Observer {
    // All are called from the client's thread.
    std::function<void(const v1::Event&)> on_event;
    std::function<void()> on_connected;  // the first time and after every reconnect
    // What the keeper that is gone has left about that; empty: nothing.
    std::function<std::string()> down_reason;
  };

  KeeperClient(std::string service, std::string socket_path, Observer observer);
  ~KeeperClient() { Stop(); }
  KeeperClient(const KeeperClient&) = delete;
  KeeperClient& operator=(const KeeperClient&) = delete;

  const std::string& service() const { return service_; }
  const std::string& socket_path() const { return socket_path_; }

  void Start();
  // Fails what is pending and every later call with kUnavailable.
  void Stop();

  // Thread-safe. Sends `request` (its id is set here) and calls `done` exactly once, without locks
  // held: from the client's thread, or from this one after Stop. kUnavailable: the keeper cannot
  // be reached (a call tries to connect at once, whatever the back-off); kDeadlineExceeded: no
  // answer within `timeout_ns`; otherwise what the keeper said.
  void Call(internal::ManagementRequest request, uint64_t timeout_ns, Done done);
  absl::StatusOr<internal::ManagementReply> CallAndWait(internal::ManagementRequest request,
                                                        uint64_t timeout_ns);

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

  void Run();
  void Wait();
  absl::Status Connect();
  void Disconnect(const absl::Status& cause);
  void FailPending(const absl::Status& cause);
  void SendQueued();
  void Submit(Outgoing outgoing);
  void ReadReplies();
  void Dispatch(internal::ManagementReply reply);
  void ExpirePending();
  absl::Status Unreachable(const absl::Status& cause) const;
  void Wake();

  const std::string service_;
  const std::string socket_path_;
  const Observer observer_;
  FileDescriptor wake_;  // eventfd
  std::thread thread_;

  std::mutex mutex_;
  std::vector<Outgoing> queue_;  // guarded by mutex_
  bool stopping_ = false;        // guarded by mutex_

  // Of the thread only.
  std::unique_ptr<MessageChannel> channel_;
  std::map<uint64_t, Pending> pending_;
  uint64_t next_id_ = 1;
  BackOff back_off_{std::chrono::milliseconds(20), std::chrono::seconds(2)};
  uint64_t next_attempt_ns_ = 0;
  bool problem_logged_ = false;
  LogBudget log_budget_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_KEEPER_CLIENT_H_

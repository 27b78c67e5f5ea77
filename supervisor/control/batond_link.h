// Sends control's requests to batond, over the socket that batond gave control at its start. If
// batond dies, control goes on, and the next batond takes it in and gives it another socket.
#ifndef SUPERVISOR_CONTROL_BATOND_LINK_H_
#define SUPERVISOR_CONTROL_BATOND_LINK_H_

#include <sys/types.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/framed_socket.h"
#include "proto/baton/internal/batond.pb.h"
#include "supervisor/config/next_batond.h"

namespace baton {

class BatondLink {
 public:
  struct Answer {
    internal::BatondReply reply;
    std::vector<FileDescriptor> descriptors;
  };
  // Called by the loop when batond reports something without a request of control's: events, a
  // configuration that it has read again, or that another batond has taken control in.
  using OnNews = std::function<void(const internal::BatondReply&)>;
  // The means by which control finds the next batond, and the request that it makes there. Without
  // the lock's descriptor control does not look for one.
  struct Rejoin {
    std::string state_dir;
    FileDescriptor lock, stay;
    internal::RejoinRequest request;
  };

  // Without a socket every request fails. `batond`: the pid of the batond that started control; 0:
  // none did.
  BatondLink(boost::asio::io_context& loop, FileDescriptor socket, Rejoin rejoin, pid_t batond);
  BatondLink(const BatondLink&) = delete;
  BatondLink& operator=(const BatondLink&) = delete;

  void Start(OnNews on_news);
  // Returns the pid of control's batond; 0: there is none now. Thread-safe.
  pid_t batond() const { return batond_.load(std::memory_order_relaxed); }
  // Returns how many batonds have taken control in. Thread-safe.
  uint64_t batonds_followed() const { return followed_.load(std::memory_order_relaxed); }
  // Fails the waiting calls, and every later one. REQUIRES: the loop has ended.
  void Stop();

  // Sends `request`, whose id it sets, and waits for the answer. Thread-safe; must not be called by
  // the loop. kFailedPrecondition: batond did not start this control, so nobody can be asked.
  // kUnavailable: batond is gone, and the next one has not come yet. Other errors are batond's, or
  // say that it does not answer.
  absl::StatusOr<Answer> Ask(internal::BatondRequest request);

 private:
  void Talk();
  void OnClosed(const absl::Status& why);
  void LookForBatond();
  bool WillBeAlone() const;
  void Send(const internal::BatondRequest& request);
  absl::StatusOr<bool> TakeReply();
  void GiveAnswer(uint64_t id, absl::StatusOr<Answer> answer);
  void End(const absl::Status& why);

  boost::asio::io_context& loop_;
  const bool has_batond_;
  Rejoin rejoin_;
  // The loop alone uses the next four.
  std::shared_ptr<FramedSocket> socket_;  // null: batond is gone, or has closed it
  std::optional<NextBatond> next_;
  boost::asio::steady_timer look_timer_;
  OnNews on_news_;

  std::atomic<pid_t> batond_;
  std::atomic<uint64_t> followed_{0};
  std::mutex mutex_;  // guards what follows
  std::map<uint64_t, std::promise<absl::StatusOr<Answer>>> waiting_;
  uint64_t last_id_ = 0;
  absl::Status ended_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_BATOND_LINK_H_

// Sends control's requests to batond, over the socket that batond gave control at its start.
#ifndef SUPERVISOR_CONTROL_BATOND_LINK_H_
#define SUPERVISOR_CONTROL_BATOND_LINK_H_

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/framed_socket.h"
#include "proto/baton/internal/batond.pb.h"

namespace baton {

class BatondLink {
 public:
  struct Answer {
    internal::BatondReply reply;
    std::vector<FileDescriptor> descriptors;
  };
  // Called by the loop when batond reports something without a request of control's: events, or a
  // configuration that it has read again.
  using OnNews = std::function<void(const internal::BatondReply&)>;

  // Without a socket every request fails.
  BatondLink(boost::asio::io_context& loop, FileDescriptor socket);
  BatondLink(const BatondLink&) = delete;
  BatondLink& operator=(const BatondLink&) = delete;

  void Start(OnNews on_news);
  // Fails the waiting calls, and every later one. REQUIRES: the loop has ended.
  void Stop();

  // Sends `request`, whose id it sets, and waits for the answer. Thread-safe; must not be called by
  // the loop. kFailedPrecondition: batond did not start this control, so nobody can be asked. Other
  // errors are batond's, or say that it does not answer.
  absl::StatusOr<Answer> Ask(internal::BatondRequest request);

 private:
  absl::StatusOr<bool> TakeReply();
  void GiveAnswer(uint64_t id, absl::StatusOr<Answer> answer);
  void End(const absl::Status& why);

  boost::asio::io_context& loop_;
  const std::shared_ptr<FramedSocket> socket_;  // used by the loop; null: no socket
  OnNews on_news_;                              // used by the loop

  std::mutex mutex_;  // guards what follows
  std::map<uint64_t, std::promise<absl::StatusOr<Answer>>> waiting_;
  uint64_t last_id_ = 0;
  absl::Status ended_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_BATOND_LINK_H_

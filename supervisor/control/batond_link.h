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
#include "lib/loop/framed_session.h"
#include "proto/baton/internal/control.pb.h"

namespace baton {

class BatondLink {
 public:
  struct Answer {
    internal::BatondReply reply;
    std::vector<FileDescriptor> descriptors;
  };
  // Batond has read its configuration again, unasked. Called by the loop.
  using OnNews = std::function<void(const internal::BatondReply&)>;

  // Without a socket nobody answers.
  BatondLink(boost::asio::io_context& loop, FileDescriptor socket);
  BatondLink(const BatondLink&) = delete;
  BatondLink& operator=(const BatondLink&) = delete;

  void Start(OnNews on_news);
  // Fails the calls that wait, and every later one. REQUIRES: the loop has ended.
  void Stop();

  // Thread-safe, and not from the loop. Sends `request`, whose id is set here, and waits.
  // kFailedPrecondition: nobody is there who could be asked; otherwise what batond says, or that it
  // does not answer.
  absl::StatusOr<Answer> Ask(internal::BatondRequest request);

 private:
  absl::StatusOr<bool> TakeReply();
  void GiveAnswer(uint64_t id, absl::StatusOr<Answer> answer);
  void End(const absl::Status& why);

  boost::asio::io_context& loop_;
  const std::shared_ptr<FramedSession> session_;  // the loop's; null: nobody answers
  OnNews on_news_;                                // the loop's

  std::mutex mutex_;  // guards what follows
  std::map<uint64_t, std::promise<absl::StatusOr<Answer>>> waiting_;
  uint64_t last_id_ = 0;
  absl::Status ended_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_BATOND_LINK_H_

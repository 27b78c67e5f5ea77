#ifndef SUPERVISOR_BATOND_CONTROL_REQUESTS_H_
#define SUPERVISOR_BATOND_CONTROL_REQUESTS_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/control.pb.h"

namespace baton {

// Answers what one control process asks over its socketpair (proto/baton/internal/control.proto). A
// control that breaks the protocol loses its channel and nothing else. Lives as long as that
// process.
class ControlRequests {
 public:
  using Reload = std::function<absl::StatusOr<internal::BatondReply>()>;

  using Open = std::function<absl::StatusOr<FileDescriptor>(const std::string& path)>;

  ControlRequests(boost::asio::io_context& io, FileDescriptor socket, Reload reload, Open open);
  ~ControlRequests();
  ControlRequests(const ControlRequests&) = delete;
  ControlRequests& operator=(const ControlRequests&) = delete;

  // What was read again without being asked.
  void Tell(const internal::BatondReply& news);

 private:
  void Wait();
  absl::Status AnswerAll();
  absl::Status Answer(const internal::BatondRequest& request);
  absl::Status Send(const internal::BatondReply& reply, const std::vector<int>& descriptors = {});
  void Close(const absl::Status& why);

  const Reload reload_;
  const Open open_;
  MessageChannel channel_;
  boost::asio::posix::stream_descriptor readable_;  // the channel's descriptor, borrowed
  // A handler that is queued already can no longer be cancelled: it looks at this first.
  std::shared_ptr<char> alive_ = std::make_shared<char>();
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_CONTROL_REQUESTS_H_

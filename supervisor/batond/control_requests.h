#ifndef SUPERVISOR_BATOND_CONTROL_REQUESTS_H_
#define SUPERVISOR_BATOND_CONTROL_REQUESTS_H_

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/framed_socket.h"
#include "proto/baton/internal/batond.pb.h"

namespace baton {

// Answers the requests of one control process over its socketpair
// (proto/baton/internal/batond.proto). A control that breaks the protocol loses its channel and
// nothing else. A control that asks without a pause keeps nobody waiting. The object lives as long
// as that process.
class ControlRequests {
 public:
  // Calls `done` once, at once or later.
  using ReloadDone = std::function<void(absl::StatusOr<internal::BatondReply>)>;
  using Reload = std::function<void(const internal::ReloadConfig& request, ReloadDone done)>;

  using Done = std::function<void(const absl::Status&)>;
  using Replace = std::function<void(const internal::ReplaceProgram& request, Done done)>;
  using Open = std::function<absl::StatusOr<FileDescriptor>(const internal::OpenFile& request)>;

  ControlRequests(boost::asio::io_context& io, FileDescriptor socket, Reload reload,
                  Replace replace, Open open);
  ~ControlRequests();
  ControlRequests(const ControlRequests&) = delete;
  ControlRequests& operator=(const ControlRequests&) = delete;

  // Reports without a request: events, or a configuration that was read again.
  void Tell(const internal::BatondReply& news);

 private:
  absl::StatusOr<bool> AnswerOne();
  void Answer(const internal::BatondRequest& request);

  const Reload reload_;
  const Replace replace_;
  const Open open_;
  std::shared_ptr<FramedSocket> socket_;  // null: control has broken the protocol, or is gone
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_CONTROL_REQUESTS_H_

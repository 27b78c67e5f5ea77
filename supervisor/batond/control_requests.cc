#include "supervisor/batond/control_requests.h"

#include <sys/socket.h>

#include <string>
#include <utility>

#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "spdlog/spdlog.h"

namespace baton {

ControlRequests::ControlRequests(boost::asio::io_context& io, FileDescriptor socket, Reload reload,
                                 Open open)
    : reload_(std::move(reload)),
      open_(std::move(open)),
      channel_(std::move(socket)),
      readable_(io, channel_.fd()) {
  Wait();
}

ControlRequests::~ControlRequests() {
  if (readable_.is_open()) readable_.release();
}

void ControlRequests::Wait() {
  readable_.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [this, alive = std::weak_ptr<char>(alive_)](const boost::system::error_code& error) {
        if (error || alive.expired()) return;
        const absl::Status status = AnswerAll();
        if (absl::IsDeadlineExceeded(status)) return Wait();  // all is answered
        Close(status);
      });
}

absl::Status ControlRequests::AnswerAll() {
  for (;;) {
    internal::BatondRequest request;
    BATON_RETURN_IF_ERROR(channel_.Receive(&request, /*timeout_ms=*/0));
    BATON_RETURN_IF_ERROR(Answer(request));
  }
}

absl::Status ControlRequests::Answer(const internal::BatondRequest& request) {
  absl::StatusOr<internal::BatondReply> answer =
      absl::InvalidArgumentError("a request of an unknown kind");
  std::vector<FileDescriptor> file;
  if (request.has_reload()) answer = reload_();
  if (request.has_open()) {
    absl::StatusOr<FileDescriptor> opened = open_(request.open().path());
    if (opened.ok()) {
      file.push_back(*std::move(opened));
      answer = internal::BatondReply();
    } else {
      answer = opened.status();
    }
  }
  internal::BatondReply reply;
  if (answer.ok()) reply = *answer;
  reply.set_id(request.id());
  reply.set_status_code(static_cast<int>(answer.status().code()));
  reply.set_status_message(std::string(answer.status().message()));
  return file.empty() ? Send(reply) : Send(reply, {file.front().get()});
}

absl::Status ControlRequests::Send(const internal::BatondReply& reply,
                                   const std::vector<int>& descriptors) {
  BATON_RETURN_IF_ERROR(channel_.Enqueue(reply, descriptors));
  // A reply fits in the socket's buffer: what does not fit was not read by design.
  if (channel_.pending()) return absl::ResourceExhaustedError("it does not read its replies");
  return absl::OkStatus();
}

void ControlRequests::Tell(const internal::BatondReply& news) {
  if (!readable_.is_open()) return;
  if (const absl::Status sent = Send(news); !sent.ok()) Close(sent);
}

void ControlRequests::Close(const absl::Status& why) {
  if (!absl::IsUnavailable(why)) {
    spdlog::error("control: its channel is closed: {}", MessageOf(why));
  }
  // Control is to hear of it, who would wait for answers.
  if (readable_.is_open()) shutdown(readable_.release(), SHUT_RDWR);
}

}  // namespace baton

#include "supervisor/batond/control_requests.h"

#include <sys/socket.h>

#include <utility>
#include <vector>

#include "lib/base/status.h"
#include "lib/channel/carried_status.h"
#include "spdlog/spdlog.h"

namespace baton {

ControlRequests::ControlRequests(boost::asio::io_context& io, FileDescriptor socket, Reload reload,
                                 Replace replace, Open open)
    : reload_(std::move(reload)),
      replace_(std::move(replace)),
      open_(std::move(open)),
      socket_(std::make_shared<FramedSocket>(io, std::move(socket), FramedSocket::Limits())) {
  socket_->Start([this] { return AnswerOne(); },
                 [this](const absl::Status& why) {
                   if (!absl::IsUnavailable(why)) {
                     spdlog::error("control: its channel is closed: {}", MessageOf(why));
                   }
                   // Control sees the end of the connection, and does not wait for answers.
                   shutdown(socket_->channel().fd(), SHUT_RDWR);
                   socket_.reset();
                 });
}

ControlRequests::~ControlRequests() {
  if (socket_) socket_->Close();
}

absl::StatusOr<bool> ControlRequests::AnswerOne() {
  internal::BatondRequest request;
  BATON_ASSIGN_OR_RETURN(const bool whole, socket_->channel().NextFrame(&request));
  if (whole) Answer(request);
  return whole;
}

void ControlRequests::Answer(const internal::BatondRequest& request) {
  const auto reply = [socket = std::weak_ptr<FramedSocket>(socket_), id = request.id()](
                         const absl::StatusOr<internal::BatondReply>& answer,
                         const FileDescriptor& file = FileDescriptor()) {
    const std::shared_ptr<FramedSocket> alive = socket.lock();
    if (!alive) return;  // control is gone
    internal::BatondReply reply;
    if (answer.ok()) reply = *answer;
    reply.set_id(id);
    SetStatus(answer.status(), &reply);
    alive->Send(reply, file ? std::vector<int>{file.get()} : std::vector<int>());
  };
  if (request.has_reload()) return reload_(request.reload(), reply);
  if (request.has_replace_program()) {
    return replace_(request.replace_program(), [reply](const absl::Status& status) {
      status.ok() ? reply(internal::BatondReply()) : reply(status);
    });
  }
  if (!request.has_open()) return reply(absl::InvalidArgumentError("a request of an unknown kind"));
  const absl::StatusOr<FileDescriptor> file = open_(request.open());
  if (file.ok()) {
    reply(internal::BatondReply(), *file);
  } else {
    reply(file.status());
  }
}

void ControlRequests::Tell(const internal::BatondReply& news) {
  if (socket_) socket_->Send(news);
}

}  // namespace baton

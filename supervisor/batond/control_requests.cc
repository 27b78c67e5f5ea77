#include "supervisor/batond/control_requests.h"

#include <sys/socket.h>

#include <utility>
#include <vector>

#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "spdlog/spdlog.h"

namespace baton {

ControlRequests::ControlRequests(boost::asio::io_context& io, FileDescriptor socket, Reload reload,
                                 Open open)
    : reload_(std::move(reload)),
      open_(std::move(open)),
      session_(std::make_shared<FramedSession>(io, std::move(socket), FramedSession::Limits())) {
  session_->Start([this] { return AnswerOne(); },
                  [this](const absl::Status& why) {
                    if (!absl::IsUnavailable(why)) {
                      spdlog::error("control: its channel is closed: {}", MessageOf(why));
                    }
                    // Control hears of it, which would wait for answers.
                    shutdown(session_->channel().fd(), SHUT_RDWR);
                    session_.reset();
                  });
}

ControlRequests::~ControlRequests() {
  if (session_) session_->Close();
}

absl::StatusOr<bool> ControlRequests::AnswerOne() {
  internal::BatondRequest request;
  BATON_ASSIGN_OR_RETURN(const bool whole, session_->channel().NextFrame(&request));
  if (whole) Answer(request);
  return whole;
}

void ControlRequests::Answer(const internal::BatondRequest& request) {
  absl::StatusOr<internal::BatondReply> answer =
      absl::InvalidArgumentError("a request of an unknown kind");
  std::vector<int> descriptors;
  FileDescriptor file;
  if (request.has_reload()) answer = reload_(request.reload().disconnect());
  if (request.has_open()) {
    absl::StatusOr<FileDescriptor> opened = open_(request.open().path());
    if (opened.ok()) {
      file = *std::move(opened);
      descriptors.push_back(file.get());
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
  session_->Send(reply, descriptors);
}

void ControlRequests::Tell(const internal::BatondReply& news) {
  if (session_) session_->Send(news);
}

}  // namespace baton

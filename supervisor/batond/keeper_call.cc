#include "supervisor/batond/keeper_call.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/channel/carried_status.h"
#include "lib/channel/message_channel.h"
#include "lib/loop/framed_session.h"

namespace baton {
namespace {

using Reply = absl::StatusOr<internal::ManagementReply>;
using Done = std::function<void(Reply)>;

class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(boost::asio::io_context& io, FileDescriptor socket, Done done)
      : session_(std::make_shared<FramedSession>(io, std::move(socket), FramedSession::Limits())),
        timer_(io),
        done_(std::move(done)) {}

  void Start(const internal::ManagementRequest& request, std::chrono::milliseconds timeout) {
    session_->Start([self = shared_from_this()] { return self->TakeReply(); },
                    [self = shared_from_this()](const absl::Status& why) {
                      self->Finish(absl::UnavailableError(why.message()));
                    });
    timer_.expires_after(timeout);
    timer_.async_wait([self = shared_from_this(), timeout](const boost::system::error_code& error) {
      if (error) return;
      self->Finish(absl::DeadlineExceededError(
          absl::StrCat("it has not answered within ", timeout.count(), " ms")));
    });
    session_->Send(request);
  }

 private:
  absl::StatusOr<bool> TakeReply() {
    internal::ManagementReply reply;
    BATON_ASSIGN_OR_RETURN(const bool whole, session_->channel().NextFrame(&reply));
    if (!whole) return false;
    absl::Status status = StatusIn(reply);
    status.ok() ? Finish(std::move(reply)) : Finish(std::move(status));
    return true;
  }

  void Finish(Reply reply) {
    const Done done = std::exchange(done_, nullptr);
    if (!done) return;
    session_->Close();
    timer_.cancel();
    done(std::move(reply));
  }

  const std::shared_ptr<FramedSession> session_;
  boost::asio::steady_timer timer_;
  Done done_;  // null: it was called
};

}  // namespace

void CallKeeper(boost::asio::io_context& io, const std::string& socket_path,
                internal::ManagementRequest request, std::chrono::milliseconds timeout, Done done) {
  absl::StatusOr<FileDescriptor> socket = ConnectUnix(socket_path, /*timeout_ms=*/0);
  if (!socket.ok()) {
    boost::asio::post(io, [why = absl::UnavailableError(socket.status().message()),
                           done = std::move(done)] { done(why); });
    return;
  }
  request.set_id(1);
  std::make_shared<Call>(io, *std::move(socket), std::move(done))->Start(request, timeout);
}

}  // namespace baton

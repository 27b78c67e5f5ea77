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
#include "lib/loop/timers.h"

namespace baton {
namespace {

using Reply = absl::StatusOr<internal::ManagementReply>;
using Done = std::function<void(Reply)>;

struct Call {
  Call(boost::asio::io_context& io, FileDescriptor socket, Done then)
      : session(std::make_shared<FramedSession>(io, std::move(socket), FramedSession::Limits())),
        timer(io),
        done(std::move(then)) {}

  const std::shared_ptr<FramedSession> session;
  boost::asio::steady_timer timer;
  Done done;  // null: it was called
};

void Finish(Call& call, Reply reply) {
  const Done done = std::exchange(call.done, nullptr);
  if (!done) return;
  call.session->Close();
  call.timer.cancel();
  done(std::move(reply));
}

absl::StatusOr<bool> TakeReply(Call& call) {
  internal::ManagementReply reply;
  BATON_ASSIGN_OR_RETURN(const bool whole, call.session->channel().NextFrame(&reply));
  if (!whole) return false;
  absl::Status status = StatusIn(reply);
  status.ok() ? Finish(call, std::move(reply)) : Finish(call, std::move(status));
  return true;
}

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
  const auto call = std::make_shared<Call>(io, *std::move(socket), std::move(done));
  call->session->Start(
      [call] { return TakeReply(*call); },
      [call](const absl::Status& why) { Finish(*call, absl::UnavailableError(why.message())); });
  After(call->timer, timeout, [call, timeout] {
    Finish(*call, absl::DeadlineExceededError(
                      absl::StrCat("it has not answered within ", timeout.count(), " ms")));
  });
  call->session->Send(request);
}

}  // namespace baton

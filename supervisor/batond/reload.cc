#include "supervisor/batond/reload.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/channel/carried_status.h"
#include "lib/channel/framed_socket.h"
#include "lib/channel/message_channel.h"
#include "lib/channel/waits.h"

namespace baton {
namespace {

using Reply = absl::StatusOr<internal::ManagementReply>;
using Done = std::function<void(Reply)>;

struct Call {
  Call(boost::asio::io_context& io, FileDescriptor socket, Done then)
      : socket(std::make_shared<FramedSocket>(io, std::move(socket), FramedSocket::Limits())),
        timer(io),
        done(std::move(then)) {}

  const std::shared_ptr<FramedSocket> socket;
  boost::asio::steady_timer timer;
  Done done;  // null: it was called
};

void Finish(Call& call, Reply reply) {
  const Done done = std::exchange(call.done, nullptr);
  if (!done) return;
  call.socket->Close();
  call.timer.cancel();
  done(std::move(reply));
}

absl::StatusOr<bool> TakeReply(Call& call) {
  internal::ManagementReply reply;
  BATON_ASSIGN_OR_RETURN(const bool whole, call.socket->channel().NextFrame(&reply));
  if (!whole) return false;
  absl::Status status = StatusIn(reply);
  status.ok() ? Finish(call, std::move(reply)) : Finish(call, std::move(status));
  return true;
}

// Removes the fields of `taken` whose names begin with `prefix`.
void Untake(const std::string& prefix, TakenConfig* taken) {
  std::erase_if(taken->taken, [&](const std::string& field) { return field.starts_with(prefix); });
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
  call->socket->Start(
      [call] { return TakeReply(*call); },
      [call](const absl::Status& why) { Finish(*call, absl::UnavailableError(why.message())); });
  After(call->timer, timeout, [call, timeout] {
    Finish(*call, absl::DeadlineExceededError(
                      absl::StrCat("it has not answered within ", timeout.count(), " ms")));
  });
  call->socket->Send(request);
}

void NoteAnswer(const v1::ServiceConfig& running,
                const absl::StatusOr<internal::ConfigTaken>& answer, TakenConfig* taken) {
  const std::string place = absl::StrCat("services[", running.name(), "]");
  if (!answer.ok()) {
    *FindService(&taken->config, running.name()) = running;
    Untake(place + ".", taken);
    taken->refused.push_back(
        {place, absl::StrCat("its keeper goes on as it is: ", answer.status().message(),
                             "; reload again when `baton service list` shows it")});
    return;
  }
  *FindService(&taken->config, running.name()) = answer->service();
  for (const internal::Refused& refused : answer->refused()) {
    const std::string field = absl::StrCat(place, ".", refused.field());
    Untake(field, taken);
    // batond may have refused the field itself.
    if (absl::c_any_of(taken->refused, [&](const auto& one) { return one.field == field; })) {
      continue;
    }
    taken->refused.push_back({field, refused.why(), refused.ends_connections_of()});
  }
}

internal::BatondReply DescribeReload(const TakenConfig& taken) {
  internal::BatondReply reply;
  for (const std::string& field : taken.taken) reply.add_taken(field);
  for (const TakenConfig::Refused& refused : taken.refused) {
    internal::Refused* const told = reply.add_refused();
    told->set_field(refused.field);
    told->set_why(refused.why);
    told->set_ends_connections_of(refused.ends_connections_of);
  }
  for (const auto* const services : {&taken.removed, &taken.changed}) {
    for (const std::string& service : *services) reply.add_disconnected(service);
  }
  return reply;
}

}  // namespace baton

#include "supervisor/control/keeper_client.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/channel/carried_status.h"
#include "lib/channel/message_channel.h"
#include "lib/channel/waits.h"
#include "lib/log/log.h"

namespace baton {
namespace {

absl::Status Stopping() {
  return absl::UnavailableError("control is stopping: try again in a moment");
}

}  // namespace

KeeperClient::KeeperClient(boost::asio::io_context& loop, std::string service,
                           std::string socket_path, Observer observer)
    : loop_(loop),
      service_(std::move(service)),
      socket_path_(std::move(socket_path)),
      observer_(std::move(observer)),
      reconnect_(loop),
      expiry_(loop) {}

void KeeperClient::Start() {
  boost::asio::post(loop_, [this] {
    if (!socket_) (void)Connect();
  });
}

void KeeperClient::Stop() {
  std::vector<Outgoing> rest;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    rest.swap(queue_);
  }
  if (socket_) socket_->Close();
  socket_.reset();
  FailPending(absl::UnavailableError("control is stopping"));
  for (Outgoing& outgoing : rest) outgoing.done(Stopping());
}

void KeeperClient::Call(internal::ManagementRequest request, uint64_t timeout_ns, Done done) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!stopping_) {
      queue_.push_back({std::move(request), MonotonicNanoseconds() + timeout_ns, std::move(done)});
      if (queue_.size() == 1) boost::asio::post(loop_, [this] { SendQueued(); });
      return;
    }
  }
  done(Stopping());
}

std::future<KeeperClient::Reply> KeeperClient::Ask(internal::ManagementRequest request,
                                                   uint64_t timeout_ns) {
  auto promise = std::make_shared<std::promise<Reply>>();
  std::future<Reply> future = promise->get_future();
  Call(std::move(request), timeout_ns,
       [promise](Reply reply) { promise->set_value(std::move(reply)); });
  return future;
}

absl::Status KeeperClient::Connect() {
  absl::StatusOr<FileDescriptor> socket = ConnectUnix(socket_path_, /*timeout_ms=*/0);
  if (!socket.ok()) {
    absl::Status problem(socket.status().code(),
                         absl::StripPrefix(socket.status().message(),
                                           absl::StrCat("connect to ", socket_path_, ": ")));
    Disconnect(problem);
    return problem;
  }
  socket_ = std::make_shared<FramedSocket>(loop_, *std::move(socket), FramedSocket::Limits());
  socket_->Start([this] { return TakeReply(); },
                 [this](const absl::Status& why) { Disconnect(why); });
  if (absl::Status subscribed = Subscribe(); !subscribed.ok()) {
    socket_->Close();
    socket_.reset();
    Disconnect(subscribed);
    return subscribed;
  }
  problem_logged_ = false;
  if (const std::optional<uint64_t> suppressed = log_budget_.Take()) {
    log::Write(spdlog::level::info, {.service = service_},
               absl::StrCat("service ", service_, ": connected to its keeper at ", socket_path_,
                            " (", *suppressed, " changes not logged)"));
  }
  if (observer_.on_connected) observer_.on_connected();
  return absl::OkStatus();
}

// A connection without a subscription must not go on: followers of events would wait for ever. It
// sends nothing else before it ends, so no keeper executes a request that its caller was told had
// not been sent.
absl::Status KeeperClient::Subscribe() {
  internal::ManagementRequest subscribe;
  subscribe.set_id(next_id_++);
  // Asks for all logged events. The event log drops those that it has.
  subscribe.mutable_subscribe()->set_after_sequence(0);
  return socket_->TrySend(subscribe);
}

void KeeperClient::ConnectLater() {
  After(reconnect_, back_off_.Next(), [this] {
    if (!socket_) (void)Connect();
  });
}

void KeeperClient::Disconnect(const absl::Status& cause) {
  const bool was_connected = socket_ != nullptr;
  socket_.reset();
  ConnectLater();
  const bool is_news = was_connected || !problem_logged_;
  if (const auto suppressed = is_news ? log_budget_.Take() : std::nullopt) {
    log::Write(spdlog::level::warn, {.service = service_},
               absl::StrCat("service ", service_, ": no keeper at ", socket_path_, ": ",
                            cause.message(), " (", *suppressed, " changes not logged)"));
  }
  problem_logged_ = true;
  FailPending(cause);
}

void KeeperClient::FailPending(const absl::Status& cause) {
  if (pending_.empty()) return;
  const absl::Status status = Unreachable(cause);
  std::map<uint64_t, Pending> failed;
  failed.swap(pending_);
  for (auto& [id, pending] : failed) pending.done(status);
}

absl::Status KeeperClient::Unreachable(const absl::Status& cause) const {
  const std::string why = observer_.down_reason ? observer_.down_reason() : "";
  if (!socket_ && !why.empty()) {
    return absl::UnavailableError(absl::StrCat("service \"", service_, "\" is down: ", why,
                                               "; batond tries to start it every few seconds"));
  }
  return absl::UnavailableError(absl::StrCat(
      "the keeper of service \"", service_, "\" cannot be reached at ", socket_path_, ": ",
      cause.message(),
      "; batond restarts a keeper that has died: try again, and see batond's log if it stays so"));
}

void KeeperClient::SendQueued() {
  std::vector<Outgoing> batch;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    batch.swap(queue_);
  }
  for (Outgoing& outgoing : batch) Submit(std::move(outgoing));
}

void KeeperClient::Submit(Outgoing outgoing) {
  if (!socket_) {
    const absl::Status connected = Connect();
    if (!connected.ok()) {
      outgoing.done(Unreachable(connected));
      return;
    }
  }
  const uint64_t id = next_id_++;
  outgoing.request.set_id(id);
  if (const absl::Status sent = socket_->TrySend(outgoing.request); !sent.ok()) {
    outgoing.done(Unreachable(sent));
    return;
  }
  pending_.emplace(id, Pending{outgoing.deadline_ns, std::move(outgoing.done)});
  AwaitExpiry(outgoing.deadline_ns);
}

absl::StatusOr<bool> KeeperClient::TakeReply() {
  internal::ManagementReply reply;
  BATON_ASSIGN_OR_RETURN(const bool whole, socket_->channel().NextFrame(&reply));
  if (whole) Dispatch(std::move(reply));
  return whole;
}

void KeeperClient::Dispatch(internal::ManagementReply reply) {
  // Only now, so that a keeper that only accepts and closes is not called without a pause.
  back_off_.Reset();
  if (reply.has_event()) {
    if (observer_.on_event) observer_.on_event(reply.event());
    return;
  }
  const auto found = pending_.find(reply.id());
  if (found == pending_.end()) return;  // the caller has given up, or it answers Subscribe
  Done done = std::move(found->second.done);
  pending_.erase(found);
  const absl::Status status = StatusIn(reply);
  status.ok() ? done(std::move(reply)) : done(status);
}

void KeeperClient::AwaitExpiry(uint64_t deadline_ns) {
  if (deadline_ns >= expiry_ns_) return;
  expiry_ns_ = deadline_ns;
  const uint64_t now = MonotonicNanoseconds();
  After(expiry_, std::chrono::nanoseconds(deadline_ns > now ? deadline_ns - now : 0),
        [this] { ExpirePending(); });
}

void KeeperClient::ExpirePending() {
  expiry_ns_ = UINT64_MAX;
  const uint64_t now = MonotonicNanoseconds();
  uint64_t next_ns = UINT64_MAX;
  std::vector<Done> expired;
  for (auto entry = pending_.begin(); entry != pending_.end();) {
    if (entry->second.deadline_ns > now) {
      next_ns = std::min(next_ns, entry->second.deadline_ns);
      ++entry;
      continue;
    }
    expired.push_back(std::move(entry->second.done));
    entry = pending_.erase(entry);
  }
  AwaitExpiry(next_ns);
  for (const Done& done : expired) {
    done(absl::DeadlineExceededError(
        absl::StrCat("the keeper of service \"", service_, "\" at ", socket_path_,
                     " has not answered in time: is it stopped or overloaded?")));
  }
}

}  // namespace baton

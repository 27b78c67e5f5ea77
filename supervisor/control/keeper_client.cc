#include "supervisor/control/keeper_client.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/log/log.h"

namespace baton {
namespace {

absl::Status StatusOfReply(const internal::ManagementReply& reply) {
  if (reply.status_code() == 0) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(reply.status_code());
  return absl::Status(code, reply.status_message());
}

}  // namespace

KeeperClient::KeeperClient(std::string service, std::string socket_path, Observer observer)
    : service_(std::move(service)),
      socket_path_(std::move(socket_path)),
      observer_(std::move(observer)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  BATON_CHECK(wake_);
}

void KeeperClient::Start() {
  thread_ = std::thread([this] { Run(); });
}

void KeeperClient::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

void KeeperClient::Wake() { eventfd_write(wake_.get(), 1); }

void KeeperClient::Call(internal::ManagementRequest request, uint64_t timeout_ns, Done done) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!stopping_) {
      queue_.push_back({std::move(request), MonotonicNanoseconds() + timeout_ns, std::move(done)});
      Wake();
      return;
    }
  }
  done(absl::UnavailableError("control is stopping: try again in a moment"));
}

absl::StatusOr<internal::ManagementReply> KeeperClient::CallAndWait(
    internal::ManagementRequest request, uint64_t timeout_ns) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<internal::ManagementReply>>>();
  auto future = promise->get_future();
  Call(std::move(request), timeout_ns, [promise](absl::StatusOr<internal::ManagementReply> reply) {
    promise->set_value(std::move(reply));
  });
  return future.get();
}

void KeeperClient::Run() {
  for (;;) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) break;
    }
    if (!channel_ && MonotonicNanoseconds() >= next_attempt_ns_) (void)Connect();
    SendQueued();
    Wait();
    if (channel_) ReadReplies();
    ExpirePending();
  }
  channel_.reset();
  FailPending(absl::UnavailableError("control is stopping"));
  std::vector<Outgoing> rest;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    rest.swap(queue_);
  }
  for (Outgoing& outgoing : rest) {
    outgoing.done(absl::UnavailableError("control is stopping: try again in a moment"));
  }
}

// Sleeps until there is something to do; without calls and with a keeper, for ever.
void KeeperClient::Wait() {
  uint64_t until = UINT64_MAX;
  if (!channel_) until = next_attempt_ns_;
  for (const auto& [id, pending] : pending_) until = std::min(until, pending.deadline_ns);
  int timeout_ms = -1;
  if (until != UINT64_MAX) {
    const uint64_t now = MonotonicNanoseconds();
    timeout_ms = now >= until ? 0 : static_cast<int>((until - now) / 1'000'000 + 1);
  }
  pollfd entries[2] = {{wake_.get(), POLLIN, 0}, {-1, POLLIN, 0}};
  if (channel_) {
    entries[1].fd = channel_->fd();
    if (channel_->pending()) entries[1].events |= POLLOUT;
  }
  poll(entries, 2, timeout_ms);
  eventfd_t ignored;
  eventfd_read(wake_.get(), &ignored);
}

absl::Status KeeperClient::Connect() {
  absl::StatusOr<FileDescriptor> socket = ConnectUnix(socket_path_);
  if (!socket.ok()) {
    absl::Status problem(socket.status().code(),
                         absl::StripPrefix(socket.status().message(),
                                           absl::StrCat("connect to ", socket_path_, ": ")));
    Disconnect(problem);
    return problem;
  }
  channel_ = std::make_unique<MessageChannel>(*std::move(socket));
  problem_logged_ = false;
  uint64_t suppressed = 0;
  if (log_budget_.Take(&suppressed)) {
    log::Write(spdlog::level::info, {.service = service_},
               absl::StrCat("service ", service_, ": connected to its keeper at ", socket_path_,
                            " (", suppressed, " changes not logged)"));
  }
  // All that is logged: what is known already is dropped by the event log.
  internal::ManagementRequest subscribe;
  subscribe.mutable_subscribe()->set_after_sequence(0);
  Submit({std::move(subscribe), UINT64_MAX, [](auto) {}});
  if (!channel_) return absl::UnavailableError("it closed the connection at once");
  if (observer_.on_connected) observer_.on_connected();
  return absl::OkStatus();
}

void KeeperClient::Disconnect(const absl::Status& cause) {
  const bool was_connected = channel_ != nullptr;
  channel_.reset();
  next_attempt_ns_ = MonotonicNanoseconds() + static_cast<uint64_t>(back_off_.Next().count());
  uint64_t suppressed = 0;
  if ((was_connected || !problem_logged_) && log_budget_.Take(&suppressed)) {
    log::Write(spdlog::level::warn, {.service = service_},
               absl::StrCat("service ", service_, ": no keeper at ", socket_path_, ": ",
                            cause.message(), " (", suppressed, " changes not logged)"));
  }
  problem_logged_ = true;
  FailPending(cause);
}

void KeeperClient::FailPending(const absl::Status& cause) {
  std::map<uint64_t, Pending> failed;
  failed.swap(pending_);
  for (auto& [id, pending] : failed) pending.done(Unreachable(cause));
}

absl::Status KeeperClient::Unreachable(const absl::Status& cause) const {
  const std::string why = observer_.down_reason ? observer_.down_reason() : "";
  if (!channel_ && !why.empty()) {
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
  if (!channel_) {
    const absl::Status connected = Connect();
    if (!connected.ok()) {
      outgoing.done(Unreachable(connected));
      return;
    }
  }
  const uint64_t id = next_id_++;
  outgoing.request.set_id(id);
  const absl::Status queued = channel_->Enqueue(outgoing.request);
  if (!queued.ok()) {
    outgoing.done(Unreachable(queued));
    if (!absl::IsResourceExhausted(queued)) Disconnect(queued);
    return;
  }
  pending_.emplace(id, Pending{outgoing.deadline_ns, std::move(outgoing.done)});
}

void KeeperClient::ReadReplies() {
  absl::Status problem = channel_->Fill();
  for (;;) {
    internal::ManagementReply reply;
    const absl::StatusOr<bool> whole = channel_->NextFrame(&reply);
    if (!whole.ok()) problem = whole.status();
    if (!whole.ok() || !*whole) break;
    Dispatch(std::move(reply));
  }
  if (problem.ok() && channel_->pending()) problem = channel_->Flush();
  if (!problem.ok()) Disconnect(problem);
}

void KeeperClient::Dispatch(internal::ManagementReply reply) {
  back_off_.Reset();  // it works: one that only accepts and closes is not called without a pause
  if (reply.has_event()) {
    if (observer_.on_event) observer_.on_event(reply.event());
    return;
  }
  const auto found = pending_.find(reply.id());
  if (found == pending_.end()) return;  // its caller has given up
  Done done = std::move(found->second.done);
  pending_.erase(found);
  const absl::Status status = StatusOfReply(reply);
  if (status.ok()) {
    done(std::move(reply));
  } else {
    done(status);
  }
}

void KeeperClient::ExpirePending() {
  const uint64_t now = MonotonicNanoseconds();
  for (auto entry = pending_.begin(); entry != pending_.end();) {
    if (entry->second.deadline_ns > now) {
      ++entry;
      continue;
    }
    Done done = std::move(entry->second.done);
    entry = pending_.erase(entry);
    done(absl::DeadlineExceededError(
        absl::StrCat("the keeper of service \"", service_, "\" at ", socket_path_,
                     " has not answered in time: is it stopped or overloaded?")));
  }
}

}  // namespace baton

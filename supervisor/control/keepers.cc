#include "supervisor/control/keepers.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/channel/carried_status.h"
#include "lib/channel/message_channel.h"
#include "lib/channel/waits.h"
#include "lib/log/log.h"
#include "lib/text/text.h"
#include "supervisor/config/state_files.h"
#include "supervisor/control/config.h"

namespace baton {
namespace {

absl::Status Stopping() {
  return absl::UnavailableError("control is stopping: try again in a moment");
}

// A keeper answers from memory, within milliseconds.
constexpr uint64_t kMaxDescribeNs = 3'000'000'000;
constexpr size_t kMaxNameBytes = 64;  // of a caller's service name, in an answer

internal::ManagementRequest DescribeRequest() {
  internal::ManagementRequest request;
  request.mutable_describe();
  return request;
}

absl::StatusOr<internal::Description> DescriptionOf(absl::StatusOr<internal::ManagementReply> reply,
                                                    uint64_t timeout_ns) {
  if (absl::IsDeadlineExceeded(reply.status()) && timeout_ns >= kMaxDescribeNs) {
    return absl::UnavailableError(reply.status().message());
  }
  BATON_RETURN_IF_ERROR(reply.status());
  internal::Description description = std::move(*reply->mutable_description());
  description.mutable_service()->set_reachable(true);
  return description;
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
  const absl::Status connected = socket_ ? absl::OkStatus() : Connect();
  if (!connected.ok()) return outgoing.done(Unreachable(connected));
  const uint64_t id = next_id_++;
  outgoing.request.set_id(id);
  const absl::Status sent = socket_->TrySend(outgoing.request);
  if (!sent.ok()) return outgoing.done(Unreachable(sent));
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

Keepers::Keepers(boost::asio::io_context& loop, const internal::ControlConfig& config,
                 const Observer& all) {
  for (const std::string& name : config.services()) {
    KeeperClient::Observer observer;
    observer.on_event = [this, name, on_event = all.on_event](const v1::Event& event) {
      if (events_.Append(name, event)) on_event(name, event);
    };
    observer.on_connected = [name, on_connected = all.on_connected] { on_connected(name); };
    observer.down_reason = [directory = config.state_dir(), name] {
      return DownReason(directory, name);
    };
    clients_[name] = std::make_unique<KeeperClient>(
        loop, name, ManagementSocketPath(config.state_dir(), name), std::move(observer));
  }
}

void Keepers::Start() {
  for (auto& [name, client] : clients_) client->Start();
}

void Keepers::Stop() {
  for (auto& [name, client] : clients_) client->Stop();
}

absl::StatusOr<KeeperClient*> Keepers::Find(const std::string& service) {
  const auto found = clients_.find(service);
  if (found != clients_.end()) return found->second.get();
  const std::string names = absl::StrJoin(
      clients_, ", ", [](std::string* out, const auto& entry) { out->append(entry.first); });
  return absl::NotFoundError(
      absl::StrCat("there is no service \"", OneLine(service, kMaxNameBytes), "\"; ",
                   names.empty() ? "no service is configured" : "there are: ", names));
}

std::vector<KeeperClient*> Keepers::All() {
  std::vector<KeeperClient*> all;
  for (auto& [name, client] : clients_) all.push_back(client.get());
  return all;
}

absl::StatusOr<internal::Description> Keepers::Describe(const std::string& service,
                                                        uint64_t timeout_ns) {
  BATON_ASSIGN_OR_RETURN(KeeperClient * client, Find(service));
  return DescriptionOf(client->Ask(DescribeRequest(), std::min(timeout_ns, kMaxDescribeNs)).get(),
                       timeout_ns);
}

std::vector<Keepers::Described> Keepers::DescribeAll(uint64_t timeout_ns) {
  std::vector<std::future<KeeperClient::Reply>> replies;
  for (auto& [name, client] : clients_) {
    replies.push_back(client->Ask(DescribeRequest(), std::min(timeout_ns, kMaxDescribeNs)));
  }
  std::vector<Described> all;
  for (auto& [name, client] : clients_) {
    all.emplace_back(name, DescriptionOf(replies[all.size()].get(), timeout_ns));
  }
  return all;
}

// A keeper replies in order, so its answer to Describe comes after the events that it had logged
// before.
void Keepers::SyncEvents(const std::vector<KeeperClient*>& clients,
                         const std::function<void(absl::Status)>& done) {
  if (clients.empty()) return done(absl::OkStatus());
  struct Progress {
    std::mutex mutex;
    size_t left;
    absl::Status first;
  };
  auto progress = std::make_shared<Progress>();
  progress->left = clients.size();
  for (KeeperClient* client : clients) {
    client->Call(DescribeRequest(), kMaxDescribeNs, [progress, done](auto reply) {
      absl::Status result;
      {
        std::lock_guard<std::mutex> lock(progress->mutex);
        progress->first.Update(reply.status());
        if (--progress->left > 0) return;
        result = progress->first;
      }
      done(result);
    });
  }
}

}  // namespace baton

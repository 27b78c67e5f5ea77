#include "tests/supervisor/control/fakes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/check.h"

namespace baton {

FakeBatond::FakeBatond() {
  reply_.set_status_code(static_cast<int>(absl::StatusCode::kFailedPrecondition));
  reply_.set_status_message(
      "batond was started with --dev: there is no configuration to read again");
}

FileDescriptor FakeBatond::Connect() {
  Leave();
  int ends[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  channel_ = std::make_unique<MessageChannel>(FileDescriptor(ends[0]));
  thread_ = std::thread([this, channel = channel_.get()] { Answer(channel); });
  return FileDescriptor(ends[1]);
}

void FakeBatond::Leave() {
  if (!thread_.joinable()) return;
  shutdown(channel_->fd(), SHUT_RDWR);
  thread_.join();
}

void FakeBatond::SetReply(const internal::BatondReply& reply) {
  const std::lock_guard<std::mutex> lock(mutex_);
  reply_ = reply;
}

void FakeBatond::Tell(internal::BatondReply reply) {
  const std::lock_guard<std::mutex> lock(mutex_);
  reply.set_id(0);
  BATON_CHECK(channel_->Send(reply).ok());
}

void FakeBatond::Answer(MessageChannel* channel) {
  for (;;) {
    pollfd entry = {channel->fd(), POLLIN, 0};
    if (poll(&entry, 1, -1) < 0) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    internal::BatondRequest request;
    const absl::Status got = channel->Receive(&request, /*timeout_ms=*/0);
    if (absl::IsDeadlineExceeded(got)) continue;
    if (!got.ok()) return;
    internal::BatondReply reply = request.has_open() ? internal::BatondReply() : reply_;
    std::vector<int> descriptors;
    FileDescriptor file;
    if (request.has_open()) {
      const std::string path =
          request.open().program().empty() ? request.open().path() : "/proc/self/exe";
      file.Reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
      if (file) {
        descriptors.push_back(file.get());
      } else {
        reply.set_status_code(static_cast<int>(absl::StatusCode::kNotFound));
        reply.set_status_message("there is no such file");
      }
    }
    reply.set_id(request.id());
    if (!channel->Send(reply, descriptors).ok()) return;
  }
}

namespace {

void Fail(internal::ManagementReply* reply, absl::StatusCode code, const std::string& message) {
  reply->set_status_code(static_cast<int>(code));
  reply->set_status_message(message);
}

}  // namespace

FakeKeeper::FakeKeeper(std::string socket_path)
    : socket_path_(std::move(socket_path)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void FakeKeeper::Start() {
  auto listening = ListenUnix(socket_path_, 16, 0600);
  BATON_CHECK(listening.ok());
  listening_ = *std::move(listening);
  stopping_ = false;
  thread_ = std::thread([this] { Run(); });
}

void FakeKeeper::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
  listening_.Reset();
}

void FakeKeeper::SetDescription(internal::Description description) {
  std::lock_guard<std::mutex> lock(mutex_);
  description_ = std::move(description);
}

void FakeKeeper::SetConnections(std::vector<v1::Connection> connections) {
  std::lock_guard<std::mutex> lock(mutex_);
  connections_ = std::move(connections);
}

void FakeKeeper::AddToken(const std::string& token, uint64_t worker_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  tokens_[token] = worker_id;
}

void FakeKeeper::SetHandoff(internal::ManagementReply reply) {
  std::lock_guard<std::mutex> lock(mutex_);
  handoff_ = std::move(reply);
}

void FakeKeeper::SetUpgrades(std::vector<v1::Upgrade> upgrades) {
  std::lock_guard<std::mutex> lock(mutex_);
  upgrades_.assign(upgrades.begin(), upgrades.end());
  upgrading_ = false;
}

void FakeKeeper::PlanUpgrade(std::vector<v1::Upgrade> course) {
  std::lock_guard<std::mutex> lock(mutex_);
  course_.assign(course.begin(), course.end());
  upgrading_ = false;
}

void FakeKeeper::SetShardMoves(std::vector<v1::ShardMove> moves) {
  std::lock_guard<std::mutex> lock(mutex_);
  shard_moves_ = std::move(moves);
}

void FakeKeeper::EndDrains(bool end) {
  std::lock_guard<std::mutex> lock(mutex_);
  end_drains_ = end;
}

void FakeKeeper::RefuseUpgrades(absl::Status why) {
  std::lock_guard<std::mutex> lock(mutex_);
  upgrades_refused_ = std::move(why);
}

void FakeKeeper::RefusePolicies(absl::Status why) {
  std::lock_guard<std::mutex> lock(mutex_);
  policies_refused_ = std::move(why);
}

void FakeKeeper::LoseUpgrades() {
  std::lock_guard<std::mutex> lock(mutex_);
  lose_upgrades_ = true;
}

void FakeKeeper::SetAnswering(bool answering) {
  std::lock_guard<std::mutex> lock(mutex_);
  answering_ = answering;
}

void FakeKeeper::ForgetWorkers(bool forget) {
  std::lock_guard<std::mutex> lock(mutex_);
  forget_workers_ = forget;
}

void FakeKeeper::Log(const v1::Event& event) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(event);
  }
  eventfd_write(wake_.get(), 1);
}

bool FakeKeeper::WaitForRequest(
    const std::function<bool(const internal::ManagementRequest&)>& wanted, size_t times) {
  std::unique_lock<std::mutex> lock(mutex_);
  return asked_.wait_for(lock, std::chrono::seconds(10), [&] {
    return std::count_if(requests_.begin(), requests_.end(), wanted) >= static_cast<long>(times);
  });
}

size_t FakeKeeper::CountRequests(
    const std::function<bool(const internal::ManagementRequest&)>& wanted) {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t count = 0;
  for (const auto& request : requests_) count += wanted(request);
  return count;
}

void FakeKeeper::Run() {
  for (;;) {
    pollfd entries[3] = {{wake_.get(), POLLIN, 0},
                         {listening_.get(), POLLIN, 0},
                         {channel_ ? channel_->fd() : -1, POLLIN, 0}};
    poll(entries, 3, -1);
    eventfd_t ignored;
    eventfd_read(wake_.get(), &ignored);
    std::unique_lock<std::mutex> lock(mutex_);
    if (stopping_) break;
    if (entries[1].revents != 0) {
      FileDescriptor socket(accept(listening_.get(), nullptr, nullptr));
      if (socket) channel_ = std::make_unique<MessageChannel>(std::move(socket));
      subscribed_ = false;
      events_sent_ = 0;
      continue;
    }
    if (channel_ && entries[2].revents != 0) {
      const bool open = channel_->Fill().ok();
      internal::ManagementRequest request;
      for (auto whole = channel_->NextFrame(&request); whole.ok() && *whole;
           whole = channel_->NextFrame(&request)) {
        Answer(request);
      }
      if (!open) channel_.reset();
    }
    for (; channel_ && subscribed_ && events_sent_ < events_.size(); ++events_sent_) {
      internal::ManagementReply reply;
      *reply.mutable_event() = events_[events_sent_];
      (void)channel_->Send(reply);
    }
  }
  channel_.reset();
}

void FakeKeeper::Answer(const internal::ManagementRequest& request) {
  requests_.push_back(request);
  asked_.notify_all();
  if (lose_upgrades_ && request.has_upgrade()) answering_ = false;
  if (!answering_) return;
  internal::ManagementReply reply = ReplyTo(request);
  reply.set_id(request.id());
  (void)channel_->Send(reply);
  if (!request.has_subscribe()) return;
  subscribed_ = true;
  for (; events_sent_ < events_.size(); ++events_sent_) {
    internal::ManagementReply event;
    *event.mutable_event() = events_[events_sent_];
    (void)channel_->Send(event);
  }
}

internal::ManagementReply FakeKeeper::ReplyTo(const internal::ManagementRequest& request) {
  internal::ManagementReply reply;
  if (request.has_describe()) *reply.mutable_description() = description_;
  if (request.has_handoff()) reply = handoff_;
  if (request.has_list_connections()) {
    const auto& list = request.list_connections();
    for (const v1::Connection& connection : connections_) {
      if (connection.index() < list.start()) continue;
      if (list.shard() >= 0 && connection.shard() != static_cast<uint32_t>(list.shard())) continue;
      if (reply.connections().connections_size() == static_cast<int>(list.limit())) {
        reply.mutable_connections()->set_next(connection.index());
        break;
      }
      *reply.mutable_connections()->add_connections() = connection;
    }
  }
  if (request.has_kill_worker() && request.kill_worker().worker_id() > 100) {
    Fail(&reply, absl::StatusCode::kNotFound, "there is no such worker");
  }
  if (request.has_upgrade() || request.has_rollback()) BeginUpgrade(&reply);
  if (request.has_list_upgrades()) ListUpgrades(&reply);
  if (request.has_pause_upgrade() || request.has_resume_upgrade()) {
    HoldUpgrade(request.has_pause_upgrade(), &reply);
  }
  if (request.has_drain_service() || request.has_end_drain()) Drain(request, &reply);
  if (request.has_list_shard_moves()) {
    reply.mutable_shard_moves()->Add(shard_moves_.begin(), shard_moves_.end());
  }
  if (request.has_set_policy()) {
    *reply.mutable_policy() = request.set_policy().policy();
    if (!policies_refused_.ok()) {
      Fail(&reply, policies_refused_.code(), std::string(policies_refused_.message()));
    }
  }
  if (request.has_redeem_token()) {
    const auto found = tokens_.find(request.redeem_token().token());
    if (found == tokens_.end()) {
      Fail(&reply, absl::StatusCode::kNotFound, "no such token");
    } else {
      reply.mutable_redeemed()->set_worker_id(found->second);
      tokens_.erase(found);
    }
  }
  if (request.has_control_stream() && request.control_stream().open() && forget_workers_) {
    Fail(&reply, absl::StatusCode::kNotFound, "there is no such worker");
  }
  return reply;
}

void FakeKeeper::BeginUpgrade(internal::ManagementReply* reply) {
  if (!upgrades_refused_.ok()) {
    return Fail(reply, upgrades_refused_.code(), std::string(upgrades_refused_.message()));
  }
  if (course_.empty()) return;
  // A rollback may be of the one that is listed first.
  if (!upgrades_.empty() && upgrades_.front().id() == course_.front().id()) upgrades_.pop_front();
  upgrades_.push_front(course_.front());
  course_.pop_front();
  upgrading_ = true;
  *reply->add_upgrades() = upgrades_.front();
}

void FakeKeeper::HoldUpgrade(bool pause, internal::ManagementReply* reply) {
  if (upgrades_.empty() || upgrades_.front().ended_unix_micros() != 0) {
    return Fail(reply, absl::StatusCode::kFailedPrecondition, "no upgrade is under way");
  }
  upgrades_.front().set_paused(pause);
  *reply->add_upgrades() = upgrades_.front();
}

void FakeKeeper::Drain(const internal::ManagementRequest& request,
                       internal::ManagementReply* reply) {
  v1::Service* const service = description_.mutable_service();
  if (request.has_end_drain()) {
    if (!service->has_drain()) {
      return Fail(reply, absl::StatusCode::kFailedPrecondition, "it is not drained");
    }
    return service->clear_drain();
  }
  const internal::DrainService& asked = request.drain_service();
  v1::Drain* const drain = service->mutable_drain();
  drain->set_started_unix_micros(1738314900000000);
  drain->set_deadline_unix_micros(
      asked.deadline_ms() == 0 ? 0 : 1738314900000000 + int64_t{asked.deadline_ms()} * 1000);
  drain->set_disconnect(asked.disconnect());
  drain->set_connections_left(service->connection_count());
  drain->set_refused(3);
  *reply->mutable_drain() = *drain;
  if (end_drains_) service->clear_drain();
}

void FakeKeeper::ListUpgrades(internal::ManagementReply* reply) {
  if (upgrading_ && !course_.empty()) {
    upgrades_.front() = course_.front();
    course_.pop_front();
  }
  reply->mutable_upgrades()->Add(upgrades_.begin(), upgrades_.end());
}

}  // namespace baton

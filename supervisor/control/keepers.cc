#include "supervisor/control/keepers.h"

#include <algorithm>
#include <future>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status.h"
#include "lib/text/text.h"
#include "supervisor/config/state_files.h"
#include "supervisor/control/config.h"

namespace baton {
namespace {

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
  if (clients.empty()) {
    done(absl::OkStatus());
    return;
  }
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

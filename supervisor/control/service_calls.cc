#include "supervisor/control/service_calls.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "supervisor/control/callers.h"

namespace baton {
namespace {

// Returns the time left until the caller's deadline, at most `at_most_ns`.
uint64_t TimeLeft(const grpc::ServerContextBase& call, uint64_t at_most_ns) {
  const auto left = call.deadline() - std::chrono::system_clock::now();
  const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  return std::min(ns > 0 ? static_cast<uint64_t>(ns) : 0, at_most_ns);
}

}  // namespace

absl::StatusOr<internal::Description> ServiceCalls::Describe(const grpc::ServerContextBase& call,
                                                             const std::string& service) const {
  auto described = keepers_->Describe(service, TimeLeft(call, kMaxCallNs));
  if (described.ok()) AddHealth(service, &*described);
  return described;
}

std::vector<Keepers::Described> ServiceCalls::DescribeAll(
    const grpc::ServerContextBase& call) const {
  std::vector<Keepers::Described> all = keepers_->DescribeAll(TimeLeft(call, kMaxCallNs));
  for (auto& [name, described] : all) {
    if (described.ok()) AddHealth(name, &*described);
  }
  return all;
}

// The keeper knows whether, from the arena; what is said besides came on the streams.
void ServiceCalls::AddHealth(const std::string& service, internal::Description* described) const {
  for (v1::Worker& worker : *described->mutable_workers()) {
    const auto health = streams_->Health(service, worker.id());
    worker.set_healthy(worker.healthy() && (!health || health->healthy()));
    worker.set_health_detail(health ? health->detail() : "");
  }
}

absl::StatusOr<internal::ManagementReply> ServiceCalls::Ask(
    const grpc::ServerContextBase& call, const std::string& service,
    internal::ManagementRequest request) const {
  return CallKeeper(service, std::move(request), TimeLeft(call, kMaxCallNs));
}

absl::StatusOr<internal::ManagementReply> ServiceCalls::Change(const grpc::ServerContextBase& call,
                                                               const std::string& service,
                                                               internal::ManagementRequest request,
                                                               uint64_t at_most_ns) const {
  request.set_trace_parent(TraceParentOf(call));
  return CallKeeper(service, std::move(request), TimeLeft(call, at_most_ns));
}

absl::StatusOr<internal::ManagementReply> ServiceCalls::CallKeeper(
    const std::string& service, internal::ManagementRequest request, uint64_t timeout_ns) const {
  const auto keeper = keepers_->Find(service);
  if (!keeper.ok()) return keeper.status();
  return (*keeper)->CallAndWait(std::move(request), timeout_ns);
}

const v1::Worker* FindWorker(const internal::Description& described, uint64_t id) {
  for (const v1::Worker& worker : described.workers()) {
    if (worker.id() == id) return &worker;
  }
  return nullptr;
}

absl::Status NoSuchShard(const std::string& service, uint32_t shard, size_t count) {
  return absl::NotFoundError(absl::StrCat("service \"", service, "\" has no shard ", shard,
                                          ": it has ", count, ", numbered from 0"));
}

absl::Status NoSuchWorker(const std::string& service, uint64_t id) {
  return absl::NotFoundError(absl::StrCat("service \"", service, "\" has no worker ", id,
                                          " now: `baton worker list ", service, "` shows all"));
}

}  // namespace baton

#include "supervisor/control/service_calls.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/pauses.h"
#include "lib/base/status.h"
#include "supervisor/control/callers.h"

namespace baton {
namespace {

// Returns the time left until the caller's deadline, at most `at_most_ns`.
uint64_t TimeLeft(const grpc::ServerContextBase& call, uint64_t at_most_ns) {
  const auto left = call.deadline() - std::chrono::system_clock::now();
  const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  return std::min(ns > 0 ? static_cast<uint64_t>(ns) : 0, at_most_ns);
}

constexpr uint32_t kDefaultStopMs = 10'000;
constexpr uint32_t kMaxStopMs = 600'000;
constexpr std::chrono::milliseconds kFirstPause(5);  // between two checks whether a worker is gone
constexpr std::chrono::milliseconds kMaxPause(200);

absl::Status NoStream(const std::string& service, const v1::Worker& worker) {
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", worker.id(), " of service \"", service,
      "\" has no stream to control, so it cannot be asked to end: wait until `baton worker list ",
      service, " -o wide` shows its stream open, or end its process, pid ", worker.pid(),
      ", yourself: with SIGTERM if it minds that, or with `baton worker kill ", service, " ",
      worker.id(), "`"));
}

absl::Status StillThere(const std::string& service, const v1::Worker& worker,
                        const absl::Status& last_look) {
  if (!last_look.ok()) {
    return absl::DeadlineExceededError(
        absl::StrCat("worker ", worker.id(), " of service \"", service,
                     "\" was asked to end; whether it did is not known: ", last_look.message()));
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "worker ", worker.id(), " of service \"", service,
      "\" was asked to end and is still there: wait longer, see what its process, pid ",
      worker.pid(), ", is busy with, or `baton worker kill ", service, " ", worker.id(), "`"));
}

// Compares the process, too, because ids count from 1 again when the service's driver was started
// anew.
bool IsThere(const internal::Description& described, const v1::Worker& worker) {
  return absl::c_any_of(described.workers(), [&](const v1::Worker& other) {
    return other.id() == worker.id() && other.pid() == worker.pid();
  });
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

// The keeper reads in the arena whether a worker is healthy. The details come on the workers'
// streams.
void ServiceCalls::AddHealth(const std::string& service, internal::Description* described) const {
  for (v1::Worker& worker : *described->mutable_workers()) {
    const auto health = streams_->Health(service, worker.id());
    worker.set_healthy(worker.healthy() && (!health || health->healthy()));
    worker.set_health_detail(health ? health->detail() : "");
  }
}

absl::StatusOr<internal::ManagementReply> ServiceCalls::Ask(const grpc::ServerContextBase& call,
                                                            const std::string& service,
                                                            internal::ManagementRequest request,
                                                            uint64_t at_most_ns) const {
  BATON_ASSIGN_OR_RETURN(KeeperClient * keeper, keepers_->Find(service));
  return keeper->Ask(std::move(request), TimeLeft(call, at_most_ns)).get();
}

absl::StatusOr<internal::ManagementReply> ServiceCalls::Change(const grpc::ServerContextBase& call,
                                                               const std::string& service,
                                                               internal::ManagementRequest request,
                                                               uint64_t at_most_ns) const {
  request.set_trace_parent(TraceParentOf(call));
  return Ask(call, service, std::move(request), at_most_ns);
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

absl::Status StopWorker(const grpc::ServerContext& call, const v1::StopWorkerRequest& request,
                        const ServiceCalls& calls, WorkerStreams* streams) {
  if (request.worker_id() == 0) {
    return absl::InvalidArgumentError("worker_id is missing: name the worker to stop");
  }
  if (request.timeout_ms() > kMaxStopMs) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout_ms: ", request.timeout_ms(), ", at most ", kMaxStopMs));
  }
  const uint64_t timeout_ms = request.timeout_ms() == 0 ? kDefaultStopMs : request.timeout_ms();
  const uint64_t deadline = MonotonicNanoseconds() + timeout_ms * 1'000'000;
  auto described = calls.Describe(call, request.service());
  BATON_RETURN_IF_ERROR(described.status());
  const v1::Worker* found = FindWorker(*described, request.worker_id());
  if (!found) return NoSuchWorker(request.service(), request.worker_id());
  const v1::Worker worker = *found;
  v1::AttachResponse notice;
  notice.mutable_shutdown()->set_reason("an operator asked for it");
  if (!streams->Notify(request.service(), worker.id(), std::move(notice))) {
    return NoStream(request.service(), worker);
  }
  for (BackOff pauses(kFirstPause, kMaxPause);;) {
    const uint64_t now = MonotonicNanoseconds();
    if (now >= deadline || call.IsCancelled()) {
      return StillThere(request.service(), worker, described.status());
    }
    std::this_thread::sleep_for(std::min(pauses.Next(), std::chrono::nanoseconds(deadline - now)));
    // A keeper that cannot be reached may be back before the time is over.
    described = calls.Describe(call, request.service());
    if (described.ok() && !IsThere(*described, worker)) return absl::OkStatus();
  }
}

}  // namespace baton

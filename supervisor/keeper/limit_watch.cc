#include "supervisor/keeper/limit_watch.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/driver/device_needs.h"
#include "supervisor/cgroup/cgroup.h"
#include "supervisor/keeper/worker_roles.h"

namespace baton::keeper {
namespace {

constexpr std::chrono::seconds kBetweenLooks(5);
constexpr uint64_t kCountsLastNs = 1'000'000'000;
// Near begins here, in percent of the limit, and is over there: what goes up and down between them
// is told of once.
constexpr uint64_t kNearPercent = 90;
constexpr uint64_t kOverPercent = 80;
constexpr size_t kMaxFileBytes = 64 << 10;

bool IsAbove(uint64_t percent, uint64_t used, uint64_t limit) {
  return limit != 0 && static_cast<double>(used) * 100 >=
                           static_cast<double>(limit) * static_cast<double>(percent);
}

}  // namespace

std::optional<std::string> ReadSmallFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::string text(kMaxFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

LimitWatch::LimitWatch(boost::asio::io_context& loop, const v1::ServiceConfig& service,
                       ServiceEngine& engine, Policies& policies, const WorkerSessions& workers,
                       EventLog& events, ReadFile read_file)
    : service_(service),
      engine_(engine),
      policies_(policies),
      workers_(workers),
      events_(events),
      read_file_(std::move(read_file)),
      timer_(loop) {
  LookLater();
}

void LimitWatch::LookLater() {
  timer_.expires_after(kBetweenLooks);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    (void)Look();
    LookLater();
  });
}

v1::Accounts LimitWatch::Look() {
  std::vector<WorkerUse> of_workers;
  v1::Accounts accounts = Count(&of_workers);
  const std::vector<Warning> warnings = FindWarnings(accounts, of_workers);
  Tell(warnings);
  for (const Warning& warning : warnings) {
    if (warning.begins) accounts.add_warnings(warning.text);
  }
  return accounts;
}

// On the engine's thread, which has other things to do: counted anew only when there are more or
// fewer, or after a while, since a connection that is accepted is the same and has a queue pair.
const driver::ObjectCounts& LimitWatch::CountObjects(uint32_t grants) {
  const uint64_t now = MonotonicNanoseconds();
  const uint32_t connections = engine_.connection_count();
  if (objects_.counted_ns == 0 || now - objects_.counted_ns >= kCountsLastNs ||
      objects_.connections != connections || objects_.grants != grants) {
    objects_ = {engine_.device_objects(), connections, grants, now};
  }
  return objects_.counts;
}

v1::Accounts LimitWatch::Count(std::vector<WorkerUse>* of_workers) {
  v1::Accounts accounts;
  const std::vector<WorkerInfo> workers = workers_.List();
  engine_.Run([&] {
    const arena::Shape& shape = engine_.arena().shape();
    const Admission& admission = policies_.admission();
    const Holdings all = admission.OfService();
    const driver::ObjectCounts& objects = CountObjects(all.grants);
    accounts.set_connections(engine_.connection_count());
    accounts.set_queue_pairs(objects.queue_pairs);
    accounts.set_completion_queues(objects.completion_queues);
    accounts.set_shared_receive_queues(objects.shared_receive_queues);
    accounts.set_memory_regions(objects.memory_regions);
    accounts.set_registered_bytes(driver::NeedsOf(shape).registered_bytes + all.granted_bytes);
    accounts.set_grants(all.grants);
    accounts.set_granted_bytes(all.granted_bytes);
    accounts.set_listeners(static_cast<uint32_t>(engine_.listeners().size()));
    for (const WorkerInfo& worker : workers) {
      WorkerUse use{worker.id, 0, admission.OfWorker(worker.id)};
      for (uint32_t shard = 0; shard < shape.shards; ++shard) {
        if (engine_.owner(shard).worker_id == worker.id) {
          use.connections += engine_.connections_of(shard);
        }
      }
      of_workers->push_back(use);
    }
  });
  return accounts;
}

std::vector<LimitWatch::Warning> LimitWatch::FindWarnings(
    const v1::Accounts& accounts, const std::vector<WorkerUse>& of_workers) {
  std::vector<Warning> warnings;
  const auto check = [&](const char* field, uint64_t used, uint64_t limit, uint64_t worker_id) {
    if (!IsAbove(kOverPercent, used, limit)) return;
    Warning warning;
    warning.key = absl::StrCat("policy.", worker_id == 0 ? "service." : "worker.", field);
    warning.text = absl::StrCat(warning.key, ": ", used, " of ", limit, " in use",
                                worker_id == 0 ? "" : absl::StrCat(" by worker ", worker_id));
    warning.begins = IsAbove(kNearPercent, used, limit);
    warnings.push_back(std::move(warning));
  };
  const v1::Quota& service = policies_.policy().service();
  check("connections", accounts.connections(), service.connections(), 0);
  check("listeners", accounts.listeners(), service.listeners(), 0);
  check("grants", accounts.grants(), service.grants(), 0);
  check("granted_bytes", accounts.granted_bytes(), service.granted_bytes(), 0);
  check("registered_bytes", accounts.registered_bytes(), service.registered_bytes(), 0);
  // Completion queues, and the queue pairs of a native service, never become more.
  if (!arena::IsNative(engine_.arena().shape())) {
    check("queue_pairs", accounts.queue_pairs(), service.queue_pairs(), 0);
  }
  // Checks the worker that has most.
  const v1::Quota& worker = policies_.policy().worker();
  const auto check_most = [&](const char* field, uint64_t limit, auto use_of) {
    const auto most = std::max_element(
        of_workers.begin(), of_workers.end(),
        [&](const WorkerUse& a, const WorkerUse& b) { return use_of(a) < use_of(b); });
    if (most != of_workers.end()) check(field, use_of(*most), limit, most->id);
  };
  using Use = WorkerUse;
  check_most("connections", worker.connections(), [](const Use& use) { return use.connections; });
  check_most("listeners", worker.listeners(),
             [](const Use& use) { return use.holdings.listeners; });
  check_most("grants", worker.grants(), [](const Use& use) { return use.holdings.grants; });
  check_most("granted_bytes", worker.granted_bytes(),
             [](const Use& use) { return use.holdings.granted_bytes; });
  CheckControlGroups(&warnings);
  CheckStandbys(&warnings);
  return warnings;
}

// Each group from ours up to the root has a say.
void LimitWatch::CheckControlGroups(std::vector<Warning>* warnings) const {
  if (!service_.device().has_rdma()) return;
  const auto group = cgroup::GroupOf(read_file_("/proc/self/cgroup").value_or(""));
  if (!group) return;
  const std::string_view device = engine_.device_name();
  for (const std::string& one : cgroup::Chain(*group)) {
    const std::string directory = absl::StrCat(cgroup::kRoot, one);
    const std::string max = read_file_(directory + "/rdma.max").value_or("");
    if (max.empty()) continue;
    const std::string current = read_file_(directory + "/rdma.current").value_or("");
    for (const char* const key : {"hca_handle", "hca_object"}) {
      const auto limit = cgroup::RdmaValue(max, device, key);
      const auto used = cgroup::RdmaValue(current, device, key);
      if (!limit || !used || !IsAbove(kOverPercent, *used, *limit)) continue;
      Warning warning;
      warning.key = absl::StrCat("rdma.max of ", one, ": ", key);
      warning.text = absl::StrCat("rdma.max of control group ", one, ": ", *used, " of ", *limit,
                                  " ", key, " of ", std::string(device), " in use");
      warning.begins = IsAbove(kNearPercent, *used, *limit);
      warnings->push_back(std::move(warning));
    }
  }
}

void LimitWatch::CheckStandbys(std::vector<Warning>* warnings) {
  const uint32_t wanted = policies_.policy().hot_standbys();
  if (wanted == 0) return;
  const size_t ready = RolesOf(workers_.List(), engine_).standbys.size();
  if (ready >= wanted) return;
  Warning warning;
  warning.kind = "standbys_missing";
  warning.key = "policy.hot_standbys";
  warning.text = absl::StrCat("policy.hot_standbys: ", ready, " of ", wanted,
                              " workers are ready and own no shard");
  warnings->push_back(std::move(warning));
}

void LimitWatch::Tell(const std::vector<Warning>& warnings) {
  const std::vector<std::string> told = std::exchange(told_, {});
  for (const Warning& warning : warnings) {
    const bool known = std::find(told.begin(), told.end(), warning.key) != told.end();
    if (!known && !warning.begins) continue;
    told_.push_back(warning.key);
    if (!known) events_.Add(warning.kind, warning.text, UnixMicroseconds(), 0, -1, -1);
  }
}

}  // namespace baton::keeper

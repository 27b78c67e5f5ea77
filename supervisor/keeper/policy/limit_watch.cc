#include "supervisor/keeper/policy/limit_watch.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/channel/waits.h"
#include "supervisor/config/cgroup.h"
#include "supervisor/keeper/sessions/shard_owners.h"

namespace baton::keeper {
namespace {

constexpr std::chrono::seconds kBetweenLooks(5);
// A warning begins at the first of these, in percent of the limit, and is over below the second. So
// use that goes up and down between them is reported once.
constexpr uint64_t kNearPercent = 90;
constexpr uint64_t kOverPercent = 80;
constexpr char kLimitNear[] = "limit_near";  // an event

bool IsAbove(uint64_t percent, uint64_t used, uint64_t limit) {
  return limit != 0 && static_cast<double>(used) * 100 >=
                           static_cast<double>(limit) * static_cast<double>(percent);
}

}  // namespace

LimitWatch::LimitWatch(const CommonParts& parts, const WorkerSessions& workers,
                       ReadFileFunction read_file)
    : parts_(parts), workers_(workers), read_file_(std::move(read_file)), timer_(parts.loop) {
  Every(timer_, kBetweenLooks, [this] { (void)Look(); });
}

v1::Accounts LimitWatch::Look() {
  std::vector<uint64_t> ids;
  for (const WorkerInfo& worker : workers_.List()) ids.push_back(worker.id);
  const internal::ServiceAccounts counted = parts_.driver.Account(ids);
  v1::Accounts accounts = counted.accounts();
  const std::vector<Warning> warnings = FindWarnings(counted);
  Tell(warnings);
  for (const Warning& warning : warnings) {
    if (warning.begins) accounts.add_warnings(warning.text);
  }
  return accounts;
}

std::vector<LimitWatch::Warning> LimitWatch::FindWarnings(
    const internal::ServiceAccounts& counted) {
  const v1::Accounts& accounts = counted.accounts();
  std::vector<Warning> warnings;
  const auto check = [&](const char* field, uint64_t used, uint64_t limit, uint64_t worker_id) {
    if (!IsAbove(kOverPercent, used, limit)) return;
    const std::string key = absl::StrCat("policy.", worker_id == 0 ? "service." : "worker.", field);
    warnings.push_back({kLimitNear, key,
                        absl::StrCat(key, ": ", used, " of ", limit, " in use",
                                     worker_id == 0 ? "" : absl::StrCat(" by worker ", worker_id)),
                        IsAbove(kNearPercent, used, limit)});
  };
  const v1::Quota& service = parts_.policies.policy().service();
  check("connections", accounts.connections(), service.connections(), 0);
  check("listeners", accounts.listeners(), service.listeners(), 0);
  check("grants", accounts.grants(), service.grants(), 0);
  check("granted_bytes", accounts.granted_bytes(), service.granted_bytes(), 0);
  check("descriptors", accounts.descriptors(), service.descriptors(), 0);
  check("registered_bytes", accounts.registered_bytes(), service.registered_bytes(), 0);
  // Completion queues, and the queue pairs of a native service, never become more.
  if (!arena::IsNative(parts_.driver.arena().shape())) {
    check("queue_pairs", accounts.queue_pairs(), service.queue_pairs(), 0);
  }
  // Checks the worker that uses most.
  const v1::Quota& worker = parts_.policies.policy().worker();
  using Use = internal::WorkerUse;
  const auto check_most = [&](const char* field, uint64_t limit, auto use) {
    const auto most =
        std::max_element(counted.workers().begin(), counted.workers().end(),
                         [use](const Use& a, const Use& b) { return (a.*use)() < (b.*use)(); });
    if (most != counted.workers().end()) check(field, ((*most).*use)(), limit, most->worker_id());
  };
  check_most("connections", worker.connections(), &Use::connections);
  check_most("listeners", worker.listeners(), &Use::listeners);
  check_most("grants", worker.grants(), &Use::grants);
  check_most("granted_bytes", worker.granted_bytes(), &Use::granted_bytes);
  check_most("descriptors", worker.descriptors(), &Use::descriptors);
  CheckControlGroups(&warnings);
  CheckStandbys(&warnings);
  return warnings;
}

// The limits of each group from the keeper's up to the root apply.
void LimitWatch::CheckControlGroups(std::vector<Warning>* warnings) const {
  if (!parts_.config.service().device().has_rdma()) return;
  const auto group = cgroup::GroupOf(read_file_("/proc/self/cgroup").value_or(""));
  if (!group) return;
  const std::string_view device = parts_.driver.device_name();
  for (const std::string& one : cgroup::Chain(*group)) {
    const std::string directory = absl::StrCat(cgroup::kRoot, one);
    const std::string max = read_file_(directory + "/rdma.max").value_or("");
    if (max.empty()) continue;
    const std::string current = read_file_(directory + "/rdma.current").value_or("");
    for (const char* const key : {"hca_handle", "hca_object"}) {
      const auto limit = cgroup::RdmaValue(max, device, key);
      const auto used = cgroup::RdmaValue(current, device, key);
      if (!limit || !used || !IsAbove(kOverPercent, *used, *limit)) continue;
      warnings->push_back({kLimitNear, absl::StrCat("rdma.max of ", one, ": ", key),
                           absl::StrCat("rdma.max of control group ", one, ": ", *used, " of ",
                                        *limit, " ", key, " of ", std::string(device), " in use"),
                           IsAbove(kNearPercent, *used, *limit)});
    }
  }
}

void LimitWatch::CheckStandbys(std::vector<Warning>* warnings) {
  const uint32_t wanted = parts_.policies.policy().hot_standbys();
  if (wanted == 0) return;
  const size_t ready = RolesOf(workers_.List(), parts_.driver).standbys.size();
  if (ready >= wanted) return;
  warnings->push_back({"standbys_missing", "policy.hot_standbys",
                       absl::StrCat("policy.hot_standbys: ", ready, " of ", wanted,
                                    " workers are ready and own no shard")});
}

void LimitWatch::Tell(const std::vector<Warning>& warnings) {
  const std::vector<std::string> told = std::exchange(told_, {});
  for (const Warning& warning : warnings) {
    const bool known = std::find(told.begin(), told.end(), warning.key) != told.end();
    if (!known && !warning.begins) continue;
    told_.push_back(warning.key);
    if (!known) parts_.events.Add(warning.kind, warning.text);
  }
}

}  // namespace baton::keeper

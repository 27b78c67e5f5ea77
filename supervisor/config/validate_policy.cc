#include "supervisor/config/validate_policy.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/arena/layout.h"
#include "supervisor/config/ip_address.h"
#include "supervisor/config/policy.h"

namespace baton {
namespace {

constexpr int kMaxEntries = 64;  // of each list
constexpr uint32_t kMaxPort = 65535;
constexpr uint32_t kMaxPKey = 0xffff;
constexpr uint32_t kPartitionBits = 0x7fff;  // the other one is full membership
constexpr uint32_t kMaxServiceLevel = 15;
constexpr uint32_t kDefaultFirstDelayMs = 10;
constexpr uint32_t kDefaultMaxDelayMs = 5000;
constexpr uint32_t kMaxDelayMs = 3'600'000;

void CheckAtMost(const Node& node, const char* field, uint64_t value, uint64_t most,
                 const std::string& what) {
  if (value > most) node.Refuse(field, absl::StrCat(value, " is more than ", what, ", ", most));
}

void CheckQuota(const v1::Quota& quota, const v1::ServiceConfig& service, const Node& node) {
  CheckAtMost(node, "connections", quota.connections(), service.max_connections(),
              "max_connections");
  CheckAtMost(node, "listeners", quota.listeners(), service.max_listeners(), "max_listeners");
  CheckAtMost(node, "grants", quota.grants(), arena::kGrants, "a service can have");
  CheckAtMost(node, "granted_bytes", quota.granted_bytes(), service.buffer_bytes() * arena::kGrants,
              "all grants of all buffers");
  if (quota.posts_per_second() != 0 && service.mode() == v1::NATIVE) {
    node.Refuse("posts_per_second",
                "is for mode BROKERED: native workers post by themselves, the keeper cannot have "
                "them wait; leave it out");
  }
}

// What a worker may have and its service may not would never be refused for the worker's sake.
void CheckShare(const v1::Policy& policy, const Node& worker) {
  const v1::Quota& all = policy.service();
  const v1::Quota& one = policy.worker();
  const auto check = [&](const char* field, uint64_t of_worker, uint64_t of_service) {
    if (of_service != 0) {
      CheckAtMost(worker, field, of_worker, of_service, absl::StrCat("policy.service.", field));
    }
  };
  check("connections", one.connections(), all.connections());
  check("listeners", one.listeners(), all.listeners());
  check("grants", one.grants(), all.grants());
  check("granted_bytes", one.granted_bytes(), all.granted_bytes());
  check("posts_per_second", one.posts_per_second(), all.posts_per_second());
}

void CheckLength(const Node& node, const char* field, int size) {
  if (size > kMaxEntries) {
    node.Refuse(field, absl::StrCat("has ", size, " entries, at most ", kMaxEntries));
  }
}

void CheckRoutes(const v1::Policy& policy, const Node& node) {
  CheckLength(node, "gids", policy.gids_size());
  CheckLength(node, "p_keys", policy.p_keys_size());
  CheckLength(node, "service_levels", policy.service_levels_size());
  for (const std::string& gid : policy.gids()) {
    if (IsAddress(gid)) continue;
    node.Refuse("gids", absl::StrCat("\"", gid,
                                     "\" is no IPv4 or IPv6 address, and no GID; ibv_devinfo -v "
                                     "shows those of the device"));
  }
  for (const uint32_t p_key : policy.p_keys()) {
    if (p_key <= kMaxPKey && (p_key & kPartitionBits) != 0) continue;
    node.Refuse("p_keys", absl::StrCat(p_key, " is no P_Key: 1 to 65535, without 32768"));
  }
  for (const uint32_t level : policy.service_levels()) {
    if (level <= kMaxServiceLevel) continue;
    node.Refuse("service_levels", absl::StrCat(level, " is not between 0 and ", kMaxServiceLevel));
  }
}

void CheckPorts(google::protobuf::RepeatedPtrField<v1::PortRange>& ranges, const char* field,
                const Node& node) {
  CheckLength(node, field, ranges.size());
  for (int i = 0; i < ranges.size(); ++i) {
    v1::PortRange& range = *ranges.Mutable(i);
    const Node child = node.Child(field, range, i);
    if (range.last() == 0) range.set_last(range.first());
    if (range.first() == 0 || range.first() > kMaxPort) {
      child.Refuse("first", absl::StrCat(range.first(), " is not between 1 and ", kMaxPort));
    } else if (range.last() > kMaxPort || range.last() < range.first()) {
      child.Refuse("last", absl::StrCat(range.last(), " is not between first, ", range.first(),
                                        ", and ", kMaxPort));
    }
  }
}

void CheckRestart(v1::RestartPolicy& restart, const Node& node) {
  node.CheckRange({"first_delay_ms", kDefaultFirstDelayMs, 1, kMaxDelayMs});
  node.CheckRange({"max_delay_ms", std::max(kDefaultMaxDelayMs, restart.first_delay_ms()),
                   restart.first_delay_ms(), kMaxDelayMs});
}

void CheckStandbys(const v1::Policy& policy, const v1::ServiceConfig& service, const Node& node) {
  const uint32_t wanted = policy.hot_standbys();
  if (wanted >= service.max_workers()) {
    node.Refuse("hot_standbys",
                absl::StrCat(wanted, " beside those that own shards are more than max_workers, ",
                             service.max_workers(), "; raise that, or lower this"));
  } else if (service.mode() == v1::NATIVE && wanted >= service.native().workers()) {
    node.Refuse("hot_standbys",
                absl::StrCat(wanted, " beside those that own shards are more than native.workers, ",
                             service.native().workers(),
                             ", keeps running; raise that, or lower "
                             "this"));
  }
}

}  // namespace

void CheckPolicy(v1::Policy& policy, const v1::ServiceConfig& service, const Node& node) {
  if (policy.has_service()) {
    CheckQuota(policy.service(), service, node.Child("service", *policy.mutable_service()));
  }
  if (policy.has_worker()) {
    const Node worker = node.Child("worker", *policy.mutable_worker());
    CheckQuota(policy.worker(), service, worker);
    CheckShare(policy, worker);
  }
  CheckRoutes(policy, node);
  CheckPorts(*policy.mutable_listen_ports(), "listen_ports", node);
  CheckPorts(*policy.mutable_connect_ports(), "connect_ports", node);
  if (policy.has_restart()) {
    v1::RestartPolicy& restart = *policy.mutable_restart();
    CheckRestart(restart, node.Child("restart", restart));
  }
  if (policy.hot_standbys() != 0) CheckStandbys(policy, service, node);
  if (!v1::OnHang_IsValid(policy.on_hang())) {
    node.Refuse("on_hang", "is neither ON_HANG_KILL nor ON_HANG_REPORT");
  }
}

absl::Status CompletePolicy(v1::Policy& policy, const v1::ServiceConfig& service) {
  Problems problems("");
  CheckPolicy(policy, service, Node(policy, "policy", nullptr, problems));
  return problems.ToStatus();
}

}  // namespace baton

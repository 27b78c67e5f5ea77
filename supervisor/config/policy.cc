#include "supervisor/config/policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/driver/device_needs.h"
#include "supervisor/config/shape.h"

namespace baton {
namespace {

constexpr int kMaxEntries = 64;            // of each list
constexpr uint32_t kMaxDescriptors = 256;  // driver_process::HeldDescriptors::kMost
constexpr uint32_t kMaxPort = 65535;
constexpr uint32_t kMaxPKey = 0xffff;
constexpr uint32_t kPartitionBits = 0x7fff;  // the remaining bit is full membership
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
  CheckAtMost(node, "grants", quota.grants(), arena::kGrants + arena::kRegions,
              "a service can have");
  CheckAtMost(node, "descriptors", quota.descriptors(), kMaxDescriptors, "a driver holds");
  if (quota.posts_per_second() != 0 && service.mode() == v1::NATIVE) {
    node.Refuse("posts_per_second",
                "is for mode BROKERED: native workers post by themselves, the keeper cannot have "
                "them wait; leave it out");
  }
}

// Checks that quotas allow the objects with which the service is made.
void CheckObjects(const v1::Quota& quota, const v1::ServiceConfig& service, const Node& node) {
  const arena::Shape shape = ShapeOf(service);
  if (!arena::ValidateShape(shape).ok()) return;  // another check reports this
  const driver::DeviceNeeds needs = driver::NeedsOf(shape);
  const auto check = [&](const char* field, uint64_t quota, uint64_t need, const char* what,
                         const char* cure) {
    if (quota == 0 || quota >= need) return;
    node.Refuse(field, absl::StrCat(quota, " is less than ", need, ", ", what,
                                    ", which the service is made with; raise it, or lower ", cure));
  };
  check("completion_queues", quota.completion_queues(), needs.completion_queues,
        "one for each shard", "shards");
  check("registered_bytes", quota.registered_bytes(), needs.registered_bytes,
        "its buffers, its heaps and the buffers of a recovery", "buffer_bytes or shard_heap_bytes");
  check("queue_pairs", quota.queue_pairs(), uint64_t{shape.shards} * shape.pooled_queue_pairs,
        "the pools of its shards", "native.queue_pairs_per_shard");
}

void RefuseObjectsOfWorker(const v1::Quota& quota, const Node& worker) {
  const auto refuse = [&](const char* field, uint64_t value, const char* why) {
    if (value != 0) worker.Refuse(field, why);
  };
  refuse("queue_pairs", quota.queue_pairs(),
         "is for policy.service: a worker operates the queue pairs of its shards' connections; set "
         "connections");
  refuse("completion_queues", quota.completion_queues(),
         "is for policy.service: each shard has one, and a quota of them would leave shards "
         "without an owner; leave it out");
  refuse("registered_bytes", quota.registered_bytes(),
         "is for policy.service: what a worker has registered is granted to peers; set "
         "granted_bytes");
}

// A worker's limit above its service's would have no effect.
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
  check("descriptors", one.descriptors(), all.descriptors());
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
    const Node child = node.Child(field, i);
    if (range.last() == 0) range.set_last(range.first());
    if (range.first() == 0 || range.first() > kMaxPort) {
      child.Refuse("first", absl::StrCat(range.first(), " is not between 1 and ", kMaxPort));
    } else if (range.last() > kMaxPort || range.last() < range.first()) {
      child.Refuse("last", absl::StrCat(range.last(), " is not between first, ", range.first(),
                                        ", and ", kMaxPort));
    }
  }
}

void CheckRestart(const v1::RestartPolicy& restart, const Node& node) {
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
    const Node all = node.Child("service");
    CheckQuota(policy.service(), service, all);
    CheckObjects(policy.service(), service, all);
  }
  if (policy.has_worker()) {
    const Node worker = node.Child("worker");
    CheckQuota(policy.worker(), service, worker);
    CheckShare(policy, worker);
    RefuseObjectsOfWorker(policy.worker(), worker);
  }
  CheckRoutes(policy, node);
  CheckPorts(*policy.mutable_listen_ports(), "listen_ports", node);
  CheckPorts(*policy.mutable_connect_ports(), "connect_ports", node);
  if (policy.has_restart()) CheckRestart(policy.restart(), node.Child("restart"));
  if (policy.hot_standbys() != 0) CheckStandbys(policy, service, node);
  if (policy.workers_may_take_over() && service.mode() == v1::NATIVE) {
    node.Refuse("workers_may_take_over",
                "is for mode BROKERED: the driver forks native workers, none starts by itself; "
                "leave it out, and use `baton upgrade`");
  }
  if (!v1::OnHang_IsValid(policy.on_hang())) {
    node.Refuse("on_hang", "is neither ON_HANG_KILL nor ON_HANG_REPORT");
  }
  if (!v1::OnKeeperHang_IsValid(policy.on_keeper_hang())) {
    node.Refuse("on_keeper_hang", "is neither ON_KEEPER_HANG_REPORT nor ON_KEEPER_HANG_RESTART");
  }
}

absl::Status CompletePolicy(v1::Policy& policy, const v1::ServiceConfig& service) {
  Problems problems("");
  CheckPolicy(policy, service, Node(policy, "policy", nullptr, problems));
  return problems.ToStatus();
}

}  // namespace baton

#include "supervisor/driver/engine/admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/arena/layout.h"
#include "lib/base/status.h"

namespace baton::driver_process {
namespace {

constexpr char kCure[] = "`baton service policy` shows and changes the policy";
constexpr uint32_t kPartitionBits = 0x7fff;

// `of` is "service" or "worker".
absl::Status CheckQuota(const char* of, const char* field, uint64_t has, uint64_t more,
                        uint64_t most) {
  if (most == 0 || (has <= most && more <= most - has)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "policy.", of, ".", field, ": the ", of, " has ", has, " of at most ", most,
      more > 1 ? absl::StrCat(", and wants ", more, " more") : "", ": raise it; ", kCure));
}

std::string Describe(const google::protobuf::RepeatedPtrField<v1::PortRange>& ranges) {
  return absl::StrJoin(ranges, ", ", [](std::string* text, const v1::PortRange& range) {
    absl::StrAppend(text, range.first());
    if (range.last() != range.first()) absl::StrAppend(text, "-", range.last());
  });
}

absl::Status CheckPort(const char* field, uint32_t port,
                       const google::protobuf::RepeatedPtrField<v1::PortRange>& ranges) {
  const auto has = [port](const v1::PortRange& range) {
    return port >= range.first() && port <= range.last();
  };
  if (ranges.empty() || std::any_of(ranges.begin(), ranges.end(), has)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("policy.", field, ": port ", port,
                                                  port == 0 ? ", any free one," : "",
                                                  " is not among ", Describe(ranges), "; ", kCure));
}

absl::Status NotAmong(const char* field, const std::string& what, const std::string& allowed) {
  return absl::PermissionDeniedError(
      absl::StrCat("policy.", field, ": ", what, " is not among ", allowed, "; ", kCure));
}

template <typename Numbers>
std::string Join(const Numbers& numbers) {
  return absl::StrJoin(numbers, ", ");
}

}  // namespace

Admission::Admission(uint64_t registered_bytes)
    : registered_bytes_(registered_bytes), grants_(arena::kGrants + arena::kRegions) {}

void Admission::SetPolicy(v1::Policy policy) {
  policy_ = std::move(policy);
  gids_.clear();
  for (const std::string& gid : policy_.gids()) {
    if (const auto address = ParseIpAddress(gid)) gids_.push_back(*address);
  }
}

absl::Status Admission::CheckListen(uint64_t worker_id, const verbs::Address& address,
                                    size_t listeners, bool fixed_address) const {
  BATON_RETURN_IF_ERROR(CheckPort("listen_ports", address.port, policy_.listen_ports()));
  if (!gids_.empty() && !fixed_address) {
    const auto wanted = ParseIpAddress(address.host);
    if (!wanted || std::find(gids_.begin(), gids_.end(), *wanted) == gids_.end()) {
      return NotAmong("gids", address.host, Join(policy_.gids()));
    }
  }
  BATON_RETURN_IF_ERROR(
      CheckQuota("service", "listeners", listeners, 1, policy_.service().listeners()));
  return CheckQuota("worker", "listeners", OfWorker(worker_id).listeners, 1,
                    policy_.worker().listeners());
}

void Admission::Close(std::string why) {
  closed_ = std::move(why);
  refused_while_closed_ = 0;
}

absl::Status Admission::CheckOpen() {
  if (closed_.empty()) return absl::OkStatus();
  ++refused_while_closed_;
  return absl::UnavailableError(closed_);
}

absl::Status Admission::CheckConnections(uint32_t of_service) const {
  const v1::Quota& quota = policy_.service();
  BATON_RETURN_IF_ERROR(CheckQuota("service", "connections", of_service, 1, quota.connections()));
  return CheckQuota("service", "queue_pairs", of_service, 1, quota.queue_pairs());
}

absl::Status Admission::CheckConnect(uint32_t port, uint32_t of_service, uint32_t of_worker) {
  BATON_RETURN_IF_ERROR(CheckOpen());
  BATON_RETURN_IF_ERROR(CheckPort("connect_ports", port, policy_.connect_ports()));
  BATON_RETURN_IF_ERROR(CheckConnections(of_service));
  return CheckQuota("worker", "connections", of_worker, 1, policy_.worker().connections());
}

absl::Status Admission::CheckGrant(uint64_t worker_id, uint64_t bytes) const {
  const auto check = [bytes](const char* of, const Holdings& has, const v1::Quota& quota) {
    BATON_RETURN_IF_ERROR(CheckQuota(of, "grants", has.grants, 1, quota.grants()));
    return CheckQuota(of, "granted_bytes", has.granted_bytes, bytes, quota.granted_bytes());
  };
  const Holdings all = OfService();
  BATON_RETURN_IF_ERROR(check("service", all, policy_.service()));
  BATON_RETURN_IF_ERROR(CheckQuota("service", "registered_bytes",
                                   registered_bytes_ + all.granted_bytes, bytes,
                                   policy_.service().registered_bytes()));
  return check("worker", OfWorker(worker_id), policy_.worker());
}

absl::Status Admission::CheckDescriptor(uint32_t of_service, uint32_t of_worker) const {
  BATON_RETURN_IF_ERROR(
      CheckQuota("service", "descriptors", of_service, 1, policy_.service().descriptors()));
  return CheckQuota("worker", "descriptors", of_worker, 1, policy_.worker().descriptors());
}

void Admission::NoteGrant(uint32_t grant, uint64_t worker_id, uint64_t bytes) {
  NoteRevoked(grant);
  grants_[grant] = {worker_id, bytes};
  Holdings& holdings = holdings_[worker_id];
  ++holdings.grants;
  holdings.granted_bytes += bytes;
}

void Admission::NoteRevoked(uint32_t grant) {
  if (grant >= grants_.size()) return;
  const Grant was = std::exchange(grants_[grant], Grant{});
  const auto owner = holdings_.find(was.worker_id);
  if (was.bytes == 0 || owner == holdings_.end()) return;
  --owner->second.grants;
  owner->second.granted_bytes -= was.bytes;
}

void Admission::KeepListeners(const std::vector<verbs::Address>& remaining) {
  std::erase_if(listeners_, [&](const Listener& listener) {
    return std::none_of(remaining.begin(), remaining.end(), [&](const verbs::Address& one) {
      return one.host == listener.address.host && one.port == listener.address.port;
    });
  });
}

void Admission::Forget(uint64_t worker_id) {
  std::erase_if(listeners_, [&](const Listener& one) { return one.worker_id == worker_id; });
  for (Grant& grant : grants_) {
    if (grant.worker_id == worker_id) grant.worker_id = 0;
  }
  holdings_.erase(worker_id);
}

Holdings Admission::OfWorker(uint64_t worker_id) const {
  const auto found = holdings_.find(worker_id);
  Holdings holdings = found == holdings_.end() ? Holdings{} : found->second;
  holdings.listeners = static_cast<uint32_t>(
      std::count_if(listeners_.begin(), listeners_.end(),
                    [&](const Listener& one) { return one.worker_id == worker_id; }));
  return holdings;
}

Holdings Admission::OfService() const {
  Holdings all;
  for (const Grant& grant : grants_) {
    all.grants += grant.bytes != 0;
    all.granted_bytes += grant.bytes;
  }
  return all;
}

bool Admission::RestrictsRoutes() const {
  return !gids_.empty() || !policy_.p_keys().empty() || !policy_.service_levels().empty();
}

absl::Status Admission::CheckRequest(uint32_t connections, const verbs::ConnectionId& id) {
  BATON_RETURN_IF_ERROR(CheckOpen());
  BATON_RETURN_IF_ERROR(CheckConnections(connections));
  return RestrictsRoutes() ? CheckRoute(id.route()) : absl::OkStatus();
}

absl::Status Admission::CheckRoute(const verbs::Route& route) const {
  const auto gid = ParseIpAddress(route.gid);
  if (!gids_.empty() && (!gid || std::find(gids_.begin(), gids_.end(), *gid) == gids_.end())) {
    return NotAmong("gids", route.gid, Join(policy_.gids()));
  }
  const auto& p_keys = policy_.p_keys();
  const auto is_its = [&](uint32_t p_key) {
    return (p_key & kPartitionBits) == (route.p_key & kPartitionBits);
  };
  if (!p_keys.empty() && std::none_of(p_keys.begin(), p_keys.end(), is_its)) {
    return NotAmong("p_keys", absl::StrCat(route.p_key), Join(p_keys));
  }
  const auto& levels = policy_.service_levels();
  if (!levels.empty() &&
      std::find(levels.begin(), levels.end(), route.service_level) == levels.end()) {
    return NotAmong("service_levels", absl::StrCat(route.service_level), Join(levels));
  }
  return absl::OkStatus();
}

}  // namespace baton::driver_process

#include "supervisor/control/roles.h"

#include <unistd.h>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "lib/text/one_line.h"

namespace baton {
namespace {

constexpr size_t kMaxMethodBytes = 128;  // of a caller's method name, in an answer

// The methods that a viewer may call. They read, and neither change nor send anything.
constexpr std::string_view kLooks[] = {
    "/baton.v1.OperatorService/GetConnection",
    "/baton.v1.OperatorService/GetService",
    "/baton.v1.OperatorService/GetShard",
    "/baton.v1.OperatorService/GetStatus",
    "/baton.v1.OperatorService/GetWorker",
    "/baton.v1.OperatorService/ListConnections",
    "/baton.v1.OperatorService/ListServices",
    "/baton.v1.OperatorService/ListShardMoves",
    "/baton.v1.OperatorService/ListShards",
    "/baton.v1.OperatorService/ListUpgrades",
    "/baton.v1.OperatorService/ListWorkers",
    "/baton.v1.OperatorService/WatchEvents",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
};

template <typename Uids, typename Gids>
bool Names(const Uids& uids, const Gids& gids, const Peer& peer) {
  return absl::c_linear_search(uids, peer.uid) ||
         absl::c_any_of(peer.gids, [&](uint32_t gid) { return absl::c_linear_search(gids, gid); });
}

// "uid 7 may not operate Baton" or "uid 7 may look, and Handoff changes something".
std::string WhatIsRefused(Role role, std::string_view who, std::string_view method) {
  const std::string_view what = method.substr(method.rfind('/') + 1);
  return role == Role::kViewer
             ? absl::StrCat(std::string(who), " may look and change nothing, and ",
                            OneLine(what, kMaxMethodBytes), " is for operators")
             : absl::StrCat(std::string(who), " may not operate Baton");
}

}  // namespace

Role RoleOf(const internal::ControlConfig& config, const Peer& peer) {
  // The user that control runs as has no rights of its own.
  const uid_t batond = config.has_batond_uid() ? config.batond_uid() : geteuid();
  const bool distrusted = config.distrust_contained_root() && peer.contained;
  if ((peer.uid == 0 || peer.uid == batond) && !distrusted) return Role::kOperator;
  if (Names(config.operator_uids(), config.operator_gids(), peer)) return Role::kOperator;
  if (Names(config.viewer_uids(), config.viewer_gids(), peer)) return Role::kViewer;
  return Role::kNone;
}

NamedRole RoleOfNames(const v1::OperatorEndpoint& endpoint, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (absl::c_linear_search(endpoint.operators(), name)) return {Role::kOperator, name};
  }
  for (const std::string& name : names) {
    if (absl::c_linear_search(endpoint.viewers(), name)) return {Role::kViewer, name};
  }
  return {Role::kNone, names.empty() ? "" : names.front()};
}

bool MayCall(Role role, std::string_view method) {
  return role == Role::kOperator ||
         (role == Role::kViewer && absl::c_linear_search(kLooks, method));
}

std::string RefusalOfPeer(Role role, const Peer& peer, std::string_view method) {
  return absl::StrCat(WhatIsRefused(role, absl::StrCat("uid ", peer.uid), method),
                      ": add it to operator_uids, or one of its groups to operator_gids",
                      role == Role::kNone ? " (to look only: viewer_uids, viewer_gids)" : "",
                      ", in batond's configuration");
}

std::string RefusalOfName(Role role, std::string_view who, std::string_view method) {
  return absl::StrCat(WhatIsRefused(role, who, method), ": add that name to operators",
                      role == Role::kNone ? " (to look only: viewers)" : "",
                      " of operator_endpoint in batond's configuration");
}

}  // namespace baton

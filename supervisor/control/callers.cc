#include "supervisor/control/callers.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "grpc/grpc_security_constants.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/channel/message_channel.h"
#include "lib/text/text.h"
#include "spdlog/spdlog.h"

namespace baton {
namespace {

std::optional<ino_t> InodeOf(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode)) return std::nullopt;
  return info.st_ino;
}

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

constexpr size_t kMaxNameBytes = 256;

std::vector<std::string> Values(const grpc::AuthContext& certificate, const char* property) {
  std::vector<std::string> values;
  for (const grpc::string_ref& value : certificate.FindPropertyValues(property)) {
    values.emplace_back(value.data(), value.size());
  }
  return values;
}

std::string FirstValue(const grpc::AuthContext& certificate, const char* property) {
  std::vector<std::string> values = Values(certificate, property);
  return values.empty() ? "" : std::move(values.front());
}

std::string Quoted(const std::string& name) {
  return name.empty() ? "a certificate without a name"
                      : absl::StrCat("certificate \"", OneLine(name, kMaxNameBytes), "\"");
}

}  // namespace

absl::StatusOr<Peer> IdentifyPeer(int socket) {
  BATON_ASSIGN_OR_RETURN(const PeerCredentials credentials, GetPeerCredentials(socket));
  Peer peer{credentials.pid, credentials.uid, {credentials.gid}, IsPeerContained(socket)};
  std::vector<gid_t> groups(64);
  for (;;) {
    socklen_t bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    const int result = getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes);
    if (result != 0 && errno != ERANGE) return ErrnoStatus(errno, "getsockopt(SO_PEERGROUPS)");
    groups.resize(bytes / sizeof(gid_t));
    if (result == 0) break;
  }
  peer.gids.insert(peer.gids.end(), groups.begin(), groups.end());
  return peer;
}

bool PeerRegistry::Add(int fd, const Peer& peer, Served served) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto former = entries_.find(fd);
  if (former != entries_.end()) {
    --of_uid_[former->second.peer.uid];
    entries_.erase(former);
  }
  if (of_uid_[peer.uid] >= connections_per_uid_) ForgetClosed();
  if (of_uid_[peer.uid] >= connections_per_uid_) return false;
  ++of_uid_[peer.uid];
  entries_[fd] = Entry{peer, InodeOf(fd).value_or(0), served};
  return true;
}

void PeerRegistry::ForgetClosed() {
  std::erase_if(entries_, [this](const auto& one) {
    const auto& [fd, entry] = one;
    if (InodeOf(fd) == entry.inode) return false;
    --of_uid_[entry.peer.uid];
    return true;
  });
}

void PeerRegistry::End(const std::function<bool(const Peer&)>& whose) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [fd, entry] : entries_) {
    if (entry.served != Served::kByRole || !whose(entry.peer)) continue;
    // Uses a duplicate, because gRPC may close `fd` at any time, and another socket may get its
    // number.
    const FileDescriptor socket = CopyOf(fd);
    if (socket && InodeOf(socket.get()) == entry.inode) shutdown(socket.get(), SHUT_RDWR);
  }
}

std::optional<Peer> PeerRegistry::Find(const std::string& grpc_peer) const {
  absl::string_view number = grpc_peer;
  int fd = -1;
  if (!absl::ConsumePrefix(&number, "fd:") || !absl::SimpleAtoi(number, &fd)) return std::nullopt;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(fd);
  if (found == entries_.end()) return std::nullopt;
  return found->second.peer;
}

std::string PeerRegistry::Describe(const std::string& grpc_peer) const {
  const std::optional<Peer> peer = Find(grpc_peer);
  if (!peer) return absl::StrCat("unknown peer ", grpc_peer);
  return absl::StrCat("uid ", peer->uid, " pid ", peer->pid);
}

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

void Callers::SetConfig(const internal::ControlConfig& config) {
  auto next = std::make_shared<const internal::ControlConfig>(config);
  const std::lock_guard<std::mutex> lock(mutex_);
  config_ = std::move(next);
}

void Callers::SetTrust(std::shared_ptr<const CertificateTrust> trust) {
  const std::lock_guard<std::mutex> lock(mutex_);
  trust_ = std::move(trust);
}

std::shared_ptr<const internal::ControlConfig> Callers::config() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return config_;
}

NamedRole Callers::RoleOfCertificate(const grpc::AuthContext& certificate) const {
  if (!certificate.IsPeerAuthenticated()) return {};
  std::vector<std::string> names = Values(certificate, GRPC_X509_SAN_PROPERTY_NAME);
  if (names.empty()) names = Values(certificate, GRPC_X509_CN_PROPERTY_NAME);
  return RoleOfNames(config()->operator_endpoint(), names);
}

std::string Callers::Describe(const grpc::ServerContextBase& call) const {
  const auto certificate = call.auth_context();
  if (!peers_->Find(call.peer()) && certificate && certificate->IsPeerAuthenticated()) {
    return Quoted(RoleOfCertificate(*certificate).name);
  }
  return peers_->Describe(call.peer());
}

absl::Status Callers::Judge(const grpc::AuthContext& certificate, std::string_view method) const {
  std::shared_ptr<const CertificateTrust> trust;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    trust = trust_;
  }
  const NamedRole caller = RoleOfCertificate(certificate);
  absl::Status good = absl::UnauthenticatedError("no authority is known");
  if (trust) {
    good = trust->Check(FirstValue(certificate, GRPC_X509_PEM_CERT_PROPERTY_NAME),
                        FirstValue(certificate, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME));
  }
  if (!good.ok()) {
    good = absl::Status(good.code(),
                        absl::StrCat(Quoted(caller.name), " is not accepted: ", good.message()));
  } else if (!MayCall(caller.role, method)) {
    good = absl::PermissionDeniedError(RefusalOfName(caller.role, Quoted(caller.name), method));
  }
  if (!good.ok()) LogRefusal(std::string(good.message()));
  return good;
}

std::string Callers::Refuse(const grpc::ServerContextBase& call, std::string_view method) const {
  const std::optional<Peer> peer = peers_->Find(call.peer());
  if (!peer) return "this caller may not operate Baton";
  const Role role = RoleOf(*config(), *peer);
  std::string why = RefusalOfPeer(role, *peer, method);
  // Callers without a role were logged when they connected.
  if (role != Role::kNone) LogRefusal(absl::StrCat("pid ", peer->pid, ": ", why));
  return why;
}

void Callers::LogRefusal(const std::string& why) const {
  if (const std::optional<uint64_t> suppressed = log_budget_.Take()) {
    spdlog::warn("refused: {} ({} more not logged)", why, *suppressed);
  }
}

std::string TraceParentOf(const grpc::ServerContextBase& call) {
  const auto& metadata = call.client_metadata();
  const auto found = metadata.find("traceparent");
  if (found == metadata.end()) return "";
  return CheckedTraceParent({found->second.data(), found->second.size()});
}

}  // namespace baton

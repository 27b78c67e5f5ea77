// The processes that connect to control. Identifies the callers of the operator service, and
// decides which of its methods they may call.
#ifndef SUPERVISOR_CONTROL_CALLERS_H_
#define SUPERVISOR_CONTROL_CALLERS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/server_context.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/control/certificates.h"
#include "supervisor/control/log_budget.h"

namespace baton {

// The peer's credentials, as the kernel recorded them when the peer called connect(). A later
// change of its groups has no effect.
struct Peer {
  int32_t pid = 0;
  uint32_t uid = 0;
  std::vector<uint32_t> gids;  // the effective one, then the supplementary ones
  bool contained = false;      // in another pid namespace than control
};

absl::StatusOr<Peer> IdentifyPeer(int socket);

// Finds the peer of a gRPC connection that was made from an accepted descriptor. gRPC names such a
// peer "fd:N"; this class looks that number up. It also bounds the connections of one uid.
// Thread-safe.
class PeerRegistry {
 public:
  explicit PeerRegistry(size_t connections_per_uid = 256)
      : connections_per_uid_(connections_per_uid) {}

  // Whether the calls served on a connection depend on its peer's role, or are the same for all.
  enum class Served : uint8_t { kByRole, kAlike };

  // Call it before `fd` is given to gRPC. Returns false if the peer's uid has too many connections.
  bool Add(int fd, const Peer& peer, Served served = Served::kAlike);
  // `grpc_peer` is ServerContext::peer() of a call in progress.
  std::optional<Peer> Find(const std::string& grpc_peer) const;
  // Ends the connections that are served by role, and their calls, of each peer for which `whose`
  // returns true.
  void End(const std::function<bool(const Peer&)>& whose);
  // For log lines: "uid 0 pid 12".
  std::string Describe(const std::string& grpc_peer) const;

 private:
  struct Entry {
    Peer peer;
    ino_t inode;  // of the socket; shows whether the number still means this connection
    Served served;
  };

  void ForgetClosed();

  const size_t connections_per_uid_;
  mutable std::mutex mutex_;
  std::map<int, Entry> entries_;       // by descriptor; closed ones stay until it is used again
  std::map<uint32_t, size_t> of_uid_;  // the number of entries
};

// Viewers may call the methods of one table, which only read. All other methods are for operators.
enum class Role : uint8_t { kNone, kViewer, kOperator };

// Returns the role of a peer of the operator socket.
Role RoleOf(const internal::ControlConfig& config, const Peer& peer);

// The role of a caller by the names in its certificate.
struct NamedRole {
  Role role = Role::kNone;
  std::string name;  // the name that gave the role; without a role the first name
};
NamedRole RoleOfNames(const v1::OperatorEndpoint& endpoint, const std::vector<std::string>& names);

// `method` in gRPC's form: "/baton.v1.OperatorService/Handoff".
bool MayCall(Role role, std::string_view method);

// Return why the caller may not call `method`, and the cure.
std::string RefusalOfPeer(Role role, const Peer& peer, std::string_view method);
std::string RefusalOfName(Role role, std::string_view who, std::string_view method);

// Identifies the caller of a call in progress: a process at the operator socket, or the owner of a
// certificate.
//
// Each call is judged by the permissions that are in force when it is made.
//
// Thread-safe.
class Callers {
 public:
  // `peers` must outlive it.
  Callers(const internal::ControlConfig& config, const PeerRegistry* peers)
      : config_(std::make_shared<const internal::ControlConfig>(config)), peers_(peers) {}

  // The new configuration and trust are in force from now on.
  void SetConfig(const internal::ControlConfig& config);
  void SetTrust(std::shared_ptr<const CertificateTrust> trust);
  std::shared_ptr<const internal::ControlConfig> config() const;

  // "uid 0 pid 12", or `certificate "alice"`.
  std::string Describe(const grpc::ServerContextBase& call) const;

  // Returns OK if the owner of this certificate may call `method` now. kUnauthenticated: the
  // certificate is not valid any more. kPermissionDenied: its names do not allow it. Logs refusals,
  // up to a limit.
  absl::Status Judge(const grpc::AuthContext& certificate, std::string_view method) const;

  // Returns the refusal for a caller on the operator socket that may not call `method`, and logs it
  // like Judge.
  std::string Refuse(const grpc::ServerContextBase& call, std::string_view method) const;

 private:
  NamedRole RoleOfCertificate(const grpc::AuthContext& certificate) const;
  void LogRefusal(const std::string& why) const;

  mutable std::mutex mutex_;
  std::shared_ptr<const internal::ControlConfig> config_;  // guarded by mutex_
  std::shared_ptr<const CertificateTrust> trust_;          // guarded by mutex_; null: none yet
  const PeerRegistry* const peers_;
  mutable LogBudget log_budget_;
};

// Returns the caller's W3C `traceparent`. Empty: the caller sent none, or an invalid one.
std::string TraceParentOf(const grpc::ServerContextBase& call);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_CALLERS_H_

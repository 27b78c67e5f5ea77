// Identifies the caller of a call in progress: a process at the operator socket, or the owner of a
// certificate.
//
// Permissions can change at any time. Each call is judged by those that are in force when it is
// made.
//
// Thread-safe.
#ifndef SUPERVISOR_CONTROL_CALLERS_H_
#define SUPERVISOR_CONTROL_CALLERS_H_

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/server_context.h"
#include "supervisor/control/certificates.h"
#include "supervisor/control/log_budget.h"
#include "supervisor/control/peers.h"
#include "supervisor/control/roles.h"

namespace baton {

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

// Who asks, of a call in progress: a process at the operator socket, or the owner of a certificate.
//
// Thread-safe.
#ifndef SUPERVISOR_CONTROL_CALLERS_H_
#define SUPERVISOR_CONTROL_CALLERS_H_

#include <string>
#include <string_view>

#include "grpcpp/security/auth_context.h"
#include "grpcpp/server_context.h"
#include "supervisor/control/log_budget.h"
#include "supervisor/control/peer_registry.h"
#include "supervisor/control/roles.h"

namespace baton {

class Callers {
 public:
  // Both outlive it.
  Callers(const internal::ControlConfig* config, const PeerRegistry* peers)
      : config_(config), peers_(peers) {}

  // "uid 0 pid 12", or `certificate "alice"`.
  std::string Describe(const grpc::ServerContextBase& call) const;

  // Who has shown this certificate.
  NamedRole RoleOfCertificate(const grpc::AuthContext& certificate) const;

  // What to tell a caller who may not do this; the log has it, too, but not without end.
  std::string Refuse(const grpc::ServerContextBase& call, std::string_view method);
  std::string Refuse(const NamedRole& caller, std::string_view method);

 private:
  void LogRefusal(const std::string& why);

  const internal::ControlConfig* const config_;
  const PeerRegistry* const peers_;
  LogBudget log_budget_;
};

// What a caller says of the trace that its call belongs to: a `traceparent` of W3C's, or empty.
std::string TraceParentOf(const grpc::ServerContextBase& call);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_CALLERS_H_

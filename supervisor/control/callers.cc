#include "supervisor/control/callers.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpc/grpc_security_constants.h"
#include "lib/text/one_line.h"
#include "lib/text/trace_parent.h"
#include "spdlog/spdlog.h"

namespace baton {
namespace {

constexpr size_t kMaxNameBytes = 256;

std::vector<std::string> Values(const grpc::AuthContext& certificate, const char* property) {
  std::vector<std::string> values;
  for (const grpc::string_ref& value : certificate.FindPropertyValues(property)) {
    values.emplace_back(value.data(), value.size());
  }
  return values;
}

std::string Quoted(const std::string& name) {
  return name.empty() ? "a certificate without a name"
                      : absl::StrCat("certificate \"", OneLine(name, kMaxNameBytes), "\"");
}

}  // namespace

NamedRole Callers::RoleOfCertificate(const grpc::AuthContext& certificate) const {
  if (!certificate.IsPeerAuthenticated()) return {};
  std::vector<std::string> names = Values(certificate, GRPC_X509_SAN_PROPERTY_NAME);
  if (names.empty()) names = Values(certificate, GRPC_X509_CN_PROPERTY_NAME);
  return RoleOfNames(config_->operator_endpoint(), names);
}

std::string Callers::Describe(const grpc::ServerContextBase& call) const {
  if (peers_->Find(call.peer())) return peers_->Describe(call.peer());
  const auto certificate = call.auth_context();
  if (certificate && certificate->IsPeerAuthenticated()) {
    return Quoted(RoleOfCertificate(*certificate).name);
  }
  return peers_->Describe(call.peer());
}

std::string Callers::Refuse(const grpc::ServerContextBase& call, std::string_view method) {
  const std::optional<Peer> peer = peers_->Find(call.peer());
  if (!peer) return "this caller may not operate Baton";
  const Role role = RoleOf(*config_, *peer);
  std::string why = RefusalOfPeer(role, *peer, method);
  // The others when they connected.
  if (role != Role::kNone) LogRefusal(absl::StrCat("pid ", peer->pid, ": ", why));
  return why;
}

std::string Callers::Refuse(const NamedRole& caller, std::string_view method) {
  std::string why = RefusalOfName(caller.role, Quoted(caller.name), method);
  LogRefusal(why);
  return why;
}

void Callers::LogRefusal(const std::string& why) {
  uint64_t suppressed = 0;
  if (log_budget_.Take(&suppressed)) {
    spdlog::warn("refused: {} ({} more not logged)", why, suppressed);
  }
}

std::string TraceParentOf(const grpc::ServerContextBase& call) {
  const auto& metadata = call.client_metadata();
  const auto found = metadata.find("traceparent");
  if (found == metadata.end()) return "";
  return CheckedTraceParent({found->second.data(), found->second.size()});
}

}  // namespace baton

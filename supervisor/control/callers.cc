#include "supervisor/control/callers.h"

#include <optional>
#include <utility>
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

std::string FirstValue(const grpc::AuthContext& certificate, const char* property) {
  std::vector<std::string> values = Values(certificate, property);
  return values.empty() ? "" : std::move(values.front());
}

std::string Quoted(const std::string& name) {
  return name.empty() ? "a certificate without a name"
                      : absl::StrCat("certificate \"", OneLine(name, kMaxNameBytes), "\"");
}

}  // namespace

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

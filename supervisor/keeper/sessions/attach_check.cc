#include "supervisor/keeper/sessions/attach_check.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/base/random_bytes.h"
#include "lib/base/status.h"
#include "lib/base/version.h"

namespace baton::keeper {
namespace {

constexpr size_t kTokensPerWorker = 4;

constexpr size_t kMaxNameBytes = 128;

absl::Status CheckPeer(const v1::ServiceConfig& service, const AttachingPeer& who) {
  // The keeper would see the end of this process, but could not signal it if it hung. On Linux
  // before 6.5 it is refused already when it connects.
  if (who.credentials.pid == 0) {
    return absl::FailedPreconditionError(
        "the process that connected has no number in this keeper's pid namespace, so it could not "
        "be killed if it hung: let batond be in the machine's pid namespace (hostPID: true, or "
        "--pid host, of its container)");
  }
  if (service.mode() == v1::NATIVE && !who.is_child) {
    return absl::FailedPreconditionError(
        absl::StrCat("service ", service.name(),
                     " is native, and its driver forks its workers: give their program as an "
                     "object, native.object in the configuration or `baton upgrade`"));
  }
  const auto& uids = service.worker_uids();
  const uint32_t uid = who.credentials.uid;
  const bool is_ours = (uid == geteuid() || uid == 0) && !who.is_distrusted;
  if (who.is_child || is_ours || absl::c_linear_search(uids, uid)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("uid ", uid, who.is_distrusted ? ", in another pid namespace than batond," : "",
                   " may not attach to service ", service.name(), ": add it to its worker_uids"));
}

// Names are shown to operators, and kept in every event.
absl::Status CheckNames(const internal::AttachArena& attach) {
  for (const std::string& text : {attach.name(), attach.version()}) {
    const bool has_control = absl::c_any_of(
        text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    if (text.size() > kMaxNameBytes || has_control) {
      return absl::InvalidArgumentError(absl::StrCat("name, version: at most ", kMaxNameBytes,
                                                     " bytes without control characters"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckVersions(uint32_t oldest_reader, const internal::AttachArena& attach) {
  if (attach.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the worker speaks protocol version ", attach.protocol_version(), ", this keeper version ",
        kProtocolVersion, ": build it with release ", kRelease));
  }
  if (attach.layout_version() < oldest_reader) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the worker reads arena layout version ", attach.layout_version(),
        ", this service has version ", arena::kLayoutVersion, ", readable from version ",
        oldest_reader, ": build it with release ", kRelease));
  }
  return absl::OkStatus();
}

}  // namespace

std::string WorkerTokens::New(uint64_t worker_id) {
  const auto of_worker = [&](const auto& token) { return token.second == worker_id; };
  if (static_cast<size_t>(std::count_if(tokens_.begin(), tokens_.end(), of_worker)) >=
      kTokensPerWorker) {
    Forget(worker_id);
  }
  std::string token = RandomBytes(kWorkerTokenBytes);
  tokens_[token] = worker_id;
  return token;
}

absl::StatusOr<uint64_t> WorkerTokens::Redeem(const std::string& token) {
  const auto found = tokens_.find(token);
  if (found == tokens_.end()) {
    return absl::UnauthenticatedError(
        "the token is unknown or was used: ask the keeper for a new one");
  }
  const uint64_t worker_id = found->second;
  tokens_.erase(found);
  return worker_id;
}

void WorkerTokens::Forget(uint64_t worker_id) {
  std::erase_if(tokens_, [&](const auto& token) { return token.second == worker_id; });
}

absl::Status CheckAttach(const v1::ServiceConfig& service, uint32_t oldest_reader,
                         const AttachingPeer& who, const internal::AttachArena& attach) {
  BATON_RETURN_IF_ERROR(CheckPeer(service, who));
  if (attach.service() != service.name()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this is the socket of service ", service.name(), ", the worker serves ",
                     attach.service(), ": check its socket option"));
  }
  BATON_RETURN_IF_ERROR(CheckNames(attach));
  return CheckVersions(oldest_reader, attach);
}

}  // namespace baton::keeper

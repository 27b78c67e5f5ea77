#include "supervisor/control/change_record.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/text/text.h"

namespace baton {
namespace {

// Limits of a record's fields, in bytes.
constexpr size_t kMaxRequest = 1024;
constexpr size_t kMaxOutcome = 1024;
constexpr size_t kMaxMetadata = 256;
constexpr char kReason[] = "baton-reason";

std::string Metadata(const grpc::ServerContextBase& call, const char* key) {
  const auto found = call.client_metadata().find(key);
  if (found == call.client_metadata().end()) return "";
  return OneLine({found->second.data(), found->second.size()}, kMaxMetadata);
}

// Returns the caller without its pid, because a caller may have as many processes as it likes.
std::string CallerOf(const std::string& who) {
  return who.starts_with("uid ") ? who.substr(0, who.find(" pid ")) : who;
}

// An outcome may contain text of the caller.
absl::Status Printable(const absl::Status& status) {
  return absl::Status(status.code(), OneLine(MessageOf(status), kMaxOutcome));
}

absl::Status NotTried(const std::string& caller, const ChangeBudget::Verdict& verdict) {
  if (verdict.failed_too_much) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "too many changes of ", caller, " have failed lately, ",
        verdict.failed_itself ? "this one too, and it was not tried again"
                              : "so many different ones that this one was not tried either",
        ": wait ", verdict.wait_ns / 1'000'000'000 + 1, " s; `baton audit` shows them"));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(caller, " has asked for more than ", ChangeBudget::kBurst,
                   " changes in a short time, and this one was not tried: wait, ",
                   ChangeBudget::kPerSecond, " a second are"));
}

}  // namespace

absl::Status ChangeRecord::Do(const grpc::ServerContextBase& call, const std::string& what,
                              const google::protobuf::Message& request,
                              const std::string& named_service,
                              const std::function<absl::Status()>& work) {
  // A name that does not exist is recorded with the request only, and gets no history of its own.
  const bool known = keepers_->Find(named_service).ok();
  const std::string service = known ? named_service : "";
  v1::Change change;
  change.set_who(callers_->Describe(call));
  const std::string caller = CallerOf(change.who());
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(request, &json);
  const std::string same = absl::StrCat(what, " ", json);
  const ChangeBudget::Verdict verdict = budget_.Take(caller, same, MonotonicNanoseconds());
  if (verdict.to_record > 0) {
    v1::Change refused;
    refused.set_who(caller);
    refused.set_what("TooMany");
    trail_->Begin("", &refused);
    trail_->End("", std::move(refused),
                absl::ResourceExhaustedError(
                    absl::StrCat(verdict.to_record, " of its changes were not tried")));
  }
  if (!verdict.allowed) return NotTried(caller, verdict);
  change.set_what(what);
  change.set_why(Metadata(call, kReason));
  change.set_trace_parent(TraceParentOf(call));
  change.set_request(OneLine(json, kMaxRequest));
  uint64_t bytes = trail_->Begin(service, &change);
  absl::Status result = work();
  bytes += trail_->End(service, std::move(change), Printable(result));
  // Every error counts. Callers choose their deadlines, so even a time-out costs them nothing.
  if (result.ok()) {
    budget_.Succeeded(caller, same, MonotonicNanoseconds());
  } else {
    budget_.Failed(caller, same, bytes, MonotonicNanoseconds());
  }
  return result;
}

}  // namespace baton

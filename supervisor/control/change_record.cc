#include "supervisor/control/change_record.h"

#include <cstddef>
#include <utility>

#include "google/protobuf/util/json_util.h"
#include "lib/base/status_text.h"
#include "lib/text/one_line.h"

namespace baton {
namespace {

// Of a record, in bytes.
constexpr size_t kMaxRequest = 1024;
constexpr size_t kMaxOutcome = 1024;
constexpr size_t kMaxMetadata = 256;
constexpr char kReason[] = "baton-reason";

std::string Metadata(const grpc::ServerContextBase& call, const char* key) {
  const auto found = call.client_metadata().find(key);
  if (found == call.client_metadata().end()) return "";
  return OneLine({found->second.data(), found->second.size()}, kMaxMetadata);
}

// An outcome may have words of the caller in it.
absl::Status Printable(const absl::Status& status) {
  return absl::Status(status.code(), OneLine(MessageOf(status), kMaxOutcome));
}

}  // namespace

absl::Status ChangeRecord::Do(const grpc::ServerContextBase& call, const std::string& what,
                              const google::protobuf::Message& request,
                              const std::string& named_service,
                              const std::function<absl::Status()>& work) const {
  // Names that there are not are in the request, and make no history of their own.
  const bool known = keepers_->Find(named_service).ok();
  const std::string service = known ? named_service : "";
  v1::Change change;
  change.set_who(callers_->Describe(call));
  change.set_what(what);
  change.set_why(Metadata(call, kReason));
  change.set_trace_parent(TraceParentOf(call));
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(request, &json);
  change.set_request(OneLine(json, kMaxRequest));
  trail_->Begin(service, &change);
  absl::Status result = work();
  trail_->End(service, std::move(change), Printable(result));
  return result;
}

}  // namespace baton

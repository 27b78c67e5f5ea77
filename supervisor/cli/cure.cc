#include "supervisor/cli/cure.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "supervisor/cli/suggest.h"

namespace baton {
namespace {

// "there is no service \"NAME\"; there are: …", as control says it.
constexpr char kNoService[] = "there is no service \"";

// The name of the service that is missing; empty: the message is about something else.
std::string MissingService(absl::string_view message) {
  if (!absl::ConsumePrefix(&message, kNoService)) return "";
  return std::string(message.substr(0, message.find('"')));
}

}  // namespace

absl::Status WithCure(Session* session, const absl::Status& status) {
  const std::string service = MissingService(status.message());
  if (!absl::IsNotFound(status) || service.empty() || !session->connection) return status;
  const auto known = session->connection->ListServices({});
  if (!known.ok()) return status;
  std::vector<std::string> names;
  for (const v1::Service& one : known->services()) names.push_back(one.name());
  return absl::Status(status.code(), absl::StrCat(status.message(), DidYouMean(service, names)));
}

}  // namespace baton

#include "supervisor/batond/reload_under_way.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// Removes the fields of `taken` whose names begin with `prefix`.
void Untake(const std::string& prefix, TakenConfig* taken) {
  std::erase_if(taken->taken, [&](const std::string& field) { return field.starts_with(prefix); });
}

}  // namespace

void NoteAnswer(const v1::ServiceConfig& running,
                const absl::StatusOr<internal::ConfigTaken>& answer, TakenConfig* taken) {
  const std::string place = absl::StrCat("services[", running.name(), "]");
  if (!answer.ok()) {
    *FindService(&taken->config, running.name()) = running;
    Untake(place + ".", taken);
    taken->refused.push_back(
        {place, absl::StrCat("its keeper goes on as it is: ", answer.status().message(),
                             "; reload again when `baton service list` shows it")});
    return;
  }
  *FindService(&taken->config, running.name()) = answer->service();
  for (const internal::Refused& refused : answer->refused()) {
    const std::string field = absl::StrCat(place, ".", refused.field());
    Untake(field, taken);
    // batond may have refused the field itself.
    if (absl::c_any_of(taken->refused, [&](const auto& one) { return one.field == field; })) {
      continue;
    }
    taken->refused.push_back({field, refused.why(), refused.ends_connections_of()});
  }
}

internal::BatondReply DescribeReload(const TakenConfig& taken) {
  internal::BatondReply reply;
  for (const std::string& field : taken.taken) reply.add_taken(field);
  for (const TakenConfig::Refused& refused : taken.refused) {
    internal::Refused* const told = reply.add_refused();
    told->set_field(refused.field);
    told->set_why(refused.why);
    told->set_ends_connections_of(refused.ends_connections_of);
  }
  for (const auto* const services : {&taken.removed, &taken.changed}) {
    for (const std::string& service : *services) reply.add_disconnected(service);
  }
  return reply;
}

}  // namespace baton

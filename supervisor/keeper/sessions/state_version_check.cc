#include "supervisor/keeper/sessions/state_version_check.h"

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"

namespace baton::keeper {
namespace {

absl::Status CheckPair(const WorkerInfo& old, const WorkerInfo& fresh, bool to_take_back) {
  if (old.state_versions.declared() && !fresh.state_versions.Reads(old.state_versions.writes)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the new program reads state versions ", fresh.state_versions.reads_min,
                     " to ", fresh.state_versions.reads_max, ", the old one writes version ",
                     old.state_versions.writes, ": upgrade to one in between first"));
  }
  if (!to_take_back || !fresh.state_versions.declared() ||
      old.state_versions.Reads(fresh.state_versions.writes)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the new program writes state version ", fresh.state_versions.writes, ", the old one reads ",
      old.state_versions.reads_min, " to ", old.state_versions.reads_max,
      ", so it could not take the shards back: choose a program that writes what the old one "
      "reads, or give up the automatic return with --no-rollback"));
}

}  // namespace

absl::Status CheckStateVersions(ServiceDriver& driver, const std::vector<WorkerInfo>& old_workers,
                                const std::vector<WorkerInfo>& fresh_workers, bool to_take_back) {
  for (const WorkerInfo& fresh : fresh_workers) {
    BATON_RETURN_IF_ERROR(driver.CheckStoredState(fresh.state_versions));
    for (const WorkerInfo& old : old_workers) {
      BATON_RETURN_IF_ERROR(CheckPair(old, fresh, to_take_back));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::keeper

#include "supervisor/keeper/state_version_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"

namespace baton::keeper {
namespace {

// Connections whose state is looked at in one turn of the engine, so that it is not held up.
constexpr uint32_t kConnectionsPerLook = 512;

// State of connections that were quiet for long can be older than what the present owner writes.
absl::Status CheckStoredState(ServiceEngine& engine, const WorkerInfo& reader) {
  const arena::Shape& shape = engine.arena().shape();
  absl::Status status;
  const auto check = [&](const char* what, uint32_t index, uint32_t length, uint32_t version) {
    if (length == 0 || reader.state_versions.Reads(version)) return;
    status = absl::FailedPreconditionError(
        absl::StrCat(what, " ", index, " has state of version ", version,
                     ", which the new program does not "
                     "read (",
                     reader.state_versions.reads_min, " to ", reader.state_versions.reads_max,
                     "): upgrade to one that does, and converts it, first"));
  };
  engine.Run([&] {
    for (uint32_t i = 0; i < shape.shards && status.ok(); ++i) {
      const arena::ShardRecord& record = engine.arena().shard(i);
      check("shard", i, record.state_length, record.state_version);
    }
  });
  for (uint32_t start = 0; start < shape.connections; start += kConnectionsPerLook) {
    engine.Run([&] {
      const uint32_t end = std::min(shape.connections, start + kConnectionsPerLook);
      for (uint32_t i = start; i < end && status.ok(); ++i) {
        const arena::ConnectionRecord& record = engine.arena().connection(i);
        if (record.state == static_cast<uint32_t>(arena::ConnectionState::kFree)) continue;
        check("connection", i, record.state_length, record.state_version);
      }
    });
    BATON_RETURN_IF_ERROR(status);
  }
  return status;
}

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

absl::Status CheckStateVersions(ServiceEngine& engine, const std::vector<WorkerInfo>& old_workers,
                                const std::vector<WorkerInfo>& fresh_workers, bool to_take_back) {
  for (const WorkerInfo& fresh : fresh_workers) {
    BATON_RETURN_IF_ERROR(CheckStoredState(engine, fresh));
    for (const WorkerInfo& old : old_workers) {
      BATON_RETURN_IF_ERROR(CheckPair(old, fresh, to_take_back));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::keeper

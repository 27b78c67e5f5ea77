#include "supervisor/driver/stored_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton::driver_process {
namespace {

// Connections whose state is looked at in one turn of the engine, so that it is not held up.
constexpr uint32_t kConnectionsPerLook = 512;

absl::Status Check(const StateVersions& reader, const char* what, uint32_t index, uint32_t length,
                   uint32_t version) {
  if (length == 0 || reader.Reads(version)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " ", index, " has state of version ", version,
                   ", which the new program does not read (", reader.reads_min, " to ",
                   reader.reads_max, "): upgrade to one that does, and converts it, first"));
}

}  // namespace

absl::Status CheckStoredState(ServiceEngine& engine, const StateVersions& reader) {
  const arena::Arena& arena = engine.arena();
  absl::Status status;
  engine.Run([&] {
    for (uint32_t i = 0; i < arena.shape().shards && status.ok(); ++i) {
      const arena::ShardRecord& record = arena.shard(i);
      status = Check(reader, "shard", i, record.state_length, record.state_version);
    }
  });
  for (uint32_t start = 0; start < arena.shape().connections && status.ok();
       start += kConnectionsPerLook) {
    engine.Run([&] {
      const uint32_t end = std::min(arena.shape().connections, start + kConnectionsPerLook);
      for (uint32_t i = start; i < end && status.ok(); ++i) {
        const arena::ConnectionRecord& record = arena.connection(i);
        if (record.state == static_cast<uint32_t>(arena::ConnectionState::kFree)) continue;
        status = Check(reader, "connection", i, record.state_length, record.state_version);
      }
    });
  }
  return status;
}

}  // namespace baton::driver_process

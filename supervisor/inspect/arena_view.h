// Translates an arena's bytes to what `baton inspect` shows. It trusts no byte, so an arena of any
// bytes gives an answer or a status. It reads only what it shows, and what it needs to find that.
#ifndef SUPERVISOR_INSPECT_ARENA_VIEW_H_
#define SUPERVISOR_INSPECT_ARENA_VIEW_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/arena/layout.h"
#include "proto/baton/v1/inspect.pb.h"
#include "supervisor/inspect/memory.h"

namespace baton::inspect {

// An arena whose header has been checked. Thread-compatible.
struct ArenaView {
  ArenaView(ArenaFiles arena_files, const arena::DriverMemoryHeader& its_header);

  // kFailedPrecondition: it is no arena, has an unknown layout, or is not `service`'s; empty: any
  // service's.
  static absl::StatusOr<ArenaView> Open(ArenaFiles files, const std::string& service);

  bool native() const { return arena::IsNative(header.shape); }

  const ArenaFiles files;
  const arena::DriverMemoryHeader header;  // as it was when the view was made
  const arena::WorkerMemoryMap worker_map;
  const arena::DriverMemoryMap driver_map;
  const arena::RecoveryMemoryMap recovery_map;
  const uint32_t layout_version;
  const std::string service;
};

// An application state as it was committed.
struct CommittedState {
  bool of_shard;  // else of a connection
  uint32_t index;
  uint32_t version;
  std::vector<uint8_t> bytes;
};
using DecodeState = std::function<absl::StatusOr<std::string>(const CommittedState&)>;

struct Selection {
  std::optional<uint32_t> shard = {};       // only this shard and its connections
  std::optional<uint32_t> connection = {};  // only this connection, also if it is free
  bool connections = false;                 // list connections that are not free
  uint32_t first_connection = 0;
  uint32_t limit = 100;        // of connections
  bool work_requests = false;  // at most kRequestsPerConnection * limit
  bool state = false;          // with the states' bytes
  DecodeState decode = {};     // with `state`; null: not decoded
};
inline constexpr uint32_t kRequestsPerConnection = 64;
inline constexpr uint32_t kShownStateBytes = 4096;  // of each slot

// kNotFound: there is no such shard or connection. `now_ns`: CLOCK_MONOTONIC; for a file, the time
// when it was saved.
absl::StatusOr<v1::Inspection> Inspect(const ArenaView& arena, const Selection& selection,
                                       uint64_t now_ns);

}  // namespace baton::inspect

#endif  // SUPERVISOR_INSPECT_ARENA_VIEW_H_

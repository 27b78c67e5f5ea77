// The parts of an inspection. Each reads one thing in the arena, checks it, and describes it.
#ifndef SUPERVISOR_INSPECT_DESCRIPTIONS_H_
#define SUPERVISOR_INSPECT_DESCRIPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/layout.h"
#include "proto/baton/v1/inspect.pb.h"
#include "supervisor/inspect/arena_view.h"

namespace baton::inspect {

using Problems = google::protobuf::RepeatedPtrField<std::string>;
using WorkRequests = google::protobuf::RepeatedPtrField<v1::InspectedWorkRequest>;

inline std::string InvalidName(uint64_t number) { return absl::StrCat("invalid: ", number); }
// Returns the name of a number from 0 among `names`.
template <size_t count>
std::string NameIn(const char* const (&names)[count], uint64_t number) {
  return number < count ? names[number] : InvalidName(number);
}

// Describes the slots that are or were used.
absl::Status DescribeWorkers(const ArenaView& arena, v1::Inspection* out);

// Describes the selected shards, and the totals over all shards.
absl::Status DescribeShards(const ArenaView& arena, const Selection& selection,
                            v1::Inspection* out);

// Describes the shard's heap. REQUIRES: shards have one, and index and epoch are set.
absl::Status DescribeHeap(const ArenaView& arena, v1::InspectedShard* shard);

absl::Status DescribeConnections(const ArenaView& arena, const Selection& selection,
                                 v1::Inspection* out);

// How many more work requests may be described, and how many found no room.
struct Room {
  uint64_t work_requests;
  uint64_t left_out = 0;
};

// Describes the work requests of a queue, the oldest first, as far as there is room.
struct QueueOfConnection {
  uint32_t connection;
  bool receive;
  uint32_t depth;
  v1::InspectedQueue cursors;
};
absl::Status DescribeWorkRequests(const ArenaView& arena, const QueueOfConnection& queue,
                                  Room* room, WorkRequests* out);
absl::Status DescribeSharedReceives(const ArenaView& arena, uint32_t shard, Room* room,
                                    WorkRequests* out);
// REQUIRES: `out` has the request's state.
void DecodeWorkRequest(const ArenaView& arena, const arena::WorkRequest& request, bool receive,
                       v1::InspectedWorkRequest* out);

// The position of an application state, from a record.
struct StateCursor {
  uint32_t slot, length, version;
  bool operator==(const StateCursor&) const = default;
};
struct StateOfRecord {
  bool of_shard;
  uint32_t index;
  StateCursor cursor;
};
template <typename Record>
StateCursor CursorOf(const Record& record) {
  return {record.state_slot, record.state_length, record.state_version};
}
void DescribeStateCursor(const ArenaView& arena, const StateOfRecord& state,
                         v1::InspectedState* out, Problems* problems);
// Describes the state's bytes, and the decoder's output, if there is a decoder.
absl::Status DescribeStateBytes(const ArenaView& arena, const StateOfRecord& state,
                                const DecodeState& decode, v1::InspectedState* out);

}  // namespace baton::inspect

#endif  // SUPERVISOR_INSPECT_DESCRIPTIONS_H_

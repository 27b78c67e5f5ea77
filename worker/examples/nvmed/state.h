// The state of a target that outlives its workers, beside the contents of its buffers. state.md
// argues why no more is needed. The shard's state is a Registry; each connection's is a QueueState.
// Both are little-endian with explicit padding. A change of either needs a new kStateVersion.
// Each work request's tag is a WorkTag.
#ifndef WORKER_EXAMPLES_NVMED_STATE_H_
#define WORKER_EXAMPLES_NVMED_STATE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton::nvmed {

inline constexpr uint32_t kStateVersion = 1;

inline constexpr uint32_t kMaxQueueEntries = 1024;
inline constexpr uint32_t kMaxIoQueues = 64;  // of a controller
inline constexpr uint32_t kNqnBytes = 224;    // 223 characters at most, and a NUL
inline constexpr uint32_t kMaxHeldEvents = 4;
inline constexpr uint32_t kErrorEntries = 4;
inline constexpr uint32_t kMaxNamespaceId = 1024;

// An Asynchronous Event Request that has not been answered yet.
struct HeldEvent {
  uint16_t slot = 0;  // the slot of its capsule on the admin queue
  uint16_t command_id = 0;
};
static_assert(sizeof(HeldEvent) == 4);

// An entry of the error log.
struct ErrorRecord {
  uint64_t count = 0;  // the controller's errors up to this one; 0: no entry
  uint64_t lba = 0;
  uint32_t nsid = 0;
  uint16_t queue_id = 0;
  uint16_t command_id = 0;
  uint16_t status = 0;  // as in the completion
  uint16_t parameter = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(ErrorRecord) == 32);

struct ControllerState {
  uint16_t id = 0;             // CNTLID; 0: there is none in this place
  uint8_t discovery = 0;       // it is a discovery controller
  uint8_t ending = 0;          // it is being torn down: its queues are disconnected
  uint32_t configuration = 0;  // CC
  uint32_t status = 0;         // CSTS
  uint32_t keep_alive_ms = 0;  // KATO; 0: none
  uint64_t deadline = 0;       // by when the next sign of life is due; CLOCK_MONOTONIC, ns
  uint32_t admin_connection = 0;
  uint32_t admin_generation = 0;
  uint32_t granted_queues = 0;       // I/O queues that the host was told it may make
  uint32_t event_configuration = 0;  // feature 0Bh
  uint64_t queues = 0;               // bit q - 1: I/O queue q is connected
  uint64_t errors = 0;
  // 1: an event is to tell the host. 2: an event has told it, and it has not read the log since.
  uint32_t namespaces_changed = 0;
  uint32_t held_count = 0;
  HeldEvent held[kMaxHeldEvents] = {};
  ErrorRecord error_log[kErrorEntries] = {};  // by count modulo the entries
  uint8_t host_id[16] = {};
  char host_nqn[kNqnBytes] = {};
  char subsystem_nqn[kNqnBytes] = {};
  // Counts of I/O queues that are gone. QueueState counts those of present queues.
  uint64_t reads = 0, writes = 0, blocks_read = 0, blocks_written = 0;
};
static_assert(sizeof(ControllerState) == 704);
static_assert(offsetof(ControllerState, queues) == 40);
static_assert(offsetof(ControllerState, host_id) == 208);
static_assert(offsetof(ControllerState, reads) == 672);

struct RegistryHeader {
  uint32_t controllers = 0;  // places that follow
  uint16_t last_id = 0;      // CNTLID given last
  uint16_t reserved = 0;
  uint64_t namespaces_hash = 0;  // of the namespaces as hosts see them
};
static_assert(sizeof(RegistryHeader) == 16);

// A command between its arrival and its answer, by the slot of its capsule.
struct PendingCommand {
  static constexpr uint16_t kIdle = 0;     // nothing was begun: its receive is posted, or held
  static constexpr uint16_t kNoChunk = 1;  // to be executed, from its capsule
  static constexpr uint16_t kChunk0 = 2;   // to be executed, with the data in chunk `where` - this
  uint16_t where = kIdle;
  uint16_t bytes = 0;  // of the capsule, as it was received
  uint32_t order = 0;  // of arrival, in the shard: executed again in this order
};
static_assert(sizeof(PendingCommand) == 8);

struct QueueState {
  static constexpr uint8_t kAccepted = 1;  // no Connect command has succeeded
  static constexpr uint8_t kConnected = 2;
  static constexpr uint8_t kEnding = 3;  // completions that still arrive are ignored
  uint16_t controller = 0;               // CNTLID, once it is connected
  uint16_t id = 0;                       // QID
  uint16_t entries = 0;                  // capsules that may be on their way
  uint16_t head = 0;                     // SQHD of the last answer
  uint8_t phase = 0;
  uint8_t no_flow_control = 0;  // of the submission queue; completions then have no SQHD
  uint16_t wrap = 0;            // SQHD wraps to 0 there: `entries`, or fewer if Connect said so
  uint8_t reserved[4] = {};
  uint64_t reads = 0, writes = 0, blocks_read = 0, blocks_written = 0;
  // PendingCommand[entries] follows, unless all are idle.
};
static_assert(offsetof(QueueState, reads) == 16);
static_assert(sizeof(QueueState) == 48);

// Returns the text in a field, up to its NUL.
template <size_t bytes>
std::string_view TextIn(const char (&field)[bytes]) {
  return {field, strnlen(field, bytes)};
}

// ---------------------------------------------------------------- tags of work requests

// The purpose of a work request.
enum class Purpose : uint8_t {
  kCapsule = 0,       // a receive
  kFetch = 1,         // READ of a command's data
  kReturn = 2,        // WRITE of a command's data
  kResponse = 3,      // SEND of its completion
  kLastResponse = 4,  // after which the queue is disconnected
};

// Pack() makes it the tag of a work request, which the next owner of the shard reads, too.
struct WorkTag {
  Purpose purpose = Purpose::kCapsule;
  uint16_t slot = 0;
  std::optional<uint32_t> chunk;
};

inline uint64_t Pack(const WorkTag& tag) {
  return uint64_t{tag.slot} | uint64_t{static_cast<uint8_t>(tag.purpose)} << 16 |
         (tag.chunk ? uint64_t{*tag.chunk} + 1 : 0) << 32;
}

inline WorkTag Unpack(uint64_t packed) {
  WorkTag tag;
  tag.slot = static_cast<uint16_t>(packed);
  tag.purpose = static_cast<Purpose>(packed >> 16 & 0xff);
  if (packed >> 32 != 0) tag.chunk = static_cast<uint32_t>((packed >> 32) - 1);
  return tag;
}

// ---------------------------------------------------------------- queues, read and written

// A queue as its owner commits it.
struct SavedQueue {
  QueueState state;
  std::vector<PendingCommand> pending;  // by slot, as many as the queue has entries
};

// kInvalidArgument: no target of this version wrote `bytes`; the message names the field that shows
// it. The chunks that they name are not checked. `max_entries`: of a queue of this service.
absl::StatusOr<SavedQueue> ReadQueue(absl::Span<const uint8_t> bytes, uint32_t version,
                                     uint32_t max_entries);

// Writes a queue for ReadQueue. `commands`: all, by slot; empty: all are idle.
void WriteQueue(const QueueState& state, absl::Span<const PendingCommand> commands,
                std::vector<uint8_t>* bytes);

// Returns whether each Asynchronous Event Request that a controller holds has a slot of the admin
// queue to itself.
bool HoldsSlotsOf(const ControllerState& controller, absl::Span<const PendingCommand> admin);

// Returns whether a pending command comes before another. That is their order of arrival if all
// numbers are closer to each other than half of the number space, and a strict order in any case.
// `any`: one of the numbers.
inline bool ComesBefore(uint32_t order, uint32_t other, uint32_t any) {
  constexpr uint32_t kHalf = uint32_t{1} << 31;
  return order - any + kHalf < other - any + kHalf;
}

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_STATE_H_

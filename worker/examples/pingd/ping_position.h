// Where a connection is in its protocol (ping_protocol.h): pure logic, without connections.
#ifndef WORKER_EXAMPLES_PINGD_PING_POSITION_H_
#define WORKER_EXAMPLES_PINGD_PING_POSITION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/examples/pingd/ping_protocol.h"

namespace baton::pingd {

enum class Protocol : uint8_t { kRping = 1, kRdmaClient = 2 };

// The event that a connection waits for.
enum class Phase : uint8_t {
  kAwaitSource = 1,   // rping: the source's address
  kReading = 2,       // the READ's completion
  kAwaitSink = 3,     // the sink's address
  kWriting = 4,       // the WRITE's completion
  kAwaitMessage = 5,  // rdma_client: its message
  kReplying = 6,      // the completion of the answer
  kEnding = 7,        // either protocol: the end, pingd has disconnected
};
std::string_view PhaseName(Phase phase);

// The connection's state (Shard::SetState), format version 1. Little-endian.
inline constexpr uint32_t kPositionStateVersion = 1;
inline constexpr uint32_t kPositionMagic = 0x474e4950;  // "PING"
struct PositionState {
  uint32_t magic;
  uint8_t protocol;     // Protocol
  uint8_t phase;        // Phase
  uint16_t reserved;    // 0
  uint64_t messages;    // sent to the peer, including the one that this step sends
  uint32_t data_bytes;  // kReading: asked for; kAwaitSink, kWriting: to be written; else 0
  uint32_t reserved2;   // 0
  uint64_t check;       // of the fields before it
};
static_assert(offsetof(PositionState, protocol) == 4);
static_assert(offsetof(PositionState, phase) == 5);
static_assert(offsetof(PositionState, messages) == 8);
static_assert(offsetof(PositionState, data_bytes) == 16);
static_assert(offsetof(PositionState, check) == 24);
static_assert(sizeof(PositionState) == 32);

// The action that a step asks for.
struct Action {
  enum class Kind : uint8_t {
    kNone,
    kRead,   // `remote` into the data buffer
    kWrite,  // the data buffer to `remote`
    kSend,   // ServerMessage, with the number PingPosition::messages
    kDisconnect,
  };
  Kind kind = Kind::kNone;
  Advertisement remote = {};  // its size is what is transferred
};

class PingPosition {
 public:
  // Returns the position of a connection that is being accepted.
  static PingPosition Begin(Protocol protocol);
  // kDataLoss: `state` is not what Save returned.
  static absl::StatusOr<PingPosition> Load(absl::Span<const uint8_t> state, uint32_t state_version);
  std::array<uint8_t, sizeof(PositionState)> Save() const;

  // Each makes one step: its name says what has completed, and it returns what to do next. An error
  // says what the peer did wrong, and leaves the position unchanged. `max_data_bytes`: the most
  // that a source may have.
  absl::StatusOr<Action> OnMessage(absl::Span<const uint8_t> message, uint32_t max_data_bytes);
  // `data`: the data_bytes() bytes that were read.
  absl::StatusOr<Action> OnRead(absl::Span<const uint8_t> data);
  absl::StatusOr<Action> OnWritten();
  absl::StatusOr<Action> OnSent();
  // Notes that pingd disconnects.
  void End();

  Phase phase() const { return phase_; }
  uint64_t messages() const { return messages_; }
  uint32_t data_bytes() const { return data_bytes_; }

 private:
  PingPosition(Protocol protocol, Phase phase) : protocol_(protocol), phase_(phase) {}
  absl::Status Expect(Phase phase, std::string_view what) const;
  Action SendAndGoTo(Phase phase);
  absl::StatusOr<Action> OnSource(const Advertisement& source, uint32_t max_data_bytes);
  absl::StatusOr<Action> OnSink(const Advertisement& sink);

  Protocol protocol_;
  Phase phase_;
  uint64_t messages_ = 0;
  uint32_t data_bytes_ = 0;
};

}  // namespace baton::pingd

#endif  // WORKER_EXAMPLES_PINGD_PING_POSITION_H_

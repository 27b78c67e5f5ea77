// A stream of messages over one connection: what both ends count, without connections and memory.
//
// Each end has a ring in memory that its peer may WRITE to. A message is one WRITE_WITH_IMM into
// the peer's ring, contiguous. The WRITE takes one of the peer's receives, which have no buffers:
// its completion is the bell. The bell says how long the message is (byte_len) and, in the
// immediate, whether the message begins behind the last one or at the ring's beginning. So nothing
// that lies in the ring is trusted, and no message can be seen in part. So a message is no longer
// than the peer's ring, and than what the sender's device takes in one request: several WRITEs
// would have several lengths, and the bell has only the last one's.
//
// Credit. A sender may have as many bytes on the way as the peer's ring has, and as many bells as
// the peer has posted receives. Each bell's immediate reports, for the other direction, what its
// sender has freed and posted. An end that sends nothing reports with a bell without a message. The
// last bell is never used for a message, and never for a report that returns no bell: so two ends
// that wait for each other's bells cannot exist. A report is due at half of the receives or a
// quarter of the ring. So reports about reports die out, and a message of up to a quarter of the
// ring is never refused for long. The sender of a longer one that is refused asks, once, for a
// report when all before has been freed; an empty ring has room for any message.
//
// Nothing here allocates, and all state is in StreamState, which a service keeps in its committed
// state: then tail, head and credit move in the transaction of the messages that they count.
#ifndef LIB_STREAM_RING_H_
#define LIB_STREAM_RING_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace baton::stream {

static_assert(std::endian::native == std::endian::little);

// Messages begin at multiples of this in the ring, and a ring consists of such units.
inline constexpr uint32_t kUnitBytes = 64;
inline constexpr uint32_t kMinRingBytes = 4 * kUnitBytes;
inline constexpr uint32_t kMaxRingBytes = (uint32_t{1} << 20) * kUnitBytes;
// Receives that an end has posted for bells.
inline constexpr uint32_t kMinWindow = 4;
inline constexpr uint32_t kMaxWindow = 128;

// Each end tells the other this when they connect: the first bytes of the private data.
struct Greeting {
  uint32_t magic;    // kGreetingMagic
  uint16_t version;  // kStreamVersion
  uint16_t window;   // receives that are posted before the other end can send
  uint32_t ring_bytes;
  uint32_t rkey;
  uint64_t address;  // of the ring
};
static_assert(offsetof(Greeting, ring_bytes) == 8);
static_assert(offsetof(Greeting, address) == 16);
static_assert(sizeof(Greeting) == 24);

inline constexpr uint32_t kGreetingMagic = 0x5253'4e42;  // "BNSR"
inline constexpr uint16_t kStreamVersion = 1;

std::string Encode(const Greeting& greeting);
// Returns nothing if `private_data` does not begin with a greeting that is within the limits. What
// follows the greeting is the application's.
std::optional<Greeting> DecodeGreeting(std::string_view private_data);

// Positions are counted in units from the beginning of the stream, with what was skipped at the
// ring's end.
struct SenderState {
  uint16_t version;  // kStreamVersion
  uint16_t reserved;
  uint32_t ring_units;  // the peer's
  uint64_t remote_address;
  uint32_t rkey;
  uint32_t bells;    // rung
  uint32_t allowed;  // bells for which the peer has posted receives; counts on for ever, like bells
  uint32_t reserved2;
  uint64_t tail;      // where the last message ends
  uint64_t freed;     // by the peer, as it reported
  uint64_t asked;     // the tail when the peer was last asked for a report
  uint64_t messages;  // sent
};
static_assert(sizeof(SenderState) == 64);

struct ReceiverState {
  uint16_t version;  // kStreamVersion
  uint16_t window;
  uint32_t ring_units;
  uint64_t ring_offset;  // where the ring is: kept for the adapter
  uint32_t grant;        // likewise
  uint32_t rkey;         // likewise
  uint16_t owed;         // receives that are to be posted
  uint16_t posted;       // receives, modulo 2^16
  uint16_t reported;     // of these, to the peer
  uint16_t reserved;
  uint64_t tail;           // where the last message ends
  uint64_t head;           // what lies before is free
  uint64_t reported_head;  // to the peer
  uint64_t wanted;         // the peer asked for a report when this is free
};
static_assert(sizeof(ReceiverState) == 64);

// Little-endian. All bytes zero: no stream.
struct StreamState {
  SenderState sender;
  ReceiverState receiver;
};
static_assert(sizeof(StreamState) == 128);
static_assert(std::is_trivially_copyable_v<StreamState>);

// The immediate of a bell: what it is, and what its sender reports.
enum class BellKind : uint8_t {
  kMessage = 0,  // behind the last one
  kWrapped = 1,  // a message at the ring's beginning
  kReport = 2,
  kAsk = 3,  // a report, and wants one
};
struct Bell {
  BellKind kind = BellKind::kReport;
  uint32_t head = 0;   // modulo 2^22
  uint8_t posted = 0;  // modulo 2^8
};
inline constexpr uint32_t kHeadBits = 22;
constexpr uint32_t Pack(const Bell& bell) {
  return uint32_t{static_cast<uint8_t>(bell.kind)} << 30 |
         (bell.head & ((uint32_t{1} << kHeadBits) - 1)) << 8 | bell.posted;
}
constexpr Bell Unpack(uint32_t immediate) {
  return {BellKind(immediate >> 30), immediate << 2 >> 10, static_cast<uint8_t>(immediate)};
}

// One end: both directions of it.
class StreamEnd {
 public:
  enum class Refusal : uint8_t {
    kNone,
    kNoBell,   // as many bells are on the way as the peer has receives
    kNoRoom,   // the peer's ring has no room for it now
    kTooLong,  // it never will have
  };
  // A WRITE_WITH_IMM of the message: where it goes, in bytes from the beginning of the peer's ring.
  struct Placement {
    Refusal refusal = Refusal::kNone;
    uint64_t offset = 0;
    uint32_t immediate = 0;
  };
  struct Arrival {
    enum class Kind : uint8_t {
      kReport,
      kMessage,
      kBroken,  // the peer does not keep to the protocol: end the connection
    };
    Kind kind = Kind::kReport;
    bool has_credit = false;  // what was refused may be taken now
    uint32_t length = 0;
    uint64_t offset = 0;  // in this end's ring
    uint64_t end = 0;     // for Release
  };

  // A new stream to the end that sent `peer`. This end has a ring of `ring_bytes`, a multiple of
  // kUnitBytes from kMinRingBytes to kMaxRingBytes, and posts `window` receives, kMinWindow to
  // kMaxWindow. `greeted`: the window that this end's greeting named: `window`, or 0 if the peer
  // may not send before the first report.
  static StreamEnd Begin(const Greeting& peer, uint32_t ring_bytes, uint16_t window,
                         uint16_t greeted);
  // Goes on with a state that was saved. Nothing: it is not one, or of another version.
  static std::optional<StreamEnd> Load(const StreamState& state);

  const StreamState& state() const { return state_; }
  void SetPlace(uint64_t ring_offset, uint32_t grant, uint32_t rkey) {
    state_.receiver.ring_offset = ring_offset;
    state_.receiver.grant = grant;
    state_.receiver.rkey = rkey;
  }

  // Says whether Place would take a message of `length` bytes.
  Refusal MayPlace(uint32_t length) const;
  // Counts a message as sent if it is not refused.
  Placement Place(uint32_t length);
  // For a message that was refused with kNoRoom: the immediate of a bell without a message that
  // asks the peer for a report, if there has to be one.
  std::optional<uint32_t> Ask(uint32_t length);
  // The immediate of a bell without a message that reports, if one is due and may be rung.
  std::optional<uint32_t> Report();
  // Returns whether more bells are unreported than make a report due. An application that keeps
  // messages, neither answered nor released, must not hold up such a report.
  bool IsReportOverdue() const {
    const auto receives = static_cast<uint16_t>(state_.receiver.posted - state_.receiver.reported);
    return receives > state_.receiver.window / 2;
  }

  // A receive has completed with this. It is owed from now on.
  Arrival OnBell(uint32_t immediate, uint32_t byte_len);
  // The message that ends at `end`, and all before it, are read. Returns false if there is none.
  bool Release(uint64_t end);

  // Receives that are to be posted now, and before anything that is placed or reported afterwards.
  uint16_t owed() const { return state_.receiver.owed; }
  void NotePosted() {
    --state_.receiver.owed;
    ++state_.receiver.posted;
  }

 private:
  struct Range {
    uint64_t start, end;
    uint64_t oldest;  // what is in use begins here
    bool wraps;
  };

  explicit StreamEnd(const StreamState& state) : state_(state) {}
  static Range Next(uint64_t tail, uint64_t oldest, uint32_t ring_units, uint64_t units);
  uint32_t Ring(BellKind kind);
  bool TakeReport(const Bell& bell, bool* has_credit);
  uint32_t bells_left() const { return state_.sender.allowed - state_.sender.bells; }

  StreamState state_;
};

}  // namespace baton::stream

#endif  // LIB_STREAM_RING_H_

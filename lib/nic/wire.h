// The frames that NICs exchange over TCP or through memory; wire.md is the specification.
#ifndef LIB_NIC_WIRE_H_
#define LIB_NIC_WIRE_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace baton::verbs::soft {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

inline constexpr uint8_t kWireVersion = 1;
inline constexpr uint32_t kWireMagic = 0x4e544142;  // "BATN"

// A message longer than this travels as several frames, so that answers are not held up behind it.
inline constexpr uint32_t kMaxSegment = 256 * 1024;
inline constexpr uint64_t kMaxMessage = 1ull << 30;

// The bytes that remain to the caller with RDMA_PS_TCP: rdma_connect(3), rdma_accept(3),
// rdma_reject(3).
inline constexpr uint32_t kMaxConnectPrivateData = 56;
inline constexpr uint32_t kMaxAcceptPrivateData = 196;
inline constexpr uint32_t kMaxRejectPrivateData = 148;

enum class FrameType : uint8_t {
  kConnectRequest = 1,
  kConnectReply = 2,
  kReadyToUse = 3,
  kReject = 4,
  kDisconnectRequest = 5,
  kDisconnectReply = 6,
  kMemoryOffer = 7,
  kMemoryReady = 8,
  kMemoryRefused = 9,
  kSend = 16,
  kWrite = 17,
  kRead = 18,
  kCompareAndSwap = 19,
  kFetchAndAdd = 20,
  kAck = 32,
  kNak = 33,
  kReceiverNotReady = 34,
  kReadResponse = 35,
  kAtomicResponse = 36,
};

enum FrameFlags : uint8_t {
  kFirst = 1,
  kLast = 2,
  kHasImmediate = 4,
  kHasInvalidate = 8,
  kSolicited = 16,
};
inline constexpr uint8_t kAllFlags = 31;

enum class NakCode : uint8_t {
  kInvalidRequest = 1,
  kRemoteAccess = 2,
  kRemoteOperation = 3,
  kQueuePairInError = 4,  // hardware is silent instead, until the requester gives up its retries
};

struct FrameHeader {
  uint8_t version;
  uint8_t type;
  uint8_t flags;
  uint8_t code;
  uint32_t length;     // of all that follows this header
  uint32_t sequence;   // of the message, modulo 2^32
  uint32_t immediate;  // immediate data, rkey to invalidate, or RNR timer in microseconds
};
static_assert(sizeof(FrameHeader) == 16);
static_assert(offsetof(FrameHeader, length) == 4 && offsetof(FrameHeader, sequence) == 8 &&
              offsetof(FrameHeader, immediate) == 12);

struct WriteHead {
  uint64_t address;  // of this segment
  uint32_t rkey;
  uint32_t reserved;
  uint64_t message_length;
};
static_assert(sizeof(WriteHead) == 24 && offsetof(WriteHead, message_length) == 16);

struct ReadHead {
  uint64_t address;
  uint32_t rkey;
  uint32_t length;
};
static_assert(sizeof(ReadHead) == 16 && offsetof(ReadHead, length) == 12);

struct AtomicHead {
  uint64_t address;
  uint32_t rkey;
  uint32_t reserved;
  uint64_t compare_add;
  uint64_t swap;
};
static_assert(sizeof(AtomicHead) == 32 && offsetof(AtomicHead, compare_add) == 16);

// Body of kConnectRequest, kConnectReply and kReject; the private data follows.
struct ConnectHead {
  uint32_t magic;
  uint32_t qp_number;
  uint8_t responder_resources;
  uint8_t initiator_depth;
  uint8_t retry_count;
  uint8_t rnr_retry_count;
  uint8_t private_data_length;
  uint8_t features;
  uint8_t reserved[2];
};
static_assert(sizeof(ConnectHead) == 16 && offsetof(ConnectHead, private_data_length) == 12 &&
              offsetof(ConnectHead, features) == 13);

inline constexpr uint8_t kTakesMemoryOffers = 1;  // of `features`

// The name of the socket that passes the offered memory, and the token that the peer sends there.
struct MemoryOffer {
  uint8_t name[16];
  uint8_t token[16];
};
static_assert(sizeof(MemoryOffer) == 32 && offsetof(MemoryOffer, token) == 16);

// The message that passes the memory's descriptor.
struct MemoryPassed {
  uint32_t magic;    // kWireMagic
  uint32_t version;  // kMemoryVersion
};
static_assert(sizeof(MemoryPassed) == 8 && offsetof(MemoryPassed, version) == 4);
inline constexpr uint32_t kMemoryVersion = 1;

// The only byte that follows kMemoryReady on TCP. It means "look at the memory".
inline constexpr uint8_t kWakeByte = 0x57;

// Bytes that a receiver collects before it acts on a frame: header and fixed body, and for frames
// of the connection manager the private data too.
inline constexpr size_t kMaxHead =
    sizeof(FrameHeader) + sizeof(ConnectHead) + kMaxAcceptPrivateData;

struct FrameShape {
  uint32_t head_size = 0;     // header included
  uint32_t payload_size = 0;  // follows the head
};

// Sets `shape` and returns nullptr if `header` can be the start of a frame of this protocol.
// Otherwise returns what is wrong with it.
const char* CheckHeader(const FrameHeader& header, FrameShape* shape);

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_WIRE_H_

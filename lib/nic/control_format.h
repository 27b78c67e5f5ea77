// Messages between a NIC and its clients: control.md.
#ifndef LIB_NIC_CONTROL_FORMAT_H_
#define LIB_NIC_CONTROL_FORMAT_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace baton::nic::control {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kControlVersion = 2;
inline constexpr size_t kMaxControlBytes = 1024;

// The protocol has these numbers, so they never change.
enum class Op : uint16_t {
  kOpenObjects = 1,
  kAddSocket = 2,
  kFile = 3,
  kRegion = 4,
  kRegister = 5,
  kChannel = 6,
  kCompletionQueue = 7,
  kQueuePair = 8,
  kModify = 9,
  kQuery = 10,
  kDestroy = 11,
  kNextDeviceEvent = 12,
  kSharedReceiveQueue = 13,
  kArmLimit = 14,
  kEndSocket = 15,
  kOpenIds = 20,
  kListen = 21,
  kConnect = 22,
  kProceed = 23,
  kAccept = 24,
  kReject = 25,
  kDisconnect = 26,
  kNextEvent = 27,
  kNextId = 28,
};

struct RequestHeader {
  uint16_t op = 0;
  uint16_t bytes = 0;  // of the whole message
  uint32_t tag = 0;    // the reply has it, too
};
static_assert(sizeof(RequestHeader) == 8);

// A place in a file that was passed.
struct Place {
  Place Behind(uint64_t bytes) const { return {file, reserved, offset + bytes}; }

  uint32_t file = 0;
  uint32_t reserved = 0;
  uint64_t offset = 0;
};
static_assert(sizeof(Place) == 16);

struct OpenObjects {  // and kOpenIds
  static constexpr Op kOp = Op::kOpenObjects;
  RequestHeader header = {};
  uint32_t version = kControlVersion;
  uint32_t reserved = 0;
};
static_assert(sizeof(OpenObjects) == 16);

struct AddSocket {  // with a socket for the reply
  static constexpr Op kOp = Op::kAddSocket;
  RequestHeader header = {};
};
static_assert(sizeof(AddSocket) == 8);

struct EndSocket {  // on any call socket
  static constexpr Op kOp = Op::kEndSocket;
  RequestHeader header = {};
  uint32_t number = 0;  // of another call socket of the file
  uint32_t reserved = 0;
};
static_assert(sizeof(EndSocket) == 16);

struct File {  // with the memfd
  static constexpr Op kOp = Op::kFile;
  RequestHeader header = {};
};
static_assert(sizeof(File) == 8);

struct Region {
  static constexpr Op kOp = Op::kRegion;
  RequestHeader header = {};
  Place place = {};
  uint64_t length = 0;
  uint64_t address = 0;  // what requests call the first byte
  uint32_t access = 0;   // verbs::Access
  uint32_t domain = 0;   // protection domain: any number
};
static_assert(sizeof(Region) == 48 && offsetof(Region, address) == 32);

struct Register {
  static constexpr Op kOp = Op::kRegister;
  RequestHeader header = {};
  Place page = {};
};
static_assert(sizeof(Register) == 24);

struct Channel {
  static constexpr Op kOp = Op::kChannel;
  RequestHeader header = {};
  uint32_t events = 0;  // 1: of the file itself (NEXT_DEVICE_EVENT, NEXT_EVENT); 0: of completions
  uint32_t reserved = 0;
};
static_assert(sizeof(Channel) == 16);

struct CompletionQueue {
  static constexpr Op kOp = Op::kCompletionQueue;
  RequestHeader header = {};
  Place entries = {};
  Place records = {};  // consumed, arm, `failed`
  uint32_t entry_count = 0;
  uint32_t entry_bytes = 0;
  uint32_t reg = 0;      // the register that arms it
  uint32_t channel = 0;  // 0: none, and it makes no events
};
static_assert(sizeof(CompletionQueue) == 56 && offsetof(CompletionQueue, entry_count) == 40);

struct QueuePair {
  static constexpr Op kOp = Op::kQueuePair;
  RequestHeader header = {};
  Place sends = {};
  Place receives = {};
  Place records = {};  // receives, sends, `failed`
  uint32_t send_slots = 0;
  uint32_t receive_slots = 0;
  uint32_t receive_bytes = 0;
  uint32_t domain = 0;
  uint32_t reg = 0;
  uint32_t send_queue = 0;  // completion queues
  uint32_t receive_queue = 0;
  uint32_t shared_receive_queue = 0;  // 0: it has receives of its own
  uint32_t send_sges = 0;             // most buffers of a send; 0: unknown
  uint32_t send_inline = 0;           // most inline bytes of one
};
static_assert(sizeof(QueuePair) == 96 && offsetof(QueuePair, send_slots) == 56);

struct Modify {
  static constexpr Op kOp = Op::kModify;
  RequestHeader header = {};
  uint32_t number = 0;
  uint32_t state = 0;  // verbs::QueuePairState
  // kReadyToSend alone has these three. They are 0 for other states.
  uint32_t peer = 0;
  uint32_t rnr_retry_count = 0;  // 0..7; 7: for ever
  uint32_t rnr_timer_us = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Modify) == 32);

struct Query {
  static constexpr Op kOp = Op::kQuery;
  RequestHeader header = {};
  uint32_t number = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Query) == 16);

enum class Kind : uint32_t {
  kFile = 1,
  kRegion = 2,
  kRegister = 3,
  kChannel = 4,
  kCompletionQueue = 5,
  kQueuePair = 6,
  kSharedReceiveQueue = 7,
  kConnectionId = 8,
  kListener = 9,
};

struct Destroy {
  static constexpr Op kOp = Op::kDestroy;
  RequestHeader header = {};
  uint32_t kind = 0;
  uint32_t number = 0;
};
static_assert(sizeof(Destroy) == 16);

struct NextDeviceEvent {
  static constexpr Op kOp = Op::kNextDeviceEvent;
  RequestHeader header = {};
  uint32_t handled = 0;  // 1: the event that the last reply had is dropped
  uint32_t reserved = 0;
};
static_assert(sizeof(NextDeviceEvent) == 16);

struct SharedReceiveQueue {
  static constexpr Op kOp = Op::kSharedReceiveQueue;
  RequestHeader header = {};
  Place slots = {};
  Place record = {};
  uint32_t slot_count = 0;
  uint32_t slot_bytes = 0;
};
static_assert(sizeof(SharedReceiveQueue) == 48);

struct ArmLimit {
  static constexpr Op kOp = Op::kArmLimit;
  RequestHeader header = {};
  uint32_t number = 0;
  uint32_t limit = 0;  // 0: for no event
};
static_assert(sizeof(ArmLimit) == 16);

// An IPv4 or IPv6 literal, and a port.
struct Address {
  char host[46] = {};  // ends with a 0
  uint16_t port = 0;
};
static_assert(sizeof(Address) == 48);

// verbs::ConnectionParameters without check_route.
struct Parameters {
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t retry_count = 0;
  uint8_t rnr_retry_count = 0;
  uint32_t private_bytes = 0;
  uint8_t private_data[200] = {};
};
static_assert(sizeof(Parameters) == 208);

struct Listen {
  static constexpr Op kOp = Op::kListen;
  RequestHeader header = {};
  Address address;
  int32_t backlog = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Listen) == 64);

struct Connect {
  static constexpr Op kOp = Op::kConnect;
  RequestHeader header = {};
  Address address;
  uint32_t queue_pair = 0;
  uint32_t ask_route = 0;  // 1: it waits for PROCEED when its route is known
  Parameters parameters;
};
static_assert(sizeof(Connect) == 272 && offsetof(Connect, parameters) == 64);

struct Proceed {
  static constexpr Op kOp = Op::kProceed;
  RequestHeader header = {};
  uint32_t id = 0;
  uint32_t refused = 0;  // 1: the user refuses the route
};
static_assert(sizeof(Proceed) == 16);

struct Accept {
  static constexpr Op kOp = Op::kAccept;
  RequestHeader header = {};
  uint32_t id = 0;
  uint32_t queue_pair = 0;
  Parameters parameters;
};
static_assert(sizeof(Accept) == 224);

struct Reject {  // only the private data of the parameters counts
  static constexpr Op kOp = Op::kReject;
  RequestHeader header = {};
  uint32_t id = 0;
  uint32_t reserved = 0;
  Parameters parameters;
};
static_assert(sizeof(Reject) == 224);

struct Disconnect {
  static constexpr Op kOp = Op::kDisconnect;
  RequestHeader header = {};
  uint32_t id = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Disconnect) == 16);

struct NextEvent {
  static constexpr Op kOp = Op::kNextEvent;
  RequestHeader header = {};
  uint32_t handled = 0;  // 1: the event that the last reply had is dropped
  uint32_t reserved = 0;
};
static_assert(sizeof(NextEvent) == 16);

struct NextId {
  static constexpr Op kOp = Op::kNextId;
  RequestHeader header = {};
  uint32_t after = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(NextId) == 16);

// Says what a number of NEXT_ID is, in Reply::more.
enum class IdKind : uint32_t {
  kListener = 0,
  kUntaken = 1,     // the event of its request is still in the queue
  kUnaccepted = 2,  // its request was handled, and not accepted
  kOther = 3,
};

struct Reply {
  uint32_t tag = 0;
  uint32_t error = 0;   // errno; 0: done
  uint32_t value = 0;   // the number of what was made, or the state that was asked for
  uint32_t more = 0;    // LISTEN: the port; NEXT_DEVICE_EVENT: the object's number
  char text[240] = {};  // why not; ends with a 0
};
static_assert(sizeof(Reply) == 256 && offsetof(Reply, text) == 16);

enum class EventType : uint32_t {
  kNone = 0,
  kConnectRequest = 1,
  kEstablished = 2,
  kRejected = 3,
  kUnreachable = 4,
  kDisconnected = 5,
  kRouteKnown = 6,
};

// Follows the reply to NEXT_EVENT.
struct Event {
  uint32_t type = 0;
  uint32_t listener = 0;  // of a request
  uint32_t id = 0;
  uint32_t error = 0;  // errno, with `text`
  Address local;
  Address peer;
  uint8_t our_reads = 0;  // verbs::ReadDepths
  uint8_t their_reads = 0;
  uint16_t private_bytes = 0;
  uint32_t reserved = 0;
  uint8_t private_data[200] = {};
  char text[240] = {};
};
static_assert(sizeof(Event) == 560 && offsetof(Event, private_data) == 120);
static_assert(sizeof(Reply) + sizeof(Event) <= kMaxControlBytes);

}  // namespace baton::nic::control

#endif  // LIB_NIC_CONTROL_FORMAT_H_

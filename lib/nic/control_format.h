// Messages between a NIC and its clients: control.md.
#ifndef LIB_NIC_CONTROL_FORMAT_H_
#define LIB_NIC_CONTROL_FORMAT_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace baton::nic::control {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kControlVersion = 1;
inline constexpr size_t kMaxControlBytes = 1024;

// Numbers stay what they are. 20 to 39 are for shared receive queues, connection ids and listeners.
enum class Op : uint16_t {
  kOpenObjects = 1,
  kAttach = 2,
  kFile = 3,
  kRegion = 4,
  kRegister = 5,
  kChannel = 6,
  kCompletionQueue = 7,
  kQueuePair = 8,
  kModify = 9,
  kQuery = 10,
  kDestroy = 11,
};

struct RequestHeader {
  uint16_t op = 0;
  uint16_t bytes = 0;  // of the whole message
  uint32_t tag = 0;    // the reply has it, too
};
static_assert(sizeof(RequestHeader) == 8);

// A place in a file that was passed.
struct Place {
  uint32_t file = 0;
  uint32_t reserved = 0;
  uint64_t offset = 0;
};
static_assert(sizeof(Place) == 16);

struct OpenObjects {
  static constexpr Op kOp = Op::kOpenObjects;
  RequestHeader header;
  uint32_t version = kControlVersion;
  uint32_t reserved = 0;
};
static_assert(sizeof(OpenObjects) == 16);

struct Attach {  // with a socket for the reply
  static constexpr Op kOp = Op::kAttach;
  RequestHeader header;
};
static_assert(sizeof(Attach) == 8);

struct File {  // with the memfd
  static constexpr Op kOp = Op::kFile;
  RequestHeader header;
};
static_assert(sizeof(File) == 8);

struct Region {
  static constexpr Op kOp = Op::kRegion;
  RequestHeader header;
  Place place;
  uint64_t length = 0;
  uint64_t address = 0;  // what requests call the first byte
  uint32_t access = 0;   // verbs::Access
  uint32_t domain = 0;   // protection domain: any number
};
static_assert(sizeof(Region) == 48 && offsetof(Region, address) == 32);

struct Register {
  static constexpr Op kOp = Op::kRegister;
  RequestHeader header;
  Place page;
};
static_assert(sizeof(Register) == 24);

struct Channel {
  static constexpr Op kOp = Op::kChannel;
  RequestHeader header;
};
static_assert(sizeof(Channel) == 8);

struct CompletionQueue {
  static constexpr Op kOp = Op::kCompletionQueue;
  RequestHeader header;
  Place entries;
  Place records;  // consumed, arm
  uint32_t entry_count = 0;
  uint32_t entry_bytes = 0;
  uint32_t reg = 0;      // the register that it is armed by
  uint32_t channel = 0;  // 0: none, and it makes no events
};
static_assert(sizeof(CompletionQueue) == 56 && offsetof(CompletionQueue, entry_count) == 40);

struct QueuePair {
  static constexpr Op kOp = Op::kQueuePair;
  RequestHeader header;
  Place sends;
  Place receives;
  Place records;  // receives, sends, `failed`
  uint32_t send_slots = 0;
  uint32_t receive_slots = 0;
  uint32_t receive_bytes = 0;
  uint32_t domain = 0;
  uint32_t reg = 0;
  uint32_t send_queue = 0;  // completion queues
  uint32_t receive_queue = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(QueuePair) == 88 && offsetof(QueuePair, send_slots) == 56);

struct Modify {
  static constexpr Op kOp = Op::kModify;
  RequestHeader header;
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
  RequestHeader header;
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
};

struct Destroy {
  static constexpr Op kOp = Op::kDestroy;
  RequestHeader header;
  uint32_t kind = 0;
  uint32_t number = 0;
};
static_assert(sizeof(Destroy) == 16);

struct Reply {
  uint32_t tag = 0;
  uint32_t error = 0;  // errno; 0: done
  uint32_t value = 0;  // the number of what was made, or the state that was asked for
  uint32_t reserved = 0;
  char text[112] = {};  // why not; ends with a 0
};
static_assert(sizeof(Reply) == 128 && offsetof(Reply, text) == 16);

}  // namespace baton::nic::control

#endif  // LIB_NIC_CONTROL_FORMAT_H_

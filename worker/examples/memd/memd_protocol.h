// The protocol between memd and its clients: remote memory with leases.
//
// A client asks for memory by SEND, and memd answers each request by one SEND, in order. The answer
// has an rkey and an address. From then on the client works on the memory with RDMA READ, WRITE,
// compare-and-swap and fetch-and-add, which no worker of memd takes part in: they go on while memd
// is upgraded, and while no worker lives. The lease ends when the client frees it, when its time is
// over, and with the client's connection.
//
// Requests may be repeated. An allocate with the number of an earlier one returns the same lease;
// free, renew and stat have the same effect the second time. So a client whose time limit is over
// before an answer comes asks again with the same number. Every request is answered, also those
// that were repeated.
//
// A WRITE_WITH_IMM whose immediate is the id of a lease of the client is a notice in that lease,
// for example that what it holds is complete. memd counts notices, and answers have the counts.
//
// Credit. memd keeps kRequestWindow + kNoticeWindow receives posted for each connection. A client
// has at most kRequestWindow requests that are not answered, and at most kNoticeWindow notices more
// than the last answer has counted (Reply::notices). So it never meets "receiver not ready", unless
// the service shares its receives between connections.
//
// Why each effect happens once. memd processes one completion in one transaction: the lease's
// memory, the state of the connection, the answer, the receive that is posted again and the
// acknowledgement of the request are committed together, or not at all. The rkey is granted before
// the commit. A worker that dies in between leaves a grant that no state knows. Its successor is
// given the same request, and revokes that grant when it adopts the shard (worker/leases.h).
#ifndef WORKER_EXAMPLES_MEMD_MEMD_PROTOCOL_H_
#define WORKER_EXAMPLES_MEMD_MEMD_PROTOCOL_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace baton::memd {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint16_t kProtocolVersion = 1;
inline constexpr uint32_t kGreetingMagic = 0x474d'454d;  // "MEMG"
inline constexpr uint32_t kRequestMagic = 0x514d'454d;   // "MEMQ"
inline constexpr uint32_t kReplyMagic = 0x524d'454d;     // "MEMR"

inline constexpr uint32_t kRequestWindow = 8;
inline constexpr uint32_t kNoticeWindow = 8;

// The rights that a client may ask for, for its memory. It has no others.
enum Right : uint32_t {
  kRead = 1,
  kWrite = 2,
  kAtomic = 4,  // on 8 bytes at a multiple of 8
};
inline constexpr uint32_t kAllRights = kRead | kWrite | kAtomic;

// The private data of memd's accept.
struct Greeting {
  uint32_t magic;
  uint16_t version;
  uint16_t most_leases;  // of a connection
  uint64_t most_bytes;   // of all of its leases
};
static_assert(offsetof(Greeting, most_bytes) == 8);
static_assert(sizeof(Greeting) == 16);

enum class RequestKind : uint8_t {
  kAllocate = 1,
  kFree = 2,   // a lease that is gone is freed as well
  kRenew = 3,  // the time begins anew
  kStat = 4,   // lease 0: only how many notices were counted
};

struct Request {
  uint32_t magic;
  uint16_t version;
  RequestKind kind;
  uint8_t reserved;       // 0
  uint64_t number;        // comes back in the reply; kAllocate: names the lease
  uint64_t bytes;         // kAllocate
  uint64_t milliseconds;  // kAllocate, kRenew; 0: as long as the connection
  uint32_t rights;        // kAllocate: Right, or several
  uint32_t lease;         // the others
};
static_assert(offsetof(Request, number) == 8);
static_assert(offsetof(Request, milliseconds) == 24);
static_assert(offsetof(Request, lease) == 36);
static_assert(sizeof(Request) == 40);
static_assert(std::is_trivially_copyable_v<Request>);

struct Reply {
  uint32_t magic;
  uint16_t version;
  RequestKind kind;
  uint8_t reserved;  // 0
  uint64_t number;   // of the request
  uint32_t status;   // absl::StatusCode; other than 0: only the reason and `notices` follow
  uint32_t lease;    // its id, never 0
  uint64_t address;  // for READ, WRITE and atomics
  uint64_t bytes;
  uint64_t milliseconds;  // that are left, at least 1; 0: as long as the connection
  uint32_t rkey;
  uint32_t rights;
  uint64_t lease_notices;   // that were counted in the lease
  uint64_t notices;         // that were taken of the connection, in leases that are gone as well
  uint32_t server_version;  // of the binary that has answered
  uint32_t reserved2;       // 0
  char reason[48];          // why not; the rest is 0
};
static_assert(offsetof(Reply, number) == 8);
static_assert(offsetof(Reply, address) == 24);
static_assert(offsetof(Reply, rkey) == 48);
static_assert(offsetof(Reply, notices) == 64);
static_assert(offsetof(Reply, reason) == 80);
static_assert(sizeof(Reply) == 128);
static_assert(std::is_trivially_copyable_v<Reply>);

}  // namespace baton::memd

#endif  // WORKER_EXAMPLES_MEMD_MEMD_PROTOCOL_H_

// Leases: memory of a shard's heap that a peer uses with READ, WRITE and atomics, for a time.
//
//   case Kind::kReceive: {  // a request of the peer, in a protocol of the service
//     Leases leases = …Leases::Load(connection, connection.state())…;
//     const auto lease = leases.Allocate({.request = 7, .bytes = 4096, …}, Leases::Now());
//     …answer with the lease's id, rkey and remote_address…
//     shard.SetState(connection, leases.state(), kFormat);
//   }
//   case Kind::kDisconnected:
//   case Kind::kConnectFailed: {  // a peer that was accepted, and left before it was established
//     …Leases::Load(connection, connection.state())….FreeAll();
//   }
//
// Allocate and Free are the remote_malloc and remote_free of a peer, which asks for them in
// messages of the service's.
//
// Each lease has a grant, and so an rkey, of its own. The peer's device checks nothing: the
// service's does. An access beyond the lease, or one that it does not allow, ends that peer's
// connection and nothing else. The data path is the peer's alone: it goes on while no worker
// lives, and a lease has the same rkey and address after an upgrade or a crash. The rkey is no
// secret: peers of the same service that guess it have the same access.
//
// Notice. A peer tells the owner that it has written by its last WRITE: a WRITE_WITH_IMM whose
// immediate is the lease's id. It takes one of the receives, like a message, and leaves the
// receive's buffers as they are. The owner sees a kReceive with the opcode kReceiveWithImmediate,
// the immediate, and in byte_len how much this WRITE wrote. What the peer wrote before on the
// connection is there then. A notice is a completion like others: one that comes while no worker
// lives waits, and one whose owner dies before its commit is given to the successor. The device
// compares the immediate with nothing: look the lease up with Find, and judge a copy of its memory.
// A peer may have no more messages and notices on the way than the service has receives posted.
//
// Memory and state are staged in the shard's open transaction, and nothing is committed here.
// Every call that is not const may change the state, also one that fails: so set the state once,
// last. With CommitMode::kAfterEachBatch, keep the Leases until the batch is committed, since
// Connection::state() is that of the last commit. Load them again after Shard::Abandon, and in each
// epoch. Grants are no part of the transaction: see HeapGrants. So after Abandon,
//   - call HeapGrants::RevokeLost if a lease was allocated, and
//   - free again what was freed: the peer has no access to it any more.
//
// Leases end with their connection. An owner that adopts a shard loads those of all connections,
// calls HeapGrants::FreeLost with what its states know, and sets a timer (Worker::Watch) for the
// earliest next_end(). FreeLost revokes what dead owners have granted and not committed. The timer
// calls FreeOverdue, for each connection in a transaction of its own: those of many connections
// need not fit into one.
//
// Allocate and the functions that free block until the keeper answers, once for each lease. If it
// does not, only the first call waits for it. A service has 256 grants, and its policy may allow
// fewer. A peer may take all of them, and the whole heap, so limit both: `most` of Load, and
// bytes().
#ifndef WORKER_LEASES_H_
#define WORKER_LEASES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/worker.h"

namespace baton {

// Little-endian, and part of the state.
struct Lease {
  uint64_t request;         // LeaseRequest::request
  uint64_t offset;          // of the memory: see memory()
  uint64_t remote_address;  // for the peer
  uint64_t ends_ns;         // of Leases::Now(); 0: with the connection
  uint64_t duration_ns;     // LeaseRequest::duration_ns
  uint32_t id;              // never 0
  uint32_t bytes;
  uint32_t access;  // verbs::Access
  uint32_t grant;   // of Worker::RevokeGrant
  uint32_t rkey;    // for the peer
  uint32_t reserved;

  Buffer memory() const { return {offset, bytes}; }
};
static_assert(offsetof(Lease, id) == 40);
static_assert(sizeof(Lease) == 64);
static_assert(std::is_trivially_copyable_v<Lease>);

struct LeaseRequest {
  // The peer's number for it. A request that is repeated, because its answer may be lost, has the
  // same number.
  uint64_t request = 0;
  uint64_t bytes = 0;        // at least 8 with kRemoteAtomic
  uint32_t access = 0;       // kRemoteRead, kRemoteWrite, kRemoteAtomic, or several
  uint64_t duration_ns = 0;  // at most Leases::kMostDurationNs; 0: as long as the connection
};

// The leases of one connection.
class Leases {
 public:
  static constexpr uint32_t kMostLeases = 64;
  static constexpr uint64_t kMostDurationNs = uint64_t{365} * 86'400 * 1'000'000'000;
  // Where leases begin, so that the peer's atomics are aligned.
  static constexpr uint32_t kAlignment = 64;
  static constexpr uint32_t kHeaderBytes = 16;
  // The bytes of the state of `count` leases. A service needs a connection_state_bytes of this for
  // the most that it gives a peer, and what it keeps of a connection besides.
  static constexpr uint32_t BytesFor(uint32_t count) {
    return kHeaderBytes + count * uint32_t{sizeof(Lease)};
  }
  // Nanoseconds of CLOCK_BOOTTIME, which is the same for all workers of a host.
  static uint64_t Now();

  // Goes on with what was committed, at the beginning of `state`; empty: none. `most`: leases at
  // once, from here on. The library lowers it to kMostLeases and to what connection_state_bytes
  // has room for. kDataLoss: `state` does not begin with leases.
  static absl::StatusOr<Leases> Load(Connection& connection, absl::Span<const uint8_t> state,
                                     uint32_t most = kMostLeases);

  // Returns the BytesFor(all().size()) that the application keeps in the connection's state, valid
  // until this changes or ends.
  absl::Span<const uint8_t> state() const {
    return {reinterpret_cast<const uint8_t*>(&state_), BytesFor(state_.header.count)};
  }

  // Leases memory, all bytes of which are 0. The same request number again: the same lease, however
  // it has been renewed since. Frees overdue leases first, so a number whose lease is over gets a
  // new one.
  // kAlreadyExists: the number has a lease with other parameters. kInvalidArgument: the message
  // names the field. kResourceExhausted: no room; the message says whether in the leases, the heap,
  // the grants or the transaction. kUnimplemented: the device has no atomics.
  absl::StatusOr<Lease> Allocate(const LeaseRequest& request, uint64_t now_ns);
  // Ends the peer's access at once, and frees the memory in the transaction. OK: the peer has no
  // lease `id`, or never had: ids are not given twice before 2^32 others. If the grant cannot be
  // revoked now, it is revoked once the keeper answers, and nobody is given the memory before.
  absl::Status Free(uint32_t id);
  // The lease ends `duration_ns` after `now_ns`, be that sooner or later than before; 0: with the
  // connection. kNotFound: there is no such lease, or its time is over.
  absl::StatusOr<Lease> Renew(uint32_t id, uint64_t duration_ns, uint64_t now_ns);
  // Frees all leases that end at `now_ns` or before.
  absl::Status FreeOverdue(uint64_t now_ns);
  // Frees all. For kDisconnected and kConnectFailed. An error leaves leases, and the message says
  // why: after kResourceExhausted, commit what is staged and free the rest, which no state knows
  // then. If the driver is behind, that takes a while. The next owner's FreeLost frees it as well.
  absl::Status FreeAll();

  // Returns when the first lease ends; nothing if none does before the connection.
  std::optional<uint64_t> next_end() const;
  // Returns null if there is none. Valid until this changes.
  const Lease* Find(uint32_t id) const;
  absl::Span<const Lease> all() const { return {state_.leases, state_.header.count}; }
  // Returns the sum of all leases' bytes. Those that are over count until FreeOverdue.
  uint64_t bytes() const;

 private:
  // Little-endian.
  struct Header {
    uint32_t magic;
    uint16_t version;
    uint16_t count;
    uint32_t last_id;  // 0: none was given yet
    uint32_t reserved;
  };
  static_assert(sizeof(Header) == kHeaderBytes);
  struct State {
    Header header;
    Lease leases[kMostLeases];  // in no order
  };
  static_assert(offsetof(State, leases) == kHeaderBytes);
  static_assert(std::is_trivially_copyable_v<State>);

  static constexpr uint32_t kMagic = 0x5341'454c;  // "LEAS"
  static constexpr uint16_t kVersion = 1;

  Leases(Connection& connection, uint32_t most);

  static absl::Status CheckRequest(const LeaseRequest& request);
  bool IsSound(uint32_t index) const;
  absl::Status FreeAt(uint32_t index);
  uint32_t NextId() const;

  Connection* connection_;
  uint32_t most_;
  State state_ = {};
};

}  // namespace baton

#endif  // WORKER_LEASES_H_

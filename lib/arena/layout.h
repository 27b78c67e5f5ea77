// The bytes of a service's arena, which workers and drivers write for each other. layout.md is the
// specification. Every change here needs a new kLayoutVersion.
//
// Two memories hold logs. Workers write the *worker log memory*, and the driver distrusts it. Only
// the driver writes the *driver log memory*; brokered workers can only read it. The third memory,
// the buffers, has no structure. Everything is little-endian and addressed by offset.
//
// Both sides access the words they race on through std::atomic_ref (atomic_access.h). These words
// order all other fields.
#ifndef LIB_ARENA_LAYOUT_H_
#define LIB_ARENA_LAYOUT_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace baton::arena {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint64_t kMagic = 0x314e41'4e4f544142;  // "BATONAN1"
inline constexpr uint32_t kLayoutVersion = 2;
inline constexpr uint32_t kOldestLayoutVersion = 1;  // its readers can still use this layout
// The same for a service with shared receives: older readers would post receives elsewhere.
inline constexpr uint32_t kSharedReceivesLayoutVersion = 2;
inline constexpr uint32_t kHeapsLayoutVersion = 2;
inline constexpr size_t kPageBytes = 4096;
inline constexpr size_t kLineBytes = 64;
inline constexpr size_t kHugePageBytes = size_t{2} << 20;  // sizes of all files are multiples

inline constexpr uint32_t kMaxShards = 64;
inline constexpr uint32_t kMaxConnections = 131'072;
inline constexpr uint32_t kMaxWorkers = 64;
inline constexpr uint32_t kMaxQueueDepth = 4096;
inline constexpr uint32_t kMaxStateBytes = 1u << 20;
inline constexpr uint64_t kMaxBufferBytes = uint64_t{1} << 40;
inline constexpr uint32_t kMaxInlineBytes = 4096;
inline constexpr uint64_t kMaxHeapBytes = uint64_t{1} << 36;  // of a shard

inline constexpr uint32_t kMaxSges = 4;
// A static_assert of engine.cc (kCrowdedEntries) relates this limit to kCommitLogEntries.
inline constexpr uint32_t kMaxTransactionEntries = 256;
inline constexpr uint32_t kCommitBanks = 4;
inline constexpr uint32_t kCommitLogEntries = 1024;  // per bank
inline constexpr uint32_t kThreadLocks = 8;          // per worker
inline constexpr uint32_t kPrivateDataBytes = 256;
inline constexpr uint32_t kAddressBytes = 56;
inline constexpr uint32_t kServiceNameBytes = 64;
inline constexpr uint32_t kGrants = 256;
inline constexpr uint32_t kRegions = 64;

// The most connection events of one slot that can be unacknowledged at once.
inline constexpr uint32_t kEventsPerConnection = 4;

// Capacity of a service, fixed when it is created.
struct Shape {
  uint32_t shards;
  uint32_t connections;
  uint32_t send_queue_depth;        // a power of two; the log holds twice as many
  uint32_t receive_queue_depth;     // a power of two; the log holds twice as many
  uint32_t completion_log_entries;  // per shard; a power of two, see RequiredCompletionEntries
  uint32_t connection_state_bytes;  // a multiple of 64
  uint32_t shard_state_bytes;       // a multiple of 64
  uint32_t workers;
  uint64_t buffer_bytes;  // a multiple of the page size
  // Per shard, a power of two from 2 on; 0: each connection has receives of its own. Since
  // version 2.
  uint32_t shared_receive_queue_depth;
  uint32_t max_inline_bytes;  // sends of at most so many bytes are posted inline; since version 2
  // Per shard, created in advance for native owners; 0: the service's workers are brokered. Since
  // version 2.
  uint32_t pooled_queue_pairs;
  uint32_t dump_buffers;  // 1: core dumps of processes that map the buffers include them; since 2
  uint32_t heap_pages;    // per shard, of the buffers; 0: no shard has a heap. Since version 2.
  // Per shard, of a brokered service; 0: the service is native, or its driver is of a former
  // release. Arena::Create() sets it. Since version 2.
  uint32_t brokered_queue_pairs;
};
static_assert(offsetof(Shape, pooled_queue_pairs) == 48);
static_assert(offsetof(Shape, heap_pages) == 56);
static_assert(offsetof(Shape, brokered_queue_pairs) == 60);
static_assert(offsetof(Shape, shared_receive_queue_depth) == 40);
static_assert(offsetof(Shape, max_inline_bytes) == 44);
static_assert(sizeof(Shape) == 64);

constexpr bool HasSharedReceives(const Shape& shape) {
  return shape.shared_receive_queue_depth != 0;
}
// Receives per connection; 0 if they are shared.
constexpr uint32_t ReceiveDepth(const Shape& shape) {
  return HasSharedReceives(shape) ? 0 : shape.receive_queue_depth;
}
// Slots for shared receives per shard. At most half are posted, so that the receives acknowledged
// with one transaction leave free slots for the next.
constexpr uint32_t SharedReceiveSlots(const Shape& shape) {
  return 2 * shape.shared_receive_queue_depth;
}
// The end of the buffers is divided into one heap per shard. The application divides up the rest.
constexpr uint64_t HeapBytes(const Shape& shape) { return uint64_t{shape.heap_pages} * kPageBytes; }
constexpr uint64_t HeapOffset(const Shape& shape, uint32_t shard) {
  return shape.buffer_bytes - (shape.shards - shard) * HeapBytes(shape);
}
// The buffers that the work requests of a shard may name: those that all shards share, and the
// shard's heap. The owner of another heap could not know of such a request when it gives out memory
// (layout.md, "Heaps").
struct UsableBuffers {
  uint64_t shared_bytes;  // at the beginning of the buffers
  uint64_t heap_begin;
  uint64_t heap_bytes;

  [[gnu::always_inline]] constexpr bool Has(uint64_t offset, uint64_t length) const {
    if (offset <= shared_bytes && length <= shared_bytes - offset) [[likely]]
      return true;
    const uint64_t in_heap = offset - heap_begin;  // wraps around before the heap
    return in_heap <= heap_bytes && length <= heap_bytes - in_heap;
  }
};
constexpr UsableBuffers UsableBuffersOf(const Shape& shape, uint32_t shard) {
  return {HeapOffset(shape, 0), HeapOffset(shape, shard), HeapBytes(shape)};
}
// Returns true if owners drive their queues themselves (layout.md, "Native owners").
constexpr bool IsNative(const Shape& shape) { return shape.pooled_queue_pairs != 0; }
// Returns the shape with room for all queue pairs of its engine: if it has not said how many, each
// connection may be accepted into any shard.
constexpr Shape WithPools(Shape shape) {
  if (IsNative(shape)) {
    shape.brokered_queue_pairs = 0;
  } else if (shape.brokered_queue_pairs == 0) {
    shape.brokered_queue_pairs = shape.connections;
  }
  return shape;
}
// Returns the places for queue pairs of each shard; 0: the service has no connection manager of its
// own (layout.md, "Native owners").
constexpr uint32_t PooledQueuePairs(const Shape& shape) {
  return shape.pooled_queue_pairs + shape.brokered_queue_pairs;
}
constexpr uint32_t OldestReader(const Shape& shape) {
  // An older worker would have its application divide up the heaps, too.
  if (shape.heap_pages != 0) return kHeapsLayoutVersion;
  return HasSharedReceives(shape) ? kSharedReceivesLayoutVersion : kOldestLayoutVersion;
}

// Every log entry, every shared receive and every event can have an undelivered completion. One
// slot stays free to mark the end.
constexpr uint64_t RequiredCompletionEntries(const Shape& shape) {
  const uint64_t per_connection =
      2 * (uint64_t{shape.send_queue_depth} + ReceiveDepth(shape)) + kEventsPerConnection;
  return std::bit_ceil(per_connection * shape.connections + SharedReceiveSlots(shape) + 1);
}

// ---------------------------------------------------------------- worker log memory

struct WorkerMemoryHeader {
  uint64_t magic;
  uint32_t oldest_reader;  // see DriverMemoryHeader
  uint32_t reserved;
};
static_assert(sizeof(WorkerMemoryHeader) == 16);

// A robust, process-shared pthread_mutex_t of glibc. A worker's thread holds it while it uses the
// library. The kernel marks its first word, the futex, when the thread dies.
struct ThreadLock {
  uint32_t futex;
  uint8_t rest[60];
};
static_assert(sizeof(ThreadLock) == kLineBytes);

struct WorkerSlot {
  uint64_t heartbeat;  // grows while the worker polls
  uint32_t unhealthy;  // 1: the worker reports itself unhealthy; since version 2
  uint8_t pad0[52];
  uint32_t sleeping;  // 1: the driver must signal the worker's socket
  uint8_t pad1[60];
  ThreadLock thread_locks[kThreadLocks];
};
static_assert(offsetof(WorkerSlot, unhealthy) == 8);
static_assert(offsetof(WorkerSlot, sleeping) == 64);
static_assert(offsetof(WorkerSlot, thread_locks) == 128);
static_assert(sizeof(WorkerSlot) == 640);

// BankHeader::handling of a writer that does not report it. The driver stores it with every epoch,
// and workers of version 1 leave it.
inline constexpr uint64_t kHandlingNotTold = ~uint64_t{0};

// The owner of an epoch writes bank epoch % kCommitBanks.
struct BankHeader {
  uint64_t tail;  // PackCursor(epoch, entries published); the release store of a transaction
  uint8_t pad0[56];
  // Hints of the owner. They only select the completion that its own death is blamed on.
  uint64_t read_cursor;  // completions the owner has read
  // 1 + the completion being handled; 0: none; or kHandlingNotTold. Since version 2.
  uint64_t handling;
  // Bytes of the shard's heap as the owner has them, for operators; since version 2. The driver
  // stores 0 in all of them with every epoch: the owner has not told yet.
  uint64_t heap_kept;     // in allocations that belong to the committed state
  uint64_t heap_scratch;  // in allocations that end with the owner
  uint64_t heap_held;     // freed, and not known to be out of use by work requests
  uint64_t heap_largest;  // in the largest range that is free
  // Workers of former releases leave these two at 0.
  uint64_t heap_free;  // could be allocated
  uint64_t heap_rest;  // lost behind the last objects of blocks
};
static_assert(offsetof(BankHeader, read_cursor) == 64);
static_assert(offsetof(BankHeader, handling) == 72);
static_assert(offsetof(BankHeader, heap_kept) == 80);
static_assert(offsetof(BankHeader, heap_rest) == 120);
static_assert(sizeof(BankHeader) == 128);

enum class CommitKind : uint8_t {
  kConnection = 1,   // cursors and application state of a connection
  kAcknowledge = 2,  // the completions before `acknowledged` were handled
  kShardState = 3,   // application state of the shard
  kAccept = 4,       // a requested connection, into `target_shard`
  kReject = 5,
  kDisconnect = 6,
  kRelease = 7,         // the owner gives the shard away; the last entry of its epoch
  kSharedReceives = 8,  // a SharedReceivesEntry; since version 2
  kHeap = 9,            // a HeapEntry; since version 2
};

inline constexpr uint8_t kCommitLast = 1;  // flag: ends the transaction
// Flag of a kConnection: the entry also acknowledges, like kAcknowledge. Since version 2.
inline constexpr uint8_t kCommitAcknowledges = 2;
inline constexpr uint8_t kCommitFlags = kCommitLast | kCommitAcknowledges;
inline constexpr uint32_t kKeepState = 0xff;  // state_slot: unchanged

struct CommitEntry {
  uint8_t kind;
  uint8_t flags;
  uint16_t reserved0;
  uint32_t connection;
  uint32_t generation;
  uint32_t state_slot;  // 0, 1 or kKeepState
  uint64_t send_end;    // commits the sends before this sequence number
  uint64_t receive_end;
  uint32_t state_length;
  uint32_t state_version;
  uint64_t acknowledged;         // kAcknowledge, kCommitAcknowledges
  uint32_t target_shard;         // kAccept
  uint32_t private_data_length;  // kAccept, kReject: in the connection's area
  uint64_t reserved1;
};
static_assert(offsetof(CommitEntry, send_end) == 16);
static_assert(offsetof(CommitEntry, state_length) == 32);
static_assert(offsetof(CommitEntry, acknowledged) == 40);
static_assert(offsetof(CommitEntry, target_shard) == 48);
static_assert(sizeof(CommitEntry) == kLineBytes);
constexpr bool Acknowledges(const CommitEntry& entry) {
  const auto kind = CommitKind(entry.kind);
  return kind == CommitKind::kAcknowledge ||
         (kind == CommitKind::kConnection && (entry.flags & kCommitAcknowledges) != 0);
}

// A CommitEntry of kind kSharedReceives: commits the receives in these slots.
inline constexpr uint32_t kSharedReceivesPerEntry = 30;
struct SharedReceivesEntry {
  uint8_t kind;
  uint8_t flags;
  uint16_t count;
  uint16_t slots[kSharedReceivesPerEntry];
};
static_assert(offsetof(SharedReceivesEntry, flags) == offsetof(CommitEntry, flags));
static_assert(offsetof(SharedReceivesEntry, slots) == 4);
static_assert(sizeof(SharedReceivesEntry) == sizeof(CommitEntry));

// A range of a shard's heap that is divided into objects of one size, of which some are allocated.
// The allocator and the units: layout.md, "Heaps".
inline constexpr uint32_t kHeapUnitBytes = 64;
struct HeapBlock {
  uint32_t pages;  // its length; 0: no block begins at this page
  uint32_t units;  // the length of each object; 0: there is one, as long as the block
  uint64_t kept;   // a bit for each object: 1, if it is allocated
};
static_assert(sizeof(HeapBlock) == 16);
constexpr uint32_t ObjectsOf(const HeapBlock& block) {
  if (block.units == 0) return 1;
  const uint64_t objects = uint64_t{block.pages} * (kPageBytes / kHeapUnitBytes) / block.units;
  return objects < 64 ? static_cast<uint32_t>(objects) : 64;
}
// Returns whether such a block may begin at `page` of a heap of `heap_pages`.
constexpr bool IsHeapBlock(const HeapBlock& block, uint64_t page, uint64_t heap_pages) {
  if (block.pages == 0) return page < heap_pages && block.units == 0 && block.kept == 0;
  if (page >= heap_pages || block.pages > heap_pages - page || block.kept == 0) return false;
  const uint32_t objects = ObjectsOf(block);
  return objects == 64 || block.kept >> objects == 0;
}

// A CommitEntry of kind kHeap: the blocks that begin at these pages become these.
struct HeapChange {
  uint32_t page;
  uint32_t pages;
  uint32_t units;
  uint32_t kept_low;
  uint32_t kept_high;
};
inline constexpr uint32_t kHeapChangesPerEntry = 3;
struct HeapEntry {
  uint8_t kind;
  uint8_t flags;
  uint16_t count;
  HeapChange changes[kHeapChangesPerEntry];
};
static_assert(offsetof(HeapEntry, flags) == offsetof(CommitEntry, flags));
static_assert(offsetof(HeapEntry, changes) == 4);
static_assert(sizeof(HeapEntry) == sizeof(CommitEntry));
constexpr HeapBlock BlockOf(const HeapChange& change) {
  return {change.pages, change.units, uint64_t{change.kept_high} << 32 | change.kept_low};
}
constexpr HeapChange ChangeOf(uint32_t page, const HeapBlock& block) {
  return {page, block.pages, block.units, static_cast<uint32_t>(block.kept),
          static_cast<uint32_t>(block.kept >> 32)};
}

// A send may also name memory of a worker's own. Region r, from 1 to kRegions, begins at offset
// r << 48, far behind any buffers. Since version 2.
inline constexpr int kRegionShift = 48;
static_assert(kMaxBufferBytes < uint64_t{1} << kRegionShift);
constexpr uint64_t RegionOffset(uint32_t region) { return uint64_t{region} << kRegionShift; }
// Returns the region in which `offset` may lie; 0: none.
constexpr uint32_t RegionOf(uint64_t offset) {
  const uint64_t region = offset >> kRegionShift;
  return region <= kRegions ? static_cast<uint32_t>(region) : 0;
}
// Drivers have the places of regions behind those of grants.
constexpr uint32_t GrantOfRegion(uint32_t region) { return kGrants + region - 1; }
constexpr uint32_t RegionOfGrant(uint32_t grant) {  // 0: it is no region
  return grant >= kGrants && grant < kGrants + kRegions ? grant - kGrants + 1 : 0;
}

struct BufferRange {
  uint64_t offset;  // from the start of the buffers, or RegionOffset() + that in a region
  uint32_t length;
  uint32_t reserved;
};
static_assert(sizeof(BufferRange) == 16);

inline constexpr uint8_t kRequestFence = 1;
inline constexpr uint8_t kRequestSolicited = 2;
inline constexpr uint8_t kRequestFlags = kRequestFence | kRequestSolicited;

// One entry of a send or receive log, or of a shared receive.
struct WorkRequest {
  uint8_t opcode;  // verbs::Opcode; 0 in receives
  uint8_t flags;
  uint8_t sge_count;
  // 1: sge_count is 1 and `only` replaces sges[0], so that readers need only the first cache line.
  // Since version 2.
  uint8_t one_line;
  uint32_t immediate;
  uint64_t tag;  // the application's, returned in the completion
  uint64_t remote_address;
  uint32_t rkey;
  uint32_t invalidate_rkey;
  uint64_t compare_add;
  uint64_t swap;
  BufferRange only;
  BufferRange sges[kMaxSges];
};
static_assert(offsetof(WorkRequest, only) == 48);
static_assert(offsetof(WorkRequest, sges) == 64);
static_assert(sizeof(WorkRequest) == 2 * kLineBytes);

// Returns the i-th buffer. REQUIRES: i < request.sge_count <= kMaxSges.
constexpr const BufferRange& RangeOf(const WorkRequest& request, uint32_t i) {
  return request.one_line != 0 ? request.only : request.sges[i];
}

// ---------------------------------------------------------------- driver log memory

struct DriverMemoryHeader {
  uint64_t magic;
  uint32_t oldest_reader;   // layout version; 0: not ready
  uint32_t layout_version;  // since version 2; 0: the same as oldest_reader
  Shape shape;
  char service[kServiceNameBytes];
  uint64_t created_ns;  // when `baton-driver` created the arena; CLOCK_MONOTONIC, nanoseconds
  // Limits of the device; since version 2.
  uint64_t max_message_bytes;  // the longest send; 0: unknown
  uint32_t missing_opcodes;    // a bit for each verbs::Opcode that the device lacks
  uint32_t tells_depths;       // 1: ConnectionRecord has initiator_depth and responder_resources
  uint32_t regions;            // kRegions; 0: the driver has no RegionRecords. Since version 2
  uint8_t pad0[20];
  uint32_t driver_sleeping;  // 1: a worker that commits must signal the driver's socket
  uint8_t pad1[60];
  uint64_t ownership_changes;  // grows whenever an OwnershipRecord or stop_requested changed
  uint8_t pad2[56];
  uint64_t stop_requested;  // a bit for each worker slot that is asked to end; since version 2
  uint8_t pad3[56];
};
static_assert(kMaxWorkers <= 64);
static_assert(offsetof(DriverMemoryHeader, layout_version) == 12);
static_assert(offsetof(DriverMemoryHeader, max_message_bytes) == 152);
static_assert(offsetof(DriverMemoryHeader, regions) == 168);
static_assert(offsetof(DriverMemoryHeader, driver_sleeping) == 192);
static_assert(offsetof(DriverMemoryHeader, ownership_changes) == 256);
static_assert(offsetof(DriverMemoryHeader, stop_requested) == 320);
static_assert(sizeof(DriverMemoryHeader) == 384);

inline constexpr uint32_t kNobody = 0xffff;  // no worker slot
// Native services only. With a worker slot: that worker may make itself the owner, and has not yet.
inline constexpr uint32_t kClaim = 0x8000;
constexpr bool IsClaim(uint32_t slot) { return slot != kNobody && (slot & kClaim) != 0; }
constexpr uint32_t ClaimantOrOwner(uint32_t slot) { return IsClaim(slot) ? slot & ~kClaim : slot; }

// One store of `ownership` moves a whole shard.
struct OwnershipRecord {
  uint64_t ownership;  // PackOwnership(epoch, worker slot or kNobody, sequence)
  uint64_t owner_worker_id;
  // The worker that is expected to follow, for operators to see. No owner is chosen by it. 0: none.
  uint64_t heir_worker_id;
  uint64_t release_requested;  // the epoch whose owner is asked to release; 0: none
  uint64_t cut_epoch;          // the last epoch that ended,
  uint64_t cut_tail;           // and how many commit entries of it count
  uint64_t reserved[2];
};
static_assert(sizeof(OwnershipRecord) == kLineBytes);

struct ShardRecord {
  OwnershipRecord owner;
  uint64_t commit_head;  // PackCursor(epoch, entries applied); their places are free again
  // Version 2. Equal to commit_head: a driver began to apply the transaction there, and has not
  // finished.
  uint64_t apply_begun;
  uint64_t released_epoch;  // version 2: the last epoch whose kRelease was applied
  // Version 2. What the driver is at, for its successor: AtConnection() or kAtTransaction; 0: at
  // nothing of which another one would die.
  uint32_t at;
  // The next three tell of the drivers that died at something.
  uint32_t fatal;           // `at` of the last one
  uint64_t fatal_progress;  // how far that connection, or the shard's commits, had come
  uint32_t fatal_deaths;    // at the same, without progress
  uint8_t pad0[20];
  uint64_t completion_tail;  // completions published
  uint8_t pad1[56];
  uint64_t acknowledged;  // completions the application has handled
  uint32_t state_slot;
  uint32_t state_length;
  uint32_t state_version;
  uint32_t connections;
  uint64_t transactions;
  // Version 2. `posted`: shared receives that the device has. `unsure`: those in kAttempted. The
  // device refused them, or their driver died in the post and the device cannot tell whether they
  // are queued. Only their completion proves that they were posted.
  uint32_t shared_receives_posted;
  uint32_t shared_receives_unsure;
  uint32_t shared_receives_refused;  // not 0: the device refused one; no connection joins the shard
  uint32_t pad2;
  // Version 2. Bytes in the buffers of all committed sends, including READs.
  uint64_t bytes_sent;
  uint8_t pad3[8];
};
static_assert(offsetof(ShardRecord, shared_receives_posted) == 224);
static_assert(offsetof(ShardRecord, commit_head) == 64);
static_assert(offsetof(ShardRecord, at) == 88);
static_assert(offsetof(ShardRecord, completion_tail) == 128);
static_assert(offsetof(ShardRecord, acknowledged) == 192);
static_assert(offsetof(ShardRecord, bytes_sent) == 240);
static_assert(sizeof(ShardRecord) == 256);

// Values of ShardRecord::at.
inline constexpr uint32_t kAtTransaction = 1u << 31;  // reads it, and knows no connection yet
inline constexpr uint32_t kAtRecovery = 1u << 30;     // flag: the connection is being recovered
constexpr uint32_t AtConnection(uint32_t connection) { return connection + 1; }

enum class CompletionKind : uint8_t {
  kSend = 1,
  kReceive = 2,
  kConnectRequest = 3,
  kEstablished = 4,
  kDisconnected = 5,   // the last entry of a connection, behind all its completions
  kConnectFailed = 6,  // the last entry of a connection that was never established
};

inline constexpr uint8_t kCompletionHasImmediate = 1;
inline constexpr uint8_t kCompletionHasInvalidate = 2;
// Since version 2. Older workers ignore these two flags.
inline constexpr uint8_t kCompletionPoisoned = 4;  // the driver has rewritten the entry
inline constexpr uint8_t kCompletionVoid = 8;      // workers skip the entry; see GenerationOf

inline constexpr uint64_t kInvalidWrId = ~uint64_t{0};

struct CompletionEntry {
  uint64_t wr_id;  // PackWrId, or kInvalidWrId while the slot is not filled
  uint64_t tag;    // the work request's; for events the connect's
  uint8_t kind;
  uint8_t status;  // verbs::CompletionStatus
  uint8_t opcode;  // verbs::CompletionOpcode
  uint8_t flags;
  uint32_t byte_len;
  uint32_t immediate;
  uint32_t vendor_error;
  uint32_t connection;
  uint32_t generation;
  uint64_t sequence;  // the work request's in its log; for a shared receive its slot
  uint64_t reserved[2];
};
static_assert(offsetof(CompletionEntry, kind) == 16);
static_assert(offsetof(CompletionEntry, sequence) == 40);
static_assert(sizeof(CompletionEntry) == kLineBytes);

// A void entry contains a generation that no connection has, so that every worker skips it.
inline constexpr uint32_t kVoidGeneration = 1u << 31;
constexpr uint32_t GenerationOf(const CompletionEntry& entry) {
  return (entry.flags & kCompletionVoid) != 0 ? entry.generation ^ kVoidGeneration
                                              : entry.generation;
}

// How the driver rewrites the present and future entries of a connection on whose completion owners
// died (layout.md, "Poison"). Each level includes those before it.
enum class PoisonLevel : uint32_t {
  kNone = 0,
  kFlushed = 1,  // sends and receives are flush errors, kEstablished is void
  kSilent = 2,   // sends and receives are void
  kVoid = 3,     // connect requests and ends are void, too
};

enum class ConnectionState : uint32_t {
  kFree = 0,
  kRequested = 1,
  kConnecting = 2,
  kEstablished = 3,
  kDraining = 4,
  kClosed = 5,
};

// The state of a slot for a shared receive. It is one word, so a driver may die at any change.
enum class SharedReceiveState : uint8_t {
  kFree = 0,       // the owner may commit it
  kAttempted = 1,  // maybe posted
  kPosted = 2,
  kCompleted = 3,  // in the completion log, not acknowledged
};
// Returns what a wr_id has room for.
constexpr uint32_t ShortGeneration(uint64_t generation) {
  return static_cast<uint32_t>(generation & 0x3f);
}
struct SharedReceive {
  uint16_t word;  // PackSharedReceiveState; the generation grows with each attempt to post it
};
static_assert(sizeof(SharedReceive) == 2);
constexpr uint16_t PackSharedReceiveState(SharedReceiveState state, uint32_t generation) {
  return static_cast<uint16_t>(static_cast<uint32_t>(state) | ShortGeneration(generation) << 8);
}
constexpr SharedReceiveState StateOf(SharedReceive receive) {
  return SharedReceiveState(receive.word & 0xff);
}
constexpr uint32_t GenerationOf(SharedReceive receive) { return receive.word >> 8; }

// The progress of a log; each cursor is the sequence number behind the last such request. If the
// connection's receives are shared, `receive.completed` counts its receives and the others are 0.
struct QueueCursors {
  uint64_t committed;     // by a transaction
  uint64_t posted;        // to the device
  uint64_t completed;     // in the completion log
  uint64_t acknowledged;  // handled; the log entry may be used again
};
static_assert(sizeof(QueueCursors) == 32);

// Zero-length work requests that a driver posts behind requests that its dead predecessor may have
// posted, or behind one that the device refused. Their completion resolves those requests. The
// counts wrap; at most kMarkers are outstanding.
struct MarkerCursors {
  uint8_t begun;      // posted, or maybe posted
  uint8_t confirmed;  // certainly posted
  uint8_t completed;
};

struct ConnectionRecord {
  uint32_t state;
  uint32_t generation;  // grows whenever the slot is given to another connection
  uint32_t shard;
  uint32_t qp_number;
  QueueCursors send;
  QueueCursors receive;
  uint32_t state_slot;
  uint32_t state_length;
  uint32_t state_version;
  uint32_t last_status;  // verbs::CompletionStatus that ended the connection
  uint64_t tag;
  uint64_t bytes_received;
  uint32_t private_data_length;
  uint32_t listener_port;  // 0: the service connected to the peer
  // Version 2. The low 32 bits of sequence numbers. Requests from `posted` to before these may have
  // been posted; requests behind them were not.
  uint32_t send_attempted;
  uint32_t receive_attempted;
  char local_address[kAddressBytes];  // "host:port", ends with NUL
  char peer_address[kAddressBytes];
  uint8_t private_data[kPrivateDataBytes];  // the peer's
  uint32_t poison;                          // PoisonLevel; since version 2
  // Since version 2, for a driver's successor.
  uint8_t answered;         // Accept or Connect was called, or may have been
  uint8_t was_established;  // at some time
  MarkerCursors send_markers;
  MarkerCursors receive_markers;
  // 1: its queue pair was destroyed, or given up, with work outstanding. kCondemned: likewise, and
  // drivers do not look at its completions.
  uint8_t abandoned;
  // 1: a driver is accepting the connection into `shard`, and has not applied its cursors and state
  // yet. No worker loads the connection meanwhile. Since version 2.
  uint8_t arriving;
  // READs and atomics that may be outstanding, to the peer and from the peer. Valid once
  // established, if DriverMemoryHeader::tells_depths is set.
  uint8_t initiator_depth;
  uint8_t responder_resources;
};
static_assert(offsetof(ConnectionRecord, send) == 16);
static_assert(offsetof(ConnectionRecord, state_slot) == 80);
static_assert(offsetof(ConnectionRecord, tag) == 96);
static_assert(offsetof(ConnectionRecord, send_attempted) == 120);
static_assert(offsetof(ConnectionRecord, local_address) == 128);
static_assert(offsetof(ConnectionRecord, poison) == 496);
static_assert(offsetof(ConnectionRecord, answered) == 500);
static_assert(offsetof(ConnectionRecord, initiator_depth) == 510);
static_assert(sizeof(ConnectionRecord) == 512);
inline constexpr uint8_t kCondemned = 2;

// Remote access to a range of the buffers. The driver stores `length` before the device registers
// the range, and 0 once it has deregistered it.
struct GrantRecord {
  uint64_t offset;
  uint64_t length;  // 0: free
  uint32_t rkey;    // 0 until the range is registered
  uint32_t access;  // verbs::Access
  uint64_t reserved;
};
static_assert(sizeof(GrantRecord) == 32);

// Memory of a worker's own, which the device reads for sends and for peers' READs. The driver
// stores `length` once the device has registered the memory, and 0 before it deregisters it. The
// records lie behind the header in its page, so that they change no size. Since version 2.
struct RegionRecord {
  uint64_t length;   // 0: free
  uint64_t address;  // of the first byte, for the device: where `baton-driver` has mapped it
  uint32_t lkey;     // of the region's own registration
  uint32_t rkey;     // peers have no access with it if `access` is 0
  uint32_t access;   // verbs::Access: kRemoteRead, or 0
  uint32_t reserved;
  uint64_t descriptor;  // number of the held descriptor of the memfd
  uint64_t offset;      // of the first byte in the memfd
};
static_assert(sizeof(RegionRecord) == 48);
inline constexpr uint64_t kRegionRecords = 1024;  // offset in the driver log memory
static_assert(kRegionRecords >= sizeof(DriverMemoryHeader));
static_assert(kRegionRecords + kRegions * sizeof(RegionRecord) <= kPageBytes);

static_assert(std::is_trivially_copyable_v<ConnectionRecord>);

// ---------------------------------------------------------------- recovery memory (version 2)

// A slot for verbs::CompletionQueue::Take. Only wr_id is part of this layout; the completion queue
// defines the rest.
struct PollSlot {
  uint64_t wr_id;  // kInvalidWrId: the slot is empty
  uint8_t rest[40];
};
static_assert(sizeof(PollSlot) == 48);

// Per shard. A driver polls into the first half. The rest is for recoveries: each polls into the
// slot behind those that its predecessors have filled.
inline constexpr uint32_t kPollSlots = 128;

enum class SpareState : uint32_t {
  kBegun = 1,      // maybe posted
  kConfirmed = 2,  // posted
  kFilled = 3,     // holds the message of the receive `stands_for`
};

// A receive that the driver posts behind all ambiguous receives of a connection. It stands for the
// first of them that was not posted. If all were posted, it stands for the next receive that a
// worker commits.
struct SpareRecord {
  uint32_t owner;  // connection + 1; 0: free
  uint32_t generation;
  uint32_t state;  // SpareState
  uint32_t order;  // grows with each spare posted for the connection
  uint64_t stands_for;
  // kFilled: the completion's fields, as in CompletionEntry.
  uint8_t opcode;
  uint8_t flags;
  uint8_t pad0[2];
  uint32_t byte_len;
  uint32_t immediate;
  uint32_t pad1;
  uint64_t reserved[3];
};
static_assert(offsetof(SpareRecord, stands_for) == 16);
static_assert(sizeof(SpareRecord) == kLineBytes);

inline constexpr uint32_t kSpares = 16;  // per shard
inline constexpr uint32_t kSpareBytes = 64 << 10;
// The most markers outstanding in one queue of a connection. Spares count as markers of the receive
// queue. Each queue reserves room for them.
inline constexpr uint32_t kMarkers = 8;
// The most markers outstanding in a shard. Its completion queue reserves room for them and kSpares.
inline constexpr uint32_t kShardMarkers = 64;

// ---------------------------------------------------------------- connections, changes of owner

// All of version 2. Only `baton-driver` calls the connection manager, and only a shard's driver
// writes the shard. So each shard has two rings: notices from `baton-driver` and orders from the
// shard's driver, each with one writer and one reader. The writer stores an entry before the tail
// that covers it. The reader carries it out before it stores the head that passes it. A reader's
// successor sees every entry not passed.
enum class NoticeKind : uint8_t {  // from `baton-driver`
  kRequested = 1,                  // the record has the connection, with a new generation
  kEstablished = 2,
  kEnded = 3,            // `status`, ManagedConnection::end_reason
  kHoldsNoReceive = 4,   // verbs::DeviceEventType::kLastWorkRequestReached
  kConnecting = 5,       // like kRequested, for a connection that `baton-driver` starts
  kRejected = 6,         // the peer rejected it; ManagedConnection::end_reason
  kQueuePairFailed = 7,  // verbs::DeviceEventType::kQueuePairFailed; ManagedConnection::end_reason
};
inline constexpr auto kLastNoticeKind = NoticeKind::kQueuePairFailed;
enum class OrderKind : uint8_t {  // from the shard's driver
  kAccept = 1,                    // with the queue pair `qp_number`, Arena::private_data
  kReject = 2,
  kDisconnect = 3,
  kFree = 4,  // the slot is free, and its queue pair after the time-wait
};
struct MailEntry {
  uint8_t kind;
  uint8_t status;  // verbs::CompletionStatus
  uint8_t reserved0[2];
  uint32_t connection;
  uint32_t generation;  // the connection's; the reader ignores entries of another generation
  uint32_t reserved1;
};
static_assert(sizeof(MailEntry) == 16);

// Entries before `tail` were written; entries before `head` were carried out. Both only grow.
struct MailCursors {
  uint64_t tail;
  uint8_t pad0[56];
  uint64_t head;
  uint8_t pad1[56];
};
static_assert(offsetof(MailCursors, head) == kLineBytes);
static_assert(sizeof(MailCursors) == 2 * kLineBytes);

inline constexpr uint32_t kNotices = 256;  // what does not fit waits in `baton-driver`
// Room for all orders that can be outstanding: each kind once per connection slot. `baton-driver`
// reuses a slot only after it has carried out the kFree.
constexpr uint32_t OrdersOf(const Shape& shape) { return std::bit_ceil(4 * shape.connections); }

enum class PooledState : uint32_t {
  kFree = 0,   // in INIT: the driver may take it
  kTaken = 1,  // by a connection of the shard, or its connection is unknown
  kSpent = 2,  // `baton-driver` has it until it can be reused
  kLent = 3,   // by `baton-driver` to a connection that it starts for the shard's driver
};
struct PooledQueuePair {
  uint32_t number;
  uint32_t state;  // PooledState
};
static_assert(sizeof(PooledQueuePair) == 8);

// A shard's changes of owner, beside its OwnershipRecord.
struct SuccessionRecord {
  // Written by `baton-driver`. The worker slot + 1 that follows, or in a native service may claim
  // the shard, when its owner is dead or gives it up; 0: none.
  uint64_t heir;
  uint64_t reserved[2];  // the release before noted here what operators were told
  // Written by the engine of a brokered service.
  uint64_t writers[kCommitBanks];  // by commit bank: the worker that may still write it; 0: none
  // Written by the shard's drivers. Times are CLOCK_MONOTONIC, nanoseconds.
  uint64_t served_cause;     // ChangeCause of the change that `blackout_ns` is of
  uint64_t change_begun_ns;  // when the last change of owner began
  uint64_t change_epoch;     // the epoch that this change ends
  uint64_t blackout_ns;      // of the last served change, from its begin to the first commit
  uint64_t served_epoch;     // the last epoch whose owner has committed
  uint64_t cause;            // ChangeCause of the last change
  uint64_t former_worker_id;
  uint64_t recovered;  // the former owner's transactions that the change applied
  uint64_t logged;     // all completions logged when the last change began
};
static_assert(offsetof(SuccessionRecord, change_begun_ns) == kLineBytes);
static_assert(sizeof(SuccessionRecord) == 2 * kLineBytes);
enum class ChangeCause : uint64_t { kDeath = 1, kRelease = 2 };

// The deaths of a shard's owners, counted for "Poison" by each driver that recovers the shard.
// There are two copies. The one with the higher `version` is valid; drivers write the other.
struct RememberedDeath {
  uint64_t worker_id;
  uint64_t handling;  // 1 + the completion that the worker named; 0: none
};
inline constexpr uint32_t kRememberedDeaths = 16;
struct DeathsRecord {
  uint64_t version;        // 0: being written
  uint64_t counted_epoch;  // the last epoch whose end was counted
  uint64_t acknowledged;   // at the last death
  uint64_t logged;         // completions logged at the first death
  uint64_t suspect;        // 1 + the last completion that was named; 0: none
  uint64_t blamed;         // 1 + the completion that is being rewritten; 0: none
  uint32_t deaths;         // without progress
  uint32_t run;            // consecutive deaths that named `suspect`
  uint64_t poisoned;       // connections in total
  uint8_t blamed_level;    // PoisonLevel
  uint8_t guessed;         // 1: `blamed` is the oldest completion; no worker named it
  uint8_t pad0[2];
  uint32_t remembered;
  uint8_t pad1[56];
  RememberedDeath last[kRememberedDeaths];
};
static_assert(offsetof(DeathsRecord, blamed_level) == 64);
static_assert(offsetof(DeathsRecord, last) == 2 * kLineBytes);
static_assert(sizeof(DeathsRecord) == 384);
inline constexpr uint32_t kDeathsCopies = 2;

// The fate of the work requests that were outstanding when an epoch ended, as the driver of the
// next epoch found it. A shard's report number e % kReports is about epoch e.
enum class RequestOutcome : uint8_t {
  kNeverSubmitted = 0,  // not submitted when the epoch ended; the next driver submits it
  kInFlight = 1,
  kCompletedUndelivered = 2,
  kDeliveredUncommitted = 3,
  kPoisoned = 4,   // completed, and no owner is given the completion any more
  kAmbiguous = 5,  // not known yet whether it was submitted
};
struct ReportedRequest {
  uint32_t connection;
  uint8_t send;
  uint8_t opcode;  // verbs::Opcode; sends only
  RequestOutcome outcome;
  uint8_t pad0;
  uint64_t sequence;
};
static_assert(sizeof(ReportedRequest) == 16);
inline constexpr uint32_t kReportedRequests = 256;
// Names the change that a report is about, and counts what became of its work requests.
struct ReportHead {
  uint64_t epoch;  // the epoch that ended; 0: none
  uint64_t former_worker_id;
  uint64_t successor_worker_id;
  uint64_t recovered;  // see SuccessionRecord
  int64_t unix_micros;
  uint64_t never_submitted;  // see RequestOutcome
  uint64_t in_flight;
  uint64_t completed_undelivered;
  uint64_t delivered_uncommitted;
  uint64_t ambiguous;  // 0 in the end
};
struct ReportRecord {
  uint64_t version;  // odd while it is written; grows with each change
  ReportHead head;
  uint32_t cause;   // ChangeCause
  uint32_t listed;  // valid elements of `requests`
  // A connection that was failed because owners died on its completion; 0 deaths: none.
  uint32_t poison_deaths;
  uint32_t poisoned_connection;
  uint32_t poisoned_generation;
  uint8_t poisoned_kind;   // CompletionKind
  uint8_t poison_guessed;  // see DeathsRecord::guessed
  uint8_t poison_remembered;
  uint8_t pad0;
  uint64_t poisoned_completion;
  uint64_t poisoned_sequence;
  uint64_t poisoned_workers[kRememberedDeaths];
  ReportedRequest requests[kReportedRequests];
};
static_assert(offsetof(ReportRecord, cause) == 88);
static_assert(offsetof(ReportRecord, poison_deaths) == 96);
static_assert(offsetof(ReportRecord, poisoned_completion) == 112);
static_assert(offsetof(ReportRecord, requests) == 4 * kLineBytes);
static_assert(sizeof(ReportRecord) == 4352);
inline constexpr uint32_t kReports = 4;

struct ManagedConnection {
  // Written by `baton-driver`.
  char end_reason[128];
  uint8_t initiator_depth;  // set before kEstablished; see ConnectionRecord
  uint8_t responder_resources;
  uint8_t pad0[2];
  uint32_t freed_generation;  // the last generation whose kFree is done
  // Written by the shard's driver.
  uint32_t answer_length;       // of the private data of an accept or reject: Arena::private_data
  uint32_t handled_generation;  // the last whose kRequested or kConnecting was carried out
};
static_assert(offsetof(ManagedConnection, answer_length) == 136);
static_assert(sizeof(ManagedConnection) == 144);

// A worker slot, as Succession and the drivers of shards see it. No brokered worker can write it.
struct WorkerRecord {
  // Written by `baton-driver`.
  uint64_t id;           // of the worker in the slot, or of the last one there
  uint64_t ended_id;     // the last one that has ended: its shards are to move, and it gets none
  uint64_t dead_id;      // the last one whose process is proven dead
  uint64_t pardoned_id;  // the last one whose death is blamed on no completion
  uint64_t reserved[4];
  // Written by the driver of a brokered service's shards.
  uint64_t fenced_id;  // the last one that published an invalid transaction: it has ended, too
  uint64_t left_id;    // the last one whose shards have moved since it ended
  uint64_t buried_id;  // the last one whose banks are free since it was proven dead
  uint64_t reserved2[5];
};
static_assert(offsetof(WorkerRecord, fenced_id) == kLineBytes);
static_assert(sizeof(WorkerRecord) == 2 * kLineBytes);

// ---------------------------------------------------------------- words

// A cursor of an epoch's commit bank: the epoch's low 16 bits above 48 bits of index. The epoch
// distinguishes the stores of this epoch from those of another.
constexpr uint64_t PackCursor(uint64_t epoch, uint64_t index) {
  return epoch << 48 | (index & 0xffff'ffff'ffff);
}
constexpr bool CursorIsOf(uint64_t word, uint64_t epoch) { return word >> 48 == (epoch & 0xffff); }
constexpr uint64_t CursorIndex(uint64_t word) { return word & 0xffff'ffff'ffff; }

// sequence (12 bits), epoch (36), worker slot (16). The sequence grows with each claim, so the
// compare-and-swap of a claimant that was stopped fails. In a brokered service nobody swaps the
// word and the sequence is 0, because workers of version 1 read both fields as the epoch.
inline constexpr uint64_t kEpochs = uint64_t{1} << 36;
inline constexpr uint32_t kClaimSequences = 1u << 12;
constexpr uint64_t PackOwnership(uint64_t epoch, uint32_t worker_slot, uint32_t sequence = 0) {
  return uint64_t{sequence % kClaimSequences} << 52 | epoch % kEpochs << 16 |
         (worker_slot & 0xffff);
}
constexpr uint64_t OwnershipEpoch(uint64_t word) { return word >> 16 & (kEpochs - 1); }
constexpr uint32_t OwnershipSlot(uint64_t word) { return static_cast<uint32_t>(word & 0xffff); }
constexpr uint32_t OwnershipSequence(uint64_t word) { return static_cast<uint32_t>(word >> 52); }

enum class Direction : uint8_t { kSend = 0, kReceive = 1 };

// wr_id: connection (its lower 16 bits), direction (1), connection (its 17th bit), generation (6),
// sequence (40). Workers of former releases look at direction and sequence alone.
static_assert(kMaxConnections <= 1u << 17);
constexpr uint64_t PackWrId(uint32_t connection, uint32_t generation, Direction direction,
                            uint64_t sequence) {
  return uint64_t{connection & 0xffff} << 48 | uint64_t{static_cast<uint8_t>(direction)} << 47 |
         uint64_t{connection >> 16 & 1} << 46 | uint64_t{ShortGeneration(generation)} << 40 |
         (sequence & 0xff'ffff'ffff);
}
constexpr uint32_t WrIdConnection(uint64_t wr_id) {
  return static_cast<uint32_t>(wr_id >> 48 | (wr_id >> 46 & 1) << 16);
}
constexpr Direction WrIdDirection(uint64_t wr_id) { return Direction(wr_id >> 47 & 1); }
constexpr uint32_t WrIdGeneration(uint64_t wr_id) { return ShortGeneration(wr_id >> 40); }
constexpr uint64_t WrIdSequence(uint64_t wr_id) { return wr_id & 0xff'ffff'ffff; }

// Sequences that belong to no work request in a log: events, and requests that a recovery posts.
inline constexpr uint64_t kEventSequence = 0xff'ffff'ffff;
inline constexpr uint64_t kMarkerSequence = 0xff'ffff'0000;  // + MarkerCursors::begun
inline constexpr uint64_t kSpareSequence = 0xff'ffff'1000;   // + spare

inline constexpr uint64_t kSharedReceiveSequence = 0xff'ffff'2000;  // + slot
static_assert(kSharedReceiveSequence + 2 * kMaxQueueDepth < kEventSequence);

// The wr_id of a shared receive. It names no connection; the generation is the slot's.
constexpr uint64_t PackSharedReceive(uint32_t slot, uint32_t generation) {
  return PackWrId(0, generation, Direction::kReceive, kSharedReceiveSequence + slot);
}
constexpr bool IsSharedReceive(uint64_t wr_id) {
  const uint64_t sequence = WrIdSequence(wr_id);
  return WrIdDirection(wr_id) == Direction::kReceive && sequence >= kSharedReceiveSequence &&
         sequence < kSharedReceiveSequence + 2 * kMaxQueueDepth;
}
constexpr uint32_t SharedReceiveSlot(uint64_t wr_id) {
  return static_cast<uint32_t>(WrIdSequence(wr_id) - kSharedReceiveSequence);
}

// ---------------------------------------------------------------- where things are

constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Offsets in the worker log memory.
struct WorkerMemoryMap {
  explicit constexpr WorkerMemoryMap(const Shape& shape)
      : bank_bytes(sizeof(BankHeader) + uint64_t{kCommitLogEntries} * sizeof(CommitEntry)),
        shared_receive_bytes(uint64_t{SharedReceiveSlots(shape)} * sizeof(WorkRequest)),
        shard_bytes(AlignUp(kCommitBanks * bank_bytes + 2 * uint64_t{shape.shard_state_bytes} +
                                shared_receive_bytes,
                            kPageBytes)),
        send_log_bytes(2 * uint64_t{shape.send_queue_depth} * sizeof(WorkRequest)),
        receive_log_bytes(2 * uint64_t{ReceiveDepth(shape)} * sizeof(WorkRequest)),
        shard_state_bytes(shape.shard_state_bytes),
        connection_state_bytes(shape.connection_state_bytes),
        connection_bytes(send_log_bytes + receive_log_bytes +
                         2 * uint64_t{shape.connection_state_bytes} + kPrivateDataBytes),
        workers(kPageBytes),
        shards(AlignUp(workers + shape.workers * sizeof(WorkerSlot), kPageBytes)),
        connections(shards + shape.shards * shard_bytes),
        total(AlignUp(connections + shape.connections * connection_bytes, kPageBytes)) {}

  constexpr uint64_t Worker(uint32_t slot) const { return workers + slot * sizeof(WorkerSlot); }
  constexpr uint64_t Bank(uint32_t shard, uint64_t epoch) const {
    return shards + shard * shard_bytes + epoch % kCommitBanks * bank_bytes;
  }
  constexpr uint64_t BankEntries(uint32_t shard, uint64_t epoch) const {
    return Bank(shard, epoch) + sizeof(BankHeader);
  }
  constexpr uint64_t ShardState(uint32_t shard, uint32_t slot) const {
    return shards + shard * shard_bytes + kCommitBanks * bank_bytes + slot * shard_state_bytes;
  }
  constexpr uint64_t SharedReceives(uint32_t shard) const { return ShardState(shard, 2); }
  constexpr uint64_t SendLog(uint32_t connection) const {
    return connections + connection * connection_bytes;
  }
  constexpr uint64_t ReceiveLog(uint32_t connection) const {
    return SendLog(connection) + send_log_bytes;
  }
  constexpr uint64_t ConnectionState(uint32_t connection, uint32_t slot) const {
    return ReceiveLog(connection) + receive_log_bytes + slot * connection_state_bytes;
  }
  constexpr uint64_t PrivateData(uint32_t connection) const {
    return ReceiveLog(connection) + receive_log_bytes + 2 * connection_state_bytes;
  }

  uint64_t bank_bytes, shared_receive_bytes, shard_bytes, send_log_bytes, receive_log_bytes,
      shard_state_bytes, connection_state_bytes, connection_bytes, workers, shards, connections,
      total;
};

// Offsets in the driver log memory.
struct DriverMemoryMap {
  explicit constexpr DriverMemoryMap(const Shape& shape)
      : completion_log_bytes(uint64_t{shape.completion_log_entries} * sizeof(CompletionEntry)),
        shards(kPageBytes),
        grants(AlignUp(shards + shape.shards * sizeof(ShardRecord), kPageBytes)),
        connections(AlignUp(grants + kGrants * sizeof(GrantRecord), kPageBytes)),
        completion_logs(
            AlignUp(connections + shape.connections * sizeof(ConnectionRecord), kPageBytes)),
        shared_receive_bytes(uint64_t{SharedReceiveSlots(shape)} * sizeof(SharedReceive)),
        shared_receives(AlignUp(completion_logs + shape.shards * completion_log_bytes, kPageBytes)),
        heap_bytes(uint64_t{shape.heap_pages} * sizeof(HeapBlock)),
        heaps(AlignUp(shared_receives + shape.shards * shared_receive_bytes, kPageBytes)),
        total(AlignUp(heaps + shape.shards * heap_bytes, kPageBytes)) {}

  constexpr uint64_t Shard(uint32_t shard) const { return shards + shard * sizeof(ShardRecord); }
  constexpr uint64_t Grant(uint32_t grant) const { return grants + grant * sizeof(GrantRecord); }
  // REQUIRES: region from 1 to kRegions.
  static constexpr uint64_t Region(uint32_t region) {
    return kRegionRecords + (region - 1) * sizeof(RegionRecord);
  }
  constexpr uint64_t Connection(uint32_t connection) const {
    return connections + connection * sizeof(ConnectionRecord);
  }
  constexpr uint64_t CompletionLog(uint32_t shard) const {
    return completion_logs + shard * completion_log_bytes;
  }
  constexpr uint64_t SharedReceives(uint32_t shard) const {
    return shared_receives + shard * shared_receive_bytes;
  }
  constexpr uint64_t Heap(uint32_t shard) const { return heaps + shard * heap_bytes; }

  uint64_t completion_log_bytes, shards, grants, connections, completion_logs, shared_receive_bytes,
      shared_receives, heap_bytes, heaps, total;
};

// Offsets in the recovery memory: poll slots, spare records, spare buffers, and what belongs to
// each shard, connection and worker slot. Only the spare buffers are registered with the device.
struct RecoveryMemoryMap {
  explicit constexpr RecoveryMemoryMap(const Shape& shape)
      : poll_slots(0),
        spares(uint64_t{shape.shards} * kPollSlots * sizeof(PollSlot)),
        spare_buffers(
            AlignUp(spares + uint64_t{shape.shards} * kSpares * sizeof(SpareRecord), kPageBytes)),
        spare_buffers_bytes(uint64_t{shape.shards} * kSpares * kSpareBytes),
        notice_bytes(sizeof(MailCursors) + kNotices * sizeof(MailEntry)),
        order_bytes(sizeof(MailCursors) + OrdersOf(shape) * sizeof(MailEntry)),
        pool_bytes(
            AlignUp(uint64_t{PooledQueuePairs(shape)} * sizeof(PooledQueuePair), kLineBytes)),
        shard_bytes(sizeof(SuccessionRecord) + kDeathsCopies * sizeof(DeathsRecord) +
                    kReports * sizeof(ReportRecord) + notice_bytes + order_bytes + pool_bytes),
        shards(spare_buffers + spare_buffers_bytes),
        managed_connections(AlignUp(shards + shape.shards * shard_bytes, kPageBytes)),
        worker_records(
            AlignUp(managed_connections + uint64_t{shape.connections} * sizeof(ManagedConnection),
                    kPageBytes)),
        total(PooledQueuePairs(shape) != 0
                  ? AlignUp(worker_records + uint64_t{shape.workers} * sizeof(WorkerRecord),
                            kPageBytes)
                  : shards) {}

  constexpr uint64_t PollSlots(uint32_t shard) const {
    return poll_slots + uint64_t{shard} * kPollSlots * sizeof(PollSlot);
  }
  constexpr uint64_t Spare(uint32_t shard, uint32_t spare) const {
    return spares + (uint64_t{shard} * kSpares + spare) * sizeof(SpareRecord);
  }
  constexpr uint64_t SpareBuffer(uint32_t shard, uint32_t spare) const {
    return spare_buffers + (uint64_t{shard} * kSpares + spare) * kSpareBytes;
  }

  // REQUIRES: PooledQueuePairs() != 0.
  constexpr uint64_t SuccessionOf(uint32_t shard) const { return shards + shard * shard_bytes; }
  constexpr uint64_t DeathsOf(uint32_t shard) const {
    return SuccessionOf(shard) + sizeof(SuccessionRecord);
  }
  constexpr uint64_t Reports(uint32_t shard) const {
    return DeathsOf(shard) + kDeathsCopies * sizeof(DeathsRecord);
  }
  constexpr uint64_t Notices(uint32_t shard) const {
    return Reports(shard) + kReports * sizeof(ReportRecord);
  }
  constexpr uint64_t Orders(uint32_t shard) const { return Notices(shard) + notice_bytes; }
  constexpr uint64_t Pool(uint32_t shard) const { return Orders(shard) + order_bytes; }
  constexpr uint64_t WorkerRecordOf(uint32_t slot) const {
    return worker_records + slot * sizeof(WorkerRecord);
  }
  constexpr uint64_t ManagedConnectionOf(uint32_t connection) const {
    return managed_connections + connection * sizeof(ManagedConnection);
  }

  uint64_t poll_slots, spares, spare_buffers, spare_buffers_bytes, notice_bytes, order_bytes,
      pool_bytes, shard_bytes, shards, managed_connections, worker_records, total;
};

}  // namespace baton::arena

#endif  // LIB_ARENA_LAYOUT_H_

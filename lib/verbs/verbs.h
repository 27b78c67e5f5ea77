// The one seam between Baton and RDMA hardware, in the terms of verbs. Two devices stand behind it:
// `soft` (lib/verbs/soft, a reliable-connected device over TCP) and `rdma` (libibverbs, librdmacm).
//
// Thread-safety: none. All objects of one Device are used by one thread at a time (the driver of
// its queues). Lifetime: a Device outlives all objects made from it.
//
// Processes: one opens the device, and what forked ones have of it is of no use, unless
// CheckForkable says otherwise. Then queues that were there before the fork are operated by one
// process at a time, whichever: see Device::AfterFork.
#ifndef LIB_VERBS_VERBS_H_
#define LIB_VERBS_VERBS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton::verbs {

namespace mlx5 {
class CompletionQueue;
class QueuePair;
}  // namespace mlx5

enum class Opcode : uint8_t {
  kSend = 0,
  kSendWithImmediate = 1,
  kWrite = 2,
  kWriteWithImmediate = 3,
  kRead = 4,
  kCompareAndSwap = 5,
  kFetchAndAdd = 6,
  kSendWithInvalidate = 7,
};
inline constexpr uint8_t kOpcodeCount = 8;

// What a completion reports; the names are those of ibv_wc_status.
enum class CompletionStatus : uint8_t {
  kSuccess = 0,
  kLocalLengthError,
  kLocalQpError,
  kLocalProtectionError,
  kFlushError,  // the queue pair was in the error state
  kBadResponse,
  kRemoteInvalidRequest,
  kRemoteAccessError,
  kRemoteOperationError,
  kRetryExceeded,     // transport retries used up: the peer does not answer
  kRnrRetryExceeded,  // receiver-not-ready retries used up: the peer posts no receives
  kGeneralError,
  kFatalError,  // the device is lost
};
std::string_view CompletionStatusName(CompletionStatus status);
std::string_view OpcodeName(Opcode opcode);

enum class CompletionOpcode : uint8_t {
  kSend = 0,  // SEND of any kind
  kWrite,
  kRead,
  kCompareAndSwap,
  kFetchAndAdd,
  kReceive,               // consumed by a SEND
  kReceiveWithImmediate,  // consumed by a WRITE_WITH_IMM; byte_len is what was written
};

// One local buffer: within a registered memory region, by virtual address.
struct ScatterGather {
  uint64_t address = 0;
  uint32_t length = 0;
  uint32_t lkey = 0;
};

struct alignas(64) SendRequest {
  uint64_t wr_id = 0;
  Opcode opcode = Opcode::kSend;
  bool fence = false;      // waits for earlier READs and atomics of this queue
  bool solicited = false;  // raises a solicited event at the receiver
  // SEND and WRITE of any kind: what it sends is copied before PostSend returns, and its buffers
  // are free again. Their lkeys are not looked at.
  bool inline_data = false;
  uint32_t immediate = 0;       // host order; *_WITH_IMM
  uint64_t remote_address = 0;  // WRITE, READ, atomics
  uint32_t rkey = 0;
  uint32_t invalidate_rkey = 0;  // SEND_WITH_INV
  absl::Span<const ScatterGather> sges;
  // Of atomics; of others they are anything.
  uint64_t compare_add = 0;  // FETCH_AND_ADD: addend; COMPARE_AND_SWAP: expected value
  uint64_t swap = 0;         // COMPARE_AND_SWAP: new value
};
static_assert(sizeof(SendRequest) == 64);  // a cache line

constexpr bool IsAtomic(Opcode opcode) {
  return opcode == Opcode::kCompareAndSwap || opcode == Opcode::kFetchAndAdd;
}
// With data of the peer.
constexpr bool IsAnswered(Opcode opcode) { return opcode == Opcode::kRead || IsAtomic(opcode); }

// For devices: what is wrong with a request that is to be inline. kInvalidArgument.
absl::Status CheckInline(const SendRequest& request, uint32_t max_inline_data);

struct ReceiveRequest {
  uint64_t wr_id = 0;
  absl::Span<const ScatterGather> sges;
};

// Valid only as far as `status` allows: after an error only wr_id, status, vendor_error and
// qp_number hold (ibv_poll_cq(3)).
struct Completion {
  uint64_t wr_id = 0;
  CompletionStatus status = CompletionStatus::kSuccess;
  CompletionOpcode opcode = CompletionOpcode::kSend;
  bool has_immediate = false;
  bool has_invalidate = false;
  uint32_t byte_len = 0;   // receives, READ and atomics
  uint32_t immediate = 0;  // host order; the invalidated rkey when has_invalidate
  uint32_t qp_number = 0;  // after an error; receives, READ and atomics
  uint32_t vendor_error = 0;
  uint8_t room[16] = {};  // CompletionQueue::Take: what devices have is larger
};

// Rights of a memory region; local read is always given.
enum Access : uint32_t {
  kLocalWrite = 1,
  kRemoteWrite = 2,  // needs kLocalWrite
  kRemoteRead = 4,
  kRemoteAtomic = 8,  // needs kLocalWrite
};

struct DeviceLimits {
  uint32_t max_queue_pairs = 0;
  uint32_t max_completion_queues = 0;
  uint32_t max_completion_queue_entries = 0;
  uint32_t max_send_requests = 0;     // per queue pair
  uint32_t max_receive_requests = 0;  // per queue pair
  uint32_t max_scatter_gather = 0;
  uint32_t max_memory_regions = 0;
  uint32_t max_private_data_connect = 0;  // bytes the caller may send with a request
  uint32_t max_private_data_accept = 0;   // bytes with an accept
  uint32_t max_private_data_reject = 0;
  uint32_t max_initiator_depth = 0;          // outstanding READs and atomics
  uint32_t max_shared_receive_queues = 0;    // 0: the device has none
  uint32_t max_shared_receive_requests = 0;  // of each
  uint32_t max_shared_receive_scatter_gather = 0;
  uint64_t max_message_bytes = 0;
  bool atomics = false;
  bool send_with_invalidate = false;
};

// A registered range. Destroying it deregisters: later remote access with its rkey, and local
// access with its lkey, fails.
class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  virtual uint32_t lkey() const = 0;
  virtual uint32_t rkey() const = 0;
};

class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;

  // Takes up to completions.size() completions, oldest first; 0 when there are none. An error
  // (kDataLoss) means the queue was overrun and is unusable.
  virtual absl::StatusOr<int> Poll(absl::Span<Completion> completions) = 0;

  // In two steps, for who may be killed in the middle of it and leaves `taken` in memory that
  // outlives it, with invalid wr_ids: what was taken from the queue is there, whole, and the next
  // Take gives the rest. Of what is there only the wr_id means something until Read, of this queue
  // in any process, tells the rest.
  virtual absl::StatusOr<int> Take(absl::Span<Completion> taken) { return Poll(taken); }
  virtual void Read(absl::Span<const Completion> taken, Completion* completions) {
    std::copy(taken.begin(), taken.end(), completions);
  }

  // Returns the queue itself if it lies in shared memory in mlx5's format and the next poll needs
  // nothing else: its TakeEach then polls as Take does, without a copy. Null: call Take. Ask before
  // each poll.
  virtual mlx5::CompletionQueue* DirectQueue() { return nullptr; }

  // Called by a process that goes on, with this queue and the queue pairs that complete in it,
  // where another has been: first, and when that one is dead or will use them no more.
  virtual void Resume() {}

  // Asks that Device::event_fd become readable at the next completion added after this call. The
  // caller polls once more after it, before it sleeps: a poll that finds something has used the
  // request up, and it asks and polls again.
  virtual absl::Status RequestNotification() = 0;

  // This process polls it no more, for now: another does, and what comes is not for our event_fd.
  virtual void ForgetNotification() {}
};

// Receives for all queue pairs that were made with it: each message takes the next one when it
// begins, so there is no order between the completions of different queue pairs. It outlives its
// queue pairs.
class SharedReceiveQueue {
 public:
  virtual ~SharedReceiveQueue() = default;

  // Posts in order; on failure `*posted` tells how many were taken before the refused one. Refused:
  // kResourceExhausted (queue full), kInvalidArgument (too many sges). The error of a queue pair
  // does not touch what it has not taken: that stays for the others, and goes with the queue.
  virtual absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) = 0;

  // Asks for one kSharedReceiveQueueLow, when a message takes a receive and leaves less than
  // `limit`. 0: for none.
  virtual absl::Status ArmLimit(uint32_t limit) = 0;

  // Returns whether a receive of this wr_id was posted whose completion Poll and Take have not
  // given yet. A driver that follows one that was killed calls it after CompletionQueue::Resume of
  // all queues where such receives complete. Errors as of QueuePair::LastQueued.
  virtual absl::StatusOr<bool> IsQueued(uint64_t wr_id) const;
};

enum class QueuePairState : uint8_t { kReset, kInit, kReadyToReceive, kReadyToSend, kError };

struct QueuePairOptions {
  CompletionQueue* send_queue = nullptr;     // where completions of sends go
  CompletionQueue* receive_queue = nullptr;  // may be the same
  uint32_t max_send_requests = 0;
  uint32_t max_receive_requests = 0;  // unused with a shared receive queue
  uint32_t max_scatter_gather = 1;
  // Bytes of a send that can be inline. No limit of a device tells how many it can have: it refuses
  // to make the queue pair (ibv_create_qp(3)).
  uint32_t max_inline_data = 0;
  SharedReceiveQueue* shared_receive_queue = nullptr;  // where it takes its receives from
};

// A reliable-connected queue pair. Made in state INIT: receives may be posted, sends not.
// Every send is signalled. Destroying it with completions still in the CQ leaves those there.
class QueuePair {
 public:
  virtual ~QueuePair() = default;
  virtual uint32_t number() const = 0;
  virtual QueuePairState state() const = 0;
  virtual uint32_t max_inline_data() const { return 0; }  // granted: what was asked for, or more

  // Post in order; on failure `*posted` tells how many were taken before the refused one. Refused:
  // kResourceExhausted (queue full), kInvalidArgument (too many sges, too long or no message to be
  // inline; bad lkey or bounds are found at execution instead and complete with an error),
  // kFailedPrecondition (state: sends before RTS; receives where they come from a shared queue). In
  // the error state requests are taken and complete with kFlushError.
  virtual absl::Status PostSend(absl::Span<const SendRequest> requests, size_t* posted) = 0;
  virtual absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) = 0;

  // Returns the queue pair itself if its queues lie in shared memory in mlx5's format, and its
  // owner's driver may write requests there. Null: call PostSend and PostReceive.
  virtual mlx5::QueuePair* DirectQueues() { return nullptr; }
  // Returns the wr_id of the last send (`receive`: receive) that is queued and whose completion
  // Poll and Take have not given yet, or nullopt if there is none. What is queued has been executed
  // or will be, whoever queued it. A driver that follows one that was killed calls it after
  // CompletionQueue::Resume, and finds out what its predecessor had queued.
  // kUnimplemented: the device cannot say. kDataLoss: what the queue's memory says makes no sense.
  virtual absl::StatusOr<std::optional<uint64_t>> LastQueued(bool receive) const;

  // To the error state: everything outstanding completes with kFlushError.
  virtual absl::Status SetError() = 0;

  // Of one that is used for one connection after the other. SetReset drops what is outstanding,
  // without completions, and touches no memory any more. Completions that nobody has polled yet may
  // be dropped, too, if another process polls. SetInit then makes it as new. When it may
  // be used again (its time-wait) is the caller's to know. kUnimplemented: this device cannot.
  virtual absl::Status SetReset();
  virtual absl::Status SetInit();

  // With a shared receive queue and in the error state: it takes no receive any more, and those
  // that it took have their completions in the completion queue. Until then one that it took would
  // be lost with it. kLastWorkRequestReached tells when this comes true.
  virtual bool receives_drained() const { return false; }

  // In a forked process: others may have changed it since. A device that keeps in each process what
  // it last knew of a queue pair asks anew.
  virtual void ForgetState() { (void)state(); }

  // In a forked process: another has connected it since, and told us. Its state need not be asked
  // for. `reads`: the peer answers READs and atomics.
  virtual void NoteConnected([[maybe_unused]] bool reads) {}
};

// Endpoint of the connection manager's addresses: IPv4 or IPv6 literal.
struct Address {
  std::string host;
  uint16_t port = 0;
};

// What the packets of a connection bear, on our side.
struct Route {
  std::string gid;          // as an IPv4 or IPv6 address
  uint16_t p_key = 0xffff;  // of a device without partitions: the default one, in full
  uint8_t service_level = 0;
};

struct ConnectionParameters {
  std::string private_data;
  uint8_t responder_resources = 16;  // READs and atomics the peer may have outstanding to us
  uint8_t initiator_depth = 16;      // that we may have outstanding to the peer
  uint8_t retry_count = 7;           // transport retries, 0..7
  uint8_t rnr_retry_count = 7;       // 7: for ever
  // Of Connect: asked when the route is known, before the peer hears anything. An error is that of
  // the connection, kUnreachable. None: any route will do.
  std::function<absl::Status(const Route& route)> check_route = {};
};

// READs and atomics that may be outstanding on a connection.
struct ReadDepths {
  uint8_t ours = 0;    // to the peer; 0: it answers none
  uint8_t theirs = 0;  // to us
};

// One connection as the connection manager sees it (rdma_cm_id). Destroying it drops the
// connection: the peer sees a disconnect. It is destroyed before its queue pair.
class ConnectionId {
 public:
  virtual ~ConnectionId() = default;
  virtual Address local_address() const = 0;
  virtual Address peer_address() const = 0;
  virtual ReadDepths depths() const = 0;  // of what both sides want and can; once it is established
  // Of an id from kConnectRequest, or whose route is known.
  virtual Route route() const;

  // For an id from kConnectRequest: binds `queue_pair` (state INIT) and moves it to RTS;
  // kEstablished follows when the peer is ready too. Exactly one of Accept and Reject is called.
  virtual absl::Status Accept(QueuePair* queue_pair, const ConnectionParameters& parameters) = 0;
  virtual absl::Status Reject(std::string_view private_data) = 0;

  // Tells the peer and sets the queue pair to the error state; kDisconnected follows.
  virtual absl::Status Disconnect() = 0;

  void* context = nullptr;  // the user's
};

class Listener {
 public:
  virtual ~Listener() = default;        // stops listening; requests not yet reported are rejected
  virtual Address address() const = 0;  // with the port that was chosen when 0 was asked for
  void* context = nullptr;              // the user's
};

enum class CmEventType : uint8_t {
  kConnectRequest,  // at a listener; carries `new_id` and the peer's private data
  kEstablished,     // private data of the accept, at the connecting side
  kRejected,        // with the peer's private data
  kUnreachable,     // address, route, or no answer; see `status`
  kDisconnected,    // by the peer or by Disconnect(); the queue pair is in the error state
};

struct CmEvent {
  CmEventType type = CmEventType::kConnectRequest;
  Listener* listener = nullptr;          // kConnectRequest
  std::unique_ptr<ConnectionId> new_id;  // kConnectRequest: the receiver's to keep
  ConnectionId* id = nullptr;            // all others
  std::string private_data;
  absl::Status status;  // kUnreachable, kRejected: why
};

// What happens to a device beside its connections' messages; the names follow
// ibv_get_async_event(3).
enum class DeviceEventType : uint8_t {
  kPortUp = 0,
  kPortDown,                  // retries bridge it; a connection ends when they are used up
  kAddressesChanged,          // GIDs, LID, P_Keys, subnet manager: connections may have lost their
                              // path, listeners their address
  kPathMigrated,              // a queue pair uses its other path
  kQueuePairFailed,           // it is in the error state
  kCompletionQueueFailed,     // so are all queue pairs that complete in it; its Poll says kDataLoss
  kSharedReceiveQueueLow,     // its limit is reached
  kSharedReceiveQueueFailed,  // no queue pair can receive from it any more
  kLastWorkRequestReached,    // QueuePair::receives_drained has come true; the end of each one
  kDeviceLost,                // removed, or broken: to be given up. Told once
};
std::string_view DeviceEventTypeName(DeviceEventType type);

struct DeviceEvent {
  DeviceEventType type = DeviceEventType::kPortUp;
  uint8_t port = 0;                                          // of what is about a port
  uint32_t qp_number = 0;                                    // of what is about a queue pair
  const SharedReceiveQueue* shared_receive_queue = nullptr;  // of what is about one
  std::string text;                                          // what the device calls it
};

enum class PortState : uint8_t { kUnknown = 0, kDown, kInitializing, kArmed, kActive };
std::string_view PortStateName(PortState state);

// What a device is and how it is, for operators.
struct DeviceInfo {
  std::string name;
  std::string transport;  // "InfiniBand", "RoCE v2", "TCP"
  uint8_t port = 0;       // 0: it has none
  PortState port_state = PortState::kUnknown;
  uint32_t active_mtu = 0;        // bytes of payload in a packet; 0: it has no packets
  std::string network_interface;  // of RoCE; empty: not known
  std::vector<std::string> gids;  // of the port, "1: ::ffff:10.0.0.1 (RoCE v2)"
  std::string gid;                // the one that connections have; empty: that of their address
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual DeviceLimits limits() const = 0;
  virtual DeviceInfo info() const;  // as it is now

  // [address, address + length) must stay mapped, MAP_SHARED, as long as the region lives.
  virtual absl::StatusOr<std::unique_ptr<MemoryRegion>> RegisterMemory(void* address, size_t length,
                                                                       uint32_t access) = 0;
  // Says where memory comes from that is to be registered: `length` bytes at `address` are mapped
  // from the beginning of `memfd`, which is sealed against growing and shrinking. A device that is
  // another process reaches no other memory. All others ignore it.
  virtual absl::Status NameMemory([[maybe_unused]] void* address, [[maybe_unused]] size_t length,
                                  [[maybe_unused]] int memfd) {
    return absl::OkStatus();
  }
  // True: RegisterMemory and the destruction of a region take time for each page, and may be called
  // on any thread while another one uses the device. False: they are quick, and for the device's
  // thread alone.
  virtual bool registers_on_any_thread() const { return false; }
  virtual absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(
      uint32_t entries) = 0;
  virtual absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) = 0;
  // kInvalidArgument: more than the device's limits.
  virtual absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> CreateSharedReceiveQueue(
      uint32_t entries, uint32_t max_scatter_gather);

  // Holds the port in TCP's port space, whatever the device, as long as the listener lives: a port
  // is one service's, however peers come to it. Port 0: one that TCP and the device have free.
  // kAlreadyExists: the port is taken; NamePortOwner (port_owner.h) finds out by whom.
  // kResourceExhausted: port 0, and none was found.
  virtual absl::StatusOr<std::unique_ptr<Listener>> Listen(const Address& address, int backlog) = 0;

  // Starts connecting `queue_pair` (state INIT); the outcome is an event. The queue pair is in RTS
  // when kEstablished is reported.
  virtual absl::StatusOr<std::unique_ptr<ConnectionId>> Connect(
      const Address& address, QueuePair* queue_pair, const ConnectionParameters& parameters) = 0;

  // Takes the next connection-manager event; false when there is none.
  virtual bool NextEvent(CmEvent* event) = 0;

  // Takes the next event of the device; false when there is none. None is lost, however many come:
  // those that are not taken keep event_fd readable.
  virtual bool NextDeviceEvent(DeviceEvent* event) {
    (void)event;
    return false;
  }

  // Does what the device does in software (soft: sockets and timers; rdma: nothing). Called in
  // every turn of the loop that polls.
  virtual void Progress() = 0;

  // Readable when Progress, NextEvent, NextDeviceEvent, or Poll of a CQ whose notification was
  // requested may have something to do; may be readable in vain. Level-triggered until that was
  // done. It tells of the queues that this process has asked a notification of, so who leaves them
  // to forked processes does not ask.
  virtual int event_fd() const = 0;

  // Whether forked processes can operate this device's queues, and if not, why.
  virtual absl::Status CheckForkable() const;

  // The first call of a forked process. Of what was made before the fork it can use then: PostSend,
  // PostReceive and ArmLimit, Poll and RequestNotification, state (which asks the device each time:
  // the opener may have connected a queue pair meanwhile), SetError, receives_drained, and Progress
  // and event_fd for these. The rest is the opener's: events and the connection manager's calls
  // (refused with kFailedPrecondition, or none), making objects (refused) and destroying them: here
  // that takes nothing from the device, or from other processes. Notifications that the opener or
  // another has asked for may wake in vain.
  virtual absl::Status AfterFork();

  // Of a forked process, after AfterFork: the descriptors that it needs for what it can use. All
  // others that the device had at the fork it may close.
  virtual std::vector<int> ForkedDescriptors() const { return {}; }
};

}  // namespace baton::verbs

#endif  // LIB_VERBS_VERBS_H_

// The interface between Baton and RDMA hardware, in the terms of verbs. Two devices implement it:
// `soft` (lib/verbs/soft, a reliable-connected device over TCP) and `rdma` (libibverbs and the
// kernel's rdma_cm).
//
// Thread-safety: none. One thread at a time uses all objects of a Device (the driver of its
// queues). Lifetime: a Device outlives all objects made from it.
//
// Processes: the process that opened the device uses it. A forked process may use queues made
// before the fork only if CheckForkable() returns OK. One process at a time operates each queue:
// see Device::AfterFork.
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
#include "lib/verbs/inherited.h"

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

// The outcome of a work request, with the names of ibv_wc_status.
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
  // SEND and WRITE of any kind. PostSend copies the buffers before it returns, so the caller may
  // reuse them at once. Their lkeys are ignored.
  bool inline_data = false;
  uint32_t immediate = 0;       // host order; *_WITH_IMM
  uint64_t remote_address = 0;  // WRITE, READ, atomics
  uint32_t rkey = 0;
  uint32_t invalidate_rkey = 0;  // SEND_WITH_INV
  absl::Span<const ScatterGather> sges;
  // Atomics only; ignored for other opcodes.
  uint64_t compare_add = 0;  // FETCH_AND_ADD: addend; COMPARE_AND_SWAP: expected value
  uint64_t swap = 0;         // COMPARE_AND_SWAP: new value
};
static_assert(sizeof(SendRequest) == 64);  // a cache line

constexpr bool IsAtomic(Opcode opcode) {
  return opcode == Opcode::kCompareAndSwap || opcode == Opcode::kFetchAndAdd;
}
// Returns true if the peer's answer carries data: READ and atomics.
constexpr bool IsAnswered(Opcode opcode) { return opcode == Opcode::kRead || IsAtomic(opcode); }

// Checks a request with `inline_data`, for implementations of Device. kInvalidArgument: the request
// is a READ or an atomic, or has more than `max_inline_data` bytes.
absl::Status CheckInline(const SendRequest& request, uint32_t max_inline_data);

struct ReceiveRequest {
  uint64_t wr_id = 0;
  absl::Span<const ScatterGather> sges;
};

// After an error only wr_id, status, vendor_error and qp_number are valid (ibv_poll_cq(3)).
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
  uint8_t room[16] = {};  // for CompletionQueue::Take: a device's own format is larger
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
  uint32_t max_shared_receive_requests = 0;  // per shared receive queue
  uint32_t max_shared_receive_scatter_gather = 0;
  uint64_t max_message_bytes = 0;
  bool atomics = false;
  bool send_with_invalidate = false;
};

// A registered range. Destroying it deregisters the range: later remote access with its rkey and
// local access with its lkey fail.
class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  virtual uint32_t lkey() const = 0;
  virtual uint32_t rkey() const = 0;
};

class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;

  // Takes up to completions.size() completions, oldest first. Returns their number, 0 if there are
  // none. kDataLoss: the queue was overrun and is unusable.
  virtual absl::StatusOr<int> Poll(absl::Span<Completion> completions) = 0;

  // Polls in two steps so that a killed poller loses nothing. The caller passes slots in memory
  // that outlives it, with invalid wr_ids. Take() fills a slot completely before it consumes the
  // completion. After a crash, the slots with valid wr_ids hold all consumed completions, and
  // calling Take() again returns the next ones. It may return the last completion in the slots a
  // second time, if that was not consumed yet. Only the wr_id of a slot has a meaning until Read(),
  // called on this queue in any process, converts it.
  virtual absl::StatusOr<int> Take(absl::Span<Completion> taken) { return Poll(taken); }
  virtual void Read(absl::Span<const Completion> taken, Completion* completions) {
    std::copy(taken.begin(), taken.end(), completions);
  }

  // Returns the queue itself if it lies in shared memory in mlx5's format and the next poll needs
  // nothing else. Its TakeEach() then polls like Take(), without a copy. Null: call Take(). The
  // caller asks before each poll.
  virtual mlx5::CompletionQueue* DirectQueue() { return nullptr; }

  // A process calls this first when it takes over this queue, and the queue pairs that complete in
  // it, from another process. A device whose queue pairs implement LastQueued() then also rings for
  // everything that the other process had queued. (mlx5::CompletionQueue::TakeOver does not: its
  // caller calls QueuePair::TakeOver.) REQUIRES: the other process is dead or no longer uses them.
  virtual void TakeOver() {}

  // Makes Device::event_fd readable at the next completion added after this call. The caller polls
  // once more before it sleeps. A poll that finds something cancels the request, so the caller
  // requests and polls again.
  virtual absl::Status RequestNotification() = 0;

  // Stops notifications in this process, because another process now polls the queue.
  virtual void ForgetNotification() {}

  // See Device::Describe.
  virtual void Describe(BatonInheritedCompletionQueue* /*described*/) const {}
};

// Receives shared by all queue pairs that were made with it. A message takes the next receive when
// it begins, so completions of different queue pairs are in no order. The queue outlives its queue
// pairs.
class SharedReceiveQueue {
 public:
  virtual ~SharedReceiveQueue() = default;

  // Posts in order. On failure `*posted` is the number posted before the refused one.
  // kResourceExhausted: the queue is full. kInvalidArgument: too many sges. Receives that a failed
  // queue pair has not taken stay for the others, until the shared receive queue is destroyed.
  virtual absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) = 0;

  // Requests one kSharedReceiveQueueLow event, for when a message takes a receive and leaves less
  // than `limit`. 0 cancels the request.
  virtual absl::Status ArmLimit(uint32_t limit) = 0;

  // Returns true if a receive with this wr_id was posted and Poll and Take have not returned its
  // completion yet. The successor of a killed driver calls it after CompletionQueue::TakeOver() of
  // all queues where such receives complete. Errors: see QueuePair::LastQueued.
  virtual absl::StatusOr<bool> IsQueued(uint64_t wr_id) const;

  // See Device::Describe.
  virtual void Describe(BatonInheritedSharedReceiveQueue* /*described*/) const {}
};

enum class QueuePairState : uint8_t { kReset, kInit, kReadyToReceive, kReadyToSend, kError };

struct QueuePairOptions {
  CompletionQueue* send_queue = nullptr;     // where completions of sends go
  CompletionQueue* receive_queue = nullptr;  // may be the same
  uint32_t max_send_requests = 0;
  uint32_t max_receive_requests = 0;  // unused with a shared receive queue
  uint32_t max_scatter_gather = 1;
  // Bytes of a send that can be inline. DeviceLimits has no maximum: the device refuses to create
  // a queue pair that asks for too many (ibv_create_qp(3)).
  uint32_t max_inline_data = 0;
  SharedReceiveQueue* shared_receive_queue = nullptr;  // null: the queue pair has its own receives
  // So many of max_send_requests are WRITEs without data, whose entries are smaller.
  uint32_t max_empty_writes = 0;
};

// A reliable-connected queue pair, created in state INIT, in which the caller may post receives but
// no sends. Every send is signalled. Destroying it leaves its completions in the completion queue.
class QueuePair {
 public:
  virtual ~QueuePair() = default;
  virtual uint32_t number() const = 0;
  virtual QueuePairState state() const = 0;
  virtual uint32_t max_inline_data() const { return 0; }  // granted: as requested, or more

  // Posts in order. On failure `*posted` is the number posted before the refused one.
  // kResourceExhausted: the queue is full.
  // kInvalidArgument: too many sges, or `inline_data` with too many bytes, a READ or an atomic. The
  // device finds bad lkeys and bounds only at execution, and completes the request with an error.
  // kFailedPrecondition: a send before RTS, or a receive although receives are shared.
  // In the error state requests are posted and complete with kFlushError.
  virtual absl::Status PostSend(absl::Span<const SendRequest> requests, size_t* posted) = 0;
  virtual absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) = 0;

  // Returns the queue pair itself if its queues lie in shared memory in mlx5's format and the
  // driver of its owner may write requests there. Null: call PostSend and PostReceive.
  virtual mlx5::QueuePair* DirectQueues() { return nullptr; }
  // Returns the wr_id of the last queued send (`receive`: receive) whose completion Poll and Take
  // have not returned yet, or nullopt if there is none. The device has executed or will execute
  // every queued request, whichever process queued it. The successor of a killed driver calls it
  // after CompletionQueue::TakeOver() to find out what its predecessor had queued.
  // kUnimplemented: the device cannot say. kDataLoss: the queue's memory is inconsistent.
  virtual absl::StatusOr<std::optional<uint64_t>> LastQueued(bool receive) const;

  // Moves to the error state: everything outstanding completes with kFlushError.
  virtual absl::Status SetError() = 0;

  // Prepare the queue pair for reuse by another connection. SetReset() drops all outstanding
  // requests without completions; the device no longer touches their memory. It may also drop
  // completions that were not polled, if another process polls. SetInit() then makes the queue pair
  // as new. The caller waits out the time-wait before it reuses the queue pair. kUnimplemented: the
  // device cannot reuse queue pairs.
  virtual absl::Status SetReset();
  virtual absl::Status SetInit();

  // Returns true once a queue pair with a shared receive queue is in the error state, takes no more
  // receives, and the completion queue has the completions of those it took. Destroying it earlier
  // may lose a receive that it took. kLastWorkRequestReached reports the change to true.
  virtual bool holds_no_receive() const { return false; }

  // Replaces the state that a forked process has cached by the device's, because another process
  // may have changed it.
  virtual void ForgetState() { (void)state(); }

  // Tells a forked process that another process has connected the queue pair, so that its state
  // need not be queried. `reads`: the peer answers READs and atomics.
  virtual void NoteConnected([[maybe_unused]] bool reads) {}

  // See Device::Describe.
  virtual void Describe(BatonInheritedQueuePair* /*described*/) const {}
};

// An address for the connection manager; `host` is an IPv4 or IPv6 literal.
struct Address {
  std::string host;
  uint16_t port = 0;
};

// The local addressing in a connection's packets.
struct Route {
  std::string gid;          // as an IPv4 or IPv6 address
  uint16_t p_key = 0xffff;  // a device without partitions: the default one, full membership
  uint8_t service_level = 0;
};

struct ConnectionParameters {
  std::string private_data;
  uint8_t responder_resources = 16;  // READs and atomics the peer may have outstanding to us
  uint8_t initiator_depth = 16;      // that we may have outstanding to the peer
  uint8_t retry_count = 7;           // transport retries, 0..7
  uint8_t rnr_retry_count = 7;       // 7: for ever
  // Connect() only: called when the route is known, before anything is sent to the peer. An error
  // fails the connection with kUnreachable and this status. Empty: every route is accepted.
  std::function<absl::Status(const Route& route)> check_route = {};
};

// READs and atomics that may be outstanding on a connection.
struct ReadDepths {
  uint8_t ours = 0;    // to the peer; 0: it answers none
  uint8_t theirs = 0;  // to us
};

// A connection of the connection manager (rdma_cm_id). Destroying it drops the connection: the
// peer sees a disconnect. The caller destroys it before its queue pair.
class ConnectionId {
 public:
  virtual ~ConnectionId() = default;
  virtual Address local_address() const = 0;
  virtual Address peer_address() const = 0;
  virtual ReadDepths depths() const = 0;  // as both sides negotiated; valid once established
  // REQUIRES: the id is from kConnectRequest, or its route is known.
  virtual Route route() const;

  // REQUIRES: the id is from kConnectRequest. Accept binds `queue_pair` (state INIT) and moves it
  // to RTS. kEstablished follows when the peer is ready too. The caller calls Accept or Reject,
  // once.
  virtual absl::Status Accept(QueuePair* queue_pair, const ConnectionParameters& parameters) = 0;
  virtual absl::Status Reject(std::string_view private_data) = 0;

  // Disconnects from the peer and sets the queue pair to the error state. kDisconnected follows.
  virtual absl::Status Disconnect() = 0;

  // Identifies the connection for Device::AdoptId, until this object is destroyed: another one may
  // have the number then. 0: the device has no such numbers.
  virtual uint32_t number() const { return 0; }

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
  std::unique_ptr<ConnectionId> new_id;  // kConnectRequest: owned by the receiver
  ConnectionId* id = nullptr;            // all others
  std::string private_data;
  absl::Status status;  // kUnreachable, kRejected: why
};

// Asynchronous events of a device, named after ibv_get_async_event(3).
enum class DeviceEventType : uint8_t {
  kPortUp = 0,
  kPortDown,                  // retries bridge it; a connection ends when they are used up
  kAddressesChanged,          // GIDs, LID, P_Keys, subnet manager: connections may have lost their
                              // path, listeners their address
  kPathMigrated,              // a queue pair uses its other path
  kQueuePairFailed,           // it is in the error state
  kCompletionQueueFailed,     // all queue pairs that complete in it failed; the opener's Poll
                              // returns kDataLoss, and not each forked process's
  kSharedReceiveQueueLow,     // its limit is reached
  kSharedReceiveQueueFailed,  // no queue pair can receive from it any more
  kLastWorkRequestReached,    // QueuePair::holds_no_receive has become true
  kDeviceLost,                // removed or broken, and to be closed; reported once
};

struct DeviceEvent {
  DeviceEventType type = DeviceEventType::kPortUp;
  uint8_t port = 0;                                          // events of ports
  uint32_t qp_number = 0;                                    // events of queue pairs
  const SharedReceiveQueue* shared_receive_queue = nullptr;  // events of shared receive queues
  std::string text;                                          // the device's name for the event
};

enum class PortState : uint8_t { kUnknown = 0, kDown, kInitializing, kArmed, kActive };
std::string_view PortStateName(PortState state);

// Description and present state of a device, for operators.
struct DeviceInfo {
  std::string name;
  std::string transport;  // "InfiniBand", "RoCE v2", "TCP"
  uint8_t port = 0;       // 0: the device has no ports
  PortState port_state = PortState::kUnknown;
  uint32_t active_mtu = 0;        // bytes of payload in a packet; 0: the device has no packets
  std::string network_interface;  // RoCE only; empty: not known
  std::vector<std::string> gids;  // the port's, as "1: ::ffff:10.0.0.1 (RoCE v2)"
  std::string gid;                // all connections use it; empty: each uses that of its address
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual DeviceLimits limits() const = 0;
  virtual DeviceInfo info() const;  // at the time of the call

  // RegisterMemory, CreateCompletionQueue, Listen and Connect are kUnimplemented by default: a
  // device whose queues another process opened does none of them.

  // The caller keeps [address, address + length) mapped, MAP_SHARED, as long as the region lives.
  virtual absl::StatusOr<std::unique_ptr<MemoryRegion>> RegisterMemory(void* /*address*/,
                                                                       size_t /*length*/,
                                                                       uint32_t /*access*/) {
    return OpenersWork("registering memory");
  }
  // Announces memory that will be registered: `length` bytes at `address` are mapped from the
  // beginning of `memfd`, which is sealed against growing and shrinking. A device in another
  // process can reach no other memory. All other devices ignore the call.
  virtual absl::Status NameMemory([[maybe_unused]] void* address, [[maybe_unused]] size_t length,
                                  [[maybe_unused]] int memfd) {
    return absl::OkStatus();
  }
  // Takes back NameMemory() at `address`, before the memory is unmapped. REQUIRES: no region lies
  // in it.
  virtual void ForgetMemory([[maybe_unused]] void* address) {}
  // True: registering and deregistering take time for each page, and may run on any thread while
  // another thread uses the device. False: both are quick, and only the device's thread calls them.
  // NameMemory and ForgetMemory are called on the same thread as RegisterMemory.
  virtual bool registers_on_any_thread() const { return false; }
  virtual absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(
      uint32_t /*entries*/) {
    return OpenersWork("making a completion queue");
  }
  virtual absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) = 0;
  // kInvalidArgument: more than the device's limits.
  virtual absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> CreateSharedReceiveQueue(
      uint32_t entries, uint32_t max_scatter_gather);

  // Reserves the port in TCP's port space, whatever the device, as long as the listener lives. So a
  // port belongs to one service, whichever device its peers use. Port 0 chooses a port that is free
  // in TCP and in the device. kAlreadyExists: the port is taken; NamePortOwner (port_owner.h) names
  // the owner. kResourceExhausted: port 0, and no free port was found.
  virtual absl::StatusOr<std::unique_ptr<Listener>> Listen(const Address& /*address*/,
                                                           int /*backlog*/) {
    return OpenersWork("listening");
  }

  // Returns false if a queue pair may be reset as soon as its connection has ended: no packet of
  // the connection is on its way then (rdma.md, "Reset").
  virtual bool has_time_wait() const { return true; }

  // Starts connecting `queue_pair` (state INIT). An event reports the outcome. The queue pair is in
  // RTS when kEstablished is reported.
  virtual absl::StatusOr<std::unique_ptr<ConnectionId>> Connect(
      const Address& /*address*/, QueuePair* /*queue_pair*/,
      const ConnectionParameters& /*parameters*/) {
    return OpenersWork("connecting");
  }

  // Takes the next connection-manager event. Returns false if there is none.
  virtual bool NextEvent(CmEvent* event) = 0;

  // Takes the next event of the device. Returns false if there is none. Events are never dropped;
  // event_fd stays readable until all are taken.
  virtual bool NextDeviceEvent(DeviceEvent* /*event*/) { return false; }

  // Does the device's work in software (soft: sockets and timers; rdma: event channels and timers).
  // The caller calls it in every turn of its polling loop.
  virtual void Progress() = 0;

  // Readable when Progress, NextEvent, NextDeviceEvent, or Poll of a queue whose notification this
  // process requested may have something to do. Level-triggered until that was done; may be
  // readable in vain. A process that leaves its queues to forked ones requests no notifications.
  virtual int event_fd() const = 0;

  // Returns OK if forked processes can operate this device's queues, otherwise the reason.
  virtual absl::Status CheckForkable() const;

  // A forked process calls this first. Then it may call, on objects made before the fork: PostSend,
  // PostReceive, ArmLimit, Poll, RequestNotification, state, SetError, holds_no_receive, and
  // Progress and event_fd for these. state() queries the device, because the opener may have
  // connected the queue pair meanwhile. Everything else is for the opener: here no events arrive,
  // connection manager calls fail with kFailedPrecondition, objects cannot be created, and
  // destroying one frees nothing in the device or in other processes. Notifications that another
  // process requested may wake this one in vain.
  virtual absl::Status AfterFork();

  // Returns the descriptors that code needs which makes its own objects of what Describe() says.
  // The process may close all others that the device has then.
  virtual std::vector<int> ForkedDescriptors() const { return {}; }

  // After AfterFork(), these describe this process's device and each of its objects to other code
  // in the process (inherited.h). That code opens the device with InheritDevice() of the device's
  // kind, which is as after AfterFork(). Then it makes objects of its own with Inherit(), in the
  // order of their creation: one for each queue, all queue pairs of which complete in `completes`
  // and take their receives from `shared`, unless that is null. Only one of both codes uses the
  // queues. kUnimplemented: the device's kind cannot be described.
  virtual absl::Status Describe(BatonInheritedDevice* described) const;
  virtual absl::StatusOr<std::unique_ptr<CompletionQueue>> Inherit(
      const BatonInheritedCompletionQueue& described);
  virtual absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> Inherit(
      const BatonInheritedSharedReceiveQueue& described);
  virtual absl::StatusOr<std::unique_ptr<QueuePair>> Inherit(
      const BatonInheritedQueuePair& described, CompletionQueue* completes,
      SharedReceiveQueue* shared);

  // Returns OK if a process that was forked from the opener can follow it, otherwise the reason.
  virtual absl::Status CheckFollowable() const;
  // Sets whether processes that are forked from now on have the memory that a follower needs.
  virtual absl::Status SetFollowable(bool /*followable*/) { return absl::OkStatus(); }

  // A forked process that has not called AfterFork() calls this once the opener is dead. It makes
  // what the takeover needs. So a process that it forks next can follow it, should it die in
  // TakeOver(), by calling both.
  virtual absl::Status BeginTakeOver();
  // Called after BeginTakeOver(). This process is the opener from then on. It has the objects and
  // the listeners from before the fork. Objects that were made later stay until the device is
  // closed. Its ids are none any more: AdoptId() makes them anew. DestroyUnknownIds() follows,
  // before anything else is asked of ids. The last event that the former opener took with
  // NextEvent(), and the last with NextDeviceEvent(), come again, unless it had asked for another
  // one since.
  virtual absl::Status TakeOver();
  // How far a former opener had come with a connection, as far as it has stored.
  enum class IdStage : uint8_t {
    kRequested,   // by the peer
    kAccepting,   // it may have called Accept()
    kConnecting,  // it has called Connect(), and may have been told what became of that
    kOpen,        // accepted, by either side
    kEnded,       // rejected or disconnected, by either side
  };
  struct FormerId {
    uint32_t number = 0;
    IdStage stage = IdStage::kRequested;
    QueuePair* queue_pair = nullptr;                              // null: it is not known yet
    std::function<absl::Status(const Route& route)> check_route;  // see ConnectionParameters
  };
  struct AdoptedId {
    std::unique_ptr<ConnectionId> id;
    bool unaccepted = false;  // it is a peer's request, and was not accepted
  };
  // Makes the object of a connection that a former opener had. kNotFound: there is no such
  // connection.
  virtual absl::StatusOr<AdoptedId> AdoptId(FormerId former);
  // Makes the object of a region that a former opener had, with this rkey.
  virtual absl::StatusOr<std::unique_ptr<MemoryRegion>> AdoptRegion(uint32_t rkey);
  // Destroys the connections and listeners that have no object here, but not the requests whose
  // events are still to come. Listens again where an object is, and the former opener had stopped.
  virtual absl::Status DestroyUnknownIds();

 private:
  static absl::Status OpenersWork(const char* what);
};

}  // namespace baton::verbs

#endif  // LIB_VERBS_VERBS_H_

#include "worker/worker_impl.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "lib/base/pauses.h"
#include "lib/base/process_limits.h"
#include "lib/base/status.h"
#include "lib/base/version.h"

namespace baton {
namespace {

// A native worker looks several times before it yields, because it waits for the device, which does
// not need its processor.
constexpr int kLooksPerYield = 4;
constexpr uint32_t kRealtimeYieldMicroseconds = 20;
constexpr uint64_t kMillisecondNs = 1'000'000;
// The device completes a send that is under way soon, and by itself. If the worker slept until
// then, the device would have nothing to do while the worker wakes up. On Soft-RoCE, where a list
// of sends completes as a whole, that costs a fifth of the bandwidth at 4 KiB.
constexpr uint32_t kDeviceYieldFactor = 200;
constexpr uint64_t kMostDeviceYieldMicroseconds = 20'000;
constexpr uint64_t kDeviceSoon = 1;
constexpr uint64_t kNothingCame = ~uint64_t{0};  // also after a short time-out of the caller
constexpr uint64_t kDeliverBatch = 64;
// Looks in a row that find nothing. They take about as long as an answer of a peer near by.
constexpr uint32_t kLooksBeforeAcknowledging = 16;
constexpr size_t kControlStreamDescriptors = 32;
// A worker that never sleeps still learns in time that the driver or the keeper is gone.
constexpr uint64_t kPollsBetweenKeeperChecks = 1 << 10;
constexpr uint64_t kWakeEvent = 0, kSelfEvent = 1, kSocketEvent = 2, kDriverEvent = 3,
                   kResumptionEvent = 4;
constexpr long kBetweenResumptionsNs = 5'000'000;

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Attach(const WorkerOptions& options,
                                                       Service* service) {
  auto worker = std::make_unique<WorkerImpl>(options, service);
  BATON_RETURN_IF_ERROR(worker->Attach());
  return worker;
}

namespace {

uint32_t MostYieldMicroseconds(const WorkerOptions& options) {
  return options.realtime_priority > 0
             ? std::min(options.yield_microseconds, kRealtimeYieldMicroseconds)
             : options.yield_microseconds;
}

YieldBudget DeviceYieldBudget(const WorkerOptions& options) {
  const uint32_t most = MostYieldMicroseconds(options);
  if (options.realtime_priority > 0) return YieldBudget(most);
  const uint64_t longer =
      std::min(uint64_t{most} * kDeviceYieldFactor, kMostDeviceYieldMicroseconds);
  return YieldBudget(std::max(most, static_cast<uint32_t>(longer)), kDeviceSoon);
}

}  // namespace

WorkerImpl::WorkerImpl(const WorkerOptions& options, Service* service)
    : process_(getpid()),
      options_(options),
      service_(service),
      yield_budget_(MostYieldMicroseconds(options)),
      device_yield_budget_(DeviceYieldBudget(options)) {}

WorkerImpl::~WorkerImpl() {
  if (getpid() != process_) {
    Abandon();
    return;
  }
  if (native_ && !native_->status().ok()) {
    // The shards move when this process has ended, as after any death.
    if (lock_) HoldUntilTheEnd();
    return;
  }
  // The worker detaches also if its own side of Attach failed, because the keeper kills a worker
  // whose session closes before it detaches.
  if ((attached_ || arena_) && (!keeper_gone_ || native_)) Detach();
}

// Runs in a process that the worker's process forked. The arena, the control stream's thread and
// the session are not the child's, so it leaves all of them as they are.
void WorkerImpl::Abandon() {
  static auto* const left = new std::vector<std::shared_ptr<const arena::Arena>>();
  left->push_back(std::move(arena_));
  (void)control_.release();
}

// The kernel finds the lock by its address, so the arena stays mapped.
void WorkerImpl::HoldUntilTheEnd() {
  lock_->Keep();
  static auto* const mapped = new std::vector<std::shared_ptr<const arena::Arena>>();
  mapped->push_back(arena_);
}

// ---------------------------------------------------------------- attaching

absl::Status WorkerImpl::FindNativeHost() {
  BATON_ASSIGN_OR_RETURN(native_, NativeHost::Find());
  return absl::OkStatus();
}

absl::Status WorkerImpl::Attach() {
  BATON_RETURN_IF_ERROR(FindNativeHost());
  BATON_ASSIGN_OR_RETURN(
      FileDescriptor keeper,
      native_ ? native_->TakeSession() : KeeperSession::Reach(options_.socket, options_.service));
  Connected(std::move(keeper));
  std::vector<FileDescriptor> fds;
  BATON_ASSIGN_OR_RETURN(const internal::Attached attached,
                         keeper_->Attach(options_, SpokenLayoutVersion(),
                                         native_ ? std::string() : options_.socket, &fds));
  attached_ = true;
  keeper_->KeepResumable(native_ ? attached.worker_socket() : options_.socket, attached);
  if (fds.size() != 4) {
    return absl::ResourceExhaustedError(absl::StrCat("the keeper sent 4 descriptors and ",
                                                     fds.size(), " arrived: raise RLIMIT_NOFILE"));
  }
  auto arena = arena::Arena::Map(std::move(fds[0]), std::move(fds[1]), std::move(fds[2]));
  BATON_RETURN_IF_ERROR(arena.status());
  heartbeat_ms_ = std::max(1u, attached.heartbeat_ms());
  capacity_.outside_effects = attached.outside_effects();
  capacity_.cpus = attached.placement().cpus();
  if (attached.placement().has_numa_node()) {
    capacity_.numa_node = static_cast<int>(attached.placement().numa_node());
  }
  BATON_RETURN_IF_ERROR(Start(std::make_shared<arena::Arena>(*std::move(arena)), std::move(fds[3]),
                              attached.worker_id(), attached.worker_slot()));
  lock_.emplace(&arena_->worker(slot_).thread_locks[0]);
  BATON_RETURN_IF_ERROR(lock_->Acquire());
  if (options_.control_stream) {
    BATON_RETURN_IF_ERROR(CheckDescriptors());
    StartControlStream(attached);
  }
  if (options_.realtime_priority > 0) return UseRealtimePriority(options_.realtime_priority);
  return absl::OkStatus();
}

absl::Status WorkerImpl::Start(std::shared_ptr<const arena::Arena> arena, FileDescriptor wake,
                               uint64_t id, uint32_t slot) {
  arena_ = std::move(arena);
  layout_version_ = std::min(arena_->layout_version(), SpokenLayoutVersion());
  wake_ = std::move(wake);
  id_ = id;
  slot_ = slot;
  const arena::Shape& shape = arena_->shape();
  capacity_ = {shape.connections,
               shape.send_queue_depth,
               arena::ReceiveDepth(shape),
               shape.shards,
               shape.shared_receive_queue_depth,
               shape.connection_state_bytes,
               shape.shard_state_bytes,
               capacity_.outside_effects,
               capacity_.cpus,
               capacity_.numa_node};
  connections_.resize(arena_->shape().connections);
  for (uint32_t i = 0; i < arena_->shape().shards; ++i) {
    shards_.emplace_back(new Shard(this, i));
  }
  return PrepareEventFd();
}

uint32_t WorkerImpl::SpokenLayoutVersion() const {
#ifdef BATON_TEST_HOOKS
  // The layout of the release before.
  if (std::getenv("BATON_PREVIOUS_LAYOUT") != nullptr) return arena::kLayoutVersion - 1;
#endif
  return arena::kLayoutVersion;
}

// gRPC ends its process when it finds no descriptors, and this library never ends its host.
absl::Status WorkerImpl::CheckDescriptors() const {
  std::array<FileDescriptor, kControlStreamDescriptors> probes;
  for (FileDescriptor& probe : probes) {
    probe = CopyOf(wake_.get());
    if (!probe) {
      return ErrnoStatus(errno, absl::StrCat("the stream to control needs up to ", probes.size(),
                                             " descriptors (raise RLIMIT_NOFILE, or set "
                                             "control_stream to false)"));
    }
  }
  return absl::OkStatus();
}

// The stream carries policy only. A worker serves without it, so control may be down when the
// worker attaches.
void WorkerImpl::StartControlStream(const internal::Attached& attached) {
  ControlStreamOptions stream;
  stream.control_socket = attached.control_socket();
  stream.service = options_.service;
  stream.first_token = attached.token();
  stream.new_token = [this] { return keeper_->NewToken(); };
  // The worker's own thread learns of a handoff from the arena.
  stream.on_handoff = [](const std::vector<uint32_t>&) {};
  stream.on_shutdown = [this](const std::string& reason) { AskShutdown(reason); };
  auto started = ControlStream::Start(std::move(stream));
  if (started.ok()) control_ = *std::move(started);
}

// Any thread.
void WorkerImpl::AskShutdown(std::string_view reason) {
  {
    const std::lock_guard<std::mutex> lock(shutdown_mutex_);
    shutdown_reason_ = std::string(reason);
  }
  shutdown_asked_.store(true);
  eventfd_write(self_wake_.get(), 1);
}

absl::Status WorkerImpl::PrepareEventFd() {
  event_fd_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!event_fd_) return ErrnoStatus(errno, "epoll_create1 (see RLIMIT_NOFILE)");
  self_wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!self_wake_) return ErrnoStatus(errno, "eventfd (see RLIMIT_NOFILE)");
  epoll_event wake = {EPOLLIN, {.u64 = kWakeEvent}};
  epoll_event self = {EPOLLIN, {.u64 = kSelfEvent}};
  if (epoll_ctl(event_fd_.get(), EPOLL_CTL_ADD, wake_.get(), &wake) != 0 ||
      epoll_ctl(event_fd_.get(), EPOLL_CTL_ADD, self_wake_.get(), &self) != 0) {
    return ErrnoStatus(errno, "epoll_ctl");
  }
  BATON_RETURN_IF_ERROR(WatchSession());
  if (keeper_->resumable()) {
    resumption_timer_.Reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    epoll_event timer = {EPOLLIN, {.u64 = kResumptionEvent}};
    if (!resumption_timer_ ||
        epoll_ctl(event_fd_.get(), EPOLL_CTL_ADD, resumption_timer_.get(), &timer) != 0) {
      return ErrnoStatus(errno, "timerfd_create (see RLIMIT_NOFILE)");
    }
  }
  epoll_event driver = {EPOLLIN, {.u64 = kDriverEvent}};
  if (native_ && epoll_ctl(event_fd_.get(), EPOLL_CTL_ADD, native_->event_fd(), &driver) != 0) {
    return ErrnoStatus(errno, "epoll_ctl of the native driver's event_fd");
  }
  return absl::OkStatus();
}

absl::Status WorkerImpl::WatchSession() {
  watched_socket_ = keeper_->fd();
  watched_socket_number_ = keeper_->sockets_used();
  epoll_event socket = {EPOLLRDHUP, {.u64 = kSocketEvent}};
  if (epoll_ctl(event_fd_.get(), EPOLL_CTL_ADD, watched_socket_, &socket) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, "epoll_ctl of the session's socket");
}

absl::Status WorkerImpl::Ready() { return keeper_->SetReady(); }

void WorkerImpl::Detach() {
  control_.reset();
  if (native_ && lock_) AdoptTheRest();
  for (auto& shard : shards_) {
    if (Owns(*shard)) Release(*shard);
  }
  // The slot, and the lock in it, may be another worker's as soon as the keeper has answered.
  lock_.reset();
  // This fails if the keeper is gone, which does not matter.
  (void)keeper_->Detach();
}

// ---------------------------------------------------------------- one turn

absl::StatusOr<int> WorkerImpl::Poll() {
  arena::WorkerSlot& slot = arena_->worker(slot_);
  arena::StoreRelaxed(slot.heartbeat, ++polls_);
  if (armed_) {
    armed_ = false;
    arena::StoreRelaxed(slot.sleeping, 0u);
    CheckKeeper();
  } else if (polls_ % kPollsBetweenKeeperChecks == 0) {
    CheckKeeper();
  }
  // Not needed if a look for work has just driven the queues.
  if (native_ && !std::exchange(driven_, false)) RecoverAndPoll();
  int work = HandleOwnership();
  for (auto& shard : shards_) {
    if (Owns(*shard)) work += Deliver(*shard);
  }
  if (shutdown_asked_.load(std::memory_order_relaxed)) [[unlikely]]
    ShutDown();
  if (work == 0) NoteIdleLook();
  if (native_) {
    if (!native_->status().ok()) return native_->status();
    return work;  // a native worker needs no keeper to serve
  }
  // The logs are delivered first: they say how the connections ended.
  if (keeper_gone_ && work == 0) {
    return absl::UnavailableError(
        absl::StrCat("service ", options_.service,
                     " is gone: its driver, or the keeper of this session, has ended. The worker "
                     "has lost its connections: attach again when the service is back"));
  }
  return work;
}

void WorkerImpl::ShutDown() {
  shutdown_asked_.store(false);
  std::string reason;
  {
    const std::lock_guard<std::mutex> lock(shutdown_mutex_);
    reason = shutdown_reason_;
  }
  service_->OnShutdown(reason);
  stop_.store(true);
}

void WorkerImpl::CheckKeeper() {
  epoll_event events[4];
  const int count = epoll_wait(event_fd_.get(), events, 4, 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWakeEvent) {
      char signals[256];
      if (recv(wake_.get(), signals, sizeof(signals), MSG_DONTWAIT) == 0) LoseKeeper();
    } else if (events[i].data.u64 == kSelfEvent) {
      eventfd_t value;
      eventfd_read(self_wake_.get(), &value);
    } else if (events[i].data.u64 == kSocketEvent) {
      keeper_->resumable() ? BeginResumption() : LoseKeeper();
    } else if (events[i].data.u64 == kResumptionEvent) {
      uint64_t expirations;
      (void)!read(resumption_timer_.get(), &expirations, sizeof(expirations));
      ContinueResumption();
    }  // The driver takes its own events.
  }
  // A request may have resumed the session, over another socket.
  const bool unwatched = keeper_->sockets_used() != watched_socket_number_;
  if (!resuming_ && unwatched && !WatchSession().ok()) LoseKeeper();
}

// The driver serves the queues without a keeper, so this worker goes on, too, and looks for the
// next keeper meanwhile.
void WorkerImpl::BeginResumption() {
  if (keeper_gone_ || std::exchange(resuming_, true)) return;
  // Fails if a request has replaced the socket, which is closed then and watched no more.
  (void)epoll_ctl(event_fd_.get(), EPOLL_CTL_DEL, watched_socket_, nullptr);
  SetResumptionTimer(kBetweenResumptionsNs);
  ContinueResumption();
}

void WorkerImpl::ContinueResumption() {
  if (!resuming_) return;
  const absl::StatusOr<bool> resumed = keeper_->Resume();
  if (resumed.ok() && !*resumed) return;
  resuming_ = false;
  SetResumptionTimer(0);
  if (!resumed.ok() || !WatchSession().ok()) LoseKeeper();
}

void WorkerImpl::SetResumptionTimer(long period_ns) {
  const timespec period = {0, period_ns};
  const itimerspec setting = {period, period};
  (void)timerfd_settime(resumption_timer_.get(), 0, &setting, nullptr);
}

void WorkerImpl::LoseKeeper() {
  keeper_gone_ = true;
  if (!native_) return;
  if (std::exchange(resuming_, false)) SetResumptionTimer(0);
  // A native worker goes on, and sleeps. These events must not wake it over and over.
  epoll_ctl(event_fd_.get(), EPOLL_CTL_DEL, wake_.get(), nullptr);
  epoll_ctl(event_fd_.get(), EPOLL_CTL_DEL, watched_socket_, nullptr);
}

int WorkerImpl::HandleOwnership() {
  const uint64_t changes = arena::LoadAcquire(arena_->header().ownership_changes);
  if (changes == seen_changes_) return 0;
  seen_changes_ = changes;
  NoteStopRequest();
  BATON_CRASH_POINT("ownership-changed");
  int handled = 0;
  for (auto& shard : shards_) {
    const arena::OwnershipRecord& record = arena_->shard(shard->index_).owner;
    const uint64_t word = arena::LoadAcquire(record.ownership);
    const bool ours = arena::OwnershipSlot(word) == slot_;
    const uint64_t epoch = arena::OwnershipEpoch(word);
    if (Owns(*shard) && (!ours || shard->epoch_ != epoch)) {
      Lose(*shard);
      ++handled;
    }
    if (ours && !Owns(*shard)) handled += Adopt(*shard, epoch);
    if (Owns(*shard) && arena::LoadAcquire(record.release_requested) == epoch) {
      Release(*shard);
      ++handled;
    }
  }
  return handled;
}

// The native driver recovers the shards that it has claimed one by one. This worker adopts also the
// remaining ones, and gives them back with the rest, because no heir follows a claimant that ends
// in order.
void WorkerImpl::AdoptTheRest() {
  const auto is_due = [this](const auto& shard) {
    const uint64_t word = arena::LoadAcquire(arena_->shard(shard->index_).owner.ownership);
    const uint32_t slot = arena::OwnershipSlot(word);
    if (slot == (arena::kClaim | slot_)) return true;
    return slot == slot_ && !Owns(*shard) && arena::OwnershipEpoch(word) != shard->released_epoch_;
  };
  // One turn per shard at most, because another process can write the words, too.
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (std::none_of(shards_.begin(), shards_.end(), is_due)) return;
    RecoverAndPoll();
    HandleOwnership();
  }
}

// The request is in the arena, where `baton-driver` stores it, so control is not needed.
void WorkerImpl::NoteStopRequest() {
  if (layout_version_ < 2 || stop_request_noted_) return;
  const uint64_t asked = arena::LoadAcquire(arena_->header().stop_requested);
  if ((asked >> slot_ & 1) == 0) return;
  stop_request_noted_ = true;
  AskShutdown("the keeper asks for it: another serves in its place, or stands by");
}

bool WorkerImpl::Adopt(Shard& shard, uint64_t epoch) {
  // The ownership word names this worker until the driver has seen that it gave the shard back.
  // (The bank's tail cannot tell: a former owner's late store there has another epoch, and must not
  // keep this worker from adopting.)
  if (epoch == shard.released_epoch_) return false;
  if (native_) {
    native_->Adopt(shard.index_, epoch);
    if (!native_->status().ok()) return false;
  }
  const arena::ShardRecord& record = arena_->shard(shard.index_);
  shard.epoch_ = epoch;
  shard.bank_ = &arena_->bank(shard.index_, epoch);
  shard.bank_entries_ = &arena_->commit_entry(shard.index_, epoch, 0);
  shard.commit_tail_ = shard.folded_ = 0;
  shard.ForgetDelivered();
  shard.acknowledged_ = shard.delivered_ = record.acknowledged;
  shard.handed_ = shard.acknowledged_;
  shard.LoadSharedReceives();
  shard.state_slot_ = record.state_slot;
  shard.state_length_ = record.state_length;
  shard.state_version_ = record.state_version;
  TellHandling(shard, /*in_handler=*/false);
  BATON_CRASH_POINT("adopt-begin");
  const absl::Status adopted = service_->OnAdopt(shard);
  if (!adopted.ok()) {
    shard.Abandon();
    shard.Publish(/*release=*/true);
    shard.released_epoch_ = std::exchange(shard.epoch_, 0);
    return true;
  }
  BATON_CRASH_POINT("adopt-before-commit");
  // The first commit tells the driver that the shard is served again.
  shard.Publish(/*release=*/false);
  BATON_CRASH_POINT("adopt-committed");
  return true;
}

void WorkerImpl::Release(Shard& shard) {
  service_->OnRelease(shard);
  BATON_CRASH_POINT("release-begin");
  if (options_.commit_mode == CommitMode::kManual) {
    shard.Abandon();
    shard.delivered_ = shard.acknowledged_;
    shard.ForgetDelivered();
  }
  shard.Publish(/*release=*/true);
  BATON_CRASH_POINT("release-published");
  shard.released_epoch_ = std::exchange(shard.epoch_, 0);
  awaits_device_ = false;  // a successor gets their completions
}

void WorkerImpl::Lose(Shard& shard) {
  shard.Abandon();
  shard.ForgetDelivered();
  const uint64_t epoch = std::exchange(shard.epoch_, 0);
  awaits_device_ = false;
  if (native_) native_->Release(shard.index_, epoch);
  service_->OnLost(shard);
}

// Stores hints for the time after this worker's death: whether it is in a handler now, and of which
// completion. REQUIRES: Owns(shard).
[[gnu::always_inline]] inline void WorkerImpl::TellHandling(const Shard& shard, bool in_handler) {
  arena::BankHeader& bank = *shard.bank_;
  const bool tells = layout_version_ >= 2;
  if (tells) arena::StoreRelaxed(bank.handling, in_handler ? shard.delivered_ : 0);
  if (tells || !in_handler) arena::StoreRelaxed(bank.read_cursor, shard.delivered_);
}

// A worker of version 1 knows no void completion: it takes such an entry for one of a connection
// that has ended.
uint32_t WorkerImpl::GenerationOfVoid(const arena::CompletionEntry& entry) const {
  return layout_version_ >= 2 ? arena::GenerationOf(entry) : entry.generation;
}

// `head`: the entry's kind, status, opcode and flags.
[[gnu::always_inline]] inline Completion WorkerImpl::Translate(const arena::CompletionEntry& entry,
                                                               uint32_t head,
                                                               Connection* connection) {
  constexpr uint32_t kKindStatusOpcode = arena::FourBytes(0xff, 0xff, 0xff, 0);
  static_assert(arena::kCompletionHasImmediate == 1 && arena::kCompletionHasInvalidate == 2);
  const uint32_t flags = head >> 24;
  const uint32_t kinds = (head & kKindStatusOpcode) | (flags & 1) << 24;
  Completion completion;
  static_assert(offsetof(Completion, status) == 1 && offsetof(Completion, opcode) == 2 &&
                offsetof(Completion, has_immediate) == 3 &&
                offsetof(Completion, has_invalidate) == 4 && offsetof(Completion, byte_len) == 8 &&
                offsetof(Completion, immediate) == 12 && offsetof(Completion, sequence) == 16 &&
                offsetof(Completion, tag) == 24);
  arena::StorePair<offsetof(Completion, kind)>(completion, arena::TwoFields(kinds, flags >> 1 & 1),
                                               arena::TwoFields(entry.byte_len, entry.immediate));
  arena::StorePair<offsetof(Completion, sequence)>(completion, entry.sequence, entry.tag);
  completion.connection = connection;
  return completion;
}

[[gnu::always_inline]] inline void WorkerImpl::Hand(Shard& shard,
                                                    const arena::CompletionEntry& entry,
                                                    uint32_t head, Connection& connection,
                                                    bool shared_receive) {
  const auto kind = arena::CompletionKind(head & 0xff);
  if (kind == arena::CompletionKind::kSend) connection.send_completed_ = entry.sequence + 1;
  if (kind == arena::CompletionKind::kReceive && !shared_receive) {
    connection.receive_completed_ = entry.sequence + 1;
  }
  shard.NoteDelivered(connection);
  shard.handed_ = shard.delivered_;
  // Stored before the handler runs: if the worker dies in it, it died on this completion.
  TellHandling(shard, /*in_handler=*/true);
  BATON_CRASH_POINT("deliver-before-handler");
  service_->OnCompletion(shard, Translate(entry, head, &connection));
  BATON_CRASH_POINT("deliver-after-handler");
}

int WorkerImpl::Deliver(Shard& shard) {
  const uint64_t tail = arena::LoadAcquire(shard.record_->completion_tail);
  if (tail == shard.delivered_) return 0;
  BATON_CRASH_POINT("deliver-begin");
  const uint64_t end = std::min(tail, shard.delivered_ + kDeliverBatch);
  idle_looks_ = 0;
  int count = 0;
  // A completion may need an entry for its connection, one for a decision and one for shared
  // receives, and with CommitMode::kAfterEachCompletion no two completions share one. If the log
  // lacks that room, the driver is far behind, and delivery waits for it.
  const bool shares_receives = shard.receive_depth_ == 0;
  const uint32_t needed = shares_receives ? 3 : 2;
  const bool commits_each = options_.commit_mode == CommitMode::kAfterEachCompletion;
  while (shard.delivered_ < end && Owns(shard) && shard.HasEntryRoom(needed)) {
    ++count;
    DeliverNext(shard, shares_receives);
    if (commits_each) (void)shard.Commit();
  }
  if (!Owns(shard)) return count;
  TellHandling(shard, /*in_handler=*/false);
  const bool commits = options_.commit_mode != CommitMode::kManual && !shard.NothingStaged();
  if (commits || shard.OnlySkipped()) (void)shard.Commit();
  return count;
}

// A transaction that only acknowledges takes as long as one that posts, and may delay the next
// message. So acknowledgements alone wait until the worker is idle.
void WorkerImpl::NoteIdleLook() {
  if (++idle_looks_ >= kLooksBeforeAcknowledging) [[unlikely]]
    AcknowledgeDelivered();
}

void WorkerImpl::AcknowledgeDelivered() {
  idle_looks_ = 0;
  if (options_.commit_mode == CommitMode::kManual) return;
  // If the log has no room now, a later look acknowledges.
  for (const auto& shard : shards_) {
    if (Owns(*shard) && shard->delivered_ != shard->acknowledged_) (void)shard->Commit();
  }
}

[[gnu::always_inline]] inline void WorkerImpl::DeliverNext(Shard& shard, bool shares_receives) {
  const arena::CompletionEntry& entry = shard.log_[shard.delivered_ & shard.log_mask_];
  // Nobody writes to an entry that was published.
  const uint32_t head = arena::LoadFourBytes(entry.kind);
  const auto kind = arena::CompletionKind(head & 0xff);
  const bool is_void = (head >> 24 & arena::kCompletionVoid) != 0;
  const uint32_t generation = is_void ? GenerationOfVoid(entry) : entry.generation;
  Connection* const connection = Resolve(shard, entry.connection, generation);
  ++shard.delivered_;
  // A connection that has ended has nothing under way.
  if (kind != arena::CompletionKind::kReceive) awaits_device_ = false;
  const bool shared_receive = shares_receives && arena::IsSharedReceive(entry.wr_id);
  if (shared_receive && !is_void) {
    --shard.shared_outstanding_;
    shard.shared_unacknowledged_.push_back(
        static_cast<uint16_t>(arena::SharedReceiveSlot(entry.wr_id)));
  }
  // The former owner committed a transaction that acknowledged the connection's end.
  if (connection == nullptr) return;
  if (!is_void) [[likely]]
    Hand(shard, entry, head, *connection, shared_receive);
  if (kind == arena::CompletionKind::kDisconnected || kind == arena::CompletionKind::kConnectFailed)
      [[unlikely]] {
    connection->known_epoch_ = 0;
    connection->ended_epoch_ = shard.epoch_;
  }
}

// Returns a connection that this worker has not loaded in this epoch, or null if it has ended.
Connection* WorkerImpl::Find(Shard& shard, uint32_t index, uint32_t generation) {
  Connection& connection = connections_[index];
  if (connection.shard_ == &shard && connection.generation_ == generation &&
      connection.ended_epoch_ == shard.epoch_) {
    return nullptr;
  }
  const arena::ConnectionRecord& record = arena_->connection(index);
  if (record.generation != generation || arena::LoadAcquire(record.shard) != shard.index_ ||
      arena::LoadAcquire(record.arriving) != 0 ||
      arena::LoadAcquire(record.state) == static_cast<uint32_t>(arena::ConnectionState::kFree)) {
    return nullptr;
  }
  BATON_CRASH_POINT("load-connection");
  Load(connection, shard, index);
  return &connection;
}

// REQUIRES: this worker has committed nothing to the connection in this epoch. So its cursors stand
// still, except for completions that were not delivered yet.
void WorkerImpl::Load(Connection& connection, Shard& shard, uint32_t index) {
  const arena::ConnectionRecord& record = arena_->connection(index);
  const bool unacknowledged = connection.unacknowledged_;
  connection = Connection{};
  connection.unacknowledged_ = unacknowledged;
  connection.shard_ = &shard;
  connection.index_ = index;
  connection.generation_ = record.generation;
  connection.send_staged_ = connection.send_committed_ = record.send.committed;
  connection.send_acknowledged_ = connection.send_completed_ = record.send.acknowledged;
  connection.receive_staged_ = connection.receive_committed_ = record.receive.committed;
  connection.receive_acknowledged_ = connection.receive_completed_ = record.receive.acknowledged;
  connection.state_slot_ = record.state_slot;
  connection.state_length_ = record.state_length;
  connection.state_version_ = record.state_version;
  connection.known_epoch_ = shard.epoch_;
  connection.send_log_ = &arena_->send_request(index, 0);
  connection.receive_log_ = &arena_->receive_request(index, 0);
}

// ---------------------------------------------------------------- waiting

// The driver is in this process, so nobody needs to be woken.
void WorkerImpl::TellNativeHost(const Shard& shard, bool released) {
  if (released) return native_->Release(shard.index_, shard.epoch_);
  native_->Apply(shard.index_);
}

// Does the driver's work that is due in a native worker: it goes on with the recovery of claimed
// shards, and moves completions to the logs. REQUIRES: native_.
void WorkerImpl::RecoverAndPoll() {
  native_->Attend();
  for (const auto& shard : shards_) {
    if (Owns(*shard)) native_->Poll(shard->index_);
  }
}

void WorkerImpl::WakeDriver() {
  // Orders the tail before the look at the flag; Engine::Sleep has the other half.
  arena::FullFence();
  if (arena::LoadRelaxed(arena_->header().driver_sleeping) != 0) {
    (void)send(wake_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

// A native worker drives its queues first, so that what they have is in the logs. An idle worker
// acknowledges. Returns whether Poll has something to do.
bool WorkerImpl::Advance() {
  if (native_) RecoverAndPoll();
  driven_ = HasWork();
  if (!driven_) NoteIdleLook();
  return driven_;
}

// Returns whether Poll has something to do.
bool WorkerImpl::HasWork() const {
  if (native_ && !native_->status().ok()) return true;  // Poll returns the error
  if (stop_.load(std::memory_order_relaxed) || shutdown_asked_.load(std::memory_order_relaxed)) {
    return true;
  }
  if (arena::LoadAcquire(arena_->header().ownership_changes) != seen_changes_) return true;
  return std::any_of(shards_.begin(), shards_.end(), [&](const auto& shard) {
    return Owns(*shard) && arena::LoadAcquire(shard->record_->completion_tail) != shard->delivered_;
  });
}

bool WorkerImpl::ArmEvent() {
  AcknowledgeDelivered();
  arena::StoreRelaxed(arena_->worker(slot_).sleeping, 1u);
  // Orders the flag before the last look; Engine::WakeNotified has the other half.
  arena::FullFence();
  armed_ = true;
  if (native_) {
    for (const auto& shard : shards_) {
      if (Owns(*shard)) native_->RequestNotification(shard->index_);
    }
  }
  BATON_CRASH_POINT("arm-before-last-look");
  if (!Advance()) return true;
  arena::StoreRelaxed(arena_->worker(slot_).sleeping, 0u);
  return false;
}

absl::Status WorkerImpl::Wait(int timeout_ms) {
  absl::Status status = Await(timeout_ms);
  // The caller finds what Wake was called for by now.
  woken_.store(false);
  return status;
}

absl::Status WorkerImpl::Await(int timeout_ms) {
  if (options_.yield_microseconds > 0) {
    // A native worker's looks are polls of the device, and it has more of them below.
    for (uint32_t i = native_ ? kLooksBeforeYield : 0; i < kLooksBeforeYield; ++i) {
      if (Advance()) return absl::OkStatus();
      Pause();
    }
  }
  YieldBudget& budget = awaits_device_ ? device_yield_budget_ : yield_budget_;
  const uint64_t began = MonotonicNanoseconds();
  // The worker has to show a sign of life as often as a sleeping one.
  uint64_t limit = std::min(budget.nanoseconds(), uint64_t{heartbeat_ms_} * kMillisecondNs / 2);
  if (timeout_ms >= 0) limit = std::min(limit, static_cast<uint64_t>(timeout_ms) * kMillisecondNs);
  uint64_t now = began;
  for (; now - began < limit; now = MonotonicNanoseconds()) {
    for (int i = native_ ? kLooksPerYield : 1; i > 0; --i) {
      if (Advance() || woken_.load(std::memory_order_relaxed)) {
        budget.NoteWait(now - began);
        return absl::OkStatus();
      }
    }
    sched_yield();
  }
  if (timeout_ms > 0) timeout_ms -= static_cast<int>(std::min(now - began, limit) / kMillisecondNs);
  BATON_ASSIGN_OR_RETURN(const bool came, Sleep(timeout_ms));
  budget.NoteWait(came ? MonotonicNanoseconds() - began : kNothingCame);
  return absl::OkStatus();
}

// Returns whether something came.
absl::StatusOr<bool> WorkerImpl::Sleep(int timeout_ms) {
  if (!ArmEvent()) return true;
  // Never longer than a heartbeat: a sleeping worker is not a hung one.
  const int heartbeat = static_cast<int>(heartbeat_ms_);
  const int timeout = timeout_ms < 0 ? heartbeat : std::min(timeout_ms, heartbeat);
  pollfd entry = {event_fd_.get(), POLLIN, 0};
  const int ready = poll(&entry, 1, timeout);
  if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
  return ready > 0;
}

absl::Status WorkerImpl::Run() {
  BATON_RETURN_IF_ERROR(Ready());
  while (!stop_.load(std::memory_order_relaxed)) {
    BATON_ASSIGN_OR_RETURN(const int work, Poll());
    if (work == 0) BATON_RETURN_IF_ERROR(Wait(-1));
  }
  // Shards that this worker has got since the last turn are given back with the rest. No heir
  // follows a claimant that ends in order: it unlocks its lock, so it never counts as dead.
  if (native_) {
    RecoverAndPoll();
    HandleOwnership();
    AdoptTheRest();
  }
  for (auto& shard : shards_) {
    if (Owns(*shard)) Release(*shard);
  }
  return absl::OkStatus();
}

void WorkerImpl::Stop() {
  stop_.store(true);
  Wake();
}

void WorkerImpl::Wake() {
  woken_.store(true);
  eventfd_write(self_wake_.get(), 1);
}

// ---------------------------------------------------------------- requests to the keeper

// A keeper that is stopped or busy answers late. Meanwhile the worker shows signs of life, and a
// native worker drives its queues: completions go to the logs, and committed requests go to the
// device. No handler is called, so logged completions wait for the next Poll.
void WorkerImpl::AwaitKeeper(pollfd socket, int timeout_ms) {
  arena::StoreRelaxed(arena_->worker(slot_).heartbeat, ++polls_);
  std::array<pollfd, 2> entries = {socket, {-1, POLLIN, 0}};
  if (native_) {
    RecoverAndPoll();
    for (const auto& shard : shards_) {
      if (Owns(*shard)) native_->RequestNotification(shard->index_);
    }
    RecoverAndPoll();  // the last look
    if (native_->status().ok()) entries[1].fd = native_->event_fd();
  }
  int most = std::max(1, static_cast<int>(heartbeat_ms_) / 2);
  // An heir takes one shard in each turn, and nobody wakes it for the next one.
  if (native_ && arena::LoadAcquire(arena_->header().ownership_changes) != seen_changes_) most = 1;
  // If poll is interrupted or fails, the caller looks and calls again.
  (void)poll(entries.data(), entries.size(), std::min(timeout_ms, most));
}

absl::StatusOr<uint16_t> WorkerImpl::Listen(const std::string& host, uint16_t port) {
  return keeper_->Listen(host, port);
}

absl::StatusOr<Connection*> WorkerImpl::Connect(Shard& shard, const std::string& host,
                                                uint16_t port, std::string_view private_data,
                                                uint64_t tag) {
  if (!Owns(shard)) return absl::AbortedError("the shard is not ours");
  if (keeper_gone_) {
    return absl::UnavailableError(
        absl::StrCat("no keeper of service ", options_.service,
                     " serves this worker any more: nobody makes connections for it"));
  }
  if (private_data.size() > arena::kPrivateDataBytes) {
    return absl::InvalidArgumentError(absl::StrCat("private_data: ", private_data.size(),
                                                   " bytes, at most ", arena::kPrivateDataBytes));
  }
  BATON_ASSIGN_OR_RETURN(const internal::Connecting connecting,
                         keeper_->Connect(shard.index_, host, port, private_data, tag));
  if (native_) RecoverAndPoll();  // handles `baton-driver`'s notice of the connection
  Connection* connection = Resolve(shard, connecting.connection(), connecting.generation());
  if (!connection) return absl::AbortedError("the connection ended before it was established");
  return connection;
}

void WorkerImpl::ReportHealth(bool healthy, std::string_view detail) {
  // The keeper, which decides on upgrades, reads this in the arena, so it does not need control.
  arena::StoreRelaxed(arena_->worker(slot_).unhealthy, healthy ? 0u : 1u);
  if (control_) control_->ReportHealth(healthy, detail);
}

absl::Span<uint8_t> WorkerImpl::buffers() const {
  return {arena_->buffers(), arena_->shape().buffer_bytes};
}

absl::StatusOr<Worker::Grant> WorkerImpl::GrantRemoteAccess(uint64_t offset, uint64_t length,
                                                            uint32_t access) {
  return keeper_->Grant(offset, length, access);
}

absl::Status WorkerImpl::RevokeGrant(uint32_t id) { return keeper_->Revoke(id); }

}  // namespace baton

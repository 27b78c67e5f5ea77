#include "worker/worker_impl.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/process_limits.h"
#include "lib/base/status.h"

namespace baton {
namespace {

constexpr size_t kControlStreamDescriptors = 32;

// `length` is 0 if there is no such region.
Worker::Region Describe(const arena::Arena& arena, uint32_t id) {
  const arena::RegionRecord& record = arena.region(id);
  const uint64_t length = arena::LoadAcquire(record.length);
  return {.id = id,
          .length = length,
          .descriptor = record.descriptor,
          .offset = record.offset,
          .access = record.access,
          .rkey = record.rkey,
          .remote_address = record.address};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Attach(const WorkerOptions& options,
                                                       Service* service) {
  // The tables of large heaps take much of the process's memory.
  try {
    auto worker = std::make_unique<WorkerImpl>(options, service);
    BATON_RETURN_IF_ERROR(worker->Attach());
    return worker;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "this process has no memory for the service's tables (see RLIMIT_AS and "
        "vm.overcommit_memory): raise the limit, or lower shard_heap_bytes or max_connections");
  }
}

WorkerImpl::WorkerImpl(const WorkerOptions& options, Service* service)
    : process_(getpid()),
      options_(options),
      service_(service),
      shards_(this, service, options.commit_mode),
      ownership_(service, &shards_, &notices_),
      wait_loop_(options, &shards_, &ownership_, &notices_, &keeper_watch_) {}

WorkerImpl::~WorkerImpl() {
  if (getpid() != process_) {
    Abandon();
    return;
  }
  if (native_ && !native_->status().ok()) {
    // The shards move when this process has ended, as after any death.
    ownership_.LoseAll();
    if (lock_) HoldUntilTheEnd();
    return;
  }
  // The worker detaches also if its own side of Attach failed, because the keeper kills a worker
  // whose session closes before it detaches.
  if ((attached_ || arena_) && (!keeper_watch_.gone() || native_)) Detach();
  // The application still has what belongs to shards that could not be released.
  if (!is_dead_) ownership_.LoseAll();
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
  if (attached.yield_microseconds() != 0) wait_loop_.YieldAtMost(attached.yield_microseconds());
  capacity_.outside_effects = attached.outside_effects();
  capacity_.cpus = attached.placement().cpus();
  if (attached.placement().has_numa_node()) {
    capacity_.numa_node = static_cast<int>(attached.placement().numa_node());
  }
  BATON_RETURN_IF_ERROR(Start(std::make_shared<arena::Arena>(*std::move(arena)), std::move(fds[3]),
                              attached.worker_id(), attached.worker_slot()));
  BATON_RETURN_IF_ERROR(keeper_watch_.WakeEach(heartbeat_ms_));
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
               arena::HeapBytes(shape),
               capacity_.outside_effects,
               capacity_.cpus,
               capacity_.numa_node,
               arena_->header().max_message_bytes};
  shards_.Open(arena_.get(), std::min(arena_->layout_version(), SpokenLayoutVersion()),
               native_.get(), &keeper_->in_doubt(), wake.get());
  ownership_.Open(slot);
  wait_loop_.Open(&arena_->worker(slot), heartbeat_ms_);
  return keeper_watch_.Open(std::move(wake), &*keeper_, native_.get(), &notices_, &watches_);
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
    probe = CopyOf(event_fd());
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
  stream.on_shutdown = [this](const std::string& reason) { notices_.AskShutdown(reason); };
  auto started = ControlStream::Start(std::move(stream));
  if (started.ok()) control_ = *std::move(started);
}

void WorkerImpl::Detach() {
  control_.reset();
  if (native_ && lock_) ownership_.AdoptTheRest();
  ownership_.ReleaseAll();
  // The slot, and the lock in it, may be another worker's as soon as the keeper has answered.
  lock_.reset();
  // This fails if the keeper is gone, which does not matter.
  (void)keeper_->Detach();
}

// ---------------------------------------------------------------- one turn

absl::StatusOr<int> WorkerImpl::Poll() {
  arena::StoreRelaxed(arena_->worker(slot_).heartbeat, ++polls_);
  if (wait_loop_.armed()) {
    wait_loop_.Disarm();
    keeper_watch_.Check();
  } else if (wait_loop_.TakeWatched() || (turns_ & looks_mask_) == 0) {
    keeper_watch_.Check();
  }
  ++turns_;
  // Not needed if a look for work has just driven the queues.
  if (native_ && !wait_loop_.TakeDriven()) shards_.RecoverAndPoll();
  int work = ownership_.Handle();
  for (const auto& shard : shards_.all()) {
    if (shards_.Owns(*shard)) work += shards_.Deliver(*shard);
  }
  // A handler may have staged something in another shard.
  if (work != 0 && shards_.all().size() > 1) (void)shards_.CommitStaged();
  int called = 0;
  if (watches_.due()) [[unlikely]]
    called = RunWatches();
  if (notices_.shutdown_asked()) [[unlikely]]
    ShutDown();
  if (work == 0) shards_.NoteIdleLook();
  if (native_) {
    if (!native_->status().ok()) return native_->status();
    return work + called;  // a native worker needs no keeper to serve
  }
  // The logs are delivered first: they say how the connections ended. A descriptor that is always
  // readable hides nothing.
  if (keeper_watch_.gone() && work == 0) {
    return absl::UnavailableError(
        absl::StrCat("service ", options_.service,
                     " is gone: its driver, or the keeper of this session, has ended. The worker "
                     "has lost its connections: attach again when the service is back"));
  }
  return work + called;
}

int WorkerImpl::RunWatches() {
  return watches_.Run([this] { return shards_.CommitStaged(); });
}

void WorkerImpl::ShutDown() {
  service_->OnShutdown(notices_.TakeShutdown());
  notices_.StopWithoutWaking();
}

absl::Status WorkerImpl::Run() {
  BATON_RETURN_IF_ERROR(Ready());
  if (options_.take_over && !native_) BATON_RETURN_IF_ERROR(TakeOver({}));
  while (!notices_.stopped()) {
    BATON_ASSIGN_OR_RETURN(const int work, Poll());
    if (work == 0) BATON_RETURN_IF_ERROR(Wait(-1));
  }
  // Shards that this worker has got since the last turn are given back with the rest. No heir
  // follows a claimant that ends in order: it unlocks its lock, so it never counts as dead.
  if (native_) {
    shards_.RecoverAndPoll();
    ownership_.Handle();
    ownership_.AdoptTheRest();
  }
  ownership_.ReleaseAll();
  return absl::OkStatus();
}

// ---------------------------------------------------------------- requests to the keeper

// A keeper that is stopped or busy answers late. Meanwhile the worker shows signs of life, and a
// native worker drives its queues: completions go to the logs, and committed requests go to the
// device. No handler is called, so logged completions wait for the next Poll.
void WorkerImpl::AwaitKeeper(pollfd socket, int timeout_ms) {
  arena::StoreRelaxed(arena_->worker(slot_).heartbeat, ++polls_);
  std::array<pollfd, 2> entries = {socket, {-1, POLLIN, 0}};
  if (native_) {
    shards_.RecoverAndPoll();
    shards_.RequestNotifications();
    shards_.RecoverAndPoll();  // the last look
    if (native_->status().ok()) entries[1].fd = native_->event_fd();
  }
  int most = std::max(1, static_cast<int>(heartbeat_ms_) / 2);
  // An heir takes one shard in each turn, and nobody wakes it for the next one.
  if (native_ && ownership_.pending()) most = 1;
  // If poll is interrupted or fails, the caller looks and calls again.
  (void)poll(entries.data(), entries.size(), std::min(timeout_ms, most));
}

absl::StatusOr<Connection*> WorkerImpl::Connect(Shard& shard, const std::string& host,
                                                uint16_t port, std::string_view private_data,
                                                uint64_t tag) {
  if (!shards_.Owns(shard)) return absl::AbortedError("the shard is not ours");
  if (keeper_watch_.gone()) {
    return absl::UnavailableError(
        absl::StrCat("no keeper of service ", options_.service,
                     " serves this worker any more: nobody makes connections for it"));
  }
  if (private_data.size() > arena::kPrivateDataBytes) {
    return absl::InvalidArgumentError(absl::StrCat("private_data: ", private_data.size(),
                                                   " bytes, at most ", arena::kPrivateDataBytes));
  }
  BATON_ASSIGN_OR_RETURN(const internal::Connecting connecting,
                         keeper_->Connect(shard.index(), host, port, private_data, tag));
  Connection* connection = nullptr;
  // A turn handles some of the notices that `baton-driver` has put. This connection's may be the
  // last of a full ring.
  for (uint32_t turn = 0; connection == nullptr && turn <= (native_ ? arena::kNotices : 0);
       ++turn) {
    if (native_) shards_.RecoverAndPoll();
    connection = shards_.Resolve(shard, connecting.connection(), connecting.generation());
  }
  if (!connection) return absl::AbortedError("the connection ended before it was established");
  return connection;
}

absl::StatusOr<Worker::Region> WorkerImpl::RegisterMemory(uint64_t descriptor, uint64_t offset,
                                                          uint64_t length, uint32_t access) {
  if (arena_->header().regions == 0) {
    return absl::UnimplementedError(
        "the service's driver is of a release without regions: it has to be started again");
  }
  if (descriptor == 0) return absl::NotFoundError("descriptor: 0 is not held");
  if ((access & ~verbs::kRemoteRead) != 0) {
    return absl::InvalidArgumentError("access: a region is for sends and for READs of peers");
  }
  BATON_ASSIGN_OR_RETURN(const Grant granted, keeper_->Grant(offset, length, access, descriptor));
  if (granted.id == 0 || granted.id > arena_->header().regions) {
    return absl::InternalError(absl::StrCat("region ", granted.id, " does not exist"));
  }
  return Describe(*arena_, granted.id);
}

absl::Status WorkerImpl::UnregisterMemory(uint32_t id) {
  if (id == 0 || id > arena_->header().regions) {
    return absl::NotFoundError(absl::StrCat("region ", id, " does not exist"));
  }
  return keeper_->RevokeRegion(id);
}

std::vector<Worker::Region> WorkerImpl::Regions() const {
  std::vector<Region> regions;
  for (uint32_t id = 1; id <= arena_->header().regions; ++id) {
    const Region region = Describe(*arena_, id);
    if (region.length != 0) regions.push_back(region);
  }
  return regions;
}

void WorkerImpl::ReportHealth(bool healthy, std::string_view detail) {
  // The keeper, which decides on upgrades, reads this in the arena, so it does not need control.
  arena::StoreRelaxed(arena_->worker(slot_).unhealthy, healthy ? 0u : 1u);
  if (control_) control_->ReportHealth(healthy, detail);
}

}  // namespace baton

#include "supervisor/driver/native/native_engine.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>

#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace baton::driver_process {

namespace {

constexpr int kNewsPipeBytes = 1 << 20;  // a page for each line

}  // namespace

NativeEngine::NativeEngine(arena::Arena* arena, verbs::Device* device, EngineListener* listener,
                           const ServiceOptions& options)
    : ServiceEngine(arena, device, listener),
      options_(options),
      counters_(std::make_unique<NativeCounters>(arena)),
      shards_(arena, [this](uint32_t slot) { Wake(slot); }),
      succession_(arena, listener, options.outside_effects) {
  succession_.SetDrivers(&shards_);
}

absl::StatusOr<std::unique_ptr<NativeEngine>> NativeEngine::Create(arena::Arena* arena,
                                                                   verbs::Device* device,
                                                                   EngineListener* listener,
                                                                   const ServiceOptions& options) {
  BATON_RETURN_IF_ERROR(device->CheckForkable());
  std::unique_ptr<NativeEngine> engine(new NativeEngine(arena, device, listener, options));
  BATON_RETURN_IF_ERROR(engine->Open());
  BATON_ASSIGN_OR_RETURN(engine->manager_,
                         native::ConnectionManager::Create(
                             arena, device, engine.get(), [raw = engine.get()](uint32_t shard) {
                               const uint32_t slot = raw->succession_.ClaimantOrOwner(shard);
                               if (slot != arena::kNobody) raw->Wake(slot);
                             }));
  return engine;
}

absl::Status NativeEngine::Open() {
  const auto open = [](FileDescriptor* descriptor) {
    descriptor->Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return *descriptor ? absl::OkStatus() : ErrnoStatus(errno, "eventfd (see RLIMIT_NOFILE)");
  };
  BATON_RETURN_IF_ERROR(open(&wake_));
  wakes_.resize(arena_->shape().workers);
  for (FileDescriptor& wake : wakes_) BATON_RETURN_IF_ERROR(open(&wake));
  // Unlike a socket, a pipe carries no descriptors, whose close here may wait.
  BATON_ASSIGN_OR_RETURN(news_, MakePipe(O_DIRECT | O_NONBLOCK));
  (void)fcntl(news_.writing.get(), F_SETPIPE_SZ, kNewsPipeBytes);
  return absl::OkStatus();
}

// Nobody here reads the socket: a native worker writes to eventfds. So it can pass nothing that
// this thread, which is the only one, would close.
void NativeEngine::AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake,
                             StateVersions versions, Standing standing) {
  shutdown(wake.get(), SHUT_RD);
  ServiceEngine::AddWorker(slot, id, std::move(wake), versions, standing);
}

NativeInheritance NativeEngine::InheritanceOf(uint32_t slot, uint64_t worker_id) {
  NativeInheritance inheritance;
  inheritance.arena = arena_;
  inheritance.device = device_;
  inheritance.pool = &manager_->pool();
  inheritance.objects = manager_->objects();
  inheritance.slot = slot;
  inheritance.worker_id = worker_id;
  inheritance.driver_wake = wake_.get();
  for (const FileDescriptor& wake : wakes_) inheritance.wakes.push_back(wake.get());
  inheritance.news = news_.writing.get();
  inheritance.realtime_priority = options_.realtime_priority;
  inheritance.outside_effects = options_.outside_effects;
  inheritance.poison_deaths = options_.poison_deaths;
  return inheritance;
}

std::vector<int> NativeEngine::descriptors() const {
  return {wake_.get(), news_.reading.get(), device_->event_fd()};
}

void NativeEngine::Turn() {
  eventfd_t count;
  (void)eventfd_read(wake_.get(), &count);
  // The rest waits for the next turn, which follows at once.
  if (manager_->Turn()) (void)eventfd_write(wake_.get(), 1);
  succession_.LookAtShards();
  LookAtSharedReceives();
  ReadNews(news_.reading.get(), [this](const News& news) {
    if (news.kind == kWorkerFailed) succession_.NoteFailure(news.message);
    listener_->OnEvent(news.kind, news.message, 0, news.shard, news.connection);
  });
  succession_.wakes().WakeNotified();
}

void NativeEngine::Wake(uint32_t slot) const { (void)eventfd_write(wakes_[slot].get(), 1); }

// If the shared receives of all shards are broken, the service cannot use its device any more.
void NativeEngine::LookAtSharedReceives() {
  for (uint32_t shard = 0; shard < arena_->shape().shards; ++shard) {
    if (arena::LoadRelaxed(arena_->shard(shard).shared_receives_refused) == 0) return;
  }
  listener_->OnDeviceLost(
      absl::UnavailableError("the shared receive queues of all shards are broken"));
}

void NativeEngine::OnRefusedConnection(std::string_view why) {
  TellRefused(why, MonotonicNanoseconds());
}

void NativeEngine::OnDeviceEvent(const verbs::DeviceEvent& event, uint32_t connection) {
  const absl::Status told = TellDeviceEvent(event, connection);
  if (!told.ok()) listener_->OnDeviceLost(told);
}

}  // namespace baton::driver_process

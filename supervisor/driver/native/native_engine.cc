#include "supervisor/driver/native/native_engine.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "lib/arena/atomic_access.h"
#include "lib/base/status.h"

namespace baton::driver_process {

NativeEngine::NativeEngine(arena::Arena* arena, verbs::Device* device, EngineListener* listener,
                           const ServiceOptions& options)
    : HostEngine(arena, device, listener, options.outside_effects),
      options_(options),
      wakes_(arena->shape().workers),
      shards_(arena, [this](uint32_t slot) { Wake(slot); }) {
  succession().SetDrivers(&shards_);
}

absl::StatusOr<std::unique_ptr<NativeEngine>> NativeEngine::Create(arena::Arena* arena,
                                                                   verbs::Device* device,
                                                                   EngineListener* listener,
                                                                   const ServiceOptions& options) {
  std::unique_ptr<NativeEngine> engine(new NativeEngine(arena, device, listener, options));
  BATON_RETURN_IF_ERROR(engine->Open());
  for (FileDescriptor& wake : engine->wakes_) {
    wake.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake) return ErrnoStatus(errno, "eventfd (see RLIMIT_NOFILE)");
  }
  return engine;
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
  inheritance.pool = &manager().pool();
  inheritance.objects = manager().objects();
  inheritance.slot = slot;
  inheritance.worker_id = worker_id;
  inheritance.driver_wake = wake_fd();
  for (const FileDescriptor& wake : wakes_) inheritance.wakes.push_back(wake.get());
  inheritance.news = news_fd();
  inheritance.realtime_priority = options_.realtime_priority;
  inheritance.outside_effects = options_.outside_effects;
  inheritance.poison_deaths = options_.poison_deaths;
  return inheritance;
}

void NativeEngine::Turn() {
  HostEngine::Turn();
  LookAtSharedReceives();
}

void NativeEngine::OnNews(const News& news) {
  if (news.kind == kWorkerFailed) succession().NoteFailure(news.message);
  HostEngine::OnNews(news);
}

void NativeEngine::WakeDriver(uint32_t shard) {
  const uint32_t slot = succession().ClaimantOrOwner(shard);
  if (slot != arena::kNobody) Wake(slot);
}

void NativeEngine::Wake(uint32_t slot) const { (void)eventfd_write(wakes_[slot].get(), 1); }

// If the shared receives of all shards are broken, the service cannot use its device any more.
void NativeEngine::LookAtSharedReceives() {
  for (uint32_t shard = 0; shard < arena_->shape().shards; ++shard) {
    if (arena::LoadRelaxed(arena_->shard(shard).shared_receives_refused) == 0) return;
  }
  OnLost(absl::UnavailableError("the shared receive queues of all shards are broken"));
}

}  // namespace baton::driver_process

#include "supervisor/driver/engine/engine.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/process_limits.h"
#include "lib/base/status.h"
#include "lib/driver/device_objects.h"

namespace baton::driver_process {
namespace {

// Notices of the connection manager in one turn: peers and the network decide how many there are.
constexpr int kNoticesPerTurn = 128;

}  // namespace

uint32_t YieldMicroseconds(const EngineOptions& options) {
  constexpr uint32_t kRealtimeMicroseconds = 10;
  return options.realtime_priority == 0
             ? options.yield_microseconds
             : std::min(options.yield_microseconds, kRealtimeMicroseconds);
}

Engine::Engine(arena::Arena* arena, verbs::Device* device, EngineListener* listener,
               const EngineOptions& options)
    : ServiceEngine(arena, device, listener),
      options_(options),
      succession_(arena, listener, options.outside_effects),
      broker_(arena, listener, &succession_.wakes(), options) {
  succession_.SetDrivers(&broker_.shards());
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(arena::Arena* arena, verbs::Device* device,
                                                       EngineListener* listener,
                                                       const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine(arena, device, listener, options));
  engine->wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!engine->wake_) return ErrnoStatus(errno, "eventfd (see RLIMIT_NOFILE)");
  BATON_ASSIGN_OR_RETURN(engine->local_, native::LocalDriver::Create(arena, device, engine.get()));
  if (options.wrap_driver) options.wrap_driver(engine->local_.get());
  engine->driver_ = &engine->local_->driver();
  engine->broker_.SetDriver(engine->driver_);
  return engine;
}

Engine::~Engine() { Stop(); }

void Engine::Start() {
  started_ = true;
  if (device_->registers_on_any_thread()) registrar_ = std::make_unique<Registrar>();
  thread_ = std::thread(&Engine::Loop, this);
}

void Engine::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  eventfd_write(wake_.get(), 1);
  thread_.join();
  registrar_.reset();  // the stopped engine drops what this posts, and the regions
}

bool Engine::Post(std::function<void()> work) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return false;
    posted_.push_back(std::move(work));
  }
  has_posted_.store(true);
  eventfd_write(wake_.get(), 1);
  return true;
}

void Engine::Run(const std::function<void()>& work) {
  if (!started_) return work();
  std::mutex mutex;
  std::condition_variable done;
  bool finished = false;
  const bool posted = Post([&] {
    work();
    const std::lock_guard<std::mutex> lock(mutex);
    finished = true;
    done.notify_one();
  });
  if (!posted) return;
  std::unique_lock<std::mutex> lock(mutex);
  done.wait(lock, [&] { return finished; });
}

// ---------------------------------------------------------------- loop

void Engine::Loop() {
  if (options_.realtime_priority > 0) {
    const absl::Status status = UseRealtimePriority(options_.realtime_priority);
    if (!status.ok()) {
      listener_->OnEvent("no_realtime_priority", std::string(MessageOf(status)), 0, -1, -1);
    }
  }
  TurnLoop<Engine> loop(this, &times_, YieldMicroseconds(options_));
  loop.Run(stop_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  has_posted_.store(true);
  RunPosted();  // a thread may wait for it in Run()
}

std::optional<EngineLoad> Engine::load() {
  if (!started_) return std::nullopt;
  return times_.At(MonotonicNanoseconds());
}

bool Engine::Turn() {
  bool worked = RunPosted();
  worked |= local_->TurnManager();
  worked |= HandleNotices();
  worked |= TurnShards();
  if (!broker_.is_lost() && driver_->AllBroken()) {
    broker_.BeginLoss(absl::UnavailableError("the shared receive queues of all shards are broken"));
  }
  if (broker_.is_lost()) ContinueLoss();
  succession_.wakes().WakeNotified();
  return worked;
}

bool Engine::TurnShards() {
  const bool worked = broker_.TurnShards();
  NoticeChanges();
  if (worked) succession_.wakes().WakeNotified();
  return worked;
}

void Engine::NoticeChanges() {
  if (broker_.TakeChanges()) [[unlikely]] {
    broker_.shards().ForgetReleases();
    succession_.LookAtShards();
  }
}

void Engine::Drive(uint32_t shard) {
  broker_.Drive(shard);
  NoticeChanges();
  succession_.wakes().WakeNotified();
}

bool Engine::RunPosted() {
  if (!has_posted_.load(std::memory_order_acquire)) return false;
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work.swap(posted_);
    has_posted_.store(false);
  }
  for (const auto& item : work) item();
  return !work.empty();
}

bool Engine::HandleNotices() {
  bool worked = false;
  uint32_t shard;
  for (int i = 0; i < kNoticesPerTurn && local_->HandleNotice(&shard); ++i) {
    worked = true;
    if (shard != driver::QueueDriver::kNoShard) broker_.NotifyOwner(shard);
  }
  return worked;
}

// Reports the loss, with which the driver ends, only when all connections have ended. The owners
// find these ends in the logs, which they have mapped.
void Engine::ContinueLoss() {
  objects()->listeners.clear();
  if (!broker_.ContinueLoss()) return;
  succession_.wakes().WakeNotified();
  listener_->OnDeviceLost(broker_.why_lost());
  stop_.store(true);
}

bool Engine::AwaitSignal(int timeout_ms) {
  std::array<pollfd, 2 + arena::kMaxWorkers> entries;
  entries[0] = {wake_.get(), POLLIN, 0};
  entries[1] = {device_->event_fd(), POLLIN, 0};
  const size_t workers = succession_.wakes().ListenForSignals(&entries[2]);
  if (poll(entries.data(), 2 + workers, timeout_ms) <= 0) return false;
  if (entries[0].revents & POLLIN) {
    eventfd_t value;
    eventfd_read(wake_.get(), &value);
  }
  succession_.wakes().TakeSignals(&entries[2]);
  return true;
}

bool Engine::BeginSleep() {
  arena::StoreRelaxed(arena_->header().driver_sleeping, 1u);
  // Orders the flag before the last look at the commit logs; Shard::Commit has the other half.
  arena::FullFence();
  return !has_posted_.load() && !stop_.load() && broker_.MaySleep();
}

void Engine::EndSleep() {
  arena::StoreRelaxed(arena_->header().driver_sleeping, 0u);
  succession_.wakes().WakeNotified();
}

// ---------------------------------------------------------------- workers, connections, the device

void Engine::AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
                       Standing standing) {
  ServiceEngine::AddWorker(slot, id, std::move(wake), versions, standing);
  broker_.RefillBudget(slot);
}

void Engine::WatchWorker(uint32_t slot, uint64_t id, pid_t process) {
  if (!watcher_) {
    watcher_.emplace(
        arena_, options_.realtime_priority,
        [this](uint32_t of, uint64_t dead) {
          if (options_.outside_effects) return;  // its whole process has to be dead
          Post([this, of, dead] { succession_.WorkerEnded(of, dead, "crash"); });
        },
        [this](uint32_t of, uint64_t marked) { listener_->OnThreadEnded(of, marked); });
  }
  watcher_->Watch(slot, id, process);
}

void Engine::ForgetWorker(uint32_t slot) {
  if (watcher_) watcher_->Forget(slot);
}

uint32_t Engine::DisconnectAll(std::string_view why) {
  return local_->manager().DisconnectAll(why);
}

absl::StatusOr<verbs::Address> Engine::Listen(const verbs::Address& address) {
  if (!IsListening(address)) BATON_RETURN_IF_ERROR(CheckNotLost());
  return ServiceEngine::Listen(address);
}

absl::StatusOr<uint32_t> Engine::Connect(uint32_t shard, const verbs::Address& address,
                                         std::string_view private_data, uint64_t tag) {
  BATON_RETURN_IF_ERROR(CheckNotLost());
  native::ConnectionManager& manager = local_->manager();
  auto connection = manager.Connect(shard, address, private_data, tag);
  while (absl::IsUnavailable(connection.status()) && HandleNotices()) {  // there was no room
    connection = manager.Connect(shard, address, private_data, tag);
  }
  // The owner looks for the connection once it has the answer.
  while (connection.ok() && HandleNotices()) {
  }
  return connection;
}

void Engine::RegisterGrant(uint32_t grant, GrantDone done) {
  if (!registrar_) return ServiceEngine::RegisterGrant(grant, std::move(done));
  registrar_->Post([this, grant, range = driver::TakeRange(objects(), grant),
                    done = std::move(done)] {
    using Region = absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>>;
    const auto region = std::make_shared<Region>(driver::RegisterRange(*arena_, device_, range));
    Post([this, grant, region, done] {
      done(driver::FinishGrant(*arena_, objects(), grant, std::move(*region)));
    });
  });
}

void Engine::RevokeGrant(uint32_t grant, GrantDone done) {
  if (!registrar_) return ServiceEngine::RevokeGrant(grant, std::move(done));
  auto region = driver::BeginRevoke(*arena_, objects(), grant);
  if (!region.ok()) return done(region.status());
  std::shared_ptr<verbs::MemoryRegion> revoked = *std::move(region);
  registrar_->Post([this, grant, revoked = std::move(revoked), done = std::move(done)]() mutable {
    revoked.reset();
    Post([this, grant, done = std::move(done)] {
      driver::FinishRevoke(*arena_, objects(), grant);
      done(absl::OkStatus());
    });
  });
}

void Engine::OnConnectionState(uint32_t connection, std::string_view what) {
  const arena::ConnectionRecord& record = arena_->connection(connection);
  listener_->OnEvent("connection",
                     absl::StrCat("connection ", connection, " with ",
                                  static_cast<const char*>(record.peer_address), " ", View(what)),
                     0, static_cast<int>(record.shard), static_cast<int>(connection));
}

void Engine::OnRefusedConnection(std::string_view why) { TellRefused(why, options_.nanoseconds()); }

void Engine::OnDeviceEvent(const verbs::DeviceEvent& event, uint32_t connection) {
  absl::Status told = TellDeviceEvent(event, connection);
  if (!told.ok()) broker_.BeginLoss(std::move(told));
}

}  // namespace baton::driver_process

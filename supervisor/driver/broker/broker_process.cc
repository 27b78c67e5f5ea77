#include "supervisor/driver/broker/broker_process.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/arena/text_field.h"
#include "lib/base/crash_point.h"
#include "lib/base/process_limits.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "lib/native/mappings.h"
#include "lib/nic/control_socket.h"
#include "supervisor/driver/broker/broker_message.h"
#include "supervisor/driver/engine/news_line.h"

namespace baton::driver_process {
namespace {

// Notices of the connection manager in one turn: peers and the network decide how many there are.
constexpr uint32_t kNoticesPerTurn = 128;

}  // namespace

BrokerProcess::BrokerProcess(BrokerInheritance inheritance)
    : inheritance_(std::move(inheritance)),
      broker_(inheritance_.arena, this, inheritance_.wakes, inheritance_.options) {
  device_ = std::make_unique<native::NativeDevice>(native::NativeDevice::Context{
      .arena = &arena(),
      .device = inheritance_.device,
      .pool = inheritance_.pool,
      .objects = inheritance_.objects.get(),
      .wake_driver = [this] { WakeHost(); },
      .tell = [this](std::string_view what) { Tell("queue_pair_not_free", what); }});
  driver_ = driver::QueueDriver::Create(&arena(), device_.get(), this, inheritance_.objects);
  broker_.SetDriver(driver_.get());
  wakes().LeaveClosing(/*to_others=*/false);
}

// The work that it had begun has no effect any more.
BrokerProcess::~BrokerProcess() {
  watcher_.reset();
  device_.reset();
  driver_.reset();
}

absl::Status BrokerProcess::Run() {
  // Otherwise peers would wait for page faults when this broker takes over. It reads the buffers
  // only for sends whose data go with them.
  native::Prefault({arena().buffers(), arena().shape().buffer_bytes});
  // Otherwise the processor on which it dies would have nothing for its successor meanwhile.
  // Without it the kernel unmaps as usual.
  (void)native::StartUnmapper(/*kept=*/-1);
  // Peers would wait for the start of its thread, too.
  StartWatcher();
  const int priority = inheritance_.options.realtime_priority;
  const absl::Status hurries = priority > 0 ? UseRealtimePriority(priority) : absl::OkStatus();
  std::strncpy(board().releases[inheritance_.place], kRelease,
               sizeof(board().releases[inheritance_.place]) - 1);
  board().ready[inheritance_.place].store(true);
  BATON_RETURN_IF_ERROR(TakeDrive(&board()));
  BATON_RETURN_IF_ERROR(TakeOver());
  if (!hurries.ok()) Tell("no_realtime_priority", MessageOf(hurries));
  TurnLoop<BrokerProcess> loop(this, &board().times, YieldMicroseconds(inheritance_.options));
  loop.Run(never_);
  return absl::OkStatus();
}

absl::Status BrokerProcess::TakeOver() {
  const uint64_t begun_ns = inheritance_.options.nanoseconds();
  board().took_lock_ns.store(begun_ns);
  board().driver.store(inheritance_.self);
  ReadMessages();
  NoteSettings();
  BATON_CRASH_POINT("broker-took-lock");
  std::vector<uint32_t> shards(shard_count()), connections(arena().shape().connections);
  std::iota(shards.begin(), shards.end(), 0);
  std::iota(connections.begin(), connections.end(), 0);
  device_->Restore(shards, connections);
  BATON_RETURN_IF_ERROR(driver_->Adopt(shards, connections));
  arena::StoreRelaxed(arena().header().driver_sleeping, 0u);
  BATON_CRASH_POINT("broker-adopted");
  // The dead one was in the middle of some, perhaps, and owners have answered them: GoOn() applies
  // that, and needs what belongs to the connections.
  HandleNotices(arena::kNotices * shard_count());
  broker_.shards().GoOn();
  BATON_CRASH_POINT("broker-gone-on");
  board().took_over_ns.store(inheritance_.options.nanoseconds() - begun_ns);
  board().generation.fetch_add(1);
  BATON_CRASH_POINT("broker-follows");
  TellChanges();
  drives_ = true;
  if (!watcher_) StartWatcher();  // it may succeed now
  for (uint32_t slot = 0; slot < inheritance_.watched.size(); ++slot) {
    Watch(slot, inheritance_.watched[slot]);
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- turns

bool BrokerProcess::Turn() {
  bool worked = LookAtBoard();
  if (has_dead_.load(std::memory_order_relaxed)) [[unlikely]]
    worked |= TakeFromDead();
  if (std::exchange(slept_, false)) inheritance_.device->Progress();
  device_->Progress();
  noticed_ |= device_->awaits_last_receive();
  worked |= HandleNotices();
  worked |= TurnShards();
  if (!broker_.is_lost() && driver_->AllBroken()) {
    broker_.BeginLoss(absl::UnavailableError("the shared receive queues of all shards are broken"));
  }
  if (broker_.is_lost()) ContinueLoss();
  wakes().WakeNotified();
  return worked;
}

bool BrokerProcess::TurnShards() {
  const bool worked = broker_.TurnShards();
  if (broker_.TakeChanges()) [[unlikely]]
    TellChanges();
  if (worked) wakes().WakeNotified();
  return worked;
}

// The order of events in the arena is the host's. So what it told before is carried out before
// notices of connections are handled.
bool BrokerProcess::LookAtBoard() {
  const uint64_t told = board().told.load(std::memory_order_acquire);
  if (told == seen_) [[likely]]
    return false;
  if (board().leaves.load() == inheritance_.self) [[unlikely]]
    inheritance_.leave();
  noticed_ = true;
  ReadMessages();
  NoteSettings();
  if (const absl::Status lost = board().lost.Load(); !lost.ok()) broker_.BeginLoss(lost);
  if (board().looked.load() == board().changes.load()) broker_.shards().ForgetReleases();
  broker_.shards().CarryOut();
  BATON_CRASH_POINT("broker-carried-out");
  if (broker_.TakeChanges()) TellChanges();
  seen_ = told;
  return true;
}

void BrokerProcess::NoteSettings() {
  broker_.shards().SetPoisonDeaths(board().poison_deaths.load());
  const std::pair rates(board().posts_of_service.load(), board().posts_of_worker.load());
  if (std::exchange(post_rates_, rates) == rates) return;  // the budgets go on
  broker_.SetPostRates(rates.first, rates.second);
}

void BrokerProcess::ReadMessages() {
  while (std::optional<ReceivedMessage> received = ReceiveMessage(inheritance_.messages)) {
    const BrokerMessage& message = received->message;
    const WatchedWorker worker = {message.worker_id, message.process};
    switch (message.kind) {
      case BrokerMessage::Kind::kAddWorker:
        wakes().Add(message.slot, std::move(received->descriptor));
        // It may have been given a shard before this was read, and another worker's socket served.
        wakes().Wake(message.slot);
        broker_.RefillBudget(message.slot);
        break;
      case BrokerMessage::Kind::kRemoveWorker:
        wakes().Remove(message.slot);
        break;
      case BrokerMessage::Kind::kWatch:
        Watch(message.slot, worker);
        break;
      case BrokerMessage::Kind::kForget:
        Watch(message.slot, {});
        break;
    }
  }
  EndIfUnknown();
}

// Ends this process if the one that forked it is dead, and the one that follows was forked before
// it, so that nobody would send it messages.
void BrokerProcess::EndIfUnknown() const {
  if (nic::HasEnded(inheritance_.messages)) _exit(0);
}

bool BrokerProcess::HandleNotices(uint32_t most) {
  bool worked = false;
  uint32_t shard;
  for (uint32_t i = 0; i < most; ++i) {
    noticed_ = driver_->HandleEvent(&shard) || driver_->HandleDeviceEvent(&shard);
    if (!noticed_) break;
    worked = true;
    if (shard != driver::QueueDriver::kNoShard) broker_.NotifyOwner(shard);
  }
  return worked;
}

bool BrokerProcess::HandleNotices() {
  if (!noticed_) [[likely]]
    return false;
  const bool worked = HandleNotices(kNoticesPerTurn);
  device_->ServeAnotherFirst();
  BATON_CRASH_POINT("broker-notices-handled");
  if (!noticed_) board().seen.store(seen_, std::memory_order_release);
  return worked;
}

// `baton-driver` reports the loss, with which the service ends, only when all connections have
// ended. The owners find these ends in the logs, which they have mapped.
void BrokerProcess::ContinueLoss() {
  if (!broker_.ContinueLoss() || board().ended.code.load() != 0) return;
  wakes().WakeNotified();
  board().ended.Store(broker_.why_lost());
  WakeHost();
}

// ---------------------------------------------------------------- deaths of workers

// Without it, the ends of workers' processes tell of their deaths.
void BrokerProcess::StartWatcher() {
  if (!inheritance_.watch_deaths) return;
  try {
    watcher_.emplace(
        &arena(), inheritance_.options.realtime_priority,
        [this](uint32_t slot, uint64_t id) { NoteDeath(slot, id); },
        [this](uint32_t, uint64_t) { WakeHost(); });
  } catch (const std::system_error& error) {
    Tell("no_death_watch",
         absl::StrCat("a broker cannot start the thread that notices deaths of workers at once (",
                      error.what(), "; see RLIMIT_NPROC, pids.max): their ends are noticed later"));
  }
}

// Before it drives, it only remembers whom to watch: the kernel wakes one watcher of a death.
void BrokerProcess::Watch(uint32_t slot, const WatchedWorker& worker) {
  inheritance_.watched[slot] = worker;
  if (!watcher_ || !drives_) return;
  worker.id == 0 ? watcher_->Forget(slot) : watcher_->Watch(slot, worker.id, worker.process);
}

void BrokerProcess::NoteDeath(uint32_t slot, uint64_t worker_id) {
  if (inheritance_.options.outside_effects) return;  // its whole process has to be dead
  dead_[slot].store(worker_id);
  has_dead_.store(true);
  (void)eventfd_write(inheritance_.wake, 1);
}

// Notes the ends of the dead as `baton-driver` would, which learns of them by this.
bool BrokerProcess::TakeFromDead() {
  has_dead_.store(false);
  for (uint32_t slot = 0; slot < arena().shape().workers; ++slot) {
    const uint64_t dead = dead_[slot].exchange(0);
    arena::WorkerRecord& worker = arena().worker_record(slot);
    if (dead == 0 || arena::LoadAcquire(worker.id) != dead) continue;
    arena::StoreRelease(worker.ended_id, dead);
  }
  BATON_CRASH_POINT("broker-deaths-noted");
  broker_.shards().CarryOut();
  TellChanges();
  return true;
}

// ---------------------------------------------------------------- sleeping

bool BrokerProcess::BeginSleep() {
  arena::StoreRelaxed(arena().header().driver_sleeping, 1u);
  // Orders the flag before the last looks. Shard::Commit and BrokeredEngine::Tell have the other
  // half.
  arena::FullFence();
  BATON_CRASH_POINT("broker-before-last-look");
  return !HasPosted() && !noticed_ && broker_.MaySleep();
}

bool BrokerProcess::AwaitSignal(int timeout_ms) {
  std::array<pollfd, 2 + arena::kMaxWorkers> entries;
  entries[0] = {inheritance_.wake, POLLIN, 0};
  entries[1] = {inheritance_.device->event_fd(), POLLIN, 0};
  const size_t workers = wakes().ListenForSignals(&entries[2]);
  if (poll(entries.data(), 2 + workers, timeout_ms) <= 0) return false;
  if (entries[0].revents & POLLIN) {
    eventfd_t value;
    eventfd_read(inheritance_.wake, &value);
  }
  wakes().TakeSignals(&entries[2]);
  return true;
}

void BrokerProcess::EndSleep() {
  slept_ = true;
  arena::StoreRelaxed(arena().header().driver_sleeping, 0u);
  wakes().WakeNotified();
}

// ---------------------------------------------------------------- what the broker tells

void BrokerProcess::WakeHost() const { (void)eventfd_write(inheritance_.host_wake, 1); }

void BrokerProcess::TellChanges() {
  board().changes.fetch_add(1);
  BATON_CRASH_POINT("broker-told-changes");
  WakeHost();
}

void BrokerProcess::Tell(std::string_view kind, std::string_view message, uint64_t worker_id,
                         int shard, int connection) const {
  const std::string line = NewsLine(kind, message, worker_id, shard, connection);
  // A line that `baton-driver` does not take is lost.
  (void)!write(inheritance_.news, line.data(), line.size());
}

void BrokerProcess::OnConnectionState(uint32_t connection, std::string_view what) {
  const arena::ConnectionRecord& record = arena().connection(connection);
  Tell("connection",
       absl::StrCat("connection ", connection, " with ", arena::TextOf(record.peer_address), " ",
                    View(what)),
       0, static_cast<int>(record.shard), static_cast<int>(connection));
}

void BrokerProcess::OnRefusedConnection(std::string_view why) { Tell("connection_refused", why); }

void BrokerProcess::OnSlotFree(uint32_t connection) {
  const absl::Status freed = device_->FreeSlot(connection);
  if (freed.ok()) return;
  Tell("slot_not_freed",
       absl::StrCat("connection ", connection,
                    " has ended, and its slot stays out of use: ", freed.message()),
       0, -1, static_cast<int>(connection));
}

void BrokerProcess::OnSettled(uint32_t connection, bool receive, uint64_t end) {
  if (broker_.shards().OnSettled(connection, receive, end)) WakeHost();
}

}  // namespace baton::driver_process

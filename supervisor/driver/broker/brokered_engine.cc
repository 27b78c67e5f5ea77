#include "supervisor/driver/broker/brokered_engine.h"

#include <sched.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "supervisor/driver/broker/broker_message.h"

namespace baton::driver_process {
namespace {

// How long `baton-driver` waits until a broker has carried out what it was told. One that lives
// does so within microseconds, and the successor of a dead one within a millisecond.
constexpr uint64_t kPatienceNs = 50'000'000;
// How long brokers may take to end all connections of a lost device. It is more than a Broker
// waits.
constexpr uint64_t kEndAllNs = 3'000'000'000;

// How long a broker may fill its page tables, on a busy machine.
uint64_t NanosecondsToBeReady(const arena::Arena& arena) {
  constexpr uint64_t kSecondNs = 1'000'000'000;
  const uint64_t bytes =
      arena.worker_map().total + arena.driver_map().total + arena.recovery_map().total;
  return 5 * kSecondNs + 4 * kSecondNs * (bytes >> 30);
}

}  // namespace

BrokeredEngine::BrokeredEngine(arena::Arena* arena, verbs::Device* device, EngineListener* listener,
                               const EngineOptions& options, SharedBoard board,
                               std::unique_ptr<BrokerForks> forks)
    : HostEngine(arena, device, listener, options.outside_effects),
      options_(options),
      board_(std::move(board)),
      watched_(arena->shape().workers),
      brokers_(
          board_.get(), std::move(forks), [this] { return InheritanceOfBroker(); },
          [this](std::string_view kind, const std::string& message) {
            listener_->OnEvent(kind, message, 0, -1, -1);
          },
          options.nanoseconds, NanosecondsToBeReady(*arena)) {
  board_->poison_deaths.store(options.poison_deaths);
  succession().SetDrivers(this);
  succession().wakes().LeaveClosing(/*to_others=*/true);
}

BrokeredEngine::~BrokeredEngine() = default;

absl::StatusOr<std::unique_ptr<BrokeredEngine>> BrokeredEngine::Create(
    arena::Arena* arena, verbs::Device* device, EngineListener* listener,
    const EngineOptions& options, std::unique_ptr<BrokerForks> forks) {
  BATON_ASSIGN_OR_RETURN(SharedBoard board, SharedBoard::Make());
  std::unique_ptr<BrokeredEngine> engine(
      new BrokeredEngine(arena, device, listener, options, std::move(board), std::move(forks)));
  engine->broker_wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!engine->broker_wake_) return ErrnoStatus(errno, "eventfd (see RLIMIT_NOFILE)");
  BATON_RETURN_IF_ERROR(engine->Open());
  return engine;
}

BrokerInheritance BrokeredEngine::InheritanceOfBroker() {
  BrokerInheritance inheritance;
  inheritance.arena = arena_;
  inheritance.device = device_;
  inheritance.pool = &manager().pool();
  inheritance.objects = manager().objects();
  inheritance.board = board_.get();
  inheritance.wakes = &succession().wakes();
  inheritance.watched = watched_;
  inheritance.wake = broker_wake_.get();
  inheritance.host_wake = wake_fd();
  inheritance.news = news_fd();
  inheritance.options = options_;
  inheritance.options.releasers = &board_->releasers;
  return inheritance;
}

// ---------------------------------------------------------------- turns

void BrokeredEngine::Start() {
  const absl::Status started = brokers_.Start();
  if (!started.ok()) listener_->OnDeviceLost(started);
}

void BrokeredEngine::Turn() {
  const uint64_t changes = board_->changes.load();
  BATON_CRASH_POINT("host-turns");
  HostEngine::Turn();
  if (std::exchange(looked_, changes) != changes) {
    board_->looked.store(changes);
    BATON_CRASH_POINT("host-looked");
    Tell();
  }
  const absl::Status turned = brokers_.Turn();
  if (!turned.ok()) listener_->OnDeviceLost(turned);
  if (brokers_.TakeLeaveAsked()) Tell();
  LookForEnd();
}

std::vector<int> BrokeredEngine::descriptors() const {
  std::vector<int> all = HostEngine::descriptors();
  for (const int fd : brokers_.descriptors()) all.push_back(fd);
  return all;
}

absl::Status BrokeredEngine::TakeOver() {
  BATON_RETURN_IF_ERROR(HostEngine::TakeOver());
  brokers_.TakeOver();
  waited_in_vain_.reset();
  // Brokers look whether this process knows them.
  Tell();
  return absl::OkStatus();
}

// Each beat tells the broker something new, which it then has a beat's time to look at.
void BrokeredEngine::Beat() {
  if (const pid_t hung = brokers_.Beat(); hung != 0) {
    listener_->OnEvent("broker_killed",
                       absl::StrCat("the broker (process ", hung,
                                    ") did not do what it was told, and was killed: it was "
                                    "stopped, hung, or had no processor"),
                       0, -1, -1);
  }
  Tell();
}

// Returns the number of what was told.
uint64_t BrokeredEngine::Tell() {
  const uint64_t told = board_->told.fetch_add(1) + 1;
  BATON_CRASH_POINT("host-told");
  // Orders it before the look at the flag; BrokerProcess::BeginSleep has the other half.
  arena::FullFence();
  if (arena::LoadRelaxed(arena_->header().driver_sleeping) != 0) {
    (void)eventfd_write(broker_wake_.get(), 1);
  }
  return told;
}

// After a wait in vain, it does not wait again before a broker has looked at the board.
bool BrokeredEngine::Settle() {
  const uint64_t told = Tell();
  const uint64_t deadline = options_.nanoseconds() + kPatienceNs;
  for (;;) {
    const uint64_t seen = board_->seen.load(std::memory_order_acquire);
    if (seen >= told) return true;
    if (!brokers_.any_live() || waited_in_vain_ == seen) return false;
    if (options_.nanoseconds() > deadline) {
      waited_in_vain_ = seen;
      return false;
    }
    BATON_CRASH_POINT("host-settling");
    sched_yield();
  }
}

// ---------------------------------------------------------------- the device is lost

void BrokeredEngine::OnLost(const absl::Status& why) {
  if (give_up_ns_ != 0) return;
  give_up_ns_ = options_.nanoseconds() + kEndAllNs;
  board_->lost.Store(why);
  Tell();
}

// The broker may have noticed the loss first. Its reason counts only if the device gives none in
// the next turn.
void BrokeredEngine::LookForEnd() {
  const absl::Status ended = board_->ended.Load();
  const bool late = give_up_ns_ != 0 && options_.nanoseconds() > give_up_ns_;
  if ((ended.ok() && !late) || told_lost_) return;
  absl::Status lost = board_->lost.Load();
  if (lost.ok() && !std::exchange(awaits_reason_, true)) {
    (void)eventfd_write(wake_fd(), 1);
    return;
  }
  told_lost_ = true;
  listener_->OnDeviceLost(lost.ok() ? ended : lost);
}

// ---------------------------------------------------------------- workers

// The owner looks for the connection once it has the answer, so the broker handles the notice of it
// first.
absl::StatusOr<uint32_t> BrokeredEngine::Connect(uint32_t shard, const verbs::Address& address,
                                                 std::string_view private_data, uint64_t tag) {
  auto connection = HostEngine::Connect(shard, address, private_data, tag);
  if (absl::IsUnavailable(connection.status()) && Settle()) {  // there was no room
    connection = HostEngine::Connect(shard, address, private_data, tag);
  }
  if (connection.ok()) (void)Settle();
  return connection;
}

// The broker takes shards from a worker that has ended, and frees its banks, by the slot.
absl::Status BrokeredEngine::CheckPlace(uint32_t slot) {
  const auto is_left = [&] {
    const arena::WorkerRecord& worker = arena_->worker_record(slot);
    return arena::LoadAcquire(worker.left_id) == worker.ended_id &&
           arena::LoadAcquire(worker.buried_id) == worker.dead_id;
  };
  if (is_left() || (Settle() && is_left())) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the broker has not done with the worker that had slot ", slot, " before"));
}

void BrokeredEngine::AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake,
                               StateVersions versions, Standing standing) {
  brokers_.Send({.kind = BrokerMessage::Kind::kAddWorker, .slot = slot, .worker_id = id},
                wake.get());
  HostEngine::AddWorker(slot, id, std::move(wake), versions, standing);
  Tell();
}

void BrokeredEngine::OnDead(uint32_t slot) {
  brokers_.Send({.kind = BrokerMessage::Kind::kRemoveWorker, .slot = slot});
  (void)Settle();
}

void BrokeredEngine::WatchWorker(uint32_t slot, uint64_t id, pid_t process) {
  watched_[slot] = {id, process};
  brokers_.Send(
      {.kind = BrokerMessage::Kind::kWatch, .slot = slot, .worker_id = id, .process = process});
  Tell();
}

void BrokeredEngine::ForgetWorker(uint32_t slot) {
  watched_[slot] = {};
  brokers_.Send({.kind = BrokerMessage::Kind::kForget, .slot = slot});
  Tell();
}

// ---------------------------------------------------------------- shards

// The broker gives it to its heir as soon as it can.
std::string BrokeredEngine::Give(uint32_t shard, uint32_t) {
  Tell();
  return WhyGivingWaits(*arena_, succession().ownership(shard), options_.outside_effects);
}

void BrokeredEngine::SetPostRates(uint32_t of_service, uint32_t of_worker) {
  board_->posts_of_service.store(of_service);
  board_->posts_of_worker.store(of_worker);
  Tell();
}

void BrokeredEngine::SetPoisonDeaths(uint32_t deaths) {
  board_->poison_deaths.store(deaths);
  Tell();
}

std::optional<EngineLoad> BrokeredEngine::load() {
  const TurnTimes times = board_->times;
  if (times.started_ns == 0) return std::nullopt;
  return times.At(options_.nanoseconds());
}

}  // namespace baton::driver_process

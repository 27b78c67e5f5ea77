#include "tests/simulation/world.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "lib/base/crash_point.h"
#include "tests/simulation/context.h"
#include "tests/simulation/hostile.h"
#include "tests/simulation/service_drivers.h"

namespace baton::simulation {
namespace {

constexpr uint32_t kFaultySteps = 600;
constexpr uint32_t kSettleSteps = 30'000;
constexpr int kMaxNesting = 4;
constexpr size_t kShownSteps = 1023;
constexpr uint32_t kHeapPages = 64;  // so few that heaps are often full
// So that one connection cannot lose all the markers that it may have to them.
constexpr uint32_t kMaxDriverDeaths = arena::kMarkers - 1;

// Unwinds a worker that was killed in the middle of something.
struct Killed {};

// A worker's process, alive or not, until its slot is free again.
struct Process {
  enum class State : uint8_t {
    kAttaching,  // the engine does not know it yet
    kAttached,
    kReady,
    kLeaving,  // has said farewell
    kDead,
    kGone,  // and everybody knows
  };
  State state = State::kAttaching;
  uint64_t id = 0;
  uint32_t slot = 0;
  CommitMode mode = CommitMode::kAfterEachBatch;
  bool watched = false;  // its lock is
  bool lock_told = false, death_told = false;
  bool hostile = false;    // writes what no correct worker writes
  bool accused = false;    // has done so
  bool condemned = false;  // was fenced: somebody will kill it
  bool doomed = false;     // was killed, and may be in the middle of something still
  bool asleep = false;
  int running = 0;
  FileDescriptor keeper, wake;  // our ends of its sockets; `wake` until the engine has it
  std::unique_ptr<App> app;
  std::unique_ptr<WorkerImpl> worker;

  bool alive() const { return !doomed && state != State::kDead && state != State::kGone; }
};

struct Weights {
  uint32_t engine, workers, peers, device, management;
};

class World : private driver_process::EngineListener, private RemoteListener {
 public:
  explicit World(const ScheduleOptions& options);
  ~World() override;

  ScheduleResult Run();
  void OnCrashPoint(const char* name);
  std::string Describe() const;
  std::string Last() const {
    return absl::StrCat(context_.Last(kShownSteps), "seed ", options_.seed, "\n");
  }

 private:
  arena::Shape ChooseShape();
  void Step();
  void Interleave();
  void RunProcess(Process& process);
  void PollProcess(Process& process);
  bool Manage();
  bool AttachProcess();
  bool TellDeaths();
  void Kill(Process& process);
  void Bury(Process& process);
  void Leave(Process& process);
  void ConnectOut(Process& process);
  void AskHandoff();
  void Stop(Process& process);
  void StoreLate(Process& process);
  void PublishTailFirst(Process& process);
  void DropUnapplied(uint32_t slot);
  bool Settle();
  bool Settled() const;
  uint32_t Serving() const;
  bool AllOwned() const;
  bool OwnsAny(const Process& process) const;
  Process* Any(bool (*fits)(const Process&));
  driver_process::ServiceEngine& engine() { return drivers_->engine(); }
  const driver_process::ServiceEngine& engine() const { return drivers_->engine(); }

  void OnEvent(std::string_view kind, const std::string& message, uint64_t worker_id, int shard,
               int connection) override;
  void OnFenced(uint64_t worker_id) override;
  void OnDeviceLost(const absl::Status& why) override;
  RemoteEnd* OnRequest(Wire* wire) override;

  const ScheduleOptions options_;
  Context context_;
  Dice& dice_;
  bool deep_ = false;
  ArenaPair& arenas_;
  const arena::Arena& arena_;
  Checker checker_;
  SimDevice device_;
  std::unique_ptr<ServiceDrivers> drivers_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<Process*> slots_;  // who has it; null: free
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Process*> stack_;  // that are in the middle of something
  Weights weights_;
  uint32_t preempt_, kill_;  // once in so many points; 0: never
  uint32_t burst_;           // steps of a peer or the device at once
  uint32_t slow_death_;      // once in so many chances the death of a process is told
  bool outside_effects_;
  bool pools_;  // of the service, so of all its workers
  bool faults_ = true;
  int nesting_ = 0;
  int open_handoffs_ = 0;  // whose outcome nobody has heard of yet
  uint64_t last_id_ = 0;
  uint64_t steps_ = 0, kills_ = 0, fenced_ = 0;
};

World* g_world = nullptr;

// ---------------------------------------------------------------- beginning

arena::Shape World::ChooseShape() {
  arena::Shape shape = {};
  // Rarely one in which so much can be outstanding that the commit log has no room.
  deep_ = options_.deep || dice_.OneIn(200);
  shape.shards = deep_ ? 1 : dice_.From(1, 3);
  shape.connections = deep_ ? 8 : 4;
  shape.send_queue_depth = shape.receive_queue_depth = deep_ ? 128 : 1u << dice_.Below(4);
  shape.connection_state_bytes = 64;
  shape.shard_state_bytes = 64;
  shape.workers = dice_.OneIn(2) ? 3 : 8;
  // No die: what the other schedules do does not depend on it.
  if (options_.seed % 5 == 3 && !options_.defects.app.reuse_buffer_early) {
    // More than all deaths of drivers leave unsure, each of which may need its answer yet.
    shape.send_queue_depth = shape.receive_queue_depth = std::max(16u, shape.send_queue_depth);
    shape.shared_receive_queue_depth = shape.send_queue_depth / 2;
  }
  // Nor here: only these schedules are other ones than they would be without heaps.
  if (options_.seed % 7 == 2) {
    shape.heap_pages = kHeapPages;
    shape.shard_state_bytes = static_cast<uint32_t>(
        arena::AlignUp(sizeof(ShardTotals) + sizeof(HeapObjects), shape.shard_state_bytes));
  }
  // In advance, with many that rest until the schedule is over.
  if (options_.brokers) shape.brokered_queue_pairs = 64;
  shape.buffer_bytes = arena::AlignUp(BufferBytes(shape), arena::kPageBytes) +
                       shape.shards * arena::HeapBytes(shape);
  shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
  return shape;
}

World::World(const ScheduleOptions& options)
    : options_(options),
      context_(options.seed),
      dice_(context_.dice),
      arenas_(FreshArena(ChooseShape())),
      arena_(*arenas_.driver),
      checker_(&context_, &arena_),
      device_(&context_, &checker_),
      slots_(arena_.shape().workers) {
  g_world = this;
  SetCrashPointHandler([](const char* name) { g_world->OnCrashPoint(name); });
  constexpr std::array<uint32_t, 4> kOften = {0, 2, 8, 40};
  preempt_ = kOften[dice_.Below(kOften.size())];
  constexpr std::array<uint32_t, 4> kKills = {0, 30, 100, 400};
  kill_ = kKills[dice_.Below(kKills.size())];
  weights_ = {dice_.From(1, 8), dice_.From(1, 8), dice_.From(1, 4), dice_.From(2, 10),
              dice_.From(0, 4)};
  burst_ = deep_ ? 400 : dice_.OneIn(4) ? 10 : 1;
  constexpr std::array<uint32_t, 3> kDeaths = {2, 8, 200};
  slow_death_ = kDeaths[dice_.Below(kDeaths.size())];
  device_.RefusePosts(dice_.OneIn(3));
  // Brokers tell of deaths later, when that proves nothing about who died of what.
  const bool poison = dice_.OneIn(4) && !options.brokers;
  outside_effects_ = dice_.OneIn(5);
  pools_ = dice_.OneIn(2) && !options.defects.app.reuse_buffer_early &&
           !arena::HasSharedReceives(arena_.shape());
  ServiceParts parts;
  parts.options.outside_effects = outside_effects_;
  parts.options.break_recovery = options.defects.forget_unacknowledged;
  parts.options.nanoseconds = [this] { return context_.now_ns; };
  // Unless it is expected, whoever is killed so often in the same handler proves nothing.
  parts.options.poison_deaths = poison ? dice_.From(1, 3) : UINT32_MAX;
  if (poison) checker_.ExpectPoison(parts.options.poison_deaths, /*random_deaths=*/kill_ != 0);
  constexpr std::array<uint32_t, 5> kDriverDeaths = {0, 0, 10, 100, 400};
  const bool immortal = poison && options.seed % 2 == 0;
  parts.mortality.once_in = immortal ? 0 : kDriverDeaths[dice_.Below(kDriverDeaths.size())];
  parts.mortality.deaths = dice_.From(1, kMaxDriverDeaths);
  parts.mortality.after_ns = dice_.OneIn(4) ? 0 : uint64_t{1000} * dice_.Below(kFaultySteps);
  parts.mortality.focus = dice_.OneIn(4) ? 0 : 1 + dice_.Below(1000);
  // No die here either. A device of which every driver knows what is queued; one whose first
  // drivers are of a release that did not ask; and one that cannot say.
  if (options.seed % 4 == 0) parts.mortality.answers_after = 0;
  if (options.seed % 4 == 2) {
    parts.mortality.answers_after = 1 + static_cast<uint32_t>(options.seed / 4 % kMaxDriverDeaths);
  }
  device_.SetAnswers(parts.mortality.answers_after == 0);
  parts.context = &context_;
  parts.device = &device_;
  parts.arena = arenas_.driver.get();
  parts.listener = this;
  drivers_ = options.brokers ? HostAndBrokers(parts) : OneProcess(parts);
  BATON_CHECK(engine().Listen({"10.0.0.1", 7471}).ok());
  if (deep_) weights_ = {1, dice_.From(1, 16), 4, 4, 1};
  const uint32_t clients = deep_ ? 8 : dice_.From(1, arena_.shape().connections);
  const uint32_t passive = dice_.Below(3);
  device_.SetRemoteListener(this);
  for (uint32_t i = 0; i < clients; ++i) {
    const uint32_t window = dice_.From(1, 2 * arena_.shape().send_queue_depth);
    clients_.push_back(
        std::make_unique<Client>(&context_, &checker_, &device_, i, window, i > 0 && i <= passive));
    if (poison && dice_.OneIn(2)) clients_.back()->SendPoison();
  }
  context_.interleave = [this] { Interleave(); };
}

World::~World() {
  // What is left is not an end that anybody has to answer for.
  context_.interleave = [] {};
  for (auto& process : processes_) {
    if (process->worker) process->worker->Die();
  }
  processes_.clear();
  drivers_.reset();
  SetCrashPointHandler(nullptr);
  g_world = nullptr;
}

// ---------------------------------------------------------------- the schedule

void World::Step() {
  context_.now_ns += 1000;
  ++steps_;
  uint32_t choice = dice_.Below(weights_.engine + weights_.workers + weights_.peers +
                                weights_.device + weights_.management);
  const auto chosen = [&choice](uint32_t weight) {
    if (choice < weight) return true;
    choice -= weight;
    return false;
  };
  if (chosen(weights_.engine)) {
    drivers_->Run();
  } else if (chosen(weights_.workers)) {
    if (!processes_.empty()) {
      RunProcess(*processes_[dice_.Below(static_cast<uint32_t>(processes_.size()))]);
    }
  } else if (chosen(weights_.peers)) {
    Client& client = *clients_[dice_.Below(static_cast<uint32_t>(clients_.size()))];
    for (uint32_t i = 0; i < burst_; ++i) client.Step(faults_ && i == 0);
  } else if (chosen(weights_.device)) {
    for (uint32_t i = 0; i < burst_; ++i) device_.Step(faults_ && i == 0);
  } else {
    Manage();
  }
  checker_.CheckRecords();
}

// Somebody else runs in the middle of what is running. Whoever is in the middle of something
// already does not: it goes on when those that were begun after it are done.
void World::Interleave() {
  if (context_.broken() || nesting_ == kMaxNesting || !dice_.OneIn(preempt_)) return;
  ++nesting_;
  do {
    Step();
  } while (!context_.broken() && dice_.OneIn(2));
  --nesting_;
}

// ---------------------------------------------------------------- workers

void World::OnCrashPoint(const char* name) {
  if (std::strncmp(name, "driver", 6) == 0) {
    context_.DriverPoint(name);
    return context_.interleave();
  }
  const std::string_view where = name;
  if (where.starts_with("change") || where.starts_with("broker")) {
    context_.DriverPoint(name);
    return context_.interleave();
  }
  if (where.starts_with("host")) {
    drivers_->OnHostPoint(where);
    return context_.interleave();
  }
  // The manager of connections dies in connection_recovery_test.
  if (where.starts_with("manager")) return;
  // These do not die here.
  if (where.starts_with("keeper") || where.starts_with("succession")) return context_.interleave();
  Process& process = *stack_.back();
  context_.Note(name, process.id);
  if (std::strcmp(name, "commit-published") == 0) {
    checker_.OnPublished(process.slot);
    process.app->Published();
  }
  if (options_.defects.tail_first && std::strcmp(name, "commit-begin") == 0) {
    PublishTailFirst(process);
  }
  if (context_.broken()) return;
  if (std::strcmp(name, "poison") == 0 || (faults_ && dice_.OneIn(kill_))) Kill(process);
  if (!process.doomed) Interleave();
  if (process.doomed) throw Killed();
}

void World::RunProcess(Process& process) {
  using State = Process::State;
  if (!process.alive() || process.running > 0) return;
  if (process.state != State::kAttached && process.state != State::kReady) return;
  stack_.push_back(&process);
  ++process.running;
  try {
    PollProcess(process);
  } catch (const Killed&) {
    context_.Note("worker: dies", process.id);
  }
  --process.running;
  stack_.pop_back();
  if (process.doomed) Bury(process);
}

void World::PollProcess(Process& process) {
  // It then waits for what comes of it: the library's own commits would take it back.
  if (process.accused && (!process.condemned || OwnsAny(process))) return;
  if (faults_ && process.hostile && dice_.OneIn(4)) {
    const uint32_t hurt = ChangeCommitted(*arenas_.worker, process.slot, &context_);
    if (hurt != kNothing) checker_.ExcuseConnection(hurt);
  }
  if (faults_ && process.hostile && !process.accused && dice_.OneIn(10)) {
    process.accused = PublishInvalid(*arenas_.worker, process.slot, &context_);
    if (process.accused) return;
  }
  if (process.asleep) {
    pollfd entry = {process.worker->event_fd(), POLLIN, 0};
    if (poll(&entry, 1, 0) == 0) return;
    process.asleep = false;
  }
  const auto work = process.worker->Poll();
  if (!work.ok()) return context_.Break(absl::StrCat("Poll: ", work.status().message()));
  context_.Note("worker: polled", process.id, static_cast<uint64_t>(*work));
  const bool manual = process.mode == CommitMode::kManual;
  if (faults_ && !drivers_->is_busy() && dice_.OneIn(10)) ConnectOut(process);
  process.app->Idle(!manual || *work == 0 || dice_.OneIn(3));
  if (*work == 0 && !process.app->undecided() && dice_.OneIn(2)) {
    process.asleep = process.worker->ArmEvent();
    if (options_.defects.wakeup_lost) arena_.worker(process.slot).sleeping = 0;
    context_.Note("worker: sleeps", process.id, process.asleep);
  }
}

bool World::AttachProcess() {
  const auto free = std::find(slots_.begin(), slots_.end(), nullptr);
  if (free == slots_.end() || drivers_->is_busy()) return false;
  if (!drivers_->CheckPlace(static_cast<uint32_t>(free - slots_.begin())).ok()) return false;
  auto process = std::make_unique<Process>();
  process->id = ++last_id_;
  process->slot = static_cast<uint32_t>(free - slots_.begin());
  *free = process.get();
  int keeper[2], wake[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, keeper) == 0);
  BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, wake) == 0);
  process->keeper.Reset(keeper[0]);
  process->wake.Reset(wake[1]);
  arena_.ClearWorker(process->slot);
  process->hostile = faults_ && dice_.OneIn(4);
  AppOptions app;
  app.decides = faults_;
  app.pools = pools_;
  app.defects = options_.defects.app;
  process->app = std::make_unique<App>(&context_, &checker_, arenas_.worker.get(), app);
  WorkerOptions worker;
  constexpr std::array kModes = {CommitMode::kAfterEachBatch, CommitMode::kAfterEachCompletion,
                                 CommitMode::kManual};
  worker.commit_mode = process->mode = kModes[dice_.Below(kModes.size())];
  process->worker = std::make_unique<WorkerImpl>(worker, process->app.get());
  process->worker->Connected(FileDescriptor(keeper[1]));
  BATON_CHECK(
      process->worker->Start(arenas_.worker, FileDescriptor(wake[0]), process->id, process->slot)
          .ok());
  context_.Note("attach", process->id, process->slot, static_cast<uint64_t>(process->mode));
  Process* const added = process.get();
  drivers_->Post([this, added] {
    engine().AddWorker(added->slot, added->id, std::move(added->wake));
    if (added->state == Process::State::kAttaching) added->state = Process::State::kAttached;
  });
  processes_.push_back(std::move(process));
  return true;
}

// Kills as SIGKILL does. A process that is in the middle of something is unwound as soon as that
// goes on, and does nothing any more.
void World::Kill(Process& process) {
  context_.Note("kill", process.id);
  ++kills_;
  process.doomed = true;
  if (process.running == 0) Bury(process);
}

void World::Bury(Process& process) {
  process.worker->Die();
  process.worker.reset();
  process.keeper.Reset();
  process.state = Process::State::kDead;
}

// Gives everything back, and waits for the keeper to say that it may go.
void World::Leave(Process& process) {
  stack_.push_back(&process);
  ++process.running;
  try {
    // The answer is there before the question: nobody else could give it meanwhile.
    internal::WorkerReply reply;
    MessageChannel channel(std::move(process.keeper));
    BATON_CHECK(channel.Send(reply).ok());
    process.keeper = FileDescriptor(dup(channel.fd()));
    process.worker->Detach();
    process.worker->Die();
    process.state = Process::State::kLeaving;
  } catch (const Killed&) {
    context_.Note("worker: dies leaving", process.id);
  }
  --process.running;
  stack_.pop_back();
  if (process.doomed) return Bury(process);
  context_.Note("leaves", process.id);
  drivers_->Post([this, &process] {
    if (!process.alive()) return;
    if (engine().succession().IsFenced(process.slot)) return;
    engine().succession().WorkerEnded(process.slot, process.id, "detached");
    engine().succession().WorkerDead(process.slot, process.id);
    process.worker.reset();
    process.state = Process::State::kGone;
    slots_[process.slot] = nullptr;
  });
}

// Its request runs at the engine's, as the keeper's sessions have it; the answer is there before
// the question.
void World::ConnectOut(Process& process) {
  Shard* const shard = process.app->SomeShard();
  if (!shard) return;
  const uint64_t tag = dice_.Next();
  checker_.OnConnect(tag);
  internal::WorkerReply reply;
  absl::StatusOr<uint32_t> connecting = absl::FailedPreconditionError("not the owner's");
  if (engine().succession().ownership(shard->index()).owner_id() == process.id) {
    connecting = drivers_->Connect(shard->index(), "out", tag);
  }
  if (connecting.ok()) {
    reply.mutable_connecting()->set_connection(*connecting);
    reply.mutable_connecting()->set_generation(arena_.connection(*connecting).generation);
  } else {
    reply.set_status_code(static_cast<int>(connecting.status().code()));
  }
  MessageChannel channel(FileDescriptor(dup(process.keeper.get())));
  BATON_CHECK(channel.Send(reply).ok());
  const auto connection = process.worker->Connect(*shard, "10.0.0.2", 1, "out", tag);
  internal::WorkerRequest request;
  BATON_CHECK(channel.Receive(&request, 0).ok());
  context_.Note("connects", process.id, connection.ok());
  if (connection.ok()) process.app->OnConnecting(**connection);
}

RemoteEnd* World::OnRequest(Wire* wire) {
  for (auto& client : clients_) {
    if (!client->free()) continue;
    client->OnRequest(wire);
    return client.get();
  }
  return nullptr;
}

// ---------------------------------------------------------------- management

bool World::TellDeaths() {
  for (auto& process : processes_) {
    if (!process->doomed || process->state == Process::State::kGone || process->death_told) {
      continue;
    }
    Process* const dead = process.get();
    if (dead->watched && !dead->lock_told && dice_.OneIn(2)) {
      dead->lock_told = true;
      context_.Note("lock is dead", dead->id);
      if (outside_effects_ || drivers_->NoteDeath(dead->slot, dead->id)) return true;
      drivers_->Post([this, dead] { Stop(*dead); });
      return true;
    }
    if (!dice_.OneIn(faults_ ? slow_death_ : 4)) continue;
    dead->death_told = true;
    context_.Note("process is dead", dead->id);
    drivers_->Post([this, dead] {
      Stop(*dead);
      engine().succession().WorkerDead(dead->slot, dead->id);
      dead->state = Process::State::kGone;
      slots_[dead->slot] = nullptr;
    });
    return true;
  }
  return false;
}

// The engine hears that the worker's threads are dead.
void World::Stop(Process& process) {
  if (options_.defects.cut_drops_last) DropUnapplied(process.slot);
  engine().succession().WorkerEnded(process.slot, process.id, "crash");
  if (options_.defects.bank_reused_early)
    engine().succession().WorkerDead(process.slot, process.id);
}

// Something of a dying or fenced process stores into the banks of epochs that are over, and, while
// its shards wait for the death of the process, into whatever is not committed.
void World::StoreLate(Process& process) {
  const auto& held = process.app->held();
  if (held.empty()) return;
  const auto [shard, epoch] = held[dice_.Below(static_cast<uint32_t>(held.size()))];
  const driver::Ownership& ownership = engine().succession().ownership(shard);
  if (ownership.epoch() == epoch && ownership.owned()) return;
  context_.Note("late store", process.id, shard, epoch);
  ScribbleBank(*arenas_.worker, shard, epoch, &dice_);
  if (process.condemned) ScribbleUncommitted(*arenas_.worker, shard, &dice_);
}

bool World::AllOwned() const {
  for (uint32_t i = 0; i < arena_.shape().shards; ++i) {
    if (!engine().succession().ownership(i).owned()) return false;
  }
  return true;
}

bool World::OwnsAny(const Process& process) const {
  for (uint32_t i = 0; i < arena_.shape().shards; ++i) {
    if (engine().succession().ownership(i).owner_slot() == process.slot) return true;
  }
  return false;
}

uint32_t World::Serving() const {
  return static_cast<uint32_t>(
      std::count_if(processes_.begin(), processes_.end(), [](const auto& process) {
        return process->alive() && process->state != Process::State::kLeaving;
      }));
}

Process* World::Any(bool (*fits)(const Process&)) {
  if (processes_.empty()) return nullptr;
  const uint32_t first = dice_.Below(static_cast<uint32_t>(processes_.size()));
  for (size_t i = 0; i < processes_.size(); ++i) {
    Process& process = *processes_[(first + i) % processes_.size()];
    if (fits(process)) return &process;
  }
  return nullptr;
}

void World::AskHandoff() {
  const uint32_t shard = dice_.Below(arena_.shape().shards);
  if (dice_.OneIn(4)) {
    context_.Note("handoff cancelled", shard);
    drivers_->Post([this, shard] {
      engine().succession().CancelHandoff(shard,
                                          absl::DeadlineExceededError("the simulation's operator"));
    });
    return;
  }
  const uint32_t slot = dice_.Below(arena_.shape().workers);
  ++open_handoffs_;
  context_.Note("handoff asked", shard, slot);
  drivers_->Post([this, shard, slot] {
    engine().succession().Handoff(shard, slot,
                                  [this](const absl::Status&, double) { --open_handoffs_; });
  });
}

bool World::Manage() {
  Process* const late = Any([](const Process& p) {
    return (p.accused || p.doomed) && !p.death_told && p.state != Process::State::kGone;
  });
  if (late && dice_.OneIn(2)) {
    if (late->doomed || (late->condemned && dice_.OneIn(2))) {
      StoreLate(*late);
    } else {
      Kill(*late);
    }
    return true;
  }
  if (TellDeaths()) return true;
  Process* const waiting =
      Any([](const Process& p) { return p.alive() && p.state == Process::State::kAttached; });
  if (waiting && dice_.OneIn(2)) {
    waiting->state = Process::State::kReady;
    waiting->watched = true;
    context_.Note("ready", waiting->id);
    drivers_->Post([this, waiting] { engine().succession().SetReady(waiting->slot); });
    return true;
  }
  if (Serving() == 0 || (faults_ && dice_.OneIn(10))) return AttachProcess();
  Process* const ready = Any([](const Process& p) {
    return p.alive() && p.state == Process::State::kReady && p.running == 0 && !p.accused;
  });
  if (!ready) return false;
  if (!faults_) {
    // A worker that gave a shard back is given none again: others are needed.
    if (waiting || AllOwned() || !dice_.OneIn(20)) return false;
    if (!AttachProcess()) Leave(*ready);
    return true;
  }
  if (dice_.OneIn(12)) {
    Kill(*ready);
  } else if (dice_.OneIn(20)) {
    Leave(*ready);
  } else if (dice_.OneIn(3)) {
    AskHandoff();
  }
  return true;
}

// ---------------------------------------------------------------- defects

void World::PublishTailFirst(Process& process) {
  for (uint32_t i = 0; i < arena_.shape().shards; ++i) {
    if (engine().succession().ownership(i).owner_slot() != process.slot) continue;
    ++arena_.bank(i, engine().succession().ownership(i).epoch()).tail;
  }
}

void World::DropUnapplied(uint32_t slot) {
  for (uint32_t i = 0; i < arena_.shape().shards; ++i) {
    if (engine().succession().ownership(i).owner_slot() != slot) continue;
    arena_.bank(i, engine().succession().ownership(i).epoch()).tail = arena_.shard(i).commit_head;
  }
}

// ---------------------------------------------------------------- end

bool World::Settled() const {
  for (const auto& client : clients_) {
    if (!client->done()) return false;
  }
  if (!device_.Quiet() || open_handoffs_ != 0) return false;
  for (uint32_t i = 0; i < arena_.shape().shards; ++i) {
    const arena::ShardRecord& record = arena_.shard(i);
    const uint64_t epoch = arena::OwnershipEpoch(record.owner.ownership);
    if (arena::OwnershipSlot(record.owner.ownership) == arena::kNobody) return false;
    if (arena_.bank(i, epoch).tail != record.commit_head) return false;
    if (record.acknowledged != record.completion_tail) return false;
  }
  return true;
}

// No faults any more: everybody gets what it was promised, within a bound.
bool World::Settle() {
  faults_ = false;
  device_.RefusePosts(false);
  drivers_->Immortal();
  weights_ = {4, 4, 2, 8, 2};
  context_.Note("settling");
  for (auto& process : processes_) process->app->StopDeciding();
  for (auto& client : clients_) client->Expect(3);
  for (uint32_t i = 0; i < kSettleSteps; ++i) {
    Step();
    if (context_.broken()) return false;
    if (i % 16 == 0 && Settled()) return true;
  }
  context_.Break(
      absl::StrCat("liveness: not settled after ", kSettleSteps, " steps\n", Describe()));
  return false;
}

ScheduleResult World::Run() {
  const uint32_t steps = dice_.Below(deep_ || dice_.OneIn(10) ? 4 * kFaultySteps : kFaultySteps);
  AttachProcess();
  for (uint32_t i = 0; i < steps && !context_.broken(); ++i) Step();
  if (!context_.broken() && Settle()) {
    const bool whole = std::none_of(clients_.begin(), clients_.end(),
                                    [](const auto& client) { return client->lost_replies(); });
    checker_.CheckEnd(whole);
    for (uint32_t i = 0; i < arena_.shape().shards; ++i) {
      // A host counts by the records, where what is outstanding of an ending connection has ended.
      if (!options_.brokers) checker_.CheckCounters(i, engine().counters(i));
      if (arena::HasSharedReceives(arena_.shape())) {
        checker_.CheckShared(i, device_.shared_receives(i));
      }
    }
  }
  ScheduleResult result;
  result.broken = context_.what_broke();
  result.trace = context_.Last(context_.broken() || options_.show_trace ? kShownSteps : 0);
  result.hash = context_.hash();
  result.steps = steps_;
  result.commits = checker_.commits();
  result.cuts = checker_.cuts();
  result.kills = kills_;
  result.fenced = fenced_;
  result.driver_deaths = drivers_->deaths();
  result.resumed = drivers_->recovered().transactions_resumed;
  result.answers = drivers_->recovered().answers;
  result.markers = drivers_->recovered().markers;
  result.spares = drivers_->recovered().spares;
  result.poisonings = checker_.poisonings();
  for (const auto& client : clients_) result.replies += client->replies();
  return result;
}

std::string World::Describe() const {
  std::string text;
  for (const auto& client : clients_) absl::StrAppend(&text, client->Describe(), "\n");
  for (uint32_t i = 0; i < arena_.shape().shards; ++i) {
    const arena::ShardRecord& record = arena_.shard(i);
    absl::StrAppend(&text, "shard ", i, " epoch ", engine().succession().ownership(i).epoch(),
                    " owner ", engine().succession().ownership(i).owner_id(), " completions ",
                    record.completion_tail, " acknowledged ", record.acknowledged, " ",
                    engine().succession().waiting_reason(i), "\n");
  }
  for (uint32_t i = 0; i < arena_.shape().connections; ++i) {
    const arena::ConnectionRecord& record = arena_.connection(i);
    absl::StrAppend(&text, "connection ", i, " state ", record.state, " shard ", record.shard,
                    " sends ", record.send.committed, "/", record.send.posted, "/",
                    record.send.completed, " receives ", record.receive.committed, "/",
                    record.receive.posted, "/", record.receive.completed, "\n");
  }
  for (const auto& process : processes_) {
    if (process->state == Process::State::kGone) continue;
    absl::StrAppend(&text, "worker ", process->id, " slot ", process->slot, " state ",
                    static_cast<int>(process->state), process->doomed ? " doomed" : "",
                    process->asleep ? " asleep" : "", ", serves epochs");
    for (uint32_t i = 0; process->worker && i < arena_.shape().shards; ++i) {
      absl::StrAppend(&text, " ", process->worker->shard(i).epoch());
    }
    absl::StrAppend(&text, "\n");
  }
  absl::StrAppend(&text, "handoffs ", open_handoffs_, ", device quiet ", device_.Quiet());
  return text;
}

// ---------------------------------------------------------------- the engine's listener

void World::OnEvent(std::string_view kind, const std::string& message, uint64_t worker_id,
                    int shard, int connection) {
  context_.Note(kind == "shard_moved"       ? "event: shard moved"
                : kind == "ownership_ended" ? "event: ownership ended"
                                            : "event",
                worker_id, static_cast<uint64_t>(shard), static_cast<uint64_t>(connection));
  const bool names_worker = kind == "worker_fenced" || kind == "ownership_ended";
  if (names_worker && (worker_id == 0 || worker_id > processes_.size())) {
    return context_.Break(absl::StrCat("an event of kind ", std::string(kind), " names no worker"));
  }
  if (kind == "worker_fenced" && !processes_[worker_id - 1]->hostile) {
    context_.Break(absl::StrCat("P7: a correct worker was fenced: ", message));
  }
  if (kind == "ownership_ended" &&
      (!processes_[worker_id - 1]->alive() || processes_[worker_id - 1]->accused)) {
    checker_.OnOwnerDied(static_cast<uint32_t>(shard));
  }
  unsigned long long completion = 0;
  const size_t place = message.find("completion ");
  if (kind == "connection_poisoned" &&
      std::sscanf(message.c_str() + place, "completion %llu of shard", &completion) == 1) {
    checker_.OnPoisoned(static_cast<uint32_t>(shard), static_cast<uint32_t>(connection), completion,
                        /*guessed=*/message.find("did not tell") != std::string::npos);
  }
  context_.interleave();
}

void World::OnFenced(uint64_t worker_id) {
  processes_[worker_id - 1]->condemned = true;
  ++fenced_;
}

void World::OnDeviceLost(const absl::Status& why) {
  context_.Break(absl::StrCat("the device was given up: ", why.message()));
}

}  // namespace

ScheduleResult RunSchedule(const ScheduleOptions& options) {
  World world(options);
  return world.Run();
}

void PrintCurrentSchedule() {
  if (g_world) std::cerr << g_world->Last() << g_world->Describe() << "\n";
}

}  // namespace baton::simulation

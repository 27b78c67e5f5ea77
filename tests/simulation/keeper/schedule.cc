#include "tests/simulation/keeper/schedule.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "supervisor/config/state_files.h"
#include "supervisor/keeper/keeper.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/simulation/context.h"
#include "tests/simulation/keeper/machine.h"
#include "tests/simulation/keeper/shard_engine.h"
#include "tests/simulation/keeper/sim_operator.h"
#include "tests/simulation/keeper/sim_worker.h"
#include "tests/supervisor/keeper/mortal_driver_client.h"

namespace baton::simulation {
namespace {

using keeper::testing::KeeperDeath;
using keeper::testing::LastingDriver;
using keeper::testing::MortalDriverClient;

constexpr uint32_t kShards = 3;
constexpr size_t kWorkersByHand = 3;  // at once
constexpr int kMostIdles = 20'000;    // until it comes to rest
constexpr uint32_t kLongestPauseMs = 1000;
// Until workers that hung are known to live.
constexpr uint64_t kCalmMs = 1100;
constexpr uint64_t kBetweenLooksMs = 100;  // of the operator

struct ScheduleOver {};

internal::KeeperConfig ConfigIn(const std::string& directory) {
  internal::KeeperConfig config;
  config.set_state_dir(directory);
  config.set_control_socket(directory + "/control.sock");
  config.set_launcher("/baton-launch");
  v1::ServiceConfig& service = *config.mutable_service();
  service.set_name("kv");
  service.mutable_device()->mutable_soft();
  service.set_shards(kShards);
  service.set_max_connections(100'000);
  service.set_max_workers(6);
  service.set_max_listeners(100'000);
  service.set_buffer_bytes(1 << 16);
  service.set_handoff_timeout_ms(500);
  service.set_heartbeat_ms(500);
  service.set_hang_timeout_ms(2000);
  service.set_ready_timeout_ms(300);
  service.set_watch_window_ms(100);
  service.set_stop_timeout_ms(200);
  return config;
}

arena::Shape Shape() {
  arena::Shape shape = driver::testing::TestShape(kShards, 1, 1);
  shape.workers = 6;
  return shape;
}

class Schedule final : private Machine::Listener {
 public:
  explicit Schedule(const KeeperScheduleOptions& options)
      : config_(ConfigIn(options.directory)),
        context_(options.seed),
        around_{context_, machine_, engine_, arena_, options.directory} {
    operator_.workers = [this] { return Living(); };
    acts_left_ = context_.dice.From(20, 120);
  }

  void Run();
  Context& context() { return context_; }
  uint64_t keepers() const { return keepers_; }
  uint64_t upgrades() const { return operator_.upgrades().size(); }

 private:
  enum class Phase { kChaos, kCalm, kEnd };

  // ---- The keeper's life.
  void RunKeeper();
  MortalDriverClient::Fate Meet(const internal::DriverOrder& order);
  void NoteOrder(const internal::DriverOrder& order);
  bool DiesOfPlanted(const internal::DealWith& order);
  void Plant(const internal::DealWith& order);
  void NotePlantedDeath();
  void BetweenKeepers();
  void OnStarted(Process& process) override;
  void OnSignal(Process& process, int signal) override;
  void OnLook(int timeout_ms) override;

  // ---- What happens meanwhile.
  void Idle(int timeout_ms);
  void Act();
  void ActOnWorker(SimWorker& worker);
  void StartByHand();
  void Impersonate(const SimWorker& worker);
  void Pass(int timeout_ms);
  bool StepAll();
  void EnterCalm();
  void EnterEnd();
  bool IsAtRest();
  bool IsEmpty();

  // ---- Promises.
  void CheckFollowed();
  void CheckKnown(const internal::Account& account);
  void CheckAtRest();
  void CheckUpgrades();
  void CheckPrograms();
  void CheckEnded();
  std::vector<std::string> HeldKeys() const;
  std::string HeldValue(const std::string& key) const;

  std::vector<SimWorker*> Living();
  SimWorker* ById(uint64_t id);
  std::string ProgramThatServes();

  const internal::KeeperConfig config_;
  Context context_;
  Machine machine_{*this};
  arena::Arena arena_ = arena::Arena::Create(Shape(), "kv").value();
  ShardEngine engine_{&arena_, context_};
  driver_process::NewsQueue news_;
  driver_process::OrderExecutor executor_{config_.service(), engine_, news_};
  LastingDriver driver_{executor_, news_};
  Surroundings around_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  SimOperator operator_{around_};
  std::vector<MessageChannel> impostors_;

  Phase phase_ = Phase::kChaos;
  uint64_t keepers_ = 0;
  uint32_t orders_left_ = 0, looks_left_ = 0;  // of the keeper's life
  uint32_t acts_left_ = 0;
  int idles_ = 0;  // since the phase began
  uint64_t calm_ms_ = 0, look_at_ms_ = 0;
  uint32_t policy_in_force_ = 0;
  bool admission_closed_ = false;
  bool started_since_look_ = false, orphaned_ = false;

  // Each keeper that deals with the planted thing dies of it.
  std::string dealing_;         // what the keeper deals with
  internal::DealWith planted_;  // empty: nothing is
  std::string planted_entry_;   // the value that is held, if it is an entry
  uint32_t planted_deaths_ = 0;
  bool died_of_planted_ = false;  // the last keeper
};

// ---------------------------------------------------------------- the keeper's life

void Schedule::Run() {
  try {
    StartByHand();
    while (!context_.broken()) {
      RunKeeper();
      BetweenKeepers();
    }
  } catch (const ScheduleOver&) {
  }
}

void Schedule::RunKeeper() {
  Dice& dice = context_.dice;
  machine_.SetKeeper(++keepers_);
  started_since_look_ = false;
  constexpr uint32_t kNever = 1'000'000;
  const bool at_order = !dice.OneIn(4);
  dealing_.clear();
  orders_left_ = at_order ? dice.Below(1u << dice.From(1, 7)) : kNever;
  looks_left_ = at_order ? kNever : dice.From(1, 100);
  context_.Note("a keeper starts", keepers_, orders_left_, looks_left_);
  try {
    auto made = keeper::Keeper::Create(
        config_, std::make_unique<MortalDriverClient>(
                     driver_, [this](const internal::DriverOrder& order) { return Meet(order); }));
    if (!made.ok()) return context_.Break(absl::StrCat("no keeper: ", made.status().message()));
    CheckFollowed();
    const absl::Status ended = (*made)->Run();
    context_.Note("a keeper ends in order", keepers_);
    if (!ended.ok()) context_.Break(absl::StrCat("a keeper ended: ", ended.message()));
  } catch (const KeeperDeath&) {
    context_.Note("a keeper dies", keepers_);
    orphaned_ |= started_since_look_;
  }
  // Other deaths are as of a kill from outside, and too many here to count any.
  if (std::exchange(died_of_planted_, false)) NotePlantedDeath();
  driver_.dealings.NoteOrderlyEnd();
}

// The driver ends when its first keeper dies before it was ready.
MortalDriverClient::Fate Schedule::Meet(const internal::DriverOrder& order) {
  const auto* what = internal::DriverOrder::descriptor()->FindFieldByNumber(order.order_case());
  const bool dies = phase_ == Phase::kChaos && driver_.ready_once && orders_left_-- == 0;
  if (order.has_deal_with() && DiesOfPlanted(order.deal_with())) {
    context_.Note("it dies of what is planted", ++planted_deaths_);
    died_of_planted_ = true;
    return order.deal_with().what().empty() ? MortalDriverClient::Fate::kDies
                                            : MortalDriverClient::Fate::kDiesUnanswered;
  }
  const bool lost = dies && context_.dice.OneIn(2);
  context_.Note(what->name().c_str(), dies, lost);
  if (lost) return MortalDriverClient::Fate::kDies;
  NoteOrder(order);
  return dies ? MortalDriverClient::Fate::kDiesUnanswered : MortalDriverClient::Fate::kLives;
}

// A planted request kills a keeper that begins to deal with it, until the driver refuses it: its
// answer could leave a keeper that dies later. A planted entry kills one that is about to say that
// it is done, and so does a request that was refused.
bool Schedule::DiesOfPlanted(const internal::DealWith& order) {
  const std::string done = std::exchange(dealing_, order.what());
  if (planted_.what().empty()) Plant(order);
  if (!planted_.what().empty() && planted_.held_key().empty() && order.what() == planted_.what()) {
    return planted_deaths_ < driver_process::Dealings::kMostDeaths;
  }
  if (!order.what().empty() || done.empty() || done != planted_.what()) return false;
  // Another worker's entry may have the same key by now.
  return planted_.held_key().empty() || HeldValue(planted_.held_key()) == planted_entry_;
}

void Schedule::Plant(const internal::DealWith& order) {
  if (phase_ != Phase::kChaos) return;
  const bool is_session = order.held_key().starts_with("lasting/worker/");
  if (!is_session && !order.what().starts_with("request ")) return;
  if (!context_.dice.OneIn(is_session ? 60 : 8)) return;
  context_.Note("something is planted", is_session);
  planted_ = order;
  planted_entry_ = is_session ? HeldValue(order.held_key()) : "";
}

// The driver's process does the same (DriverProcess::Blame).
void Schedule::NotePlantedDeath() {
  if (planted_deaths_ > driver_process::Dealings::kMostDeaths) {
    context_.Break(
        absl::StrCat("K8: ", planted_.what(), " has killed ", planted_deaths_, " keepers"));
  }
  const auto death = driver_.dealings.NoteDeath("died");
  if (!death || planted_.held_key().empty() ||
      death->deaths < driver_process::Dealings::kMostDeaths) {
    return;
  }
  internal::HeldWorker held;
  (void)held.ParseFromString(driver_.held.SetAside(planted_.held_key(), "planted"));
  // By the process, because a worker that has not read its answer does not know its number yet.
  for (const auto& worker : workers_) {
    if (worker->process().pid == held.pid()) worker->NoteReason();
  }
}

void Schedule::NoteOrder(const internal::DriverOrder& order) {
  if (order.has_put_policy_in_force()) {
    policy_in_force_ = order.put_policy_in_force().policy().service().connections();
  }
  if (order.has_close_admission()) admission_closed_ = true;
  if (order.has_open_admission()) admission_closed_ = false;
  if (order.has_account()) CheckKnown(order.account());
}

void Schedule::BetweenKeepers() {
  Dice& dice = context_.dice;
  if (dice.OneIn(2)) (void)news_.Take();  // it had read them
  if (phase_ != Phase::kChaos) return;    // it has died of what was planted, or ended in order
  const std::vector<SimWorker*> living = Living();
  if (!living.empty() && dice.OneIn(4)) {
    living[dice.Below(static_cast<uint32_t>(living.size()))]->Die();
  }
  for (uint32_t i = dice.Below(8); i > 0; --i) Act();
  if (dice.OneIn(8)) Pass(1000);
}

void Schedule::OnStarted(Process& process) {
  context_.Note("a keeper starts a process", static_cast<uint64_t>(process.pid));
  started_since_look_ = true;
  workers_.push_back(std::make_unique<SimWorker>(around_, process));
}

void Schedule::OnSignal(Process& process, int signal) {
  for (const auto& worker : workers_) {
    if (&worker->process() == &process) worker->OnSignal(signal);
  }
}

void Schedule::OnLook(int timeout_ms) {
  if (context_.broken()) throw ScheduleOver();
  started_since_look_ = false;
  if (phase_ == Phase::kChaos && driver_.ready_once && looks_left_-- == 0) throw KeeperDeath();
  if (timeout_ms != 0) {
    Idle(timeout_ms);
  } else if (phase_ == Phase::kChaos && context_.dice.OneIn(8)) {
    Act();
  }
}

// ---------------------------------------------------------------- what happens meanwhile

void Schedule::Idle(int timeout_ms) {
  if (phase_ == Phase::kChaos) {
    if (acts_left_ == 0) return EnterCalm();
    for (uint32_t i = context_.dice.From(1, 3); i > 0; --i) Act();
    if (context_.dice.OneIn(3)) Pass(timeout_ms);
    return;
  }
  if (++idles_ > kMostIdles) {
    context_.Break(phase_ == Phase::kCalm ? "K5: the service does not come to rest"
                                          : "K7: the service does not come to its end");
    return;
  }
  if (StepAll()) return;
  if (phase_ == Phase::kCalm && IsAtRest()) return EnterEnd();
  if (phase_ == Phase::kEnd && IsEmpty()) {
    CheckEnded();
    throw ScheduleOver();
  }
  Pass(timeout_ms);
}

void Schedule::Act() {
  Dice& dice = context_.dice;
  if (acts_left_ > 0) --acts_left_;
  const std::vector<SimWorker*> living = Living();
  SimWorker* const one =
      living.empty() ? nullptr : living[dice.Below(static_cast<uint32_t>(living.size()))];
  const std::vector<Process*> readings = machine_.Readings();
  switch (dice.Below(16)) {
    case 0:
      if (one != nullptr) ActOnWorker(*one);
      return;
    case 1:
      return StartByHand();
    case 2:
    case 3:
    case 4:
      (void)operator_.Step();
      return;
    case 5:
      if (!readings.empty()) machine_.End(*readings.front());
      return;
    case 6:
      if (one != nullptr && one->attached() && dice.OneIn(4)) Impersonate(*one);
      return;
    default:
      if (one != nullptr) (void)one->Step();
  }
}

void Schedule::ActOnWorker(SimWorker& worker) {
  Dice& dice = context_.dice;
  switch (dice.Below(6)) {
    case 0:
      return worker.Die();
    case 1:
    case 2:
      return worker.Hang(!worker.hangs());
    case 3:
      return worker.WantToEnd();
    case 4:
      if (!worker.attached() || engine_.roster[worker.slot()].id != worker.id()) return;
      worker.NoteReason();
      engine_.Fence(worker.slot());
      return news_.OnFenced(worker.id());
    default:
      if (worker.attached()) arena_.worker(worker.slot()).unhealthy ^= 1;
  }
}

// Starts a worker of the program that serves, so that all workers run one program.
void Schedule::StartByHand() {
  if (Living().size() >= kWorkersByHand || !operator_.has_no_upgrade()) return;
  internal::Program program;
  program.set_path(ProgramThatServes());
  program.set_directory("/");
  Process& process = machine_.Start(std::move(program));
  context_.Note("a worker is started", static_cast<uint64_t>(process.pid));
  workers_.push_back(std::make_unique<SimWorker>(around_, process));
}

// Another process knows the number, and perhaps the key, of a worker's session.
void Schedule::Impersonate(const SimWorker& worker) {
  Process& process = machine_.Start({});
  std::optional<MessageChannel> channel = around_.Connect("kv.sock", process.pid);
  if (!channel) return machine_.End(process);
  internal::WorkerRequest request;
  request.mutable_resume()->set_worker_id(worker.id());
  request.mutable_resume()->set_session_key(context_.dice.OneIn(2) ? worker.key() : "");
  (void)channel->Enqueue(request);
  impostors_.push_back(*std::move(channel));
}

void Schedule::Pass(int timeout_ms) {
  const uint32_t most =
      timeout_ms < 0 ? kLongestPauseMs : std::min<uint32_t>(timeout_ms, kLongestPauseMs);
  context_.Note("time passes", most);
  machine_.Pass(most);
  if (phase_ != Phase::kChaos) calm_ms_ += most;
  for (const auto& worker : workers_) worker->Beat();
  if (calm_ms_ >= look_at_ms_) {
    operator_.LookAgain();
    look_at_ms_ = calm_ms_ + kBetweenLooksMs;
  }
}

// Returns whether anybody had anything to do.
bool Schedule::StepAll() {
  bool any = false;
  for (size_t i = 0; i < workers_.size(); ++i) any |= workers_[i]->Step();
  for (Process* const reading : machine_.Readings()) {
    machine_.End(*reading);
    any = true;
  }
  if (any) operator_.LookAgain();
  return operator_.Step() || any;
}

void Schedule::EnterCalm() {
  context_.Note("calm");
  phase_ = Phase::kCalm;
  operator_.CalmDown();
  for (SimWorker* const worker : Living()) worker->Hang(false);
}

void Schedule::EnterEnd() {
  CheckAtRest();
  context_.Note("the end");
  phase_ = Phase::kEnd;
  idles_ = 0;
  operator_.EndStandbys();
}

bool Schedule::IsAtRest() {
  if (calm_ms_ < kCalmMs || !operator_.at_rest()) return false;
  const std::vector<SimWorker*> living = Living();
  return std::all_of(living.begin(), living.end(),
                     [](const SimWorker* worker) { return worker->at_rest() || worker->hangs(); });
}

// Ends one worker after the other.
bool Schedule::IsEmpty() {
  if (!operator_.standbys_ended()) return false;
  const std::vector<SimWorker*> living = Living();
  for (SimWorker* const worker : living) {
    context_.dice.OneIn(2) && worker->at_rest() ? worker->WantToEnd() : worker->Die();
  }
  if (!living.empty()) return false;
  for (uint32_t slot = 0; slot < arena_.shape().workers; ++slot) {
    if (engine_.roster[slot].id != 0) return false;
  }
  const std::vector<std::string> keys = HeldKeys();
  return std::none_of(keys.begin(), keys.end(), [](const std::string& key) {
    return key.starts_with("lasting/worker/") || key.starts_with("lasting/process/");
  });
}

// ---------------------------------------------------------------- promises

// When a keeper has taken over.
void Schedule::CheckFollowed() {
  std::set<uint64_t> held;
  internal::Hold entry;
  std::vector<int> descriptors;
  for (std::string key; driver_.held.Next(key, &entry, &descriptors); key = entry.key()) {
    internal::HeldWorker worker;
    if (!entry.key().starts_with("lasting/worker/")) continue;
    if (worker.ParseFromString(entry.value())) held.insert(worker.place().id());
  }
  for (uint32_t slot = 0; slot < arena_.shape().workers; ++slot) {
    const uint64_t id = engine_.roster[slot].id;
    if (id != 0 && held.count(id) == 0) {
      context_.Break(absl::StrCat("K1: the driver knows worker ", id, ", and it is not held"));
    }
  }
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    // This keeper has ordered no move yet, unless an upgrade goes on.
    if (engine_.IsMoving(shard) && operator_.has_no_upgrade()) {
      context_.Break(absl::StrCat("K6: shard ", shard, " moves for a keeper that is dead"));
    }
  }
  if (!operator_.MayBeInForce(policy_in_force_)) {
    context_.Break(absl::StrCat("K4: policy ", policy_in_force_, " is in force"));
  }
  const bool drained = access(DrainPath(config_.state_dir(), "kv").c_str(), F_OK) == 0;
  if (!operator_.MayBeDrained(drained)) {
    context_.Break(drained ? "K4: the service is drained" : "K4: the service is not drained");
  }
  if (drained != admission_closed_) {
    context_.Break(drained ? "K4: a drained service takes connections"
                           : "K4: a service that is not drained takes no connections");
  }
}

// The keeper says which workers it knows.
void Schedule::CheckKnown(const internal::Account& account) {
  std::set<uint64_t> known;
  for (const uint64_t id : account.worker_ids()) {
    if (!known.insert(id).second) {
      context_.Break(absl::StrCat("K2: the keeper knows worker ", id, " twice"));
    }
    const SimWorker* const worker = ById(id);
    const bool ends = worker == nullptr || !worker->alive() || worker->may_have_detached();
    const bool driver_knows =
        worker != nullptr && engine_.roster[worker->slot()].id == worker->id();
    if (!ends && !driver_knows) {
      context_.Break(absl::StrCat("K1: the keeper knows worker ", id, ", and the driver does not"));
    }
  }
  for (uint32_t slot = 0; slot < arena_.shape().workers; ++slot) {
    const uint64_t id = engine_.roster[slot].id;
    if (id != 0 && known.count(id) == 0) {
      context_.Break(absl::StrCat("K1: the driver knows worker ", id, ", and the keeper does not"));
    }
  }
}

void Schedule::CheckAtRest() {
  std::set<uint64_t> ready;
  for (const v1::Worker& worker : operator_.description().workers()) {
    if (worker.state() == v1::WORKER_STATE_READY) ready.insert(worker.id());
  }
  bool serves = false;
  for (const SimWorker* const worker : Living()) {
    if (!worker->ready() || worker->hangs()) continue;
    serves = true;
    if (ready.count(worker->id()) == 0) {
      context_.Break(absl::StrCat("K1: worker ", worker->id(), " is ready, and shown otherwise"));
    }
  }
  for (uint32_t shard = 0; serves && shard < kShards; ++shard) {
    if (engine_.owner(shard).worker_id == 0) {
      context_.Break(absl::StrCat("K6: nobody owns shard ", shard));
    }
  }
  if (!operator_.MayBeInForce(policy_in_force_)) {
    context_.Break(absl::StrCat("K4: policy ", policy_in_force_, " is in force"));
  }
  if (!operator_.MayBeDrained(admission_closed_)) {
    context_.Break("K4: it was drained, or was not");
  }
  if (engine_.listen_calls > around_.listens) {
    context_.Break("K3: a worker's request was executed twice");
  }
  CheckUpgrades();
  CheckPrograms();
}

void Schedule::CheckUpgrades() {
  if (operator_.upgrades().empty()) return;
  const v1::Upgrade& last = operator_.upgrades().front();
  const bool completed = last.phase() == v1::UPGRADE_PHASE_COMPLETED;
  const bool both = last.detail().find("stay") != std::string::npos;
  for (const uint64_t id : completed ? last.old_worker_ids() : last.new_worker_ids()) {
    const SimWorker* const worker = ById(id);
    if (!both && worker != nullptr && worker->alive()) {
      context_.Break(
          absl::StrCat("K5: upgrade ", last.id(), " is over, and worker ", id, " lives"));
    }
  }
}

// Looks at the processes that keepers have started. A keeper that dies between starting a process
// and holding it leaves it to nobody.
void Schedule::CheckPrograms() {
  const std::vector<v1::Upgrade>& upgrades = operator_.upgrades();
  const bool both = std::any_of(upgrades.begin(), upgrades.end(), [](const v1::Upgrade& upgrade) {
    return upgrade.detail().find("stay") != std::string::npos;
  });
  for (const SimWorker* const worker : Living()) {
    const std::string& program = worker->process().program.path();
    if (both || orphaned_ || worker->process().parent == 0 || program == ProgramThatServes())
      continue;
    context_.Break(
        absl::StrCat("K5: ", ProgramThatServes(), " serves, and a process of ", program, " lives"));
  }
}

void Schedule::CheckEnded() {
  for (const std::string& key : HeldKeys()) {
    if (key.starts_with("lasting/socket") || key == "lasting/last_worker_id" ||
        key == "lasting/standbys" || key == "policy" || key == "upgrades") {
      continue;
    }
    context_.Break(absl::StrCat("K7: ", key, " is held"));
  }
  for (const pid_t pid : machine_.OpenPidfds()) {
    const Process* const process = machine_.Find(pid);
    if (process->alive) continue;  // an impostor
    context_.Break(absl::StrCat("K7: process ", pid, " has ended, and a pidfd of it is open"));
  }
}

std::vector<std::string> Schedule::HeldKeys() const {
  std::vector<std::string> keys;
  internal::Hold entry;
  std::vector<int> descriptors;
  for (std::string key; driver_.held.Next(key, &entry, &descriptors); key = entry.key()) {
    keys.push_back(entry.key());
  }
  return keys;
}

std::string Schedule::HeldValue(const std::string& key) const {
  internal::Hold entry;
  std::vector<int> descriptors;
  while (driver_.held.Next(entry.key(), &entry, &descriptors)) {
    if (entry.key() == key) return entry.value();
  }
  return "";
}

// ---------------------------------------------------------------- workers

std::vector<SimWorker*> Schedule::Living() {
  std::vector<SimWorker*> living;
  for (const auto& worker : workers_) {
    if (worker->alive()) living.push_back(worker.get());
  }
  return living;
}

SimWorker* Schedule::ById(uint64_t id) {
  for (const auto& worker : workers_) {
    if (worker->id() == id) return worker.get();
  }
  return nullptr;
}

std::string Schedule::ProgramThatServes() {
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    const uint64_t owner = engine_.owner(shard).worker_id;
    if (const SimWorker* const worker = owner == 0 ? nullptr : ById(owner)) {
      return worker->process().program.path();
    }
  }
  return workers_.empty() ? "/p/1g" : workers_.front()->process().program.path();
}

// Returns the files that the process has open and that are not among `known`, each with its number.
std::set<std::string> OpenDescriptors(const std::set<std::string>& known = {}) {
  std::set<std::string> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the directory itself
    open.insert(entry.path().filename().string() + " " +
                std::filesystem::read_symlink(entry.path(), gone).string());
  }
  for (const std::string& descriptor : known) open.erase(descriptor);
  return open;
}

}  // namespace

KeeperScheduleEnd RunKeeperSchedule(const KeeperScheduleOptions& options) {
  KeeperScheduleEnd end;
  const std::set<std::string> descriptors = OpenDescriptors();
  {
    Schedule schedule(options);
    schedule.Run();
    end.broken = schedule.context().what_broke();
    end.hash = schedule.context().hash();
    end.keepers = schedule.keepers();
    end.upgrades = schedule.upgrades();
    if (options.trace) end.trace = schedule.context().Last(1000);
  }
  for (const char* const file : {"kv.sock", "kv.keeper.sock", "kv.drain"}) {
    unlink((options.directory + "/" + file).c_str());
  }
  // Another thread closes connections on which something was unread (lib/base/closer.h).
  const absl::Status closed = harness::WaitUntil(
      "the last descriptor to be closed", [&] { return OpenDescriptors(descriptors).empty(); });
  if (end.broken.empty() && !closed.ok()) {
    end.broken = absl::StrCat("K7: a descriptor is open: ", *OpenDescriptors(descriptors).begin());
  }
  return end;
}

}  // namespace baton::simulation

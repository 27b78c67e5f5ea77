#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "supervisor/driver/broker/broker_forks.h"
#include "supervisor/driver/broker/broker_process.h"
#include "supervisor/driver/broker/brokered_engine.h"
#include "tests/simulation/service_drivers.h"

namespace baton::simulation {
namespace {

using driver_process::BrokeredEngine;
using driver_process::BrokerInheritance;
using driver_process::BrokerProcess;
using driver_process::ForkedChild;
using driver_process::WorkerWakes;

// For what waits for brokers, time passes faster: they are forked some times in a schedule.
constexpr uint64_t kTimeFactor = 200;
constexpr uint64_t kWaitNs = 20'000;  // that a turn of a broker takes for which the host waits
constexpr uint64_t kBeatNs = 1'500'000;
constexpr uint32_t kTimerEvery = 50;     // looks of the host: it runs although nothing wakes it
constexpr uint32_t kHangEvery = 4000;    // turns of brokers
constexpr uint32_t kReplaceEvery = 300;  // looks of the host: it replaces the brokers' code
constexpr std::chrono::milliseconds kProbation(200);  // of brokers' time

FileDescriptor Duplicate(int fd) { return FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

bool IsReadable(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  return fd >= 0 && poll(&entry, 1, 0) == 1;
}

// The device in a process that was forked from its opener.
class ForkedDevice final : public verbs::testing::FakeDevice {
 public:
  explicit ForkedDevice(SimDevice* device) : device_(device) {}

  std::string_view name() const override { return device_->name(); }
  verbs::DeviceLimits limits() const override { return device_->limits(); }
  absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> CreateCompletionQueue(uint32_t) override {
    return absl::FailedPreconditionError("not the opener");
  }
  absl::StatusOr<std::unique_ptr<verbs::QueuePair>> CreateQueuePair(
      const verbs::QueuePairOptions&) override {
    return absl::FailedPreconditionError("not the opener");
  }
  void Progress() override { device_->ForgetNotification(); }

 private:
  SimDevice* const device_;
};

// The processes of brokers. All but the innermost one that runs are in the middle of something.
class SimBrokers final : public driver_process::BrokerForks {
 public:
  explicit SimBrokers(const ServiceParts& parts)
      : context_(*parts.context),
        device_(*parts.device),
        forked_device_(parts.device),
        deaths_(parts.context, parts.arena, parts.mortality) {
    context_.driver_dies = [this](const char* where) { return Dies(where); };
  }
  ~SimBrokers() override {
    context_.driver_dies = [](const char*) { return false; };
  }

  absl::StatusOr<ForkedChild> Fork(BrokerInheritance inheritance, Code code) override;
  std::string Reap(int pidfd) override;
  void Kill(int pidfd) override;
  absl::Status ReplaceCode(std::chrono::milliseconds) override {
    replaces_ = true;
    return absl::OkStatus();
  }
  bool on_probation() const override { return replaces_; }
  std::chrono::milliseconds probation() const override { return kProbation; }
  void ProveCode() override { replaces_ = false; }
  void GiveUpCode() override { replaces_ = false; }

  // The one that drives, or takes over, makes a turn, unless it is in the middle of one.
  void Run();
  // Whether it is the broker that comes to points, and not the host in the middle of its turn.
  void SetRuns(bool runs) { runs_ = runs; }
  bool runs() const { return runs_; }
  bool NoteDeath(uint32_t slot, uint64_t id);
  // Whether one drives that does what it is told.
  bool AnyServes() const { return driver_ != nullptr && !driver_->stopped; }
  bool immortal() const { return immortal_; }

  void Immortal() {
    immortal_ = true;
    deaths_.End();
  }
  uint64_t deaths() const { return deaths_.count(); }

 private:
  // A process, until it is reaped.
  struct Broker {
    pid_t pid = 0;
    FileDescriptor end;       // readable once it has ended, like the host's copy
    FileDescriptor messages;  // its own end
    std::unique_ptr<WorkerWakes> wakes;
    std::unique_ptr<BrokerProcess> process;  // null: it has ended
    int pidfd = -1;                          // of the host
    bool asleep = false;
    bool stopped = false;  // until it is killed
    bool doomed = false;   // was killed in the middle of something
  };

  bool Dies(const char* where);
  Broker* ChooseDriver();
  void Bury(Broker* broker);

  Context& context_;
  SimDevice& device_;
  ForkedDevice forked_device_;
  DriverDeaths deaths_;
  std::vector<std::unique_ptr<Broker>> brokers_;  // the oldest first
  Broker* driver_ = nullptr;                      // has the lock
  bool is_busy_ = false;                          // driver_ is in the middle of something
  bool runs_ = false;
  bool immortal_ = false;
  bool replaces_ = false;  // the host kills brokers to replace them
  pid_t last_pid_ = 0;
};

absl::StatusOr<ForkedChild> SimBrokers::Fork(BrokerInheritance inheritance, Code /*code*/) {
  auto broker = std::make_unique<Broker>();
  broker->pid = ++last_pid_;
  broker->end.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  broker->messages = Duplicate(inheritance.messages);
  broker->wakes = std::make_unique<WorkerWakes>(inheritance.arena);
  for (uint32_t slot = 0; slot < inheritance.arena->shape().workers; ++slot) {
    const int wake = inheritance.wakes->descriptor(slot);
    if (wake >= 0) broker->wakes->Add(slot, Duplicate(wake));
  }
  inheritance.device = &forked_device_;
  inheritance.wakes = broker->wakes.get();
  inheritance.messages = broker->messages.get();
  inheritance.self = broker->pid;
  inheritance.watch_deaths = false;
  inheritance.leave = [this] {
    driver_->doomed = true;
    throw DriverKilled();
  };
  inheritance.board->ready[inheritance.place].store(true);
  broker->process = std::make_unique<BrokerProcess>(std::move(inheritance));
  context_.Note("broker: forked", static_cast<uint64_t>(broker->pid));
  ForkedChild child;
  child.pid = broker->pid;
  child.pidfd = Duplicate(broker->end.get());
  broker->pidfd = child.pidfd.get();
  brokers_.push_back(std::move(broker));
  return child;
}

std::string SimBrokers::Reap(int pidfd) {
  const auto found = std::find_if(brokers_.begin(), brokers_.end(), [pidfd](const auto& broker) {
    return broker->pidfd == pidfd && broker->process == nullptr;
  });
  if (found == brokers_.end()) return "";
  brokers_.erase(found);
  return "was killed";
}

void SimBrokers::Kill(int pidfd) {
  for (const auto& broker : brokers_) {
    if (broker->pidfd != pidfd || broker->process == nullptr) continue;
    context_.Note("broker: killed", static_cast<uint64_t>(broker->pid));
    if (immortal_ && broker.get() == driver_ && !broker->stopped && !replaces_) {
      context_.Break("liveness: a broker was killed that is not stopped");
    }
    broker->doomed = true;
    if (broker.get() != driver_ || !is_busy_) Bury(broker.get());
  }
}

void SimBrokers::Bury(Broker* broker) {
  context_.Note("broker: ends", static_cast<uint64_t>(broker->pid));
  broker->process.reset();
  broker->wakes.reset();
  broker->messages.Reset();
  (void)eventfd_write(broker->end.get(), 1);
  if (driver_ == broker) driver_ = nullptr;
}

bool SimBrokers::Dies(const char* where) {
  if (!runs_) return false;
  if (!driver_->doomed && deaths_.IsDue(where)) driver_->doomed = true;
  return driver_->doomed;
}

// Returns null if nobody lives.
SimBrokers::Broker* SimBrokers::ChooseDriver() {
  if (driver_ != nullptr) return driver_;
  for (const auto& broker : brokers_) {
    if (broker->process != nullptr) return broker.get();
  }
  return nullptr;
}

void SimBrokers::Run() {
  Broker* const broker = ChooseDriver();
  if (is_busy_ || broker == nullptr || broker->stopped) return;
  if (!immortal_ && context_.dice.OneIn(kHangEvery)) {
    context_.Note("broker: hangs", static_cast<uint64_t>(broker->pid));
    broker->stopped = true;
    return;
  }
  is_busy_ = true;
  const bool ran_before = std::exchange(runs_, true);
  const bool follows = std::exchange(driver_, broker) == nullptr;
  try {
    if (follows) {
      context_.Note("broker: follows", static_cast<uint64_t>(broker->pid));
      device_.SetAnswers(deaths_.may_answer());
      const absl::Status status = broker->process->TakeOver();
      if (!status.ok()) context_.Break(absl::StrCat("adoption: ", status.message()));
    } else {
      TurnOrSleep(&context_, device_.notified(), broker->process.get(), &broker->asleep);
    }
  } catch (const DriverKilled&) {
  }
  runs_ = ran_before;
  is_busy_ = false;
  if (broker->doomed) Bury(broker);
}

bool SimBrokers::NoteDeath(uint32_t slot, uint64_t id) {
  if (driver_ == nullptr || driver_->doomed || driver_->stopped) return false;
  driver_->process->NoteDeath(slot, id);
  return true;
}

// `baton-driver`, and its brokers.
class Host final : public ServiceDrivers {
 public:
  explicit Host(const ServiceParts& parts) : parts_(parts) {
    parts_.device->SetForked();
    driver_process::EngineOptions options = parts.options;
    options.nanoseconds = [context = parts.context] { return context->now_ns * kTimeFactor; };
    auto brokers = std::make_unique<SimBrokers>(parts);
    brokers_ = brokers.get();
    engine_ = BrokeredEngine::Create(parts.arena, parts.device, parts.listener, options,
                                     std::move(brokers))
                  .value();
    engine_->Start();
  }

  driver_process::ServiceEngine& engine() override { return *engine_; }
  void Post(std::function<void()> work) override { posted_.push_back(std::move(work)); }
  bool is_busy() const override { return is_busy_; }
  void Run() override {
    if (!context().dice.OneIn(3)) return brokers_->Run();
    if (is_busy_) return;
    Do([this] { Turn(); });
  }
  absl::StatusOr<uint32_t> Connect(uint32_t shard, std::string_view private_data,
                                   uint64_t tag) override {
    absl::StatusOr<uint32_t> connection = absl::UnknownError("");
    Do([&] { connection = engine_->Connect(shard, {"10.0.0.2", 1}, private_data, tag); });
    return connection;
  }
  absl::Status CheckPlace(uint32_t slot) override {
    absl::Status status;
    Do([&] { status = engine_->CheckPlace(slot); });
    return status;
  }
  void OnHostPoint(std::string_view where) override {
    if (where != "host-settling") return;
    context().now_ns += kWaitNs;
    brokers_->Run();
  }
  bool NoteDeath(uint32_t slot, uint64_t id) override { return brokers_->NoteDeath(slot, id); }

  void Immortal() override { brokers_->Immortal(); }
  uint64_t deaths() const override { return brokers_->deaths(); }
  driver::RecoveryCounters recovered() const override { return {}; }

 private:
  Context& context() { return *parts_.context; }

  void Do(const std::function<void()>& what) {
    is_busy_ = true;
    const bool broker_runs = brokers_->runs();
    brokers_->SetRuns(false);
    what();
    brokers_->SetRuns(broker_runs);
    is_busy_ = false;
  }
  void Turn() {
    // Without faults, time alone brings nothing, or a wake-up that was lost would not be missed.
    const bool timed = !brokers_->immortal() || !brokers_->AnyServes();
    if (timed && context().now_ns >= beat_at_ns_) {
      beat_at_ns_ = context().now_ns + kBeatNs;
      engine_->Beat();
    }
    if (!brokers_->immortal() && context().dice.OneIn(kReplaceEvery) &&
        engine_->ReplaceDriverCode(kProbation).ok()) {
      context().Note("host: replaces the broker");
    }
    std::vector<std::function<void()>> work;
    work.swap(posted_);
    for (const auto& item : work) item();
    const std::vector<int> signals = engine_->descriptors();
    if (work.empty() && !parts_.device->has_events() &&
        std::none_of(signals.begin(), signals.end(), IsReadable) &&
        !(timed && context().dice.OneIn(kTimerEvery))) {
      return;
    }
    engine_->Turn();
    context().Note("host: turn");
  }

  const ServiceParts parts_;
  std::vector<std::function<void()>> posted_;
  SimBrokers* brokers_ = nullptr;  // the engine's
  bool is_busy_ = false;
  uint64_t beat_at_ns_ = kBeatNs;
  std::unique_ptr<BrokeredEngine> engine_;
};

}  // namespace

std::unique_ptr<ServiceDrivers> HostAndBrokers(const ServiceParts& parts) {
  return std::make_unique<Host>(parts);
}

}  // namespace baton::simulation

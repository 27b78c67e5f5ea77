#include "supervisor/batond/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/text_format.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "lib/channel/waits.h"
#include "lib/log/log.h"
#include "lib/log/standard_error.h"
#include "proto/baton/internal/keeper.pb.h"
#include "spdlog/spdlog.h"
#include "supervisor/batond/open_within.h"
#include "supervisor/config/control_socket.h"
#include "supervisor/config/log_level.h"
#include "supervisor/config/shape.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

// The time in which control passes batond's answer on before it is restarted.
constexpr std::chrono::milliseconds kAnswersFirst{500};
// The time for a keeper's answer to a changed configuration. Control waits longer for batond's.
constexpr std::chrono::seconds kKeeperTimeout{3};
// The time for what batond does itself in a start.
constexpr std::chrono::seconds kStartMargin{5};

std::string AsText(const google::protobuf::Message& message) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  return text;
}

void LogReload(const TakenConfig& taken) {
  spdlog::info(
      "the configuration was read again; taken: {}",
      taken.taken.empty() ? "nothing has changed that is taken" : absl::StrJoin(taken.taken, ", "));
  for (const TakenConfig::Refused& refused : taken.refused) {
    spdlog::warn("the configuration was read again; not taken: {}: {}", refused.field, refused.why);
  }
}

// Reports to the service manager, if there is one. `systemctl status` shows it.
void TellStatus(const std::string& state, const std::string& status) {
  sd_notify(/*unset_environment=*/0, absl::StrCat(state, "STATUS=", status).c_str());
}

// Makes control's sockets, anew for each control, so that no client waits at them while there is
// none. Clients see batond's credentials at them, whatever user control runs as.
absl::StatusOr<Child::GivenDescriptors> SocketsOfControl(const v1::Config& config) {
  const std::string& state_dir = config.state_dir();
  Child::GivenDescriptors sockets;
  for (const auto& [variable, path] :
       {std::pair(kOperatorSocketVariable, OperatorSocketPath(state_dir)),
        std::pair(kWorkerSocketVariable, ControlSocketPath(state_dir))}) {
    BATON_ASSIGN_OR_RETURN(FileDescriptor socket, ListenForControl(path));
    sockets.emplace_back(variable, std::move(socket));
  }
  for (const v1::ServiceConfig& service : config.services()) {
    const absl::Status linked = LinkSocket(ControlSocketPath(state_dir),
                                           LinkedControlSocketPath(state_dir, service.name()));
    if (!linked.ok()) {
      spdlog::error("workers of service {} do not reach control: {}", service.name(),
                    MessageOf(linked));
    }
  }
  return sockets;
}

// Blocks or unblocks the signals that batond handles. Blocked signals stay pending, also across
// execve.
void HoldSignals(int how) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  (void)pthread_sigmask(how, &signals, nullptr);
}

// Returns whether control reads a field in which both differ only at its start.
bool NeedsAnotherStart(const internal::ControlConfig& running,
                       const internal::ControlConfig& wanted) {
  const auto fixed = [](const internal::ControlConfig& config) {
    internal::ControlConfig fields;
    *fields.mutable_services() = config.services();
    std::sort(fields.mutable_services()->begin(), fields.mutable_services()->end());
    fields.set_state_dir(config.state_dir());
    fields.set_metrics_address(config.metrics_address());
    if (config.has_operator_endpoint()) {
      fields.mutable_operator_endpoint()->set_address(config.operator_endpoint().address());
    }
    fields.set_log_format(config.log_format());
    fields.set_audit_directory(config.audit_directory());
    return AsText(fields);
  };
  return fixed(running) != fixed(wanted);
}

std::string KeeperInput(const SupervisorOptions& options, const v1::ServiceConfig& service) {
  const v1::Config& config = options.config;
  internal::KeeperConfig keeper;
  *keeper.mutable_service() = service;
  keeper.set_state_dir(config.state_dir());
  keeper.set_control_socket(LinkedControlSocketPath(config.state_dir(), service.name()));
  keeper.set_distrust_contained_root(config.distrust_contained_root());
  keeper.set_log_format(config.log_format());
  keeper.set_keeper(options.libexec + "/baton-keeper");
  keeper.set_hang_timeout_ms(static_cast<uint32_t>(options.hang_timeout.count()));
  if (options.nic_user) {
    keeper.set_nic_uid(options.nic_user->uid);
    keeper.set_nic_gid(options.nic_user->gid);
  }
  if (options.broker_user) {
    keeper.set_broker_uid(options.broker_user->uid);
    keeper.set_broker_gid(options.broker_user->gid);
  }
  return AsText(keeper);
}

}  // namespace

Supervisor::Supervisor(SupervisorOptions options, const StateDirectory& state)
    : options_(std::move(options)),
      revision_(MonotonicNanoseconds()),
      state_(state),
      signals_(io_, SIGTERM, SIGINT),
      reload_signal_(io_),
      stop_timer_(io_),
      watchdog_timer_(io_),
      control_timer_(io_),
      leaving_timer_(io_),
      rejoins_(io_, "a driver of service ", std::nullopt,
               [this](const internal::RejoinRequest& request, SpawnedProcess process,
                      FileDescriptor lock) {
                 return TakeIn(request, std::move(process), std::move(lock));
               }),
      control_rejoins_(
          io_, "control",
          options_.control_user ? std::optional(options_.control_user->uid) : std::nullopt,
          [this](const internal::RejoinRequest& request, SpawnedProcess process,
                 FileDescriptor lock) {
            return TakeInControl(request, std::move(process), std::move(lock));
          }),
      program_check_(io_),
      program_timer_(io_) {
  StayPipe given_back = StayPipe::GivenBack();
  if (options_.keep_services) {
    absl::StatusOr<StayPipe> kept = StayPipe::Keep(std::move(given_back));
    if (kept.ok()) {
      stay_ = *std::move(kept);
    } else {
      spdlog::error("--keep-services: services end when batond is stopped: {}",
                    MessageOf(kept.status()));
    }
  } else if (given_back.reading || given_back.writing) {
    StayPipe::GiveUp();
  }
  for (const v1::ServiceConfig& service : options_.config.services()) AddDriver(service);
  AddControl();
}

Child::Plan Supervisor::PlanOf(const v1::ServiceConfig& service) {
  Child::Plan plan;
  plan.name = absl::StrCat("driver of service ", service.name());
  plan.service = service.name();
  plan.program = options_.libexec + "/baton-driver";
  plan.helpers = kDriverHelpers;
  plan.former_program = options_.libexec + "/baton-keeper";
  plan.input = KeeperInput(options_, service);
  plan.log = service.log();
  plan.lock = KeeperLockPath(options_.config.state_dir(), service.name());
  if (stay_) plan.stay = stay_->reading.get();
  plan.start_timeout = StartTimeout(service, options_.start_timeout);
  plan.hang_timeout = options_.hang_timeout;
  plan.kill_hung = service.policy().on_keeper_hang() == v1::ON_KEEPER_HANG_RESTART;
  return plan;
}

Child& Supervisor::AddDriver(const v1::ServiceConfig& service) {
  const auto child = std::make_shared<Child*>();  // the child, for its own callbacks
  drivers_.push_back(std::make_unique<Child>(
      io_, PlanOf(service),
      Child::Callbacks{[this, name = service.name()] {
                         LetControlConnect(name);
                         Advance();
                       },
                       [this, child](const std::string& how) { OnGone(**child, how); },
                       [this] { Advance(); }, nullptr,
                       [this, name = service.name()](std::string kind, const std::string& message) {
                         Note(name, std::move(kind), message);
                       }}));
  *child = drivers_.back().get();
  return **child;
}

Child* Supervisor::FindDriver(const std::string& service) const {
  const auto found =
      absl::c_find_if(drivers_, [&](const auto& one) { return one->service() == service; });
  return found == drivers_.end() ? nullptr : found->get();
}

internal::ControlConfig Supervisor::ControlConfig() const {
  const v1::Config& config = options_.config;
  internal::ControlConfig control;
  control.set_state_dir(config.state_dir());
  for (const v1::ServiceConfig& service : config.services()) control.add_services(service.name());
  *control.mutable_operator_uids() = config.operator_uids();
  *control.mutable_operator_gids() = config.operator_gids();
  control.set_metrics_address(config.metrics_address());
  *control.mutable_viewer_uids() = config.viewer_uids();
  *control.mutable_viewer_gids() = config.viewer_gids();
  if (config.has_operator_endpoint()) {
    *control.mutable_operator_endpoint() = config.operator_endpoint();
  }
  control.set_log_format(config.log_format());
  control.set_log_level(config.log_level());
  control.set_batond_uid(geteuid());
  control.set_audit_directory(options_.audit_directory);
  control.set_distrust_contained_root(config.distrust_contained_root());
  control.set_batond_release(std::string(kRelease));
  control.set_control_program_given_up(control_given_up_);
  control.set_batond_program_given_up(options_.own->given_up());
  return control;
}

void Supervisor::AddControl() {
  Child::Plan plan;
  plan.name = "control";
  plan.program = plan.former_program = options_.libexec + "/baton-control";
  plan.input = AsText(ControlConfig());
  plan.lock = ControlLockPath(options_.config.state_dir());
  plan.outlives_us = Child::Plan::Outlives::kOnceItSaysSo;
  if (stay_) plan.stay = stay_->reading.get();
  plan.start_timeout = options_.start_timeout;
  plan.talk = [this](FileDescriptor socket) {
    control_requests_ = std::make_unique<ControlRequests>(
        io_, std::move(socket),
        [this](const internal::ReloadConfig& request, ControlRequests::ReloadDone done) {
          Reload(request, std::move(done));
        },
        [this](const internal::ReplaceProgram& request, ControlRequests::Done done) {
          ReplaceProgram(request, std::move(done));
        },
        [this](const internal::OpenFile& request) { return OpenForControl(request); });
    events_.ForgetWhatWasTold();
    TellEvents();
  };
  plan.hang_timeout = options_.hang_timeout;
  plan.kill_hung = true;  // nothing ends with control
  plan.user = options_.control_user;
  plan.give = [this] { return SocketsOfControl(options_.config); };
  control_ = std::make_unique<Child>(
      io_, std::move(plan),
      Child::Callbacks{[this] { Advance(); },
                       [this](const std::string& how) { OnGone(*control_, how); },
                       [this] { Advance(); },
                       [this](const std::string& why) {
                         control_given_up_ = why;
                         control_->SetInput(AsText(ControlConfig()));
                       },
                       [this](std::string kind, const std::string& message) {
                         Note("", std::move(kind), message);
                       }});
}

absl::Status Supervisor::Run() {
  WatchSignals();
  HoldSignals(SIG_UNBLOCK);
  if (options_.read_config != nullptr) {
    reload_signal_.add(SIGHUP);
    WatchReload();
  }
  // Shows the service manager now and then that this loop turns (WatchdogSec= of the unit).
  uint64_t microseconds = 0;  // removed from the environment, because it is not for children
  if (sd_watchdog_enabled(/*unset_environment=*/1, &microseconds) > 0 && microseconds > 1) {
    const auto feed = [] { sd_notify(/*unset_environment=*/0, "WATCHDOG=1"); };
    feed();
    Every(watchdog_timer_, std::chrono::microseconds(microseconds / 2), feed);
  }
  // The service manager's own limit of a start knows nothing of the size of arenas.
  TellStatus(absl::StrCat("EXTEND_TIMEOUT_USEC=", LongestStart().count(), "\n"),
             absl::StrCat("starting, services: ", JoinedNames()));
  LimitProbation(options_.start_timeout + kStartMargin);
  const std::string& directory = options_.config.state_dir();
  BATON_RETURN_IF_ERROR(rejoins_.Listen(RejoinSocketPath(directory)));
  BATON_RETURN_IF_ERROR(control_rejoins_.Listen(ControlRejoinSocketPath(directory)));
  // Control is known from the beginning, so that a stop during the start ends it, too.
  if (const absl::Status found = control_->FindFormer(); !found.ok()) {
    control_->Log(spdlog::level::err, std::string(MessageOf(found)));
  }
  StartDrivers();
  io_.run();
  state_.RemoveSockets(
      services_go_on() ? std::vector<std::string>() : ServiceNames(options_.config),
      !control_->alive());
  return result_;
}

absl::StatusOr<std::vector<FileDescriptor>> Supervisor::TakeIn(
    const internal::RejoinRequest& request, SpawnedProcess process, FileDescriptor lock) {
  if (stopping()) return absl::UnavailableError("batond is stopping");
  // The driver's configuration would mix with what the reload has compared. The driver asks again.
  if (reload_) return absl::UnavailableError("batond is taking a changed configuration");
  const std::string& service = request.config().service().name();
  Child* const driver = FindDriver(service);
  if (driver == nullptr) {
    return absl::NotFoundError(absl::StrCat("service ", service, " is not configured"));
  }
  BATON_ASSIGN_OR_RETURN(std::vector<FileDescriptor> given,
                         driver->Rejoin(std::move(process), std::move(lock)));
  GoOnWithConfigOf(request.config(), *driver);
  return given;
}

// Control goes on whatever its release is, until an operator replaces it (ReplaceProgram). Only if
// its start decides what has changed is it started anew.
absl::StatusOr<std::vector<FileDescriptor>> Supervisor::TakeInControl(
    const internal::RejoinRequest& request, SpawnedProcess process, FileDescriptor lock) {
  if (stopping()) return absl::UnavailableError("batond is stopping");
  BATON_ASSIGN_OR_RETURN(std::vector<FileDescriptor> given,
                         control_->Rejoin(std::move(process), std::move(lock)));
  const internal::BatondReply news = NewsForControl();
  if (NeedsAnotherStart(request.control(), news.config())) {
    control_->Log(spdlog::level::info,
                  "is started again: the configuration has changed in what it reads at its start");
    RestartControlSoon();
  }
  control_requests_->Tell(news);
  return given;
}

internal::BatondReply Supervisor::NewsForControl() {
  internal::BatondReply news;
  news.set_revision(++revision_);
  *news.mutable_config() = ControlConfig();
  return news;
}

// Keeps in force the configuration that the running keeper has, and asks it to take what has
// changed.
void Supervisor::GoOnWithConfigOf(const internal::KeeperConfig& config, Child& driver) {
  const v1::ServiceConfig& service = config.service();
  v1::Config running = options_.config;
  *FindService(&running, service.name()) = service;
  TakenConfig difference = TakeReloadable(running, options_.config, /*disconnect=*/false);
  for (const TakenConfig::Refused& refused : difference.refused) {
    log::Write(spdlog::level::warn, {.service = service.name()},
               absl::StrCat("its keeper goes on with the configuration that it was started with: ",
                            refused.field, ": ", refused.why));
  }
  options_.config = std::move(running);
  driver.SetPlan(PlanOf(service));
  const bool distrusts = options_.config.distrust_contained_root();
  if (difference.live.empty() && config.distrust_contained_root() == distrusts) return;
  // Posted, so that the driver has its answer first.
  boost::asio::post(io_, [this, wanted = *FindService(&difference.config, service.name())] {
    Child* const rejoined = FindDriver(wanted.name());
    if (rejoined == nullptr || stopping()) return;
    CallKeeperOf(wanted, [this, wanted](const absl::StatusOr<internal::ConfigTaken>& answer) {
      OnRejoinedAnswered(wanted.name(), answer);
    });
  });
}

void Supervisor::OnRejoinedAnswered(const std::string& name,
                                    const absl::StatusOr<internal::ConfigTaken>& answer) {
  if (!answer.ok() || reload_) ask_again_.insert(name);
  Child* const driver = FindDriver(name);
  if (driver == nullptr || reload_) return;
  if (!answer.ok()) {
    log::Write(spdlog::level::warn, {.service = name},
               absl::StrCat("its keeper has not taken what has changed in the configuration: ",
                            answer.status().message(), "; `baton reload` asks it again"));
    return;
  }
  *FindService(&options_.config, name) = answer->service();
  driver->SetPlan(PlanOf(answer->service()));
}

// All drivers start at the same time, and control after them.
std::chrono::microseconds Supervisor::LongestStart() const {
  std::chrono::milliseconds longest{};
  for (const v1::ServiceConfig& service : options_.config.services()) {
    longest = std::max(longest, StartTimeout(service, options_.start_timeout));
  }
  return longest + options_.start_timeout + kStartMargin;
}

std::string Supervisor::JoinedNames() const {
  return absl::StrJoin(ServiceNames(options_.config), ", ");
}

// Describes which children run. Called once all starts have been tried.
std::string Supervisor::Health() const {
  std::string missing = control_->ready() ? "" : control_->name();
  for (const std::unique_ptr<Child>& driver : drivers_) {
    if (driver->ready()) continue;
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", driver->name());
    const std::string why = DownReason(options_.config.state_dir(), driver->service());
    if (!why.empty()) absl::StrAppend(&missing, " (", why, ")");
  }
  std::string hung = control_->hung() ? control_->name() : "";
  for (const std::unique_ptr<Child>& driver : drivers_) {
    if (driver->hung()) absl::StrAppend(&hung, hung.empty() ? "" : ", ", driver->name());
  }
  if (missing.empty() && hung.empty()) {
    return absl::StrCat("running, services: ", JoinedNames());
  }
  std::string health = "degraded";
  if (!missing.empty()) absl::StrAppend(&health, ", being started again: ", missing);
  if (!hung.empty()) absl::StrAppend(&health, ", without a sign of life: ", hung);
  return health;
}

void Supervisor::StartDrivers() {
  for (const std::unique_ptr<Child>& driver : drivers_) {
    OnStarted(*driver, driver->Start());
    if (stopping()) return;
  }
  Advance();
}

void Supervisor::OnStarted(Child& child, const absl::Status& status) {
  if (status.ok()) return;
  if (options_.strict) {
    return FailStart(
        absl::Status(status.code(), absl::StrCat(child.name(), ": ", status.message())));
  }
  child.Log(spdlog::level::err, std::string(MessageOf(status)));
  child.StartLater();
}

void Supervisor::WatchSignals() {
  signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (error) return;
    if (std::exchange(replaced_, false)) {
      spdlog::info("stopping, and not replaced: signal {} ({})", signal, sigabbrev_np(signal));
    } else if (stopping()) {
      spdlog::warn("told to stop again: killing what is left");
      KillAll();
    } else {
      spdlog::info("stopping: signal {} ({})", signal, sigabbrev_np(signal));
      Stop();
    }
    WatchSignals();
  });
}

void Supervisor::WatchReload() {
  reload_signal_.async_wait([this](const boost::system::error_code& error, int) {
    if (error) return;
    reload_again_ = true;
    ReloadForSignal();
    WatchReload();
  });
}

// One reload at a time. A signal that comes meanwhile causes another, which reads the file again.
void Supervisor::ReloadForSignal() {
  if (reload_ || !std::exchange(reload_again_, false)) return;
  Reload(internal::ReloadConfig(), [this](const absl::StatusOr<internal::BatondReply>& read) {
    if (read.ok() && control_requests_) control_requests_->Tell(*read);
  });
}

// `done` gets the news for control. A control that is started later gets it in its input.
void Supervisor::Reload(const internal::ReloadConfig& request, ReloadUnderWay::Done done) {
  if (options_.read_config == nullptr) {
    return done(absl::FailedPreconditionError(
        "batond was started with --dev: there is no configuration to read again"));
  }
  if (reload_) {
    return done(absl::AbortedError("another reload is under way; try again in a moment"));
  }
  absl::StatusOr<v1::Config> wanted = options_.read_config();
  if (!wanted.ok()) {
    spdlog::error("the configuration was read again, and nothing is taken: {}",
                  MessageOf(wanted.status()));
    return done(
        absl::InvalidArgumentError(absl::StrCat("nothing is taken: ", wanted.status().message())));
  }
  TakenConfig taken = TakeReloadable(options_.config, *wanted, request.disconnect());
  if (request.validate_only()) return done(DescribeReload(taken));
  BeginReload(std::move(taken), std::move(done));
}

void Supervisor::BeginReload(TakenConfig taken, ReloadUnderWay::Done done) {
  for (const std::string& name : std::exchange(ask_again_, {})) AddLive(name, &taken);
  // 1: this function
  reload_ = ReloadUnderWay{std::move(taken), 1, std::move(done), ControlConfig()};
  v1::Config former = std::exchange(options_.config, reload_->taken.config);
  Apply(reload_->taken);
  spdlog::default_logger()->set_level(LevelOf(options_.config.log_level()));
  for (const std::string& name : reload_->taken.live) {
    AskKeeper(*FindService(&former, name), *FindService(&options_.config, name));
  }
  FinishReload();
}

// A keeper that does not run takes the configuration when it is started.
void Supervisor::AskKeeper(const v1::ServiceConfig& running, const v1::ServiceConfig& wanted) {
  Child& driver = *FindDriver(wanted.name());
  if (!driver.alive()) return driver.SetPlan(PlanOf(wanted));
  ++reload_->unanswered;
  CallKeeperOf(wanted, [this, running](const absl::StatusOr<internal::ConfigTaken>& answer) {
    if (!answer.ok()) ask_again_.insert(running.name());
    NoteAnswer(running, answer, &reload_->taken);
    FinishReload();
  });
}

void Supervisor::CallKeeperOf(const v1::ServiceConfig& wanted,
                              std::function<void(absl::StatusOr<internal::ConfigTaken>)> done) {
  if (!FindDriver(wanted.name())->ready()) {
    boost::asio::post(
        io_, [done = std::move(done)] { done(absl::UnavailableError("it is being started")); });
    return;
  }
  internal::ManagementRequest request;
  *request.mutable_take_config()->mutable_service() = wanted;
  request.mutable_take_config()->set_distrust_contained_root(
      options_.config.distrust_contained_root());
  request.mutable_take_config()->set_expires_ns(
      MonotonicNanoseconds() +
      static_cast<uint64_t>(std::chrono::nanoseconds(kKeeperTimeout).count()));
  CallKeeper(io_, ManagementSocketPath(options_.config.state_dir(), wanted.name()),
             std::move(request), kKeeperTimeout,
             [done = std::move(done)](absl::StatusOr<internal::ManagementReply> reply) {
               if (!reply.ok()) return done(reply.status());
               done(std::move(*reply->mutable_config_taken()));
             });
}

// Ends the reload once all keepers have answered.
void Supervisor::FinishReload() {
  if (--reload_->unanswered > 0) return;
  const ReloadUnderWay reload = *std::exchange(reload_, std::nullopt);
  options_.config = reload.taken.config;
  for (const std::string& name : reload.taken.live) {
    FindDriver(name)->SetPlan(PlanOf(*FindService(&options_.config, name)));
  }
  if (const absl::Status opened = state_.Share(ServesOthers(options_.config)); !opened.ok()) {
    spdlog::error("{}", MessageOf(opened));
  }
  internal::BatondReply reply = NewsForControl();
  reply.MergeFrom(DescribeReload(reload.taken));
  control_->SetInput(AsText(reply.config()));
  LogReload(reload.taken);
  if (NeedsAnotherStart(reload.former, reply.config())) RestartControlSoon();
  reload.done(std::move(reply));
  TellEvents();
  ReloadForSignal();
}

void Supervisor::Apply(const TakenConfig& taken) {
  for (const std::string& service : taken.removed) RemoveDriver(service);
  for (const v1::ServiceConfig& service : taken.config.services()) {
    if (absl::c_linear_search(taken.added, service.name())) {
      Child& driver = AddDriver(service);
      const absl::Status started = driver.Start();
      if (started.ok()) continue;
      // Not OnStarted: a reload ends no batond, not even a strict one.
      driver.Log(spdlog::level::err, std::string(MessageOf(started)));
      driver.StartLater();
    } else if (absl::c_linear_search(taken.changed, service.name())) {
      Child& driver = *FindDriver(service.name());
      driver.SetPlan(PlanOf(service));
      driver.Signal(SIGTERM);  // it is started again
    }
  }
}

void Supervisor::RemoveDriver(const std::string& service) {
  const auto found =
      absl::c_find_if(drivers_, [&](const auto& one) { return one->service() == service; });
  (*found)->CancelStart();
  (*found)->Signal(SIGTERM);
  if ((*found)->alive()) {
    leaving_.push_back(std::move(*found));
    KillLeavingLater();
  } else {
    state_.RemoveFilesOf(service);
  }
  drivers_.erase(found);
}

void Supervisor::KillLeavingLater() {
  After(leaving_timer_, options_.stop_timeout, [this] {
    for (const std::unique_ptr<Child>& driver : leaving_) {
      spdlog::warn("{}: does not stop, killing it", driver->name());
      driver->Signal(SIGKILL);
    }
  });
}

// Control's clients first get their answers.
void Supervisor::RestartControlSoon() {
  After(control_timer_, kAnswersFirst, [this] {
    if (!stopping()) control_->Signal(SIGTERM);
  });
}

void Supervisor::ReplaceProgram(const internal::ReplaceProgram& request,
                                ControlRequests::Done done) {
  if (phase_ != Phase::kRunning || reload_) {
    return done(
        absl::AbortedError("batond starts, stops, or takes a changed configuration: try "
                           "again in a moment"));
  }
  const std::chrono::milliseconds probation(request.probation_ms());
  if (request.batond()) {
    const auto replace = [this, probation, done = std::move(done)](absl::Status status) {
      if (status.ok() && (phase_ != Phase::kRunning || reload_)) {
        status = absl::AbortedError("something else has begun meanwhile: try again in a moment");
      }
      if (status.ok()) status = options_.own->Keep(options_.config.state_dir(), probation);
      if (status.ok()) ReplaceOwnProgramSoon();
      done(status);
    };
    return program_check_.Run(*options_.own, replace);
  }
  const absl::Status status = control_->ReplaceProgram(probation);
  if (status.ok()) {
    control_given_up_.clear();
    control_->SetInput(AsText(ControlConfig()));
    RestartControlSoon();
  }
  done(status);
}

// Control's client first gets its answer. Drivers go on, and the new program finds them.
void Supervisor::ReplaceOwnProgramSoon() {
  After(program_timer_, kAnswersFirst, [this] {
    if (stopping()) return;
    spdlog::info("going on as the program that is at batond's path now");
    replaced_ = true;
    Stop();
  });
}

// While this batond is on probation, it has to start control and to reach the drivers that go on.
void Supervisor::LimitProbation(std::chrono::milliseconds limit) {
  if (!options_.own->on_probation()) return;
  After(program_timer_, limit, [this] {
    if (stopping()) return;
    const bool reached =
        absl::c_none_of(drivers_, [](const auto& driver) { return driver->is_awaited(); });
    if (phase_ == Phase::kRunning && control_->ready() && reached) {
      return options_.own->EndProbation();
    }
    FailStart(absl::DeadlineExceededError(absl::StrCat("it is not well in time: ", Health())));
  });
}

void Supervisor::Note(const std::string& service, std::string kind, const std::string& message) {
  events_.Add(service, std::move(kind), message);
  TellEvents();
}

// During a reload the configuration is not yet the one in force: FinishReload tells.
void Supervisor::TellEvents() {
  if (reload_ || !control_requests_ || !events_.has_untold()) return;
  internal::BatondReply news;
  news.set_revision(revision_);
  *news.mutable_config() = ControlConfig();
  events_.TakeUntold(&news);
  control_requests_->Tell(news);
}

// Reports that this batond follows another, if there was one.
void Supervisor::NoteSuccession() {
  const OwnProgram& own = *options_.own;
  if (!own.given_up().empty()) Note("", "batond_program_given_up", own.given_up());
  const bool found = absl::c_any_of(
      drivers_, [](const auto& one) { return one->alive() && !one->started_here(); });
  const bool control_found = control_->alive() && !control_->started_here();
  if (!found && !control_found && own.former_end().empty() && !own.on_probation()) return;
  std::string former = own.former_end().empty() ? "ended" : own.former_end();
  if (own.on_probation()) former = "was replaced by another program";
  if (!own.given_up().empty()) former = "was given up";
  const std::string message =
      absl::StrCat("the batond before this one ", former, "; this one, pid ", getpid(),
                   ", release ", kRelease, ", follows it; ",
                   found ? "it has found drivers, and their connections and workers went on"
                         : "it has found no driver");
  log::Write(spdlog::level::info, {.kind = "batond_followed"}, message);
  Note("", "batond_followed", message);
}

// Opens files that operator_endpoint names, which batond's user alone may be able to read, and
// those of Baton's programs.
absl::StatusOr<FileDescriptor> Supervisor::OpenForControl(const internal::OpenFile& request) const {
  const std::string& program = request.program();
  if (program == "batond") return OpenWithin(options_.own->path(), O_RDONLY);
  if (program == "baton-control" || program == "baton-driver" || program == "baton-keeper" ||
      program == kDriverCode.name) {
    return OpenWithin(absl::StrCat(options_.libexec, "/", program), O_RDONLY);
  }
  const std::string& path = request.path();
  const v1::OperatorEndpoint& endpoint = options_.config.operator_endpoint();
  const std::string files[] = {endpoint.certificate_file(), endpoint.key_file(),
                               endpoint.client_ca_file(), endpoint.crl_file()};
  if (path.empty() || !absl::c_linear_search(files, path)) {
    return absl::PermissionDeniedError("operator_endpoint names no such file");
  }
  return OpenWithin(path, O_RDONLY);
}

// The socket's mode admits its owner and root alone, so control becomes the owner.
void Supervisor::LetControlConnect(const std::string& service) const {
  if (!options_.control_user) return;
  const std::string path = ManagementSocketPath(options_.config.state_dir(), service);
  if (lchown(path.c_str(), options_.control_user->uid, static_cast<gid_t>(-1)) == 0) return;
  spdlog::error("control cannot reach the keeper of service {}: {}", service,
                MessageOf(ErrnoStatus(errno, absl::StrCat("chown ", path))));
}

// Called when a child is ready or has failed.
void Supervisor::Advance() {
  if (phase_ == Phase::kRunning) TellStatus("", Health());
  if (phase_ == Phase::kStartingDrivers &&
      absl::c_all_of(drivers_, [](const auto& driver) { return driver->settled(); })) {
    phase_ = Phase::kStartingControl;
    OnStarted(*control_, control_->Start());  // nothing, if a former batond's is taken in already
  }
  if (phase_ == Phase::kStartingControl && control_->settled()) {
    phase_ = Phase::kRunning;
    NoteSuccession();
    AnnounceReady();
    LimitProbation(options_.own->probation());
  }
}

void Supervisor::OnGone(Child& child, const std::string& how) {
  const auto left = absl::c_find_if(leaving_, [&](const auto& one) { return one.get() == &child; });
  if (left != leaving_.end()) {
    child.Log(spdlog::level::info, absl::StrCat(how, "; the service is no longer configured"));
    if (FindDriver(child.service()) == nullptr) state_.RemoveFilesOf(child.service());
    // Destroyed later, because the child is calling this function.
    boost::asio::post(io_, [gone = std::shared_ptr<Child>(std::move(*left))] {});
    leaving_.erase(left);
    return stopping() ? AdvanceStop() : Advance();
  }
  switch (phase_) {
    case Phase::kStartingDrivers:
    case Phase::kStartingControl:
      if (options_.strict && child.started_here()) {
        return FailStart(absl::UnavailableError(
            absl::StrCat(child.name(), " ", how, "; its messages above tell why")));
      }
      [[fallthrough]];
    case Phase::kRunning:
      child.Log(spdlog::level::err, how);
      child.StartLater();
      return Advance();
    case Phase::kStoppingControl:
    case Phase::kStoppingDrivers:
      child.Log(spdlog::level::info, how);
      return AdvanceStop();
  }
}

void Supervisor::AnnounceReady() const {
  const std::string& directory = options_.config.state_dir();
  std::string services;
  bool all = control_->ready();
  for (const std::unique_ptr<Child>& driver : drivers_) {
    all = all && driver->ready();
    if (!driver->ready()) continue;
    absl::StrAppend(&services, services.empty() ? "" : ", ", driver->service(), " (worker socket ",
                    WorkerSocketPath(directory, driver->service()), ")");
  }
  const std::string health = Health();
  if (!all) {
    spdlog::error("{}", health);
    absl::StrAppend(&services, services.empty() ? "none; " : "; ", health);
  }
  // Written in parts that a pipe takes whole.
  const std::string line =
      absl::StrCat("batond ready: state directory ", directory, ", operator socket ",
                   OperatorSocketPath(directory), ", services: ", services, "\n");
  log::PatientWriter output(STDOUT_FILENO);
  for (size_t at = 0; at < line.size() && output.Write(line.substr(at, PIPE_BUF));) at += PIPE_BUF;
  TellStatus("READY=1\n", health);
}

void Supervisor::FailStart(const absl::Status& status) {
  result_ = status;
  Stop();
}

void Supervisor::Stop() {
  phase_ = Phase::kStoppingControl;
  if (!replaced_) {
    TellStatus("STOPPING=1\n",
               result_.ok() ? "stopping" : absl::StrCat("giving up: ", result_.message()));
  }
  control_->CancelStart();
  for (const std::unique_ptr<Child>& driver : drivers_) driver->CancelStart();
  if (control_goes_on()) return AdvanceStop();
  control_->Signal(SIGTERM);
  // Control gets half of the time, so that one that hangs leaves the drivers the other half.
  After(stop_timer_, options_.stop_timeout / 2, [this] {
    if (phase_ != Phase::kStoppingControl) return;
    spdlog::warn("control: does not stop, killing it");
    control_->Signal(SIGKILL);
  });
  AdvanceStop();
}

void Supervisor::AdvanceStop() {
  if (phase_ == Phase::kStoppingControl && (!control_->alive() || control_goes_on())) {
    phase_ = Phase::kStoppingDrivers;
    if (services_go_on()) return LeaveDrivers();
    for (const std::unique_ptr<Child>& driver : drivers_) driver->Signal(SIGTERM);
    After(stop_timer_, options_.stop_timeout / 2, [this] {
      spdlog::warn("keepers do not stop, killing them");
      KillAll();
    });
  }
  const bool drivers_gone =
      absl::c_none_of(drivers_, [](const auto& driver) { return driver->alive(); });
  if (phase_ == Phase::kStoppingDrivers && drivers_gone && leaving_.empty()) io_.stop();
}

// Returns true if another batond follows: one that the service manager starts, or another program
// in this process.
bool Supervisor::services_go_on() const {
  return stay_.has_value() || replaced_ || (!result_.ok() && options_.own->on_probation());
}

void Supervisor::LeaveDrivers() {
  HoldSignals(SIG_BLOCK);  // for the program that follows in this process
  spdlog::info("keepers{} go on: the next batond finds them, or the service manager ends them",
               control_->alive() ? " and control" : "");
  io_.stop();
}

void Supervisor::KillAll() {
  control_->Signal(SIGKILL);
  for (const std::unique_ptr<Child>& driver : drivers_) driver->KillUnfollowed();
  for (const std::unique_ptr<Child>& driver : leaving_) driver->KillUnfollowed();
}

}  // namespace baton

#include "supervisor/keeper/keeper.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <csignal>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/base/heartbeat.h"
#include "lib/base/memlock.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "lib/driver/device_needs.h"
#include "lib/placement/placement.h"
#include "lib/verbs/port_owner.h"
#include "lib/verbs/rdma/rdma_device.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/placement.h"
#include "supervisor/config/shape.h"
#include "supervisor/config/socket_link.h"
#include "supervisor/config/state_files.h"
#include "supervisor/keeper/adoption.h"
#include "supervisor/keeper/brokered_programs.h"
#include "supervisor/keeper/describe.h"
#include "supervisor/keeper/held_logs.h"
#include "supervisor/keeper/open_device.h"

namespace baton::keeper {
namespace {

constexpr uint32_t kMaxPendingEvents = 4096;  // on their way from the engine
constexpr int kSocketBacklog = 128;
constexpr int kNativeOutputBytes = 1 << 20;  // of the pipe, while nobody reads it
constexpr std::chrono::milliseconds kAcceptPause(100);

}  // namespace

absl::StatusOr<Keeper::Foundation> Keeper::MakeFoundation(const internal::KeeperConfig& config) {
  const v1::ServiceConfig& service = config.service();
  Foundation foundation;
  {
    // The soft device's NIC is a process that starts here.
    const std::string& cpus = service.placement().cpus();
    const ThreadsOn processes(ParseCpus(cpus).value_or(std::set<uint32_t>()),
                              cpus.empty() ? Inherited::kBounds : Inherited::kIsReplaced);
    BATON_ASSIGN_OR_RETURN(OpenedDevice opened, OpenDevice(config));
    foundation.device = std::move(opened.device);
    foundation.nic = std::move(opened.nic);
  }
  const arena::Shape shape = ShapeOf(service);
  if (service.device().has_rdma()) {
    RaiseMemlockLimit();
    BATON_RETURN_IF_ERROR(CheckMemlockLimit(driver::NeedsOf(shape).registered_bytes));
  }
  foundation.placement = PlacementOf(
      service.placement(),
      service.device().has_rdma() ? std::string(foundation.device->name()) : std::string());
  std::optional<uint32_t> node;
  if (foundation.placement.has_numa_node()) node = foundation.placement.numa_node();
  const MemoryOn memory(node);
  foundation.placed = memory.status();
  BATON_ASSIGN_OR_RETURN(arena::Arena arena, arena::Arena::Create(shape, service.name()));
  foundation.arena = std::make_unique<arena::Arena>(std::move(arena));
  if (service.mode() != v1::NATIVE) return foundation;
  NativeEngineOptions options;
  options.outside_effects = service.outside_effects();
  options.realtime_priority = static_cast<int>(service.realtime_priority());
  if (service.poison_deaths() != 0) options.poison_deaths = service.poison_deaths();
  BATON_ASSIGN_OR_RETURN(foundation.native, NativeEngine::Create(foundation.arena.get(),
                                                                 foundation.device.get(), options));
  BATON_ASSIGN_OR_RETURN(foundation.lifeline, MakeLifeline());
  BATON_ASSIGN_OR_RETURN(foundation.output, MakeOutputPipe());
  // A worker that drives its queues itself does not wait for its keeper to read what it prints:
  // what does not fit is lost. The larger size is for when the keeper is busy, and may be refused.
  const int written = foundation.output.program.get();
  if (fcntl(written, F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus(errno, "O_NONBLOCK");
  (void)fcntl(written, F_SETPIPE_SZ, kNativeOutputBytes);
  return foundation;
}

Keeper::Keeper(const internal::KeeperConfig& config, Foundation foundation)
    : config_(config),
      placed_(std::move(foundation.placed)),
      signals_(loop_, SIGTERM, SIGINT),
      heart_(loop_),
      nic_timer_(loop_),
      lines_(loop_),
      events_(config.service().name(),
              [this](const v1::Event& event) {
                lines_.Write(event, events_.trace_parent());
                if (management_) management_->Publish(event);
              }),
      device_(std::move(foundation.device)),
      nic_(std::move(foundation.nic)),
      arena_(std::move(foundation.arena)),
      native_(foundation.native.get()),
      native_timer_(loop_),
      lifeline_(std::move(foundation.lifeline)),
      native_output_(std::move(foundation.output)) {
  *config_.mutable_service()->mutable_placement() = foundation.placement;
  engine_ = std::move(foundation.native);
}

Keeper::~Keeper() {
  if (engine_) engine_->Stop();
  for (const auto& descriptor : native_descriptors_) descriptor->release();  // the engine's
}

absl::StatusOr<std::unique_ptr<Keeper>> Keeper::Create(const internal::KeeperConfig& config,
                                                       EngineOptions engine_options,
                                                       HeldDescriptors* held,
                                                       FileDescriptor batonds_network,
                                                       BatondLink* batond) {
  BATON_ASSIGN_OR_RETURN(Foundation foundation, MakeFoundation(config));
  std::unique_ptr<Keeper> keeper(new Keeper(config, std::move(foundation)));
  keeper->batond_ = batond;
  {
    // The threads that start here are the engine's and the one that notices deaths. Native services
    // have none; the workers are told.
    const ThreadsOn threads(
        ParseCpus(keeper->config_.service().placement().cpus()).value_or(std::set<uint32_t>()),
        config.service().placement().cpus().empty() ? Inherited::kBounds : Inherited::kIsReplaced);
    keeper->placed_.Update(threads.status());
    BATON_RETURN_IF_ERROR(keeper->MakeEngine(std::move(engine_options)));
    keeper->MakeManagement(config.service(), std::move(batonds_network));
  }
  keeper->TellPlacement();
  // The peer's credentials decide whether it may attach, not the socket's mode.
  const std::string& service = config.service().name();
  if (keeper->native_ == nullptr) {
    BATON_RETURN_IF_ERROR(keeper->Listen(
        WorkerSocketPath(config.state_dir(), service), 0666,
        [raw = keeper.get()](FileDescriptor client) { raw->workers_->Accept(std::move(client)); }));
    const absl::Status linked = LinkSocket(WorkerSocketPath(config.state_dir(), service),
                                           LinkedWorkerSocketPath(config.state_dir(), service));
    if (!linked.ok()) {
      spdlog::warn("containers that have the service's directory alone find no socket there: {}",
                   MessageOf(linked));
    }
  }
  BATON_RETURN_IF_ERROR(keeper->Listen(ManagementSocketPath(config.state_dir(), service), 0600,
                                       [raw = keeper.get()](FileDescriptor client) {
                                         raw->management_->Accept(std::move(client));
                                       }));
  if (keeper->native_workers_ != nullptr) {
    // Connections of the soft device end with this keeper, and workers with them.
    if (held != nullptr && config.service().device().has_rdma()) keeper->HoldNative(held);
    keeper->native_workers_->KeepRunning();
  } else if (held != nullptr) {
    const absl::Status status = HoldLogs(held, *keeper->arena_);
    if (!status.ok()) spdlog::warn("batond does not keep the logs: {}", MessageOf(status));
  }
  return keeper;
}

// From here on the workers' lives hang on batond alone.
void Keeper::HoldNative(HeldDescriptors* held) {
  NativeFiles files = native_->Files();
  const verbs::rdma::KernelFiles device = verbs::rdma::KernelFilesOf(*device_);
  files.device = device.objects;
  files.connection_manager = device.connection_manager;
  absl::Status status = Hold(held, files, lifeline_);
  if (status.ok()) status = held->Put(kHeldOutput, {native_output_.reader.get()});
  if (status.ok()) {
    native_workers_->HoldProcesses(held,
                                   HeldWorkers(held, files.keeper_wake, arena_->shape().workers));
    return lifeline_.hold.Reset();
  }
  (void)held->DropAll();
  events_.Add("not_held",
              absl::StrCat("connections would end with this keeper: batond does not hold what it "
                           "would take to keep them: ",
                           status.message()),
              UnixMicroseconds(), 0, -1, -1);
}

absl::Status Keeper::MakeEngine(EngineOptions options) {
  const v1::ServiceConfig& service = config_.service();
  if (native_ != nullptr) {
    native_->SetListener(this);
  } else {
    options.outside_effects = service.outside_effects();
    options.realtime_priority = static_cast<int>(service.realtime_priority());
    if (service.poison_deaths() != 0) options.poison_deaths = service.poison_deaths();
    BATON_ASSIGN_OR_RETURN(engine_, Engine::Create(arena_.get(), device_.get(), this, options));
  }
  policies_ = std::make_unique<Policies>(service, *engine_);
  // Before any peer can ask.
  drain_ = std::make_unique<ServiceDrain>(loop_, config_, *engine_, *policies_, events_);
  for (const v1::ListenerConfig& listener : service.listeners()) {
    const verbs::Address address = {listener.host(), static_cast<uint16_t>(listener.port())};
    BATON_RETURN_IF_ERROR(verbs::NamePortOwner(engine_->Listen(address).status()));
  }
  engine_->Start();
  return absl::OkStatus();
}

void Keeper::MakeManagement(const v1::ServiceConfig& configured, FileDescriptor batonds_network) {
  workers_ =
      std::make_unique<WorkerSessions>(loop_, config_, *arena_, *engine_, *policies_, events_);
  if (native_ != nullptr) {
    auto programs =
        std::make_unique<NativeWorkers>(loop_, config_, *native_, *workers_, *policies_, events_,
                                        lifeline_, native_output_.program.get());
    native_workers_ = programs.get();
    programs_ = std::move(programs);
  } else {
    programs_ =
        std::make_unique<BrokeredPrograms>(loop_, config_.launcher(), std::move(batonds_network));
  }
  const WorkerStarts starts{loop_, config_, *engine_, *policies_, events_, *workers_, *programs_};
  upgrades_ = std::make_unique<Upgrades>(starts);
  if (native_ == nullptr) standbys_ = std::make_unique<Standbys>(starts, *upgrades_);
  limits_ = std::make_unique<LimitWatch>(loop_, config_.service(), *engine_, *policies_, *workers_,
                                         events_);
  live_ = std::make_unique<LiveConfig>(config_, configured, *engine_, *policies_, events_,
                                       [this](const v1::ServiceConfig& service) {
                                         if (batond_ != nullptr) batond_->SetService(service);
                                       });
  management_ =
      std::make_unique<Management>(loop_, config_, *engine_, events_, *workers_, *upgrades_,
                                   *policies_, *limits_, *drain_, moves_, *live_);
  if (native_ == nullptr) return;
  // A copy: the pipe is held by its own.
  native_lines_ = std::make_unique<ProgramOutput>(
      loop_, FileDescriptor(fcntl(native_output_.reader.get(), F_DUPFD_CLOEXEC, 0)), kNativeOutput);
  for (const int fd : native_->descriptors()) {
    native_descriptors_.push_back(
        std::make_unique<boost::asio::posix::stream_descriptor>(loop_, fd));
  }
  TurnNative();
}

// A placement that cannot be had costs time, but is no error.
void Keeper::TellPlacement() {
  const std::string where = DescribePlacement(config_.service().placement());
  if (where.empty()) return;
  if (placed_.ok()) {
    events_.Add("placed", absl::StrCat("the service is on ", where), UnixMicroseconds(), 0, -1, -1);
  } else {
    events_.Add("no_placement",
                absl::StrCat("the service is not, or not all of it, on ", where, ": ",
                             placed_.message(), "; see `baton doctor`"),
                UnixMicroseconds(), 0, -1, -1);
  }
}

// Whenever a descriptor is readable, and every now and then.
void Keeper::TurnNative() {
  native_->Turn();
  workers_->LookAtLocks();
  for (const auto& descriptor : native_descriptors_) {
    descriptor->async_wait(boost::asio::posix::stream_descriptor::wait_read,
                           [this](const boost::system::error_code& error) {
                             if (!error) native_timer_.cancel();
                           });
  }
  native_timer_.expires_after(std::chrono::milliseconds(NativeEngine::kTurnMs));
  native_timer_.async_wait([this](const boost::system::error_code&) {
    for (const auto& descriptor : native_descriptors_) descriptor->cancel();
    TurnNative();
  });
}

absl::Status Keeper::Listen(const std::string& path, uint32_t mode,
                            std::function<void(FileDescriptor)> on_client) {
  BATON_ASSIGN_OR_RETURN(FileDescriptor socket, ListenUnix(path, kSocketBacklog, mode));
  auto acceptor = std::make_unique<Acceptor>(loop_);
  acceptor->on_client = std::move(on_client);
  acceptor->descriptor =
      std::make_unique<boost::asio::posix::stream_descriptor>(loop_, socket.Release());
  acceptors_.push_back(std::move(acceptor));
  AwaitClient(*acceptors_.back());
  return absl::OkStatus();
}

void Keeper::AwaitClient(Acceptor& acceptor) {
  acceptor.descriptor->async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [this, &acceptor](const boost::system::error_code& error) {
        if (error) return;
        FileDescriptor client(accept4(acceptor.descriptor->native_handle(), nullptr, nullptr,
                                      SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (client) {
          acceptor.on_client(std::move(client));
        } else if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
          spdlog::error("{}", MessageOf(ErrnoStatus(errno, "accept (see RLIMIT_NOFILE)")));
          // The client goes on waiting, so the socket stays readable.
          acceptor.pause.expires_after(kAcceptPause);
          acceptor.pause.async_wait([this, &acceptor](const boost::system::error_code& stopped) {
            if (!stopped) AwaitClient(acceptor);
          });
          return;
        }
        AwaitClient(acceptor);
      });
}

// From the loop, which this is about.
void Keeper::ShowLifeLater(std::chrono::milliseconds pause) {
  heart_.expires_after(pause);
  heart_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    ShowLifeLater(batond_->Beat(policies_->policy().on_keeper_hang() == v1::ON_KEEPER_HANG_RESTART
                                    ? AfterLastSign::kRestart
                                    : AfterLastSign::kReport));
  });
}

void Keeper::AskNicLater() {
  nic_timer_.expires_after(kHeartbeat);
  nic_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    AskNic();
    AskNicLater();
  });
}

// A NIC that does not answer makes no connection and ends none, and peers could be the first to
// notice. Once it is killed, the engine finds its device lost.
void Keeper::AskNic() {
  if (!nic_->Beat()) return;
  events_.Add("nic_killed",
              absl::StrCat("baton-nic (process ", nic_->pid(), ") has not answered for ",
                           NicProcess::kSilentBeats * kHeartbeat / std::chrono::seconds(1),
                           " s, and was killed: it was stopped, or had no processor"),
              UnixMicroseconds(), 0, -1, -1);
}

absl::Status Keeper::Run() {
  if (batond_ != nullptr) ShowLifeLater(kHeartbeat);
  if (nic_ != nullptr) AskNicLater();
  signals_.async_wait([this](const boost::system::error_code&, int) { loop_.stop(); });
  loop_.run();
  engine_->Stop();
  return end_;
}

void Keeper::OnEvent(std::string_view kind, const std::string& message, uint64_t worker_id,
                     int shard, int connection) {
  // A flood of peers makes events faster than they can be told.
  if (pending_events_.load() >= kMaxPendingEvents) {
    dropped_events_.fetch_add(1);
    return;
  }
  pending_events_.fetch_add(1);
  boost::asio::post(loop_, [this, kind = std::string(kind), message, now = UnixMicroseconds(),
                            worker_id, shard, connection] {
    pending_events_.fetch_sub(1);
    const uint32_t dropped = dropped_events_.exchange(0);
    if (dropped > 0) {
      events_.Add("events_dropped", absl::StrCat(dropped, " events came too fast to be told"), now,
                  0, -1, -1);
    }
    events_.Add(kind, message, now, worker_id, shard, connection);
  });
}

// These two are as many as owners change, which no peer can make a flood of.
void Keeper::OnReport(uint32_t shard, const ReconciliationReport& report) {
  boost::asio::post(
      loop_,
      [this, shard, described = DescribeReport(report, ShardMoves::kWorkRequests)]() mutable {
        moves_.OnReport(shard, std::move(described));
      });
}

void Keeper::OnServed(uint32_t shard, uint64_t epoch, uint64_t worker_id, uint64_t blackout_ns) {
  boost::asio::post(loop_, [this, shard, epoch, worker_id, blackout_ns] {
    moves_.OnServed(shard, epoch, worker_id, blackout_ns);
  });
}

void Keeper::OnFenced(uint64_t worker_id) {
  boost::asio::post(loop_, [this, worker_id] {
    (void)workers_->Kill(worker_id, "it wrote an invalid transaction");
  });
}

void Keeper::OnDeviceLost(const absl::Status& why) {
  boost::asio::post(loop_, [this, why] {
    end_ = why;
    loop_.stop();
  });
}

}  // namespace baton::keeper

#include "supervisor/keeper/keeper.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/base/heartbeat.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "lib/placement/placement.h"
#include "lib/verbs/rdma/rdma_device.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/placement.h"
#include "supervisor/config/socket_link.h"
#include "supervisor/config/state_files.h"
#include "supervisor/keeper/adoption.h"
#include "supervisor/keeper/brokered_programs.h"

namespace baton::keeper {
namespace {

constexpr int kSocketBacklog = 128;
constexpr int kNativeOutputBytes = 1 << 20;  // of the pipe, while nobody reads it
constexpr std::chrono::milliseconds kAcceptPause(100);

}  // namespace

absl::StatusOr<Keeper::NativeTies> Keeper::MakeNativeTies() {
  NativeTies ties;
  BATON_ASSIGN_OR_RETURN(ties.lifeline, MakeLifeline());
  BATON_ASSIGN_OR_RETURN(ties.output, MakeOutputPipe());
  // A worker that drives its queues itself does not wait for its keeper to read what it prints:
  // what does not fit is lost. The larger size is for when the keeper is busy, and may be refused.
  const int written = ties.output.program.get();
  if (fcntl(written, F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus(errno, "O_NONBLOCK");
  (void)fcntl(written, F_SETPIPE_SZ, kNativeOutputBytes);
  return ties;
}

Keeper::Keeper(const internal::KeeperConfig& config, std::unique_ptr<DriverHost> host,
               std::unique_ptr<RemoteDriver> remote, NativeTies ties)
    : config_(config),
      signals_(loop_, SIGTERM, SIGINT),
      heart_(loop_),
      nic_timer_(loop_),
      lines_(loop_),
      events_(
          config.service().name(),
          [this](const v1::Event& event) {
            lines_.Write(event, events_.trace_parent());
            if (management_) management_->Publish(event);
          },
          // It grows with each keeper that follows another.
          remote ? MonotonicNanoseconds() / 1000 : 0),
      host_(std::move(host)),
      remote_(std::move(remote)),
      driver_(host_ ? static_cast<ServiceDriver&>(host_->driver()) : *remote_),
      news_(loop_),
      native_(host_ ? host_->native() : nullptr),
      native_timer_(loop_),
      ties_(std::move(ties)) {
  driver_.SetListener(this);
  if (host_) {
    *config_.mutable_service()->mutable_placement() = host_->service().placement();
    host_->news().SetWake([this] { boost::asio::post(loop_, [this] { driver_.DeliverNews(); }); });
  } else {
    *config_.mutable_service()->mutable_placement() = remote_->introduced().placement();
    news_.assign(remote_->news_fd());
    AwaitNews();
  }
}

Keeper::~Keeper() {
  if (host_) host_->engine().Stop();
  if (news_.is_open()) news_.release();                                      // the remote driver's
  for (const auto& descriptor : native_descriptors_) descriptor->release();  // the engine's
}

void Keeper::AwaitNews() {
  news_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                   [this](const boost::system::error_code& error) {
                     if (error) return;
                     driver_.DeliverNews();
                     AwaitNews();
                   });
}

absl::StatusOr<std::unique_ptr<Keeper>> Keeper::Create(const internal::KeeperConfig& config,
                                                       EngineOptions engine_options,
                                                       HeldDescriptors* held,
                                                       FileDescriptor batonds_network,
                                                       BatondLink* batond) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<DriverHost> host,
                         DriverHost::Open(config, std::move(engine_options)));
  NativeTies ties;
  if (host->native() != nullptr) {
    BATON_ASSIGN_OR_RETURN(ties, MakeNativeTies());
  }
  std::unique_ptr<Keeper> made(new Keeper(config, std::move(host), nullptr, std::move(ties)));
  made->batond_ = batond;
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Keeper> keeper,
                         Begin(std::move(made), config.service(), std::move(batonds_network)));
  if (keeper->native_workers_ != nullptr) {
    // Connections of the soft device end with this keeper, and workers with them.
    if (held != nullptr && config.service().device().has_rdma()) keeper->HoldNative(held);
    keeper->native_workers_->KeepRunning();
  }
  return keeper;
}

absl::StatusOr<std::unique_ptr<Keeper>> Keeper::CreateOver(const internal::KeeperConfig& config,
                                                           std::unique_ptr<RemoteDriver> driver,
                                                           FileDescriptor batonds_network) {
  std::unique_ptr<Keeper> keeper(new Keeper(config, nullptr, std::move(driver), {}));
  keeper->held_ = keeper->driver_.TakeHeld();
  return Begin(std::move(keeper), config.service(), std::move(batonds_network));
}

absl::StatusOr<std::unique_ptr<Keeper>> Keeper::Begin(std::unique_ptr<Keeper> keeper,
                                                      const v1::ServiceConfig& configured,
                                                      FileDescriptor batonds_network) {
  BATON_RETURN_IF_ERROR(keeper->BeginListening());
  keeper->MakeManagement(configured, std::move(batonds_network));
  keeper->TellPlacement();
  keeper->workers_->Restore(keeper->held_);
  keeper->upgrades_->Restore(keeper->held_);
  if (keeper->standbys_) keeper->standbys_->Restore(keeper->held_);
  if (keeper->native_ == nullptr) BATON_RETURN_IF_ERROR(keeper->ListenForWorkers());
  BATON_RETURN_IF_ERROR(
      keeper
          ->Listen(ManagementSocketPath(keeper->config_.state_dir(), configured.name()), 0600,
                   [raw = keeper.get()](FileDescriptor client) {
                     raw->management_->Accept(std::move(client));
                   })
          .status());
  keeper->held_.clear();
  return keeper;
}

// The peer's credentials decide whether it may attach, not the socket's mode.
absl::Status Keeper::ListenForWorkers() {
  const std::string& service = config_.service().name();
  BATON_ASSIGN_OR_RETURN(const bool is_new, Listen(WorkerSocketPath(config_.state_dir(), service),
                                                   0666, [this](FileDescriptor client) {
                                                     workers_->Accept(std::move(client));
                                                   }));
  if (!is_new) return absl::OkStatus();
  const absl::Status linked = LinkSocket(WorkerSocketPath(config_.state_dir(), service),
                                         LinkedWorkerSocketPath(config_.state_dir(), service));
  if (!linked.ok()) {
    spdlog::warn("containers that have the service's directory alone find no socket there: {}",
                 MessageOf(linked));
  }
  return absl::OkStatus();
}

// From here on the workers' lives hang on batond alone.
void Keeper::HoldNative(HeldDescriptors* held) {
  NativeFiles files = native_->Files();
  const verbs::rdma::KernelFiles device = verbs::rdma::KernelFilesOf(host_->device());
  files.device = device.objects;
  files.connection_manager = device.connection_manager;
  absl::Status status = Hold(held, files, ties_.lifeline);
  if (status.ok()) status = held->Put(kHeldOutput, {ties_.output.reader.get()});
  if (status.ok()) {
    native_workers_->HoldProcesses(
        held, HeldWorkers(held, files.keeper_wake, driver_.arena().shape().workers));
    return ties_.lifeline.hold.Reset();
  }
  (void)held->DropAll();
  events_.Add("not_held",
              absl::StrCat("connections would end with this keeper: batond does not hold what it "
                           "would take to keep them: ",
                           status.message()),
              UnixMicroseconds(), 0, -1, -1);
}

absl::Status Keeper::BeginListening() {
  policies_ = std::make_unique<Policies>(config_.service(), driver_, held_);
  // Before any peer can ask.
  drain_ = std::make_unique<ServiceDrain>(loop_, config_, driver_, events_);
  if (remote_ && remote_->introduced().follows()) return absl::OkStatus();
  for (const v1::ListenerConfig& listener : config_.service().listeners()) {
    BATON_RETURN_IF_ERROR(
        driver_.Listen({listener.host(), static_cast<uint16_t>(listener.port())}));
  }
  if (host_) host_->Start();
  return absl::OkStatus();
}

void Keeper::MakeManagement(const v1::ServiceConfig& configured, FileDescriptor batonds_network) {
  workers_ = std::make_unique<WorkerSessions>(loop_, config_, driver_, *policies_, events_);
  if (native_ != nullptr) {
    auto programs =
        std::make_unique<NativeWorkers>(loop_, config_, *native_, *workers_, *policies_, events_,
                                        ties_.lifeline, ties_.output.program.get());
    native_workers_ = programs.get();
    programs_ = std::move(programs);
  } else {
    auto programs = std::make_unique<BrokeredPrograms>(loop_, config_.launcher(), driver_,
                                                       std::move(batonds_network));
    programs->Restore(held_);
    programs_ = std::move(programs);
  }
  const WorkerStarts starts{loop_, config_, driver_, *policies_, events_, *workers_, *programs_};
  upgrades_ = std::make_unique<Upgrades>(starts);
  if (native_ == nullptr) standbys_ = std::make_unique<Standbys>(starts, *upgrades_);
  limits_ = std::make_unique<LimitWatch>(loop_, config_.service(), driver_, *policies_, *workers_,
                                         events_);
  live_ = std::make_unique<LiveConfig>(config_, configured, driver_, *policies_, events_,
                                       [this](const v1::ServiceConfig& service) {
                                         driver_.NoteService(service);
                                         if (batond_ != nullptr) batond_->SetService(service);
                                       });
  management_ = std::make_unique<Management>(loop_, config_, driver_, events_, *workers_,
                                             *upgrades_, *policies_, *limits_, *drain_, *live_);
  if (native_ == nullptr) return;
  // A copy: the pipe is held by its own.
  native_lines_ = std::make_unique<ProgramOutput>(
      loop_, FileDescriptor(fcntl(ties_.output.reader.get(), F_DUPFD_CLOEXEC, 0)), kNativeOutput);
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
  const std::string why_not =
      host_ ? std::string(MessageOf(host_->placed())) : remote_->introduced().not_placed();
  if (why_not.empty()) {
    events_.Add("placed", absl::StrCat("the service is on ", where), UnixMicroseconds(), 0, -1, -1);
  } else {
    events_.Add("no_placement",
                absl::StrCat("the service is not, or not all of it, on ", where, ": ", why_not,
                             "; see `baton doctor`"),
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

// Returns false if the keeper before this one already did. Clients have waited since its end.
absl::StatusOr<bool> Keeper::Listen(const std::string& path, uint32_t mode,
                                    std::function<void(FileDescriptor)> on_client) {
  const std::string key = absl::StrCat("lasting/socket", path);
  const auto held = held_.find(key);
  const bool is_new = held == held_.end() || held->second.descriptors.size() != 1;
  FileDescriptor socket;
  if (is_new) {
    BATON_ASSIGN_OR_RETURN(socket, ListenUnix(path, kSocketBacklog, mode));
    driver_.Hold(key, "", {socket.get()});
  } else {
    socket = std::move(held->second.descriptors[0]);
  }
  auto acceptor = std::make_unique<Acceptor>(loop_);
  acceptor->on_client = std::move(on_client);
  acceptor->descriptor =
      std::make_unique<boost::asio::posix::stream_descriptor>(loop_, socket.Release());
  acceptors_.push_back(std::move(acceptor));
  AwaitClient(*acceptors_.back());
  return is_new;
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

std::chrono::milliseconds Keeper::ShowLife() {
  if (remote_) {
    remote_->ShowLife();
    return kHeartbeat;
  }
  return batond_->Beat(policies_->policy().on_keeper_hang() == v1::ON_KEEPER_HANG_RESTART
                           ? AfterLastSign::kRestart
                           : AfterLastSign::kReport);
}

// From the loop, which this is about.
void Keeper::ShowLifeLater(std::chrono::milliseconds pause) {
  heart_.expires_after(pause);
  heart_.async_wait([this](const boost::system::error_code& error) {
    if (!error) ShowLifeLater(ShowLife());
  });
}

void Keeper::BeatNicLater() {
  nic_timer_.expires_after(kHeartbeat);
  nic_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    host_->BeatNic();
    BeatNicLater();
  });
}

absl::Status Keeper::Run() {
  if (batond_ != nullptr || remote_) ShowLifeLater(std::chrono::milliseconds(0));
  if (host_) BeatNicLater();
  signals_.async_wait([this](const boost::system::error_code&, int) { loop_.stop(); });
  loop_.run();
  if (host_) host_->engine().Stop();
  return end_;
}

void Keeper::OnEvent(const internal::EngineEvent& event) {
  events_.Add(event.kind(), event.message(), event.unix_micros(), event.worker_id(), event.shard(),
              event.connection());
}

void Keeper::OnFenced(uint64_t worker_id) {
  (void)workers_->Kill(worker_id, "it wrote an invalid transaction");
}

void Keeper::OnThreadEnded(uint64_t worker_id) { workers_->OnThreadEnded(worker_id); }

void Keeper::OnDeviceLost(const absl::Status& why) {
  end_ = why;
  loop_.stop();
}

}  // namespace baton::keeper

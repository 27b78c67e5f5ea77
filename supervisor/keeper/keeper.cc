#include "supervisor/keeper/keeper.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/heartbeat.h"
#include "lib/base/placement.h"
#include "lib/base/status.h"
#include "lib/channel/waits.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/placement.h"
#include "supervisor/config/state_files.h"
#include "supervisor/keeper/programs/brokered_programs.h"

namespace baton::keeper {
namespace {

constexpr int kSocketBacklog = 128;
constexpr std::chrono::milliseconds kAcceptPause(100);

}  // namespace

Keeper::Keeper(const internal::KeeperConfig& config, std::unique_ptr<DriverClient> driver)
    : config_(config),
      signals_(loop_, SIGTERM, SIGINT),
      heart_(loop_),
      lines_(loop_),
      events_(
          config.service().name(),
          [this](const v1::Event& event) {
            lines_.Write(event, events_.trace_parent());
            if (management_) management_->Publish(event);
          },
          // More than any number of the former keeper, because this clock runs faster than events
          // come.
          driver->introduced().follows() ? MonotonicNanoseconds() / 1000 : 0),
      driver_(std::move(driver)),
      news_(loop_, driver_->news_fd()) {
  driver_->SetListener(this);
  *config_.mutable_service()->mutable_placement() = driver_->introduced().placement();
  AwaitNews();
}

Keeper::~Keeper() { news_.release(); }  // driver_ closes it

void Keeper::AwaitNews() {
  AwaitReadable(news_, [this] {
    driver_->DeliverNews();
    AwaitNews();
  });
}

absl::StatusOr<std::unique_ptr<Keeper>> Keeper::Create(const internal::KeeperConfig& config,
                                                       std::unique_ptr<DriverClient> driver,
                                                       FileDescriptor batonds_network) {
  std::unique_ptr<Keeper> keeper(new Keeper(config, std::move(driver)));
  BATON_RETURN_IF_ERROR(keeper->Begin(config.service(), std::move(batonds_network)));
  return keeper;
}

absl::Status Keeper::Begin(v1::ServiceConfig configured, FileDescriptor batonds_network) {
  DriverClient::HeldByKey set_aside;
  BATON_ASSIGN_OR_RETURN(held_, driver_->TakeHeld(&set_aside));
  BATON_RETURN_IF_ERROR(BeginListening(&configured));
  MakeManagement(configured, std::move(batonds_network));
  TellPlacement();
  TellHugePages();
  workers_->Restore(held_);
  workers_->EndSetAside(set_aside);
  if (native_ != nullptr) BATON_RETURN_IF_ERROR(native_->Restore(held_));
  upgrades_->Restore(held_);
  if (standbys_) standbys_->Restore(held_);
  BATON_RETURN_IF_ERROR(ListenForWorkers());
  BATON_RETURN_IF_ERROR(
      Listen(ManagementSocketPath(config_.state_dir(), configured.name()), 0600,
             [this](FileDescriptor client) { management_->Accept(std::move(client)); })
          .status());
  held_.clear();
  if (native_ != nullptr) {
    // Ends the processes of an upgrade that was only beginning when the former keeper died: no
    // keeper goes on with it.
    if (upgrades_->idle()) native_->EndUnused();
    native_->KeepRunning();
  }
  return absl::OkStatus();
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

absl::Status Keeper::BeginListening(v1::ServiceConfig* configured) {
  policies_ = std::make_unique<Policies>(config_.service(), *driver_, held_);
  // Created before the service listens, so that a drained service admits no peer.
  drain_ = std::make_unique<ServiceDrain>(loop_, config_, *driver_, events_);
  configured->clear_listeners();
  for (const v1::ListenerConfig& listener : config_.service().listeners()) {
    // Changes nothing where the driver listens. A keeper that died in a reload may have stopped it.
    const absl::Status listens =
        driver_->Listen({listener.host(), static_cast<uint16_t>(listener.port())});
    if (listens.ok()) {
      *configured->add_listeners() = listener;
    } else if (driver_->introduced().follows()) {
      events_.Add("not_listening",
                  absl::StrCat("the service does not listen at ", listener.host(), " port ",
                               listener.port(), ": ", listens.message(), "; free it, and reload"));
    } else {
      return listens;
    }
  }
  return absl::OkStatus();
}

void Keeper::MakeManagement(const v1::ServiceConfig& configured, FileDescriptor batonds_network) {
  workers_ = std::make_unique<WorkerSessions>(common_parts());
  MakePrograms(std::move(batonds_network));
  const KeeperParts parts{common_parts(), *workers_, *programs_};
  upgrades_ = std::make_unique<Upgrades>(parts);
  if (native_ == nullptr) standbys_ = std::make_unique<Standbys>(parts, *upgrades_);
  take_overs_ = std::make_unique<TakeOvers>(parts, *upgrades_, *drain_);
  workers_->SetOnTakeOver(
      [this](uint64_t worker_id, const internal::TakeOver& request, TakeOvers::Begun begun) {
        take_overs_->Ask(worker_id, request, std::move(begun));
      });
  limits_ = std::make_unique<LimitWatch>(parts, *workers_);
  live_ = std::make_unique<LiveConfig>(config_, configured, *driver_, *policies_, events_);
  management_ = std::make_unique<Management>(
      parts,
      Management::Managed{
          .upgrades = *upgrades_, .limits = *limits_, .drain = *drain_, .live = *live_},
      [this] { boost::asio::post(loop_, [this] { loop_.stop(); }); });
}

void Keeper::MakePrograms(FileDescriptor batonds_network) {
  if (config_.service().mode() == v1::NATIVE) {
    auto programs = std::make_unique<NativeWorkers>(common_parts(), *workers_);
    native_ = programs.get();
    programs_ = std::move(programs);
    return;
  }
  auto programs = std::make_unique<BrokeredPrograms>(loop_, config_.launcher(), *driver_,
                                                     std::move(batonds_network));
  programs->Restore(held_);
  programs_ = std::move(programs);
}

// A placement that cannot be had costs time, but is no error.
void Keeper::TellPlacement() {
  const std::string where = DescribePlacement(config_.service().placement());
  if (where.empty()) return;
  const std::string& why_not = driver_->introduced().not_placed();
  if (why_not.empty()) return events_.Add("placed", absl::StrCat("the service is on ", where));
  events_.Add("no_placement", absl::StrCat("the service is not, or not all of it, on ", where, ": ",
                                           why_not, "; see `baton doctor`"));
}

void Keeper::TellHugePages() {
  if (!driver_->introduced().has_buffer_pages()) return;
  const v1::BufferPages& pages = driver_->introduced().buffer_pages();
  const std::string asked = absl::StrCat("huge pages of ", pages.asked_bytes() >> 20, " MiB");
  if (pages.page_bytes() != 0) {
    return events_.Add("huge_pages", absl::StrCat("the buffers are on ", asked));
  }
  events_.Add("no_huge_pages", absl::StrCat("the buffers are on ordinary pages, not on ", asked,
                                            ": ", pages.why_not(), "; see `baton doctor`"));
}

// Returns false if the former keeper listened already, and goes on with its socket. Clients have
// waited there since its end.
absl::StatusOr<bool> Keeper::Listen(const std::string& path, uint32_t mode,
                                    std::function<void(FileDescriptor)> on_client) {
  const std::string key = absl::StrCat("lasting/socket", path);
  const auto held = held_.find(key);
  const bool is_new = held == held_.end() || held->second.descriptors.size() != 1;
  FileDescriptor socket;
  if (is_new) {
    BATON_ASSIGN_OR_RETURN(socket, ListenUnix(path, kSocketBacklog, mode));
    driver_->Hold(key, "", {socket.get()});
  } else {
    socket = std::move(held->second.descriptors[0]);
  }
  const auto log_failure = [](int error) {
    spdlog::error("{}", MessageOf(ErrnoStatus(error, "accept (see RLIMIT_NOFILE)")));
  };
  acceptors_.push_back(
      std::make_unique<Acceptor>(loop_, std::move(socket), kAcceptPause,
                                 Acceptor::Callbacks{std::move(on_client), log_failure}));
  return is_new;
}

absl::Status Keeper::Run() {
  driver_->NoteReady();
  // The loop shows life, because a hang of the loop is to be noticed.
  driver_->ShowLife();
  Every(heart_, kHeartbeat, [this] { driver_->ShowLife(); });
  signals_.async_wait([this](const boost::system::error_code&, int) { loop_.stop(); });
  loop_.run();
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

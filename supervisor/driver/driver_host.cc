#include "supervisor/driver/driver_host.h"

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/heartbeat.h"
#include "lib/base/placement.h"
#include "lib/base/process_limits.h"
#include "lib/base/status.h"
#include "lib/driver/device_needs.h"
#include "spdlog/spdlog.h"
#include "supervisor/batond/spawn.h"
#include "supervisor/config/placement.h"
#include "supervisor/config/shape.h"
#include "supervisor/config/state_files.h"
#include "supervisor/driver/device/open_device.h"
#include "supervisor/driver/native/lifeline.h"

namespace baton::driver_process {
namespace {

ThreadsOn ThreadsOnItsCpus(const v1::ServiceConfig& service, bool pinned) {
  return ThreadsOn(ParseCpus(service.placement().cpus()).value_or(std::set<uint32_t>()),
                   pinned ? Inherited::kIsReplaced : Inherited::kBounds);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DriverHost>> DriverHost::Open(const internal::KeeperConfig& config,
                                                             EngineOptions options) {
  std::unique_ptr<DriverHost> host(new DriverHost(config));
  if (config.service().mode() == v1::NATIVE) {
    const bool has_to_be_alone = config.service().outside_effects();
    BATON_ASSIGN_OR_RETURN(
        host->presence_,
        FollowFormerWorkers(WorkersLockPath(config.state_dir(), config.service().name()),
                            has_to_be_alone ? Survivors::kAreAnError : Survivors::kAreLogged));
  }
  BATON_RETURN_IF_ERROR(host->MakeDevice(config));
  BATON_RETURN_IF_ERROR(host->MakeQueues(std::move(options)));
  const ThreadsOn threads = ThreadsOnItsCpus(host->service_, host->pinned_);
  host->driver_ = std::make_unique<OrderExecutor>(host->service_, *host->engine_, host->news_,
                                                  host->forks_.get());
  return host;
}

absl::Status DriverHost::MakeDevice(const internal::KeeperConfig& config) {
  // The soft device's NIC is a process that starts here and inherits these CPUs.
  const ThreadsOn processes = ThreadsOnItsCpus(service_, pinned_);
  BATON_ASSIGN_OR_RETURN(OpenedDevice opened, OpenDevice(config));
  device_ = std::move(opened.device);
  nic_ = std::move(opened.nic);
  return absl::OkStatus();
}

// Unless the service says whether brokers drive its queues, they do so where the device allows it
// and is large enough.
absl::Status DriverHost::ChooseDriver() {
  if (!MayHaveBrokers(service_)) return absl::OkStatus();
  absl::Status can = device_->CheckForkable();
  if (can.ok()) {
    const driver::DeviceNeeds needs = driver::NeedsOf(ShapeOf(service_), /*in_advance=*/true);
    can = driver::CheckLimits(needs, device_->limits(), device_->name());
  }
  if (can.ok()) return can;
  if (service_.has_broker_processes()) {
    return {can.code(), absl::StrCat("broker_processes: ", can.message())};
  }
  spdlog::info("no brokers drive the queues, so this process does: {}", MessageOf(can));
  service_.set_broker_processes(false);
  return absl::OkStatus();
}

absl::Status DriverHost::MakeQueues(EngineOptions options) {
  BATON_RETURN_IF_ERROR(ChooseDriver());
  const arena::Shape shape = ShapeOf(service_);
  const bool is_rdma = service_.device().has_rdma();
  if (is_rdma) {
    RaiseMemlockLimit();
    BATON_RETURN_IF_ERROR(CheckMemlockLimit(driver::NeedsOf(shape).registered_bytes));
  }
  *service_.mutable_placement() =
      PlacementOf(service_.placement(), is_rdma ? std::string(device_->name()) : std::string());
  std::optional<uint32_t> node;
  if (service_.placement().has_numa_node()) node = service_.placement().numa_node();
  const MemoryOn memory(node);
  placed_ = memory.status();
  const uint64_t huge = PageBytesOf(service_.huge_pages());
  BATON_ASSIGN_OR_RETURN(arena::Arena arena,
                         arena::Arena::Create(shape, service_.name(), is_rdma ? huge : 0));
  arena_ = std::make_unique<arena::Arena>(std::move(arena));
  return MakeEngine(std::move(options));
}

absl::Status DriverHost::MakeEngine(EngineOptions options) {
  options.outside_effects = service_.outside_effects();
  options.realtime_priority = static_cast<int>(service_.realtime_priority());
  if (service_.poison_deaths() != 0) options.poison_deaths = service_.poison_deaths();
  if (service_.yield_microseconds() != 0) {
    options.yield_microseconds = service_.yield_microseconds();
  }
  if (service_.mode() == v1::NATIVE) {
    BATON_ASSIGN_OR_RETURN(auto engine,
                           NativeEngine::Create(arena_.get(), device_.get(), &news_, options));
    BATON_ASSIGN_OR_RETURN(
        forks_, WorkerForks::Create(*engine, service_.native(), std::move(presence_),
                                    ReplaceableCode(code_),
                                    [this](std::string_view kind, const std::string& message) {
                                      news_.OnEvent(kind, message, 0, -1, -1);
                                    }));
    host_ = engine.get();
    engine_ = std::move(engine);
  } else if (MayHaveBrokers(service_)) {
    const auto place = [this](const std::function<void()>& fork) {
      const ThreadsOn processes = ThreadsOnItsCpus(service_, pinned_);
      fork();
    };
    BATON_ASSIGN_OR_RETURN(
        auto engine,
        BrokeredEngine::Create(arena_.get(), device_.get(), &news_, options,
                               RealBrokerForks(ReplaceableCode(code_), brokers_, place)));
    host_ = brokered_ = engine.get();
    engine_ = std::move(engine);
  } else {
    BATON_ASSIGN_OR_RETURN(engine_, Engine::Create(arena_.get(), device_.get(), &news_, options));
  }
  return absl::OkStatus();
}

void DriverHost::Start() {
  const ThreadsOn threads = ThreadsOnItsCpus(service_, pinned_);
  placed_.Update(threads.status());
  engine_->Start();
}

internal::Introduced DriverHost::Introduce() const {
  internal::Introduced introduced;
  introduced.set_device_name(std::string(device_->name()));
  *introduced.mutable_placement() = service_.placement();
  introduced.set_not_placed(std::string(MessageOf(placed_)));
  if (PageBytesOf(service_.huge_pages()) != 0) DescribePages(introduced.mutable_buffer_pages());
  return introduced;
}

// baton-nic would be killed by a page that is not there when it touches it.
void DriverHost::DescribePages(v1::BufferPages* pages) const {
  const absl::Status status =
      service_.device().has_rdma()
          ? arena_->huge_pages()
          : absl::FailedPreconditionError("the soft device takes only ordinary pages");
  const uint64_t asked = PageBytesOf(service_.huge_pages());
  pages->set_asked_bytes(asked);
  pages->set_page_bytes(status.ok() ? asked : 0);
  pages->set_why_not(std::string(MessageOf(status)));
}

void DriverHost::Turn() {
  host_->Turn();
  driver_->LookAtLocks();
  if (forks_) forks_->Turn();
}

absl::Status DriverHost::CheckFollowable() const {
  if (host_ == nullptr) {
    return absl::FailedPreconditionError("this process drives the queues itself, with threads");
  }
  return device_->CheckFollowable();
}

absl::Status DriverHost::TakeOver() {
  if (nic_) BATON_RETURN_IF_ERROR(nic_->TakeOver());
  return host_->TakeOver();
}

std::vector<int> DriverHost::descriptors() const {
  std::vector<int> all = host_->descriptors();
  if (!forks_) return all;
  for (const int fd : forks_->descriptors()) all.push_back(fd);
  return all;
}

// A NIC that does not answer makes no connection and ends none, and peers could be the first to
// notice. Once it is killed, the engine finds its device lost.
void DriverHost::BeatProcesses() {
  if (brokered_ != nullptr) brokered_->Beat();
  if (!nic_ || !nic_->Beat()) return;
  news_.OnEvent("nic_killed",
                absl::StrCat("baton-nic (process ", nic_->pid(), ") has not answered for ",
                             NicProcess::kSilentBeats * kHeartbeat / std::chrono::seconds(1),
                             " s, and was killed: it was stopped, or had no processor"),
                0, -1, -1);
}

}  // namespace baton::driver_process

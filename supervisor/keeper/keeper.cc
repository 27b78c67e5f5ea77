#include "supervisor/keeper/keeper.h"

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/base/memlock.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "lib/driver/device_needs.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/shape.h"
#include "supervisor/config/state_files.h"
#include "supervisor/keeper/open_device.h"

namespace baton::keeper {
namespace {

constexpr uint32_t kMaxPendingEvents = 4096;  // on their way from the engine
constexpr int kSocketBacklog = 128;
constexpr std::chrono::milliseconds kAcceptPause(100);

}  // namespace

Keeper::Keeper(const internal::KeeperConfig& config)
    : config_(config),
      signals_(loop_, SIGTERM, SIGINT),
      events_(config.service().name(), [this](const v1::Event& event) {
        spdlog::info("{}: {}", event.kind(), event.message());
        if (management_) management_->Publish(event);
      }) {}

Keeper::~Keeper() {
  if (engine_) engine_->Stop();
}

absl::StatusOr<std::unique_ptr<Keeper>> Keeper::Create(const internal::KeeperConfig& config,
                                                       EngineOptions engine_options) {
  std::unique_ptr<Keeper> keeper(new Keeper(config));
  const v1::ServiceConfig& service = keeper->config_.service();
  BATON_ASSIGN_OR_RETURN(keeper->device_, OpenDevice(service.device()));
  const arena::Shape shape = ShapeOf(service);
  if (service.device().has_rdma()) {
    RaiseMemlockLimit();
    BATON_RETURN_IF_ERROR(CheckMemlockLimit(driver::NeedsOf(shape).registered_bytes));
  }
  BATON_ASSIGN_OR_RETURN(keeper->arena_, arena::Arena::Create(shape, service.name()));
  engine_options.outside_effects = service.outside_effects();
  engine_options.realtime_priority = static_cast<int>(service.realtime_priority());
  if (service.poison_deaths() != 0) engine_options.poison_deaths = service.poison_deaths();
  BATON_ASSIGN_OR_RETURN(keeper->engine_, Engine::Create(&*keeper->arena_, keeper->device_.get(),
                                                         keeper.get(), engine_options));
  for (const v1::ListenerConfig& listener : service.listeners()) {
    BATON_RETURN_IF_ERROR(
        keeper->engine_->Listen({listener.host(), static_cast<uint16_t>(listener.port())})
            .status());
  }
  keeper->engine_->Start();
  keeper->workers_ = std::make_unique<WorkerSessions>(
      keeper->loop_, keeper->config_, *keeper->arena_, *keeper->engine_, keeper->events_);
  keeper->upgrades_ = std::make_unique<Upgrades>(keeper->loop_, keeper->config_, *keeper->engine_,
                                                 keeper->events_, *keeper->workers_);
  keeper->management_ =
      std::make_unique<Management>(keeper->loop_, keeper->config_, *keeper->engine_,
                                   keeper->events_, *keeper->workers_, *keeper->upgrades_);
  // Who may attach is decided by the peer's credentials, not by the socket's mode.
  BATON_RETURN_IF_ERROR(keeper->Listen(
      WorkerSocketPath(config.state_dir(), service.name()), 0666,
      [raw = keeper.get()](FileDescriptor client) { raw->workers_->Accept(std::move(client)); }));
  BATON_RETURN_IF_ERROR(keeper->Listen(ManagementSocketPath(config.state_dir(), service.name()),
                                       0600, [raw = keeper.get()](FileDescriptor client) {
                                         raw->management_->Accept(std::move(client));
                                       }));
  return keeper;
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

absl::Status Keeper::Run() {
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

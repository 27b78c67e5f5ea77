#include "tests/supervisor/keeper/keeper_thread.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

#include "lib/arena/layout.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "spdlog/spdlog.h"
#include "tests/harness/binaries.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::keeper::testing {
namespace {

// A machine that is emulated has ten times as long.
const int kReplyTimeoutMs = 20'000 * harness::Slowness();

template <typename Reply>
absl::Status StatusOf(const Reply& reply) {
  return absl::Status(absl::StatusCode(reply.status_code()), reply.status_message());
}

}  // namespace

KeeperThread::KeeperThread() { spdlog::set_level(spdlog::level::warn); }

internal::KeeperConfig KeeperThread::Config(const Change& change) const {
  internal::KeeperConfig config;
  config.set_state_dir(directory_.path());
  config.set_control_socket(directory_.File("control.sock"));
  config.set_launcher(launcher_);
  config.set_keeper(harness::Binaries().Find("baton-keeper").value_or(""));
  config.set_nic(harness::Binaries().Find("baton-nic").value_or(""));
  config.set_driver_code(harness::Binaries().Find("libbaton-driver.so").value_or(""));
  config.set_distrust_contained_root(distrusts_contained_root_);
  v1::ServiceConfig* service = config.mutable_service();
  service->set_name("kv");
  if (verbs::testing::FabricUnderTest().device == "soft") {
    service->mutable_device()->mutable_soft();
  } else {
    service->mutable_device()->mutable_rdma()->set_port(1);
    service->set_broker_processes(false);  // the engine is in this process
  }
  service->set_shards(1);
  service->set_max_connections(8);
  service->set_send_queue_depth(8);
  service->set_receive_queue_depth(8);
  service->set_connection_state_bytes(64);
  service->set_shard_state_bytes(128);
  service->set_buffer_bytes(1 << 18);
  service->set_max_workers(4);
  service->set_max_listeners(2);
  service->set_handoff_timeout_ms(10'000 * harness::Slowness());
  service->set_heartbeat_ms(1000);
  service->set_hang_timeout_ms(60'000 * harness::Slowness());
  if (change) change(service);
  return config;
}

absl::Status KeeperThread::Start(const Change& change,
                                 const driver_process::EngineOptions& engine_options) {
  const internal::KeeperConfig config = Config(change);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<driver_process::DriverHost> host,
                         driver_process::DriverHost::Open(config, engine_options));
  auto driver = std::make_unique<HostedDriverClient>(std::move(host));
  driver_ = driver.get();
  if (refuses_dealings_) driver->RefuseDealings();
  if (watch_) driver->Watch(watch_);
  BATON_ASSIGN_OR_RETURN(keeper_, Keeper::Create(config, std::move(driver)));
  thread_ = std::thread([this] { keeper_->Run().IgnoreError(); });
  return absl::OkStatus();
}

void KeeperThread::Stop() {
  if (!keeper_) return;
  kill(getpid(), SIGTERM);  // to its loop, which waits for it
  thread_.join();
  keeper_.reset();
}

absl::StatusOr<internal::ManagementReply> KeeperThread::Ask(internal::ManagementRequest request) {
  BATON_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectUnix(management_socket()));
  MessageChannel channel(std::move(socket));
  request.set_id(4711);
  BATON_RETURN_IF_ERROR(channel.Send(request));
  internal::ManagementReply reply;
  BATON_RETURN_IF_ERROR(channel.Receive(&reply, kReplyTimeoutMs));
  if (reply.id() != 4711) return absl::InternalError("the reply to another request");
  BATON_RETURN_IF_ERROR(StatusOf(reply));
  return reply;
}

internal::Description KeeperThread::Describe() {
  internal::ManagementRequest request;
  request.mutable_describe();
  return Ask(request).value().description();
}

// They come between the reply to Subscribe and that to what is asked next.
std::vector<v1::Event> KeeperThread::Events() {
  MessageChannel channel(ConnectUnix(management_socket()).value());
  internal::ManagementRequest subscribe, last;
  subscribe.set_id(1);
  subscribe.mutable_subscribe();
  last.set_id(2);
  last.mutable_list_upgrades();
  std::vector<v1::Event> events;
  if (!channel.Send(subscribe).ok() || !channel.Send(last).ok()) return events;
  internal::ManagementReply reply;
  while (channel.Receive(&reply, kReplyTimeoutMs).ok() && reply.id() != 2) {
    if (reply.has_event()) events.push_back(reply.event());
  }
  return events;
}

absl::Status KeeperThread::Handoff(uint64_t to_worker_id, const std::vector<uint32_t>& shards,
                                   uint32_t timeout_ms) {
  internal::ManagementRequest request;
  request.mutable_handoff()->set_to_worker_id(to_worker_id);
  request.mutable_handoff()->set_timeout_ms(timeout_ms);
  for (const uint32_t shard : shards) request.mutable_handoff()->add_shards(shard);
  return Ask(request).status();
}

RawClient::RawClient(const std::string& socket) {
  auto connected = ConnectUnix(socket);
  if (connected.ok()) channel_.emplace(*std::move(connected));
}

RawClient::~RawClient() { Detach().IgnoreError(); }

internal::WorkerRequest RawClient::AttachRequest() {
  internal::WorkerRequest request;
  internal::AttachArena* attach = request.mutable_attach();
  attach->set_protocol_version(kProtocolVersion);
  attach->set_layout_version(arena::kLayoutVersion);
  attach->set_service("kv");
  attach->set_name("raw");
  attach->set_version("7");
  return request;
}

absl::StatusOr<internal::WorkerReply> RawClient::Ask(const internal::WorkerRequest& request) {
  if (!channel_) return absl::UnavailableError("not connected");
  BATON_RETURN_IF_ERROR(channel_->Send(request));
  internal::WorkerReply reply;
  descriptors.clear();
  BATON_RETURN_IF_ERROR(channel_->Receive(&reply, kReplyTimeoutMs, &descriptors));
  BATON_RETURN_IF_ERROR(StatusOf(reply));
  if (reply.has_attached()) {
    attached_ = true;
    id = reply.attached().worker_id();
    token = reply.attached().token();
  }
  return reply;
}

absl::Status RawClient::Attach() { return Ask(AttachRequest()).status(); }

absl::Status RawClient::AttachAndShowItself() {
  BATON_RETURN_IF_ERROR(Attach());
  internal::WorkerRequest request;
  request.mutable_new_token();
  return Ask(request).status();
}

absl::Status RawClient::Detach() {
  if (!std::exchange(attached_, false) || !channel_) return absl::OkStatus();
  internal::WorkerRequest request;
  request.mutable_detach();
  return Ask(request).status();
}

}  // namespace baton::keeper::testing

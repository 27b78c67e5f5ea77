#include "tests/harness/operator_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "lib/base/status.h"
#include "proto/baton/v1/operator.grpc.pb.h"
#include "supervisor/config/state_files.h"
#include "tests/harness/wait_until.h"

namespace baton::harness {

struct OperatorClient::Stub {
  std::unique_ptr<v1::OperatorService::Stub> service;

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::OperatorService::Stub::*method)(
                                    grpc::ClientContext*, const Request&, Response*),
                                const Request& request, std::chrono::milliseconds timeout) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    context.set_wait_for_ready(true);
    Response response;
    const grpc::Status status = (service.get()->*method)(&context, request, &response);
    if (status.ok()) return response;
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
};

OperatorClient::OperatorClient(const std::string& socket) : stub_(std::make_unique<Stub>()) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  stub_->service = v1::OperatorService::NewStub(
      grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments));
}

OperatorClient::~OperatorClient() = default;

absl::StatusOr<v1::GetStatusResponse> OperatorClient::GetStatus() {
  return stub_->Call(&v1::OperatorService::Stub::GetStatus, v1::GetStatusRequest(), timeout_);
}

absl::StatusOr<v1::ListServicesResponse> OperatorClient::ListServices() {
  return stub_->Call(&v1::OperatorService::Stub::ListServices, v1::ListServicesRequest(), timeout_);
}

absl::StatusOr<v1::ListWorkersResponse> OperatorClient::ListWorkers(const std::string& service) {
  v1::ListWorkersRequest request;
  request.set_service(service);
  return stub_->Call(&v1::OperatorService::Stub::ListWorkers, request, timeout_);
}

absl::StatusOr<v1::ListShardsResponse> OperatorClient::ListShards(const std::string& service) {
  v1::ListShardsRequest request;
  request.set_service(service);
  return stub_->Call(&v1::OperatorService::Stub::ListShards, request, timeout_);
}

absl::StatusOr<v1::GetServiceResponse> OperatorClient::GetService(const std::string& service) {
  v1::GetServiceRequest request;
  request.set_service(service);
  return stub_->Call(&v1::OperatorService::Stub::GetService, request, timeout_);
}

absl::StatusOr<v1::ListConnectionsResponse> OperatorClient::ListConnections(
    const std::string& service, uint32_t page_start) {
  v1::ListConnectionsRequest request;
  request.set_service(service);
  request.set_shard(-1);
  request.set_page_size(10'000);
  request.set_page_start(page_start);
  return stub_->Call(&v1::OperatorService::Stub::ListConnections, request, timeout_);
}

absl::Status OperatorClient::ReplaceDriverCode(const std::string& service) {
  v1::ReplaceDriverCodeRequest request;
  request.set_service(service);
  return stub_->Call(&v1::OperatorService::Stub::ReplaceDriverCode, request, timeout_).status();
}

absl::StatusOr<v1::ReplaceKeeperResponse> OperatorClient::ReplaceKeeper(const std::string& service,
                                                                        uint32_t watch_window_ms) {
  v1::ReplaceKeeperRequest request;
  request.set_service(service);
  request.set_watch_window_ms(watch_window_ms);
  return stub_->Call(&v1::OperatorService::Stub::ReplaceKeeper, request, timeout_);
}

absl::Status OperatorClient::ReplaceProgram(v1::ReplaceProgramRequest::Program program,
                                            uint32_t watch_window_ms) {
  v1::ReplaceProgramRequest request;
  request.set_program(program);
  request.set_watch_window_ms(watch_window_ms);
  return stub_->Call(&v1::OperatorService::Stub::ReplaceProgram, request, timeout_).status();
}

absl::StatusOr<v1::KillWorkerResponse> OperatorClient::KillWorker(const std::string& service,
                                                                  uint64_t worker) {
  v1::KillWorkerRequest request;
  request.set_service(service);
  request.set_worker_id(worker);
  return stub_->Call(&v1::OperatorService::Stub::KillWorker, request, timeout_);
}

absl::StatusOr<v1::StopWorkerResponse> OperatorClient::StopWorker(const std::string& service,
                                                                  uint64_t worker) {
  v1::StopWorkerRequest request;
  request.set_service(service);
  request.set_worker_id(worker);
  return stub_->Call(&v1::OperatorService::Stub::StopWorker, request, timeout_);
}

absl::StatusOr<v1::HandoffResponse> OperatorClient::Handoff(const std::string& service,
                                                            uint64_t to_worker) {
  v1::HandoffRequest request;
  request.set_service(service);
  request.set_to_worker_id(to_worker);
  return Handoff(request);
}

absl::StatusOr<v1::HandoffResponse> OperatorClient::Handoff(const v1::HandoffRequest& request) {
  return stub_->Call(&v1::OperatorService::Stub::Handoff, request, timeout_);
}

absl::StatusOr<v1::UpgradeResponse> OperatorClient::Upgrade(const std::string& service,
                                                            const v1::UpgradePlan& plan) {
  v1::UpgradeRequest request;
  request.set_service(service);
  *request.mutable_plan() = plan;
  return stub_->Call(&v1::OperatorService::Stub::Upgrade, request, timeout_);
}

absl::StatusOr<v1::RollbackResponse> OperatorClient::Rollback(const v1::RollbackRequest& request) {
  return stub_->Call(&v1::OperatorService::Stub::Rollback, request, timeout_);
}

absl::StatusOr<v1::ListUpgradesResponse> OperatorClient::ListUpgrades(const std::string& service) {
  v1::ListUpgradesRequest request;
  request.set_service(service);
  return stub_->Call(&v1::OperatorService::Stub::ListUpgrades, request, timeout_);
}

namespace {

constexpr std::chrono::milliseconds kAnswer{15'000};

}  // namespace

absl::StatusOr<std::unique_ptr<KeeperView>> KeeperView::Connect(const std::string& state_dir,
                                                                const std::string& service) {
  std::string path = ManagementSocketPath(state_dir, service);
  BATON_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectUnix(path));
  return std::unique_ptr<KeeperView>(
      new KeeperView(std::move(path), MessageChannel(std::move(socket))));
}

absl::StatusOr<internal::ManagementReply> KeeperView::Ask(internal::ManagementRequest request) {
  request.set_id(++last_id_);
  auto reply = AskOnce(request);
  if (!absl::IsUnavailable(reply.status())) return reply;
  BATON_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectUnix(path_));
  channel_ = MessageChannel(std::move(socket));
  return AskOnce(request);
}

absl::StatusOr<internal::ManagementReply> KeeperView::AskOnce(
    const internal::ManagementRequest& request) {
  BATON_RETURN_IF_ERROR(channel_.Send(request));
  internal::ManagementReply reply;
  do {
    BATON_RETURN_IF_ERROR(channel_.Receive(&reply, static_cast<int>(Patient(kAnswer).count())));
  } while (reply.id() != last_id_);
  return reply;
}

absl::StatusOr<internal::Description> KeeperView::Describe() {
  internal::ManagementRequest request;
  request.mutable_describe();
  BATON_ASSIGN_OR_RETURN(internal::ManagementReply reply, Ask(std::move(request)));
  return std::move(*reply.mutable_description());
}

absl::StatusOr<std::vector<v1::Upgrade>> KeeperView::ListUpgrades() {
  internal::ManagementRequest request;
  request.mutable_list_upgrades();
  BATON_ASSIGN_OR_RETURN(const internal::ManagementReply reply, Ask(std::move(request)));
  return std::vector<v1::Upgrade>(reply.upgrades().begin(), reply.upgrades().end());
}

// On a connection of its own each time: one that has subscribed would have to be read all the time.
absl::StatusOr<std::vector<v1::Event>> KeeperView::NewEvents() {
  BATON_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectUnix(path_));
  MessageChannel channel(std::move(socket));
  internal::ManagementRequest subscribe, describe;
  subscribe.mutable_subscribe()->set_after_sequence(last_event_);
  describe.set_id(++last_id_);  // answered behind the events that are logged
  describe.mutable_describe();
  BATON_RETURN_IF_ERROR(channel.Send(subscribe));
  BATON_RETURN_IF_ERROR(channel.Send(describe));
  std::vector<v1::Event> events;
  internal::ManagementReply reply;
  while (true) {
    BATON_RETURN_IF_ERROR(channel.Receive(&reply, static_cast<int>(Patient(kAnswer).count())));
    if (reply.id() == last_id_) return events;
    if (!reply.has_event()) continue;
    last_event_ = reply.event().sequence();
    events.push_back(std::move(*reply.mutable_event()));
  }
}

}  // namespace baton::harness

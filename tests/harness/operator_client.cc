#include "tests/harness/operator_client.h"

#include <grpcpp/grpcpp.h>

#include "proto/baton/v1/operator.grpc.pb.h"

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

absl::StatusOr<v1::ReplaceKeeperResponse> OperatorClient::ReplaceKeeper(
    const std::string& service) {
  v1::ReplaceKeeperRequest request;
  request.set_service(service);
  return stub_->Call(&v1::OperatorService::Stub::ReplaceKeeper, request, timeout_);
}

absl::Status OperatorClient::ReplaceProgram(v1::ReplaceProgramRequest::Program program) {
  v1::ReplaceProgramRequest request;
  request.set_program(program);
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

}  // namespace baton::harness

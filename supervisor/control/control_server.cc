#include "supervisor/control/control_server.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "grpc/grpc.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/server_posix.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "spdlog/spdlog.h"
#include "supervisor/control/audit_trail.h"
#include "supervisor/control/callers.h"
#include "supervisor/control/config.h"
#include "supervisor/control/keepers.h"
#include "supervisor/control/log_budget.h"
#include "supervisor/control/metrics_source.h"
#include "supervisor/control/operator_endpoint.h"
#include "supervisor/control/operator_service.h"
#include "supervisor/control/peer_listener.h"
#include "supervisor/control/peer_registry.h"
#include "supervisor/control/refusing_service.h"
#include "supervisor/control/roles.h"
#include "supervisor/control/worker_service.h"
#include "supervisor/control/worker_streams.h"
#include "supervisor/metrics/endpoint.h"

namespace baton {
namespace {

constexpr int kMaxRequestBytes = 1 << 20;
constexpr int kMaxStreamsPerConnection = 64;
constexpr int kMaxCallThreads = 64;
constexpr int kRefusedConnectionMs = 10'000;
constexpr int kHandshakeMs = 10'000;
constexpr char kOperatorService[] = "baton.v1.OperatorService";
constexpr std::chrono::milliseconds kShutdownGrace(300);
constexpr std::chrono::seconds kEndpointPause(2);

// Once per process, before the first server is built.
void SetUpGrpc() {
  static const bool done = [] {
    // Never undone: gRPC's own shutdown, with the last server, can wait 10 s for a poller that it
    // started when a peer did not read.
    grpc_init();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)done;
}

void Bound(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder->SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder->SetResourceQuota(grpc::ResourceQuota("baton").SetMaxThreads(kMaxCallThreads));
}

// `refusing`: whoever calls what `service` does not serve; null: it does not exist.
std::unique_ptr<grpc::Server> Serve(grpc::Service* service, const char* name,
                                    RefusingService* refusing = nullptr) {
  grpc::ServerBuilder builder;
  Bound(&builder);
  builder.RegisterService(service);
  if (refusing != nullptr) builder.RegisterCallbackGenericService(refusing);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server) server->GetHealthCheckService()->SetServingStatus(name, true);
  return server;
}

}  // namespace

class ControlServer::Impl {
 public:
  Impl(const internal::ControlConfig& config, std::chrono::milliseconds hello_timeout)
      : config_(config),
        keepers_(config, {[this](const std::string& service) { streams_.Reannounce(service); },
                          [this](const std::string& service, const v1::Event& event) {
                            metrics_->NoteEvent(service, event);
                          }}),
        metrics_(std::make_shared<MetricsSource>(&keepers_, getppid())),
        streams_(&keepers_),
        trail_(AuditTrailPath(config_.state_dir()), &keepers_.events()),
        worker_context_{&keepers_, &streams_, &peers_, hello_timeout, {}},
        callers_(&config_, &peers_),
        operator_service_(
            MakeOperatorService({&keepers_, &streams_, &callers_, &trail_}, Role::kOperator)),
        viewer_service_(
            MakeOperatorService({&keepers_, &streams_, &callers_, &trail_}, Role::kViewer)),
        endpoint_service_(
            MakeOperatorService({&keepers_, &streams_, &callers_, &trail_}, Role::kOperator)),
        worker_service_(MakeWorkerService(&worker_context_)),
        refusing_service_(&callers_),
        viewer_refusing_service_(&callers_) {}

  absl::Status Start() {
    SetUpGrpc();
    operator_server_ = Serve(operator_service_.get(), kOperatorService);
    viewer_server_ = Serve(viewer_service_.get(), kOperatorService, &viewer_refusing_service_);
    worker_server_ = Serve(worker_service_.get(), "baton.v1.WorkerService");
    grpc::ServerBuilder refusing;
    Bound(&refusing);
    refusing.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kRefusedConnectionMs);
    refusing.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, 0);
    refusing.RegisterCallbackGenericService(&refusing_service_);
    refusing_server_ = refusing.BuildAndStart();
    if (!operator_server_ || !viewer_server_ || !worker_server_ || !refusing_server_) {
      return absl::InternalError("gRPC did not start a server: see its messages above");
    }
    keepers_.Start();
    BATON_ASSIGN_OR_RETURN(operator_listener_,
                           PeerListener::Start(OperatorSocketPath(config_.state_dir()),
                                               [this](FileDescriptor socket, const Peer& peer) {
                                                 AcceptOperator(std::move(socket), peer);
                                               }));
    BATON_ASSIGN_OR_RETURN(worker_listener_,
                           PeerListener::Start(ControlSocketPath(config_.state_dir()),
                                               [this](FileDescriptor socket, const Peer& peer) {
                                                 Adopt(worker_server_.get(), std::move(socket),
                                                       peer);
                                               }));
    if (!config_.metrics_address().empty()) {
      metrics_endpoint_ = std::make_unique<metrics::Endpoint>(config_.metrics_address(), metrics_);
    }
    if (config_.has_operator_endpoint()) ServeEndpoint();
    return absl::OkStatus();
  }

  ~Impl() {
    {
      const std::lock_guard<std::mutex> lock(endpoint_mutex_);
      stopping_ = true;
    }
    endpoint_changed_.notify_all();
    if (endpoint_thread_.joinable()) endpoint_thread_.join();
    operator_listener_.reset();
    worker_listener_.reset();
    keepers_.Stop();  // fails the calls that wait for a keeper, so that their threads return
    metrics_endpoint_.reset();
    const auto deadline = std::chrono::system_clock::now() + kShutdownGrace;
    for (auto* server : {&operator_server_, &viewer_server_, &endpoint_server_, &worker_server_,
                         &refusing_server_}) {
      if (*server) (*server)->Shutdown(deadline);
    }
  }

  int endpoint_port() const {
    const std::lock_guard<std::mutex> lock(endpoint_mutex_);
    return endpoint_port_;
  }
  absl::Status endpoint_status() const {
    const std::lock_guard<std::mutex> lock(endpoint_mutex_);
    return endpoint_status_;
  }

 private:
  // A file that is missing, or a port that is taken, is no reason for those on this machine to go
  // without control: it is tried again.
  void ServeEndpoint() {
    std::unique_lock<std::mutex> lock(endpoint_mutex_);
    endpoint_status_ = StartEndpoint();
    if (endpoint_status_.ok()) return;
    spdlog::error("operators over TLS are not served, and it is tried again: {}",
                  MessageOf(endpoint_status_));
    endpoint_thread_ = std::thread([this] {
      std::unique_lock<std::mutex> again(endpoint_mutex_);
      while (!endpoint_status_.ok()) {
        if (endpoint_changed_.wait_for(again, kEndpointPause, [this] { return stopping_; })) return;
        endpoint_status_ = StartEndpoint();
      }
    });
  }

  // A server and a service of its own: who comes from afar cannot use up the calls, nor the streams
  // of events, of those who are here.
  absl::Status StartEndpoint() {
    const v1::OperatorEndpoint& endpoint = config_.operator_endpoint();
    BATON_RETURN_IF_ERROR(CheckEndpointFiles(endpoint));
    grpc::ServerBuilder builder;
    Bound(&builder);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
    builder.RegisterService(endpoint_service_.get());
    builder.AddListeningPort(endpoint.address(), EndpointCredentials(endpoint, &callers_),
                             &endpoint_port_);
    endpoint_server_ = builder.BuildAndStart();
    if (!endpoint_server_ || endpoint_port_ == 0) {
      return absl::UnavailableError(
          absl::StrCat("operator_endpoint.address: cannot listen at ", endpoint.address(),
                       ": gRPC's messages above say why; choose an address of this machine and a "
                       "port that is free"));
    }
    endpoint_server_->GetHealthCheckService()->SetServingStatus(kOperatorService, true);
    spdlog::info("operators over TLS are served at port {} of {}", endpoint_port_,
                 endpoint.address().substr(0, endpoint.address().rfind(':')));
    return absl::OkStatus();
  }

  void AcceptOperator(FileDescriptor socket, const Peer& peer) {
    switch (RoleOf(config_, peer)) {
      case Role::kOperator:
        return Adopt(operator_server_.get(), std::move(socket), peer);
      case Role::kViewer:
        return Adopt(viewer_server_.get(), std::move(socket), peer);
      case Role::kNone:
        break;
    }
    uint64_t suppressed = 0;
    if (log_budget_.Take(&suppressed)) {
      spdlog::warn("refused uid {} pid {} (gids {}): it may not operate Baton ({} more not logged)",
                   peer.uid, peer.pid, absl::StrJoin(peer.gids, ","), suppressed);
    }
    Adopt(refusing_server_.get(), std::move(socket), peer);
  }

  void Adopt(grpc::Server* server, FileDescriptor socket, const Peer& peer) {
    if (peers_.Add(socket.get(), peer)) {
      grpc::AddInsecureChannelFromFd(server, socket.Release());
      return;
    }
    uint64_t suppressed = 0;
    if (log_budget_.Take(&suppressed)) {
      spdlog::warn("uid {} pid {} has too many connections open: refused one ({} more not logged)",
                   peer.uid, peer.pid, suppressed);
    }
  }

  const internal::ControlConfig config_;
  PeerRegistry peers_;
  LogBudget log_budget_;
  Keepers keepers_;
  const std::shared_ptr<MetricsSource> metrics_;
  WorkerStreams streams_;
  AuditTrail trail_;
  WorkerServiceContext worker_context_;
  Callers callers_;
  std::unique_ptr<grpc::Service> operator_service_;
  std::unique_ptr<grpc::Service> viewer_service_;
  std::unique_ptr<grpc::Service> endpoint_service_;  // over TLS
  std::unique_ptr<grpc::Service> worker_service_;
  RefusingService refusing_service_;
  RefusingService viewer_refusing_service_;
  mutable std::mutex endpoint_mutex_;  // guards what is of the endpoint
  std::condition_variable endpoint_changed_;
  bool stopping_ = false;
  absl::Status endpoint_status_;
  int endpoint_port_ = 0;
  std::unique_ptr<grpc::Server> operator_server_;
  std::unique_ptr<grpc::Server> viewer_server_;
  std::unique_ptr<grpc::Server> endpoint_server_;
  std::unique_ptr<grpc::Server> worker_server_;
  std::unique_ptr<grpc::Server> refusing_server_;
  std::unique_ptr<PeerListener> operator_listener_;
  std::unique_ptr<PeerListener> worker_listener_;
  std::unique_ptr<metrics::Endpoint> metrics_endpoint_;
  std::thread endpoint_thread_;  // while the endpoint could not be served yet
};

ControlServer::ControlServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlServer::~ControlServer() = default;
int ControlServer::operator_port() const { return impl_->endpoint_port(); }
absl::Status ControlServer::operator_endpoint_status() const { return impl_->endpoint_status(); }

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    const internal::ControlConfig& config, std::chrono::milliseconds hello_timeout) {
  auto impl = std::make_unique<Impl>(config, hello_timeout);
  BATON_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

}  // namespace baton

#include "supervisor/control/control_server.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_join.h"
#include "grpc/grpc.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/server_posix.h"
#include "lib/base/status_macros.h"
#include "spdlog/spdlog.h"
#include "supervisor/control/audit_trail.h"
#include "supervisor/control/config.h"
#include "supervisor/control/keepers.h"
#include "supervisor/control/log_budget.h"
#include "supervisor/control/metrics_source.h"
#include "supervisor/control/operator_service.h"
#include "supervisor/control/peer_listener.h"
#include "supervisor/control/peer_registry.h"
#include "supervisor/control/refusing_service.h"
#include "supervisor/control/worker_service.h"
#include "supervisor/control/worker_streams.h"
#include "supervisor/metrics/endpoint.h"

namespace baton {
namespace {

constexpr int kMaxRequestBytes = 1 << 20;
constexpr int kMaxStreamsPerConnection = 64;
constexpr int kMaxCallThreads = 64;
constexpr int kRefusedConnectionMs = 10'000;
constexpr std::chrono::milliseconds kShutdownGrace(300);

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

std::unique_ptr<grpc::Server> Serve(grpc::Service* service, const char* name) {
  grpc::ServerBuilder builder;
  Bound(&builder);
  builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server) server->GetHealthCheckService()->SetServingStatus(name, true);
  return server;
}

template <typename List>
bool Contains(const List& list, uint32_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
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
        operator_service_(MakeOperatorService({&keepers_, &streams_, &peers_, &trail_})),
        worker_service_(MakeWorkerService(&worker_context_)),
        refusing_service_(&peers_) {}

  absl::Status Start() {
    SetUpGrpc();
    operator_server_ = Serve(operator_service_.get(), "baton.v1.OperatorService");
    worker_server_ = Serve(worker_service_.get(), "baton.v1.WorkerService");
    grpc::ServerBuilder refusing;
    Bound(&refusing);
    refusing.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kRefusedConnectionMs);
    refusing.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, 0);
    refusing.RegisterCallbackGenericService(&refusing_service_);
    refusing_server_ = refusing.BuildAndStart();
    if (!operator_server_ || !worker_server_ || !refusing_server_) {
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
    return absl::OkStatus();
  }

  ~Impl() {
    operator_listener_.reset();
    worker_listener_.reset();
    keepers_.Stop();  // fails the calls that wait for a keeper, so that their threads return
    metrics_endpoint_.reset();
    const auto deadline = std::chrono::system_clock::now() + kShutdownGrace;
    for (auto* server : {&operator_server_, &worker_server_, &refusing_server_}) {
      if (*server) (*server)->Shutdown(deadline);
    }
  }

 private:
  bool MayOperate(const Peer& peer) const {
    if (peer.uid == 0 || peer.uid == geteuid()) return true;
    if (Contains(config_.operator_uids(), peer.uid)) return true;
    return std::any_of(peer.gids.begin(), peer.gids.end(),
                       [this](uint32_t gid) { return Contains(config_.operator_gids(), gid); });
  }

  void AcceptOperator(FileDescriptor socket, const Peer& peer) {
    if (MayOperate(peer)) {
      Adopt(operator_server_.get(), std::move(socket), peer);
      return;
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
  std::unique_ptr<grpc::Service> operator_service_;
  std::unique_ptr<grpc::Service> worker_service_;
  RefusingService refusing_service_;
  std::unique_ptr<grpc::Server> operator_server_;
  std::unique_ptr<grpc::Server> worker_server_;
  std::unique_ptr<grpc::Server> refusing_server_;
  std::unique_ptr<PeerListener> operator_listener_;
  std::unique_ptr<PeerListener> worker_listener_;
  std::unique_ptr<metrics::Endpoint> metrics_endpoint_;
};

ControlServer::ControlServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlServer::~ControlServer() = default;

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    const internal::ControlConfig& config, std::chrono::milliseconds hello_timeout) {
  auto impl = std::make_unique<Impl>(config, hello_timeout);
  BATON_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

}  // namespace baton

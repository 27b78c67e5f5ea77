#include "supervisor/control/control_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "grpc/grpc.h"
#include "grpc/support/time.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/server_posix.h"
#include "lib/base/heartbeat.h"
#include "lib/base/program_start.h"
#include "lib/base/release_note.h"
#include "lib/base/status.h"
#include "lib/base/utf8.h"
#include "lib/base/version.h"
#include "lib/channel/acceptor.h"
#include "lib/channel/waits.h"
#include "proto/baton/internal/batond.pb.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/control_socket.h"
#include "supervisor/config/log_level.h"
#include "supervisor/control/audit_trail.h"
#include "supervisor/control/batond_link.h"
#include "supervisor/control/callers.h"
#include "supervisor/control/config.h"
#include "supervisor/control/keepers.h"
#include "supervisor/control/log_budget.h"
#include "supervisor/control/loop_thread.h"
#include "supervisor/control/metrics_source.h"
#include "supervisor/control/operator_endpoint.h"
#include "supervisor/control/operator_service.h"
#include "supervisor/control/streams.h"
#include "supervisor/control/worker_service.h"
#include "supervisor/metrics/endpoint.h"

namespace baton {
namespace {

constexpr int kMaxCallThreads = 64;
constexpr int kRefusedConnectionMs = 10'000;
constexpr int kHandshakeMs = 10'000;
constexpr char kOperatorService[] = "baton.v1.OperatorService";
constexpr std::chrono::milliseconds kShutdownGrace(300);
constexpr std::chrono::seconds kEndpointPause(1);
constexpr std::chrono::seconds kAcceptPause(1);

// Once per process, before the first server is built.
void SetUpGrpc() {
  static const bool done = [] {
    // gRPC is never shut down. Its shutdown, which comes with the last server, can wait 10 s for a
    // poller that it started when a peer did not read.
    grpc_init();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)done;
}

// Limits on the resources that one server's callers may use.
struct Bounds {
  int message_bytes;
  int streams;  // per connection
  // Bounds all connections together. gRPC 1.51 takes a message of up to 4 GiB whole before it
  // compares its length with `message_bytes`. Above `memory_bytes` it ends streams until it is
  // below.
  size_t memory_bytes;
};
constexpr Bounds kOperatorBounds = {1 << 20, 64, 64 << 20};
constexpr Bounds kViewerBounds = {1 << 20, 64, 32 << 20};
constexpr Bounds kRefusedBounds = {1 << 16, 8, 8 << 20};
// A hello and a health report have some hundred bytes, and a worker needs one stream.
constexpr Bounds kWorkerBounds = {4096, 8, 32 << 20};

void Bound(grpc::ServerBuilder* builder, const Bounds& bounds) {
  builder->SetMaxReceiveMessageSize(bounds.message_bytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, bounds.streams);
  builder->SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder->SetResourceQuota(
      grpc::ResourceQuota("baton").SetMaxThreads(kMaxCallThreads).Resize(bounds.memory_bytes));
}

// `refusing` answers calls that `service` does not serve. Null: such methods do not exist.
std::unique_ptr<grpc::Server> Serve(const Bounds& bounds, grpc::Service* service, const char* name,
                                    RefusingService* refusing = nullptr) {
  grpc::ServerBuilder builder;
  Bound(&builder, bounds);
  builder.RegisterService(service);
  if (refusing != nullptr) builder.RegisterCallbackGenericService(refusing);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server) server->GetHealthCheckService()->SetServingStatus(name, true);
  return server;
}

internal::RejoinRequest IntroductionOf(const internal::ControlConfig& config) {
  internal::RejoinRequest introduction;
  *introduction.mutable_control() = config;
  introduction.set_release(std::string(kRelease));
  return introduction;
}

// A server for the workers of each user, so that one user's calls take no memory from another's.
// Two users share a server only if their ids are equal modulo kServers.
//
// Thread-compatible.
class WorkerServers {
 public:
  explicit WorkerServers(WorkerServiceContext* context) : context_(context) {}

  // Returns null if gRPC did not start a server. `uid`: of a process that has connected.
  grpc::Server* For(uint32_t uid) {
    Entry& entry = entries_[uid % kServers];
    if (!entry.server) {
      entry.service = MakeWorkerService(context_);
      entry.server = Serve(kWorkerBounds, entry.service.get(), "baton.v1.WorkerService");
    }
    return entry.server.get();
  }

  void Shutdown(gpr_timespec deadline) {
    for (Entry& entry : entries_) {
      if (entry.server) entry.server->Shutdown(deadline);
    }
  }

 private:
  static constexpr size_t kServers = 64;
  struct Entry {
    std::unique_ptr<grpc::Service> service;
    std::unique_ptr<grpc::Server> server;
  };

  WorkerServiceContext* const context_;
  std::array<Entry, kServers> entries_;  // made when needed
};

}  // namespace

class ControlServer::Impl {
 public:
  Impl(const internal::ControlConfig& config, std::chrono::milliseconds hello_timeout,
       FromBatond from_batond)
      : config_(config),
        callers_(config_, &peers_),
        has_batond_(static_cast<bool>(from_batond.link)),
        batond_(loop(), std::move(from_batond.link),
                {config.state_dir(), std::move(from_batond.lock), std::move(from_batond.stay),
                 IntroductionOf(config)},
                getppid()),
        endpoint_files_([this](const std::string& path) { return OpenFile(path); }, &callers_),
        operator_socket_(std::move(from_batond.operator_socket)),
        worker_socket_(std::move(from_batond.worker_socket)),
        keepers_(loop(), config,
                 {[this](const std::string& service) { streams_.Reannounce(service); },
                  [this](const std::string& service, const v1::Event& event) {
                    metrics_->NoteEvent(service, event);
                  }}),
        metrics_(std::make_shared<MetricsSource>(
            &keepers_, &trail_, [this] { return callers_.config()->operator_endpoint(); },
            [this](const std::string& path) { return OpenFile(path); },
            [this] { return batond_.batond(); })),
        streams_(&keepers_),
        trail_(AuditTrailPath(AuditDirectory()), &keepers_.events()),
        worker_context_{&keepers_, &streams_, &peers_, hello_timeout, {}, {}},
        worker_servers_(&worker_context_),
        operator_service_(MakeOperatorService(Context(&operator_events_), Role::kOperator)),
        viewer_service_(MakeOperatorService(Context(&viewer_events_), Role::kViewer)),
        endpoint_service_(MakeOperatorService(Context(&endpoint_events_), Role::kOperator)),
        refusing_service_(&callers_),
        viewer_refusing_service_(&callers_),
        heart_(loop()) {}

  absl::Status Start() {
    SetUpGrpc();
    operator_server_ = Serve(kOperatorBounds, operator_service_.get(), kOperatorService);
    viewer_server_ =
        Serve(kViewerBounds, viewer_service_.get(), kOperatorService, &viewer_refusing_service_);
    grpc::ServerBuilder refusing;
    Bound(&refusing, kRefusedBounds);
    refusing.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kRefusedConnectionMs);
    refusing.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, 0);
    refusing.RegisterCallbackGenericService(&refusing_service_);
    refusing_server_ = refusing.BuildAndStart();
    if (!operator_server_ || !viewer_server_ || !refusing_server_ ||
        worker_servers_.For(geteuid()) == nullptr) {
      return absl::InternalError("gRPC did not start a server: see its messages above");
    }
    if (!operator_socket_) {
      BATON_ASSIGN_OR_RETURN(operator_socket_,
                             ListenForControl(OperatorSocketPath(config_.state_dir())));
    }
    if (!worker_socket_) {
      BATON_ASSIGN_OR_RETURN(worker_socket_,
                             ListenForControl(ControlSocketPath(config_.state_dir())));
    }
    keepers_.Start();
    Accept(std::move(operator_socket_), &operator_listener_,
           [this](FileDescriptor socket, const Peer& peer) {
             AcceptOperator(std::move(socket), peer);
           });
    Accept(std::move(worker_socket_), &worker_listener_,
           [this](FileDescriptor socket, const Peer& peer) {
             TakeSocket(worker_servers_.For(peer.uid), std::move(socket), peer, std::nullopt);
           });
    batond_.Start([this](const internal::BatondReply& news) {
      for (const v1::Event& event : news.events()) {
        const bool is_new = keepers_.events().AppendOfBatond(event);
        if (is_new) metrics_->NoteEvent(event.service(), event);
      }
      // Taken by another thread: taking the news may ask batond for files, and this loop gets the
      // answers.
      const std::lock_guard<std::mutex> lock(upkeep_mutex_);
      news_ = News{news, batond_.batonds_followed()};
      upkeep_changed_.notify_all();
    });
    if (!config_.metrics_address().empty()) {
      metrics_endpoint_ = std::make_unique<metrics::Endpoint>(config_.metrics_address(), metrics_);
    }
    if (config_.has_operator_endpoint()) {
      const std::lock_guard<std::mutex> lock(endpoint_mutex_);
      (void)RefreshEndpoint();
    }
    // The loop shows life, because each connection of this machine and each call of a keeper goes
    // through it: if the loop hangs, control hangs.
    boost::asio::post(loop(), [this] {
      ShowLife();
      Every(heart_, kHeartbeat, [] { ShowLife(); });
    });
    upkeep_ = std::thread([this] { KeepUp(); });
    return absl::OkStatus();
  }

  ~Impl() {
    loop_.Stop();
    // A client that connects from now on waits for the next control, not for this one's end.
    operator_listener_.reset();
    worker_listener_.reset();
    batond_.Stop();
    {
      const std::lock_guard<std::mutex> lock(upkeep_mutex_);
      stopping_ = true;
    }
    upkeep_changed_.notify_all();
    if (upkeep_.joinable()) upkeep_.join();
    keepers_.Stop();  // fails the calls that wait for a keeper, so that their threads return
    metrics_endpoint_.reset();
    // One deadline for all servers, which a step of the wall clock does not move.
    const gpr_timespec deadline = gpr_time_add(
        gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(kShutdownGrace.count(), GPR_TIMESPAN));
    for (auto* server :
         {&operator_server_, &viewer_server_, &endpoint_server_, &refusing_server_}) {
      if (*server) (*server)->Shutdown(deadline);
    }
    worker_servers_.Shutdown(deadline);
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
  struct News {
    internal::BatondReply reply;
    uint64_t batonds_followed;
  };

  boost::asio::io_context& loop() { return loop_.loop(); }

  OperatorServiceContext Context(EventStreams* events) {
    return {&keepers_,
            &streams_,
            &callers_,
            &trail_,
            events,
            [this](const v1::ReloadRequest& request, v1::ReloadResponse* response) {
              return Reload(request, response);
            },
            [this](const v1::ReplaceProgramRequest& request) { return ReplaceProgram(request); },
            [this](v1::ReadProgramsResponse* response) { ReadPrograms(response); },
            [this] { return batonds_followed_.load(std::memory_order_relaxed); }};
  }

  absl::Status ReplaceProgram(const v1::ReplaceProgramRequest& request) {
    if (request.program() == v1::ReplaceProgramRequest::PROGRAM_UNSPECIFIED) {
      return absl::InvalidArgumentError("program is missing: CONTROL or BATOND");
    }
    internal::BatondRequest question;
    question.mutable_replace_program()->set_batond(request.program() ==
                                                   v1::ReplaceProgramRequest::BATOND);
    question.mutable_replace_program()->set_probation_ms(request.watch_window_ms());
    return batond_.Ask(std::move(question)).status();
  }

  // batond opens the files, and this process reads them: a file system that does not answer stops
  // no supervision.
  absl::StatusOr<std::string> ReadReleaseOf(const std::string& program) {
    internal::BatondRequest question;
    question.mutable_open()->set_program(program);
    const absl::StatusOr<BatondLink::Answer> answer = batond_.Ask(std::move(question));
    if (absl::IsPermissionDenied(answer.status())) {
      return absl::UnimplementedError(
          "this batond is of an earlier release, which opens no programs");
    }
    BATON_RETURN_IF_ERROR(answer.status());
    if (answer->descriptors.size() != 1) return absl::InternalError("batond has sent no file");
    return ReleaseOfFile(answer->descriptors.front().get());
  }

  void ReadPrograms(v1::ReadProgramsResponse* response) {
    for (const char* const name :
         {"batond", "baton-control", "baton-keeper", "baton-driver", kDriverCode.name}) {
      v1::ProgramFile* const program = response->add_programs();
      program->set_name(name);
      const absl::StatusOr<std::string> release = ReadReleaseOf(name);
      if (release.ok()) program->set_release(ValidUtf8(*release, release->size()));
      if (!release.ok()) program->set_problem(std::string(MessageOf(release.status())));
    }
  }

  absl::Status Reload(const v1::ReloadRequest& request, v1::ReloadResponse* response) {
    internal::BatondRequest question;
    question.mutable_reload()->set_disconnect(request.disconnect());
    question.mutable_reload()->set_validate_only(request.validate_only());
    BATON_ASSIGN_OR_RETURN(const BatondLink::Answer answer, batond_.Ask(std::move(question)));
    *response->mutable_taken() = answer.reply.taken();
    for (const internal::Refused& refused : answer.reply.refused()) {
      v1::NotTaken* not_taken = response->add_not_taken();
      not_taken->set_field(refused.field());
      not_taken->set_why(refused.why());
      not_taken->set_ends_connections_of(refused.ends_connections_of());
    }
    *response->mutable_disconnected() = answer.reply.disconnected();
    if (request.validate_only()) return absl::OkStatus();
    const absl::Status files = Take(answer.reply);
    if (!files.ok()) {
      v1::NotTaken* not_taken = response->add_not_taken();
      not_taken->set_field("operator_endpoint");
      not_taken->set_why(
          absl::StrCat("what was read of its files before stays in force: ", files.message()));
    }
    return absl::OkStatus();
  }

  // Applies new permissions, also to connected callers. Returns why the files of the endpoint stay
  // as they were, if they do.
  absl::Status Take(const internal::BatondReply& reply) {
    const std::lock_guard<std::mutex> one_at_a_time(take_mutex_);
    // An answer and news come on two threads, so the later configuration may be in force already.
    if (reply.revision() < revision_) return absl::OkStatus();
    revision_ = reply.revision();
    const internal::ControlConfig& config = reply.config();
    const auto former = callers_.config();
    callers_.SetConfig(config);
    spdlog::default_logger()->set_level(LevelOf(config.log_level()));
    // A connection is served by the role that it was accepted with, so those whose role has changed
    // end.
    peers_.End([&](const Peer& peer) { return RoleOf(*former, peer) != RoleOf(config, peer); });
    if (!config.has_operator_endpoint()) return absl::OkStatus();
    const std::lock_guard<std::mutex> lock(endpoint_mutex_);
    return RefreshEndpoint();
  }

  // Takes news, and looks again and again for changes of the endpoint's files. If a file is
  // missing, or the port is taken, control serves this machine and tries again.
  void KeepUp() {
    const auto woken = [this] { return stopping_ || news_.has_value(); };
    for (;;) {
      std::optional<News> news;
      {
        std::unique_lock<std::mutex> lock(upkeep_mutex_);
        if (config_.has_operator_endpoint()) {
          upkeep_changed_.wait_for(lock, kEndpointPause, woken);
        } else {
          upkeep_changed_.wait(lock, woken);
        }
        if (stopping_) return;
        news.swap(news_);
      }
      if (news) {
        (void)Take(news->reply);
        batonds_followed_ = news->batonds_followed;
      } else {
        const std::lock_guard<std::mutex> lock(endpoint_mutex_);
        (void)RefreshEndpoint();
      }
    }
  }

  // batond opens the file, because its user may read more than control's.
  absl::StatusOr<FileDescriptor> OpenFile(const std::string& path) {
    if (!has_batond_) return OpenForReading(path);
    internal::BatondRequest request;
    request.mutable_open()->set_path(path);
    BATON_ASSIGN_OR_RETURN(BatondLink::Answer answer, batond_.Ask(std::move(request)));
    if (answer.descriptors.size() != 1) return absl::InternalError("batond has sent no file");
    return std::move(answer.descriptors.front());
  }

  std::string AuditDirectory() const {
    return config_.audit_directory().empty() ? config_.state_dir() : config_.audit_directory();
  }

  // REQUIRES: endpoint_mutex_. Reads the files again, and starts the server if there is none.
  absl::Status RefreshEndpoint() {
    absl::Status status = endpoint_files_.Read(callers_.config()->operator_endpoint());
    endpoint_events_.JudgeAgain();
    if (!endpoint_server_) {
      if (status.ok()) status = StartEndpoint();
      endpoint_status_ = status;
    }
    if (!status.ok() && status != endpoint_problem_) {
      spdlog::error("{}: {}",
                    endpoint_server_ ? "operator_endpoint: what was read before stays in force"
                                     : "operators over TLS are not served, and it is tried again",
                    MessageOf(status));
    }
    endpoint_problem_ = status;
    return status;
  }

  // The endpoint has its own server and service, so that remote callers cannot use up the calls and
  // the event streams of local ones.
  absl::Status StartEndpoint() {
    const v1::OperatorEndpoint& endpoint = config_.operator_endpoint();
    grpc::ServerBuilder builder;
    Bound(&builder, kOperatorBounds);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
    builder.RegisterService(endpoint_service_.get());
    builder.AddListeningPort(endpoint.address(), endpoint_files_.Credentials(), &endpoint_port_);
    endpoint_server_ = builder.BuildAndStart();
    if (!endpoint_server_ || endpoint_port_ == 0) {
      endpoint_server_.reset();
      return absl::UnavailableError(
          absl::StrCat("operator_endpoint.address: cannot listen at ", endpoint.address(),
                       ": gRPC's messages above say why; choose an address of this machine and a "
                       "port that is free, and not below 1024 (control has no capability for it)"));
    }
    endpoint_server_->GetHealthCheckService()->SetServingStatus(kOperatorService, true);
    spdlog::info("operators over TLS are served at port {} of {}", endpoint_port_,
                 endpoint.address().substr(0, endpoint.address().rfind(':')));
    return absl::OkStatus();
  }

  // Accepts connections and identifies the peers, which gRPC's own listener cannot do.
  // `listening`'s file stays at the end, because a successor's file may have its name by then.
  void Accept(FileDescriptor listening, std::optional<Acceptor>* listener,
              std::function<void(FileDescriptor, const Peer&)> on_peer) {
    const auto identify = [on_peer = std::move(on_peer)](FileDescriptor socket) {
      const absl::StatusOr<Peer> peer = IdentifyPeer(socket.get());
      if (peer.ok()) on_peer(std::move(socket), *peer);
    };
    const auto log_failure = [](int error) {
      spdlog::error("{}; see RLIMIT_NOFILE", MessageOf(ErrnoStatus(error, "accept")));
    };
    listener->emplace(loop(), std::move(listening), kAcceptPause,
                      Acceptor::Callbacks{identify, log_failure});
  }

  void AcceptOperator(FileDescriptor socket, const Peer& peer) {
    const Role role = RoleOf(*callers_.config(), peer);
    switch (role) {
      case Role::kOperator:
        return TakeSocket(operator_server_.get(), std::move(socket), peer, role);
      case Role::kViewer:
        return TakeSocket(viewer_server_.get(), std::move(socket), peer, role);
      case Role::kNone:
        break;
    }
    if (const std::optional<uint64_t> suppressed = log_budget_.Take()) {
      spdlog::warn("refused uid {} pid {} (gids {}): it may not operate Baton ({} more not logged)",
                   peer.uid, peer.pid, absl::StrJoin(peer.gids, ","), *suppressed);
    }
    TakeSocket(refusing_server_.get(), std::move(socket), peer, role);
  }

  // `role`: the role that `server` serves; none: it serves all alike.
  void TakeSocket(grpc::Server* server, FileDescriptor socket, const Peer& peer,
                  std::optional<Role> role) {
    if (server == nullptr) {
      spdlog::error("uid {} pid {}: gRPC did not start a server for it", peer.uid, peer.pid);
      return;
    }
    if (peers_.Add(socket.get(), peer,
                   role ? PeerRegistry::Served::kByRole : PeerRegistry::Served::kAlike)) {
      // The role may have changed after it was looked up and before Take could end this connection.
      if (role && RoleOf(*callers_.config(), peer) != *role) shutdown(socket.get(), SHUT_RDWR);
      grpc::AddInsecureChannelFromFd(server, socket.Release());
      return;
    }
    if (const std::optional<uint64_t> suppressed = log_budget_.Take()) {
      spdlog::warn("uid {} pid {} has too many connections open: refused one ({} more not logged)",
                   peer.uid, peer.pid, *suppressed);
    }
  }

  LoopThread loop_;
  const internal::ControlConfig config_;  // the configuration at the start
  PeerRegistry peers_;
  Callers callers_;
  const bool has_batond_;
  BatondLink batond_;
  std::mutex take_mutex_;
  uint64_t revision_ = 0;                 // of the configuration taken last; guarded by take_mutex_
  OperatorEndpointFiles endpoint_files_;  // guarded by endpoint_mutex_
  FileDescriptor operator_socket_;        // until the listeners have the two sockets
  FileDescriptor worker_socket_;
  LogBudget log_budget_;
  Keepers keepers_;
  const std::shared_ptr<MetricsSource> metrics_;
  WorkerStreams streams_;
  AuditTrail trail_;
  WorkerServiceContext worker_context_;
  EventStreams operator_events_{&keepers_};
  EventStreams viewer_events_{&keepers_};
  EventStreams endpoint_events_{&keepers_};
  WorkerServers worker_servers_;  // used by the loop, once it has a listener
  std::unique_ptr<grpc::Service> operator_service_;
  std::unique_ptr<grpc::Service> viewer_service_;
  std::unique_ptr<grpc::Service> endpoint_service_;  // over TLS
  RefusingService refusing_service_;
  RefusingService viewer_refusing_service_;
  mutable std::mutex endpoint_mutex_;  // guards the members of the endpoint
  absl::Status endpoint_status_;
  absl::Status endpoint_problem_;  // the last one, which is not logged again
  int endpoint_port_ = 0;
  std::unique_ptr<grpc::Server> operator_server_;
  std::unique_ptr<grpc::Server> viewer_server_;
  std::unique_ptr<grpc::Server> endpoint_server_;
  std::unique_ptr<grpc::Server> refusing_server_;
  std::optional<Acceptor> operator_listener_;
  std::optional<Acceptor> worker_listener_;
  boost::asio::steady_timer heart_;
  std::unique_ptr<metrics::Endpoint> metrics_endpoint_;
  std::mutex upkeep_mutex_;
  std::condition_variable upkeep_changed_;
  bool stopping_ = false;                      // guarded by upkeep_mutex_
  std::optional<News> news_;                   // guarded by upkeep_mutex_; not taken yet
  std::atomic<uint64_t> batonds_followed_{0};  // whose configuration is in force
  std::thread upkeep_;
};

ControlServer::ControlServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlServer::~ControlServer() = default;
int ControlServer::operator_port() const { return impl_->endpoint_port(); }
absl::Status ControlServer::operator_endpoint_status() const { return impl_->endpoint_status(); }

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    const internal::ControlConfig& config, std::chrono::milliseconds hello_timeout,
    FromBatond from_batond) {
  auto impl = std::make_unique<Impl>(config, hello_timeout, std::move(from_batond));
  BATON_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

}  // namespace baton

#include "supervisor/cli/client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/grpcpp.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/v1/operator.grpc.pb.h"

namespace baton {
namespace {

using Clock = std::chrono::steady_clock;  // nobody sets it while we wait

constexpr int kMaxResponseBytes = 64 << 20;
constexpr char kGrpcDeadline[] = "Deadline Exceeded";  // as gRPC says it of its own
constexpr std::chrono::milliseconds kPause(50);        // before control is tried again

Clock::time_point After(double seconds) {
  return Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// For gRPC, which takes times of the wall clock and converts them when the call begins: make it
// anew for each call.
std::chrono::system_clock::time_point WallClockTime(Clock::time_point deadline) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(deadline - Clock::now());
}

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, kConnectTimeoutMs));
}

// A socket that nobody listens on any more was left by a control that was killed: batond starts
// another, which takes its place, and while it does there is none for a moment. Without one for
// longer there is no batond, or none yet.
absl::StatusOr<FileDescriptor> ConnectUntil(const std::string& path, Clock::time_point deadline) {
  for (bool missing = false;;) {
    auto socket = ConnectUnix(path, MillisecondsUntil(deadline));
    const bool may_pass =
        absl::IsUnavailable(socket.status()) || (absl::IsNotFound(socket.status()) && !missing);
    if (!may_pass || Clock::now() + kPause >= deadline) return socket;
    missing = absl::IsNotFound(socket.status());
    std::this_thread::sleep_for(kPause);
  }
}

// Names the user who may use the socket, where this process may not.
std::string WhoMay(const std::string& socket_path) {
  struct stat directory = {};
  const std::string path = socket_path.substr(0, socket_path.rfind('/'));
  const std::string owner = stat(path.c_str(), &directory) == 0
                                ? absl::StrCat("uid ", directory.st_uid, ", who has ", path)
                                : "batond's user";
  return absl::StrCat("uid ", geteuid(), " may not pass: run as root, as ", owner,
                      ", or open the directory to the users and groups of operator_uids and "
                      "operator_gids");
}

absl::Status Unreachable(const std::string& socket_path, const absl::Status& cause) {
  const absl::string_view why =
      absl::StripPrefix(cause.message(), absl::StrCat("connect to ", socket_path, ": "));
  const std::string text = absl::StrCat("cannot reach batond at ", socket_path, ": ", why);
  if (absl::IsPermissionDenied(cause)) {
    return absl::PermissionDeniedError(absl::StrCat(text, "; ", WhoMay(socket_path)));
  }
  if (absl::IsInvalidArgument(cause)) return absl::InvalidArgumentError(text);
  return absl::UnavailableError(absl::StrCat(
      text, "; is it running? `batond --dev` starts one; --state-dir or --socket choose another"));
}

absl::StatusOr<std::string> ReadPem(const char* option, const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    return absl::InvalidArgumentError(
        ErrnoStatus(errno, absl::StrCat(option, " ", path)).message());
  }
  if (text.find("-----BEGIN") == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(option, " ", path, ": is not in PEM"));
  }
  return text;
}

}  // namespace

class OperatorClient::Impl {
 public:
  explicit Impl(std::string path) : socket_path(std::move(path)) {}
  explicit Impl(TlsTarget target) : tls(std::move(target)) {}

  absl::Status UseTls() {
    grpc::SslCredentialsOptions pem;
    BATON_ASSIGN_OR_RETURN(pem.pem_root_certs, ReadPem("--tls-ca", tls.ca_file));
    BATON_ASSIGN_OR_RETURN(pem.pem_cert_chain, ReadPem("--tls-cert", tls.certificate_file));
    BATON_ASSIGN_OR_RETURN(pem.pem_private_key, ReadPem("--tls-key", tls.key_file));
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxResponseBytes);
    if (!tls.server_name.empty()) arguments.SetSslTargetNameOverride(tls.server_name);
    channel = grpc::CreateCustomChannel(tls.address, grpc::SslCredentials(pem), arguments);
    stub = v1::OperatorService::NewStub(channel);
    return absl::OkStatus();
  }

  // Connects by itself, not through gRPC, which would try again until the deadline and hide why.
  absl::Status Connect(Clock::time_point deadline) {
    auto socket = ConnectUntil(socket_path, deadline);
    if (!socket.ok()) return Unreachable(socket_path, socket.status());
    connection.Reset(fcntl(socket->get(), F_DUPFD_CLOEXEC, 0));
    fcntl(socket->get(), F_SETFL, O_NONBLOCK);
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxResponseBytes);
    stub = v1::OperatorService::NewStub(
        grpc::CreateCustomInsecureChannelFromFd("batond", socket->Release(), arguments));
    return absl::OkStatus();
  }

  // Whether control is gone or going: it closes its listener first, its connections last.
  // "Unavailable" alone may be what it said of a keeper.
  bool Lost() const {
    if (channel) return false;
    pollfd entry = {connection.get(), POLLRDHUP, 0};
    return poll(&entry, 1, 0) != 0 || !ConnectUnix(socket_path, /*timeout_ms=*/0).ok();
  }

  absl::Status FromGrpc(const grpc::Status& status) const {
    if (status.ok()) return absl::OkStatus();
    absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
    if (absl::IsDeadlineExceeded(result)) {
      const bool own = result.message() == kGrpcDeadline;
      return absl::DeadlineExceededError(
          absl::StrCat(own ? "no answer in time" : result.message(), kTimeoutCure));
    }
    if (absl::IsUnavailable(result) && channel) {
      // On a connection that stands it is what control said, of a keeper.
      if (channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY) return result;
      return absl::UnavailableError(
          absl::StrCat("cannot reach Baton at ", tls.address, ": ", result.message(),
                       "; is that its operator_endpoint, signed by --tls-ca, and --tls-cert by its "
                       "client_ca_file?"));
    }
    // gRPC's message for a lost connection says little: look whether batond is there at all.
    if (absl::IsUnavailable(result)) {
      const absl::StatusOr<FileDescriptor> probe = ConnectUnix(socket_path, /*timeout_ms=*/0);
      if (!probe.ok()) return Unreachable(socket_path, probe.status());
    }
    return result;
  }

  const std::string socket_path;
  const TlsTarget tls;
  FileDescriptor connection;               // a duplicate of the socket's, to look at
  std::shared_ptr<grpc::Channel> channel;  // over TLS; null: to the socket
  std::unique_ptr<v1::OperatorService::Stub> stub;
};

OperatorClient::OperatorClient(std::unique_ptr<Impl> impl, double timeout_seconds)
    : impl_(std::move(impl)), timeout_seconds_(timeout_seconds) {}
OperatorClient::~OperatorClient() = default;

absl::StatusOr<std::unique_ptr<OperatorClient>> OperatorClient::Connect(
    const std::string& socket_path, double timeout_seconds) {
  auto impl = std::make_unique<Impl>(socket_path);
  BATON_RETURN_IF_ERROR(impl->Connect(After(timeout_seconds)));
  return std::unique_ptr<OperatorClient>(new OperatorClient(std::move(impl), timeout_seconds));
}

absl::StatusOr<std::unique_ptr<OperatorClient>> OperatorClient::Connect(const TlsTarget& target,
                                                                        double timeout_seconds) {
  auto impl = std::make_unique<Impl>(target);
  BATON_RETURN_IF_ERROR(impl->UseTls());
  return std::unique_ptr<OperatorClient>(new OperatorClient(std::move(impl), timeout_seconds));
}

template <typename Request, typename Response, typename Method>
absl::StatusOr<Response> OperatorClient::Unary(Method method, const Request& request,
                                               double timeout_seconds, Repeat repeat) {
  const Clock::time_point deadline = After(timeout_seconds);
  for (;;) {
    grpc::ClientContext call;
    call.set_deadline(WallClockTime(deadline));
    if (!trace_parent_.empty()) call.AddMetadata("traceparent", trace_parent_);
    if (!reason_.empty()) call.AddMetadata("baton-reason", reason_);
    Response response;
    const grpc::Status status = (impl_->stub.get()->*method)(&call, request, &response);
    if (status.ok()) {
      const auto [begin, end] = call.GetServerTrailingMetadata().equal_range("baton-warning");
      for (auto entry = begin; entry != end; ++entry) {
        warnings_.emplace_back(entry->second.data(), entry->second.size());
      }
      return response;
    }
    // A control that goes away fails its calls with one of these two.
    const bool lost = (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                       status.error_code() == grpc::StatusCode::CANCELLED) &&
                      impl_->Lost();
    if (repeat == Repeat::kNever || !lost || Clock::now() + kPause >= deadline) {
      return impl_->FromGrpc(status);
    }
    std::this_thread::sleep_for(kPause);
    BATON_RETURN_IF_ERROR(impl_->Connect(deadline));
  }
}

#define BATON_UNARY(METHOD, REPEAT)                                                             \
  absl::StatusOr<v1::METHOD##Response> OperatorClient::METHOD(                                  \
      const v1::METHOD##Request& request) {                                                     \
    return Unary<v1::METHOD##Request, v1::METHOD##Response>(&v1::OperatorService::Stub::METHOD, \
                                                            request, timeout_seconds_, REPEAT); \
  }
BATON_UNARY(GetStatus, Repeat::kWhenLost)
BATON_UNARY(ListServices, Repeat::kWhenLost)
BATON_UNARY(GetService, Repeat::kWhenLost)
BATON_UNARY(ListWorkers, Repeat::kWhenLost)
BATON_UNARY(GetWorker, Repeat::kWhenLost)
BATON_UNARY(KillWorker, Repeat::kNever)
BATON_UNARY(ListShards, Repeat::kWhenLost)
BATON_UNARY(GetShard, Repeat::kWhenLost)
BATON_UNARY(ListConnections, Repeat::kWhenLost)
BATON_UNARY(GetConnection, Repeat::kWhenLost)
BATON_UNARY(Upgrade, Repeat::kNever)
BATON_UNARY(Rollback, Repeat::kNever)
BATON_UNARY(ListUpgrades, Repeat::kWhenLost)
BATON_UNARY(PauseUpgrade, Repeat::kNever)
BATON_UNARY(ResumeUpgrade, Repeat::kNever)
BATON_UNARY(DrainService, Repeat::kNever)
BATON_UNARY(EndDrain, Repeat::kNever)
BATON_UNARY(ListShardMoves, Repeat::kWhenLost)
BATON_UNARY(SetPolicy, Repeat::kNever)
BATON_UNARY(ReplaceKeeper, Repeat::kNever)
BATON_UNARY(ReplaceProgram, Repeat::kNever)
BATON_UNARY(Reload, Repeat::kNever)
#undef BATON_UNARY

absl::StatusOr<v1::HandoffResponse> OperatorClient::Handoff(const v1::HandoffRequest& request,
                                                            double timeout_seconds) {
  return Unary<v1::HandoffRequest, v1::HandoffResponse>(&v1::OperatorService::Stub::Handoff,
                                                        request, timeout_seconds, Repeat::kNever);
}

absl::StatusOr<v1::StopWorkerResponse> OperatorClient::StopWorker(
    const v1::StopWorkerRequest& request, double timeout_seconds) {
  return Unary<v1::StopWorkerRequest, v1::StopWorkerResponse>(
      &v1::OperatorService::Stub::StopWorker, request, timeout_seconds, Repeat::kNever);
}

absl::Status OperatorClient::WatchEvents(const v1::WatchEventsRequest& request,
                                         const std::function<void(const v1::Event&)>& on_event) {
  grpc::ClientContext call;
  if (!request.follow()) {
    call.set_deadline(WallClockTime(After(timeout_seconds_)));
  }
  const auto reader = impl_->stub->WatchEvents(&call, request);
  v1::WatchEventsResponse response;
  while (reader->Read(&response)) on_event(response.event());
  return impl_->FromGrpc(reader->Finish());
}

}  // namespace baton

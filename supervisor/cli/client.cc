#include "supervisor/cli/client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "grpcpp/create_channel_posix.h"
#include "lib/channel/message_channel.h"

namespace baton {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxResponseBytes = 64 << 20;
constexpr char kGrpcDeadline[] = "Deadline Exceeded";  // gRPC's own message
constexpr std::chrono::milliseconds kPause(50);        // before the next attempt to reach control

Clock::time_point After(double seconds) {
  return Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// Converts a deadline for gRPC, which takes wall-clock times and converts them back when the call
// begins. Call it anew for each call.
std::chrono::system_clock::time_point WallClockTime(Clock::time_point deadline) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(deadline - Clock::now());
}

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, kConnectTimeoutMs));
}

// Connects to control. If a killed control has left a socket at which nobody listens, batond starts
// another control, which replaces the socket; for a moment there is none. If there is none for
// longer, batond does not run, or not yet.
absl::StatusOr<FileDescriptor> ConnectSocket(const std::string& path, Clock::time_point deadline) {
  for (bool missing = false;;) {
    auto socket = ConnectUnix(path, MillisecondsUntil(deadline));
    const bool may_pass =
        absl::IsUnavailable(socket.status()) || (absl::IsNotFound(socket.status()) && !missing);
    if (!may_pass || Clock::now() + kPause >= deadline) return socket;
    missing = absl::IsNotFound(socket.status());
    std::this_thread::sleep_for(kPause);
  }
}

// Says who may use the socket, if this process may not.
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

// Requests of this kind may be made again.
bool OnlyLooks(const google::protobuf::Message& request) {
  const std::string& name = request.GetDescriptor()->name();
  return name.starts_with("Get") || name.starts_with("List");
}

}  // namespace

absl::Status OperatorClient::UseTls() {
  grpc::SslCredentialsOptions pem;
  BATON_ASSIGN_OR_RETURN(pem.pem_root_certs, ReadPem("--tls-ca", tls_.ca_file));
  BATON_ASSIGN_OR_RETURN(pem.pem_cert_chain, ReadPem("--tls-cert", tls_.certificate_file));
  BATON_ASSIGN_OR_RETURN(pem.pem_private_key, ReadPem("--tls-key", tls_.key_file));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxResponseBytes);
  if (!tls_.server_name.empty()) arguments.SetSslTargetNameOverride(tls_.server_name);
  channel_ = grpc::CreateCustomChannel(tls_.address, grpc::SslCredentials(pem), arguments);
  stub_ = v1::OperatorService::NewStub(channel_);
  return absl::OkStatus();
}

// Connects without gRPC, which would try again until the deadline and hide the reason.
absl::Status OperatorClient::ConnectUntil(Clock::time_point deadline) {
  auto socket = ConnectSocket(socket_path_, deadline);
  if (!socket.ok()) return Unreachable(socket_path_, socket.status());
  connection_ = CopyOf(socket->get());
  fcntl(socket->get(), F_SETFL, O_NONBLOCK);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxResponseBytes);
  stub_ = v1::OperatorService::NewStub(
      grpc::CreateCustomInsecureChannelFromFd("batond", socket->Release(), arguments));
  return absl::OkStatus();
}

// Control closes its listener first and its connections last. "Unavailable" alone may be what
// control says about a keeper.
bool OperatorClient::Lost() const {
  if (channel_) return false;
  pollfd entry = {connection_.get(), POLLRDHUP, 0};
  return poll(&entry, 1, 0) != 0 || !ConnectUnix(socket_path_, /*timeout_ms=*/0).ok();
}

absl::Status OperatorClient::FromGrpc(const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (absl::IsDeadlineExceeded(result)) {
    const bool own = result.message() == kGrpcDeadline;
    return absl::DeadlineExceededError(
        absl::StrCat(own ? "no answer in time" : result.message(), kTimeoutCure));
  }
  if (absl::IsUnavailable(result) && channel_) {
    // If the connection is up, control has said this about a keeper.
    if (channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY) return result;
    return absl::UnavailableError(
        absl::StrCat("cannot reach Baton at ", tls_.address, ": ", result.message(),
                     "; is that its operator_endpoint, signed by --tls-ca, and --tls-cert by its "
                     "client_ca_file?"));
  }
  // gRPC's message for a lost connection says little, so check whether batond is there at all.
  if (absl::IsUnavailable(result)) {
    const absl::StatusOr<FileDescriptor> probe = ConnectUnix(socket_path_, /*timeout_ms=*/0);
    if (!probe.ok()) return Unreachable(socket_path_, probe.status());
  }
  return result;
}

absl::StatusOr<std::unique_ptr<OperatorClient>> OperatorClient::Connect(
    const std::string& socket_path, double timeout_seconds, const TlsTarget& tls) {
  auto client =
      std::unique_ptr<OperatorClient>(new OperatorClient(socket_path, tls, timeout_seconds));
  BATON_RETURN_IF_ERROR(tls.address.empty() ? client->ConnectUntil(After(timeout_seconds))
                                            : client->UseTls());
  return client;
}

absl::Status OperatorClient::Call(
    const google::protobuf::Message& request, double more_seconds,
    const std::function<grpc::Status(grpc::ClientContext*)>& call_method) {
  const Clock::time_point deadline = After(timeout_seconds_ + more_seconds);
  for (;;) {
    grpc::ClientContext call;
    call.set_deadline(WallClockTime(deadline));
    if (!trace_parent_.empty()) call.AddMetadata("traceparent", trace_parent_);
    if (!reason_.empty()) call.AddMetadata("baton-reason", reason_);
    const grpc::Status status = call_method(&call);
    if (status.ok()) {
      const auto [begin, end] = call.GetServerTrailingMetadata().equal_range("baton-warning");
      for (auto entry = begin; entry != end; ++entry) {
        warnings_.emplace_back(entry->second.data(), entry->second.size());
      }
      return absl::OkStatus();
    }
    // A control that goes away fails its calls with one of these two.
    const bool lost = (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                       status.error_code() == grpc::StatusCode::CANCELLED) &&
                      Lost();
    if (!OnlyLooks(request) || !lost || Clock::now() + kPause >= deadline) return FromGrpc(status);
    std::this_thread::sleep_for(kPause);
    BATON_RETURN_IF_ERROR(ConnectUntil(deadline));
  }
}

absl::Status OperatorClient::WatchEvents(const v1::WatchEventsRequest& request,
                                         const std::function<void(const v1::Event&)>& on_event) {
  grpc::ClientContext call;
  if (!request.follow()) {
    call.set_deadline(WallClockTime(After(timeout_seconds_)));
  }
  const auto reader = stub_->WatchEvents(&call, request);
  v1::WatchEventsResponse response;
  while (reader->Read(&response)) on_event(response.event());
  return FromGrpc(reader->Finish());
}

}  // namespace baton

#include "supervisor/cli/client.h"

#include <fcntl.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/grpcpp.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/v1/operator.grpc.pb.h"

namespace baton {
namespace {

constexpr int kMaxResponseBytes = 64 << 20;

absl::Status Unreachable(const std::string& socket_path, const absl::Status& cause) {
  const absl::string_view why =
      absl::StripPrefix(cause.message(), absl::StrCat("connect to ", socket_path, ": "));
  const std::string text = absl::StrCat("cannot reach batond at ", socket_path, ": ", why);
  if (absl::IsPermissionDenied(cause)) {
    return absl::PermissionDeniedError(
        absl::StrCat(text, "; run as an operator (root, batond's user, or one of operator_uids)"));
  }
  if (absl::IsInvalidArgument(cause)) return absl::InvalidArgumentError(text);
  return absl::UnavailableError(absl::StrCat(
      text, "; is it running? `batond --dev` starts one; --state-dir or --socket choose another"));
}

}  // namespace

class OperatorClient::Impl {
 public:
  Impl(const std::string& path, int fd) : socket_path(path) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxResponseBytes);
    channel = grpc::CreateCustomInsecureChannelFromFd("batond", fd, arguments);
    stub = v1::OperatorService::NewStub(channel);
  }

  absl::Status FromGrpc(const grpc::Status& status) const {
    if (status.ok()) return absl::OkStatus();
    absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
    if (absl::IsDeadlineExceeded(result)) {
      return absl::DeadlineExceededError(
          absl::StrCat("no answer in time (", result.message(), "); --timeout gives more"));
    }
    // gRPC's message for a lost connection says little: look whether batond is there at all.
    if (absl::IsUnavailable(result)) {
      const absl::StatusOr<FileDescriptor> probe = ConnectUnix(socket_path);
      if (!probe.ok()) return Unreachable(socket_path, probe.status());
    }
    return result;
  }

  const std::string socket_path;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::OperatorService::Stub> stub;
};

OperatorClient::OperatorClient(std::unique_ptr<Impl> impl, double timeout_seconds)
    : impl_(std::move(impl)), timeout_seconds_(timeout_seconds) {}
OperatorClient::~OperatorClient() = default;

// Connects by itself, not through gRPC, which would try again until the deadline and hide why.
absl::StatusOr<std::unique_ptr<OperatorClient>> OperatorClient::Connect(
    const std::string& socket_path, double timeout_seconds) {
  absl::StatusOr<FileDescriptor> socket = ConnectUnix(socket_path);
  if (!socket.ok()) return Unreachable(socket_path, socket.status());
  fcntl(socket->get(), F_SETFL, O_NONBLOCK);
  return std::unique_ptr<OperatorClient>(
      new OperatorClient(std::make_unique<Impl>(socket_path, socket->Release()), timeout_seconds));
}

template <typename Request, typename Response, typename Method>
absl::StatusOr<Response> OperatorClient::Unary(Method method, const Request& request,
                                               double timeout_seconds) {
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() +
                    std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000)));
  Response response;
  const grpc::Status status = (impl_->stub.get()->*method)(&call, request, &response);
  if (!status.ok()) return impl_->FromGrpc(status);
  const auto [begin, end] = call.GetServerTrailingMetadata().equal_range("baton-warning");
  for (auto entry = begin; entry != end; ++entry) {
    warnings_.emplace_back(entry->second.data(), entry->second.size());
  }
  return response;
}

#define BATON_UNARY(METHOD)                                                                     \
  absl::StatusOr<v1::METHOD##Response> OperatorClient::METHOD(                                  \
      const v1::METHOD##Request& request) {                                                     \
    return Unary<v1::METHOD##Request, v1::METHOD##Response>(&v1::OperatorService::Stub::METHOD, \
                                                            request, timeout_seconds_);         \
  }
BATON_UNARY(GetStatus)
BATON_UNARY(ListServices)
BATON_UNARY(GetService)
BATON_UNARY(ListWorkers)
BATON_UNARY(GetWorker)
BATON_UNARY(KillWorker)
BATON_UNARY(ListShards)
BATON_UNARY(GetShard)
BATON_UNARY(ListConnections)
BATON_UNARY(GetConnection)
#undef BATON_UNARY

absl::StatusOr<v1::HandoffResponse> OperatorClient::Handoff(const v1::HandoffRequest& request,
                                                            double timeout_seconds) {
  return Unary<v1::HandoffRequest, v1::HandoffResponse>(&v1::OperatorService::Stub::Handoff,
                                                        request, timeout_seconds);
}

absl::Status OperatorClient::WatchEvents(const v1::WatchEventsRequest& request,
                                         const std::function<void(const v1::Event&)>& on_event) {
  grpc::ClientContext call;
  if (!request.follow()) {
    call.set_deadline(std::chrono::system_clock::now() +
                      std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds_ * 1000)));
  }
  const auto reader = impl_->stub->WatchEvents(&call, request);
  v1::WatchEventsResponse response;
  while (reader->Read(&response)) on_event(response.event());
  return impl_->FromGrpc(reader->Finish());
}

}  // namespace baton

// The CLI's end of the operator socket.
//
// Thread-compatible.
#ifndef SUPERVISOR_CLI_CLIENT_H_
#define SUPERVISOR_CLI_CLIENT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "grpcpp/grpcpp.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status_macros.h"
#include "proto/baton/v1/operator.grpc.pb.h"

namespace baton {

// The operator service over TCP, with mutual TLS. Files are PEM.
struct TlsTarget {
  std::string address = {};  // HOST:PORT
  std::string ca_file = {};  // that the server's certificate is signed by
  std::string certificate_file = {};
  std::string key_file = {};
  std::string server_name = {};  // that its certificate is to have; empty: the host
};

// How each kDeadlineExceeded of an OperatorClient ends.
inline constexpr char kTimeoutCure[] = "; --timeout gives more";

using Operator = v1::OperatorService::Stub;  // what can be asked for

class OperatorClient {
 public:
  // Connects; a control that was killed is waited for, batond starts it again. kUnavailable or
  // kPermissionDenied, with cause and cure, when that fails. Calls, too, end after
  // `timeout_seconds`, and those that only look are made again when control goes away under them.
  static absl::StatusOr<std::unique_ptr<OperatorClient>> Connect(const std::string& socket_path,
                                                                 double timeout_seconds);
  // Connects with the first call. Nothing is waited for, and no call made again.
  static absl::StatusOr<std::unique_ptr<OperatorClient>> Connect(const TlsTarget& target,
                                                                 double timeout_seconds);

  // Told with every call from now on: a `traceparent` of W3C's; empty: none.
  void set_trace_parent(std::string trace_parent) { trace_parent_ = std::move(trace_parent); }

  // Calls a method of Operator. `more_seconds`: beyond those of any call.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(grpc::Status (Operator::*method)(grpc::ClientContext*,
                                                                const Request&, Response*),
                               const Request& request, double more_seconds = 0) {
    Response response;
    BATON_RETURN_IF_ERROR(Call(request, more_seconds, [&](grpc::ClientContext* call) {
      return (stub_.get()->*method)(call, request, &response);
    }));
    return response;
  }
  // Until the end of the stream; one that follows ends with control.
  absl::Status WatchEvents(const v1::WatchEventsRequest& request,
                           const std::function<void(const v1::Event&)>& on_event);

  // Why changes are asked for from now on, for the record.
  void SetReason(std::string reason) { reason_ = std::move(reason); }

  // Returns what answers left out since the last call.
  std::vector<std::string> TakeWarnings() { return std::exchange(warnings_, {}); }

 private:
  using Clock = std::chrono::steady_clock;  // nobody sets it while we wait

  OperatorClient(std::string socket_path, TlsTarget target, double timeout_seconds)
      : socket_path_(std::move(socket_path)),
        tls_(std::move(target)),
        timeout_seconds_(timeout_seconds) {}

  absl::Status UseTls();
  absl::Status ConnectUntil(Clock::time_point deadline);
  // Returns whether control is gone or going.
  bool Lost() const;
  absl::Status FromGrpc(const grpc::Status& status) const;
  absl::Status Call(const google::protobuf::Message& request, double more_seconds,
                    const std::function<grpc::Status(grpc::ClientContext*)>& call_method);

  const std::string socket_path_;
  const TlsTarget tls_;
  const double timeout_seconds_;
  FileDescriptor connection_;               // a duplicate of the socket's, to look at
  std::shared_ptr<grpc::Channel> channel_;  // over TLS; null: to the socket
  std::unique_ptr<Operator> stub_;
  std::string reason_;
  std::vector<std::string> warnings_;
  std::string trace_parent_;
};

}  // namespace baton

#endif  // SUPERVISOR_CLI_CLIENT_H_

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
#include "lib/base/status.h"
#include "proto/baton/v1/operator.grpc.pb.h"

namespace baton {

// The operator service over TCP, with mutual TLS. Files are PEM.
struct TlsTarget {
  std::string address = {};  // HOST:PORT
  std::string ca_file = {};  // has signed the server's certificate
  std::string certificate_file = {};
  std::string key_file = {};
  std::string server_name = {};  // name in the server's certificate; empty: the host
};

// The end of the message of each kDeadlineExceeded of an OperatorClient.
inline constexpr char kTimeoutCure[] = "; --timeout gives more";

using Operator = v1::OperatorService::Stub;  // its methods can be called

class OperatorClient {
 public:
  // Connects. If control was killed, waits until batond has started it again. kUnavailable,
  // kPermissionDenied: it could not connect; the message has cause and cure. Each call ends after
  // `timeout_seconds`, too. Calls that only look are made again if control goes away under them.
  // `tls`: with an address, it is used instead of the socket. Then it connects with the first call,
  // waits for no control, and makes no call again.
  static absl::StatusOr<std::unique_ptr<OperatorClient>> Connect(const std::string& socket_path,
                                                                 double timeout_seconds,
                                                                 const TlsTarget& tls = {});

  // Every later call carries this W3C `traceparent`; empty: none.
  void set_trace_parent(std::string trace_parent) { trace_parent_ = std::move(trace_parent); }

  // Calls a method of Operator. `more_seconds`: added to the timeout of each call.
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
  // Returns at the end of the stream. A stream that follows ends with control.
  absl::Status WatchEvents(const v1::WatchEventsRequest& request,
                           const std::function<void(const v1::Event&)>& on_event);

  // Sets the reason for later changes, for the record.
  void SetReason(std::string reason) { reason_ = std::move(reason); }

  // Returns what answers have left out since the last call of this function.
  std::vector<std::string> TakeWarnings() { return std::exchange(warnings_, {}); }

 private:
  using Clock = std::chrono::steady_clock;  // nobody sets it during a wait

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
  FileDescriptor connection_;               // a duplicate of the socket, to see its end
  std::shared_ptr<grpc::Channel> channel_;  // null: not over TLS
  std::unique_ptr<Operator> stub_;
  std::string reason_;
  std::vector<std::string> warnings_;
  std::string trace_parent_;
};

}  // namespace baton

#endif  // SUPERVISOR_CLI_CLIENT_H_

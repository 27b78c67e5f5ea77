// One call of `baton`: the global options, the connection and the console, for all commands.
#ifndef SUPERVISOR_CLI_INVOCATION_H_
#define SUPERVISOR_CLI_INVOCATION_H_

#include <functional>
#include <istream>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "lib/base/status.h"
#include "proto/baton/v1/operator.pb.h"
#include "supervisor/cli/cli.h"
#include "supervisor/cli/client.h"
#include "supervisor/cli/format.h"

namespace baton {

// Returns a style with the terminal's width and, unless NO_COLOR is set, colours. `terminal` -1:
// none.
TableStyle StyleOf(int terminal);

struct Invocation {
  const Console& console;
  std::ostream& out = console.out;  // data
  std::ostream& err = console.err;  // messages
  std::istream& in = console.in;    // answers to questions
  bool interactive = console.interactive;

  std::string state_dir = {};
  std::string socket = {};  // empty: in state_dir
  TlsTarget tls = {};       // with an address: used instead of the socket
  bool json = false;
  TableStyle style = StyleOf(console.terminal_out);
  double timeout_seconds = 10;
  std::string reason = {};   // why something is changed, for the record
  double watch_seconds = 0;  // between two looks; 0: look once

  // The words after "--", for a command that starts a program.
  std::optional<std::vector<std::string>> program_arguments = {};
  bool takes_program_arguments = false;  // set when the command line is parsed

  // The chosen command; set when the command line is parsed. --watch calls it again and again.
  std::function<absl::Status()> action = {};

  std::unique_ptr<OperatorClient> connection = {};

  absl::StatusOr<OperatorClient*> Connect();
  // Asks control. Connects if there is no connection yet.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(grpc::Status (Operator::*method)(grpc::ClientContext*,
                                                                const Request&, Response*),
                               const Request& request, double more_seconds = 0) {
    BATON_ASSIGN_OR_RETURN(OperatorClient * client, Connect());
    return client->Ask(method, request, more_seconds);
  }
  absl::StatusOr<v1::GetServiceResponse> AskService(const std::string& service);
  absl::StatusOr<v1::ListServicesResponse> AskServices();
  // Connects anew, after a connection was lost.
  absl::StatusOr<OperatorClient*> Reconnect();
  // Prints what answers left out, each once, on `err`.
  void PrintWarnings();
  // Returns a message for `err`, without a newline: `label` ("error: " or "warning: ") in its
  // colour, and `text`, wrapped if `err` is a terminal.
  std::string Message(const std::string& label, absl::string_view text) const;
  // Prints the next step, for a person at a terminal only, and not with --watch.
  void PrintNext(const std::string& text);
  // Prints one object, with every field under its name in the .proto files. Returns OK.
  absl::Status PrintJson(const google::protobuf::Message& message);
  // Returns the state directory of the batond whose socket is used.
  std::string StateDir() const;
};

// Returns a request that names a service.
template <typename Request>
Request About(const std::string& service) {
  Request request;
  request.set_service(service);
  return request;
}

// Returns whether the next look may succeed where this one has failed.
bool MayPass(const absl::Status& status);

}  // namespace baton

#endif  // SUPERVISOR_CLI_INVOCATION_H_

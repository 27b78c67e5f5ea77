// What all commands share: the global options, the connection and the two streams.
#ifndef SUPERVISOR_CLI_SESSION_H_
#define SUPERVISOR_CLI_SESSION_H_

#include <functional>
#include <istream>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "supervisor/cli/client.h"

namespace baton {

struct Session {
  std::ostream& out;  // data
  std::ostream& err;  // messages
  std::istream& in;   // answers to questions
  bool interactive = false;

  std::string state_dir = {};
  std::string socket = {};  // empty: in state_dir
  bool json = false;
  double timeout_seconds = 10;

  // What stood after "--", for a command that starts a program.
  std::optional<std::vector<std::string>> program_arguments = {};
  bool takes_program_arguments = false;  // set when the command line is parsed

  // What the chosen command does; set when the command line is parsed.
  std::function<absl::Status()> action = {};

  std::unique_ptr<OperatorClient> connection = {};

  absl::StatusOr<OperatorClient*> Connect();
  // On a new connection, in place of one that was lost.
  absl::StatusOr<OperatorClient*> Reconnect();
  // One object, with every field under its name in the .proto files.
  void PrintJson(const google::protobuf::Message& message);
};

// On one line, without its end.
std::string ToJson(const google::protobuf::Message& message);

// $XDG_RUNTIME_DIR/baton or /tmp/baton-<uid>; /run/baton for root.
std::string DefaultStateDir();

}  // namespace baton

#endif  // SUPERVISOR_CLI_SESSION_H_

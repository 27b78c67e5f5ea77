#include "supervisor/cli/session.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "lib/base/status_macros.h"
#include "lib/text/trace_parent.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/paint.h"
#include "supervisor/cli/terminal.h"
#include "supervisor/cli/wrap.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

std::string Json(const google::protobuf::Message& message, bool whitespace) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = whitespace;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  (void)google::protobuf::util::MessageToJsonString(message, &text, options);
  return text;
}

// An invalid one counts as none: a tracer's mistake keeps nobody from operating.
std::string TraceParentOfEnvironment() {
  const char* text = std::getenv("TRACEPARENT");
  return text == nullptr ? "" : CheckedTraceParent(text);
}

}  // namespace

TableStyle StyleOf(int terminal) {
  TableStyle style;
  if (terminal < 0) return style;
  const char* const no_color = std::getenv("NO_COLOR");  // see no-color.org
  style.colour = no_color == nullptr || *no_color == '\0';
  const ScreenSize size = SizeOf(terminal);
  style.columns = static_cast<size_t>(size.columns);
  style.rows = size.rows;
  return style;
}

absl::StatusOr<OperatorClient*> Session::Connect() {
  if (!connection) {
    if (!tls.address.empty()) {
      BATON_ASSIGN_OR_RETURN(connection, OperatorClient::Connect(tls, timeout_seconds));
    } else {
      const std::string path = socket.empty() ? OperatorSocketPath(state_dir) : socket;
      BATON_ASSIGN_OR_RETURN(connection, OperatorClient::Connect(path, timeout_seconds));
    }
    connection->set_trace_parent(TraceParentOfEnvironment());
    connection->SetReason(reason);
  }
  return connection.get();
}

absl::StatusOr<OperatorClient*> Session::Reconnect() {
  connection.reset();
  return Connect();
}

void Session::PrintWarnings() {
  if (!connection) return;
  for (const std::string& warning : connection->TakeWarnings()) {
    err << Message("warning: ", warning) << '\n';
  }
}

std::string Session::Message(const std::string& label, absl::string_view text) const {
  const TableStyle style = StyleOf(console.terminal_err);
  std::string message(text);
  if (style.columns > 0 && label.size() + WidthOf(message) > style.columns) {
    message = Wrap(message, /*indent=*/0, label.size(), style.columns);
  }
  const Colour colour = label.starts_with("error")     ? Colour::kRed
                        : label.starts_with("warning") ? Colour::kYellow
                                                       : Colour::kNone;
  return absl::StrCat(style.colour ? Painted(label, colour) : label, message);
}

void Session::PrintNext(const std::string& text) {
  if (text.empty() || json || watch_seconds > 0 || console.terminal_err < 0) return;
  out.flush();
  err << Message("next: ", Printable(text)) << std::endl;
}

void Session::PrintJson(const google::protobuf::Message& message) {
  out << Json(message, /*whitespace=*/true);
}

std::string ToJson(const google::protobuf::Message& message) {
  return Json(message, /*whitespace=*/false);
}

std::string DefaultStateDir() {
  if (geteuid() == 0) return "/run/baton";
  const char* runtime_dir = std::getenv("XDG_RUNTIME_DIR");
  if (runtime_dir != nullptr && *runtime_dir != '\0') return absl::StrCat(runtime_dir, "/baton");
  return absl::StrCat("/tmp/baton-", geteuid());
}

}  // namespace baton

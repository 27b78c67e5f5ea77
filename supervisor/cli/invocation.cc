#include "supervisor/cli/invocation.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "lib/text/text.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/terminal.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

// An invalid TRACEPARENT counts as none, because a tracer's mistake must not stop an operator.
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

absl::StatusOr<OperatorClient*> Invocation::Connect() {
  if (!connection) {
    const std::string path = socket.empty() ? OperatorSocketPath(state_dir) : socket;
    BATON_ASSIGN_OR_RETURN(connection, OperatorClient::Connect(path, timeout_seconds, tls));
    connection->set_trace_parent(TraceParentOfEnvironment());
    connection->SetReason(reason);
  }
  return connection.get();
}

absl::StatusOr<v1::GetServiceResponse> Invocation::AskService(const std::string& service) {
  return Ask(&Operator::GetService, About<v1::GetServiceRequest>(service));
}

absl::StatusOr<v1::ListServicesResponse> Invocation::AskServices() {
  return Ask(&Operator::ListServices, {});
}

absl::StatusOr<OperatorClient*> Invocation::Reconnect() {
  connection.reset();
  return Connect();
}

void Invocation::PrintWarnings() {
  if (!connection) return;
  for (const std::string& warning : connection->TakeWarnings()) {
    err << Message("warning: ", warning) << '\n';
  }
}

std::string Invocation::Message(const std::string& label, absl::string_view text) const {
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

void Invocation::PrintNext(const std::string& text) {
  if (text.empty() || json || watch_seconds > 0 || console.terminal_err < 0) return;
  out.flush();
  err << Message("next: ", Printable(text)) << std::endl;
}

absl::Status Invocation::PrintJson(const google::protobuf::Message& message) {
  out << ToJson(message, /*whitespace=*/true);
  return absl::OkStatus();
}

std::string Invocation::StateDir() const {
  if (socket.empty()) return state_dir;
  const size_t slash = socket.rfind('/');
  return slash == std::string::npos ? "." : socket.substr(0, std::max<size_t>(slash, 1));
}

bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

}  // namespace baton

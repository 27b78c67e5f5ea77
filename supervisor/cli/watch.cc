#include "supervisor/cli/watch.h"

#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "supervisor/cli/terminal.h"

namespace baton {
namespace {

// Returns the action's output; on a terminal with its messages, which would be in the way
// elsewhere.
std::pair<absl::Status, std::string> Look(Session* session, bool on_terminal) {
  std::ostringstream text;
  std::streambuf* const out = session->out.rdbuf(text.rdbuf());
  std::streambuf* const err = session->err.rdbuf();
  if (on_terminal) session->err.rdbuf(text.rdbuf());
  absl::Status status = session->action();
  session->PrintWarnings();
  session->out.rdbuf(out);
  session->err.rdbuf(err);
  return {std::move(status), std::move(text).str()};
}

}  // namespace

bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

absl::Status Watch(Session* session) {
  const int terminal = session->console.terminal_out;
  Interruption interruption;
  if (terminal >= 0) session->out << "\x1b[2J";
  for (bool first = true; !interruption.asked(); first = false) {
    auto [status, text] = Look(session, terminal >= 0);
    if (interruption.asked()) break;
    if (!status.ok() && (first || !MayPass(status))) {
      session->out << text;
      return status;
    }
    if (!status.ok()) {
      text = absl::StrCat("error: ", status.message(), "; trying again\n");
      session->connection.reset();
    }
    if (terminal >= 0) {
      session->out << Redraw(text, SizeOf(terminal));
    } else if (status.ok()) {
      session->out << (first ? "" : "\n") << text;
    } else {
      session->err << text << std::flush;
    }
    session->out << std::flush;
    interruption.Wait(session->watch_seconds);
  }
  return absl::OkStatus();
}

}  // namespace baton

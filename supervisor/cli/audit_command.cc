#include <map>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/session.h"

namespace baton {
namespace {

struct Options {
  std::string service;  // empty: all
  bool follow = false;
};

std::string Line(const v1::Event& event) {
  const v1::Change& change = event.change();
  return Printable(
      absl::StrFormat("%s  %6d  %-12s  %-18s  %-14s  %s%s", FormatTime(event.unix_micros()),
                      change.number(), event.service().empty() ? "-" : event.service(),
                      change.who(), change.what(), change.done() ? change.outcome() : "begins",
                      change.why().empty() ? "" : absl::StrCat("  (", change.why(), ")")));
}

absl::Status Audit(Session* session, const Options& options) {
  v1::WatchEventsRequest request;
  request.set_service(options.service);
  request.set_follow(options.follow);
  request.set_changes(true);
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  // A change whose outcome is known is one line, where nobody waits for the next.
  std::map<uint64_t, v1::Event> begun;
  const auto print = [&](const v1::Event& event) {
    session->out << (session->json ? ToJson(event) : Line(event)) << std::endl;
  };
  absl::Status end = client->WatchEvents(request, [&](const v1::Event& event) {
    if (session->json || options.follow || session->style.wide) return print(event);
    if (!event.change().done()) {
      begun[event.change().number()] = event;
      return;
    }
    begun.erase(event.change().number());
    print(event);
  });
  for (const auto& [number, event] : begun) print(event);
  return end;
}

}  // namespace

void AddAuditCommand(CLI::App* app, Session* session) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app->add_subcommand("audit", "Show what operators did, and why; in JSON, one per line");
  command->add_option("service", options->service, "only of this service");
  command->add_flag("-f,--follow", options->follow, "go on with what they do next");
  command->footer(
      "What was begun and has no outcome is under way, or control ended in the middle of it. With "
      "-o wide, -o json or --follow each change is there twice, as it begins and when it is done.");
  command->callback([session, options] {
    session->action = [session, options] { return Audit(session, *options); };
  });
}

}  // namespace baton

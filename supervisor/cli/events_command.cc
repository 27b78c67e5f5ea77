#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/session.h"

namespace baton {
namespace {

// Events come one by one, so columns have fixed widths.
std::string EventLine(const v1::Event& event) {
  std::string about;
  if (event.worker_id() != 0) absl::StrAppend(&about, " worker=", event.worker_id());
  if (event.shard() >= 0) absl::StrAppend(&about, " shard=", event.shard());
  if (event.connection() >= 0) absl::StrAppend(&about, " connection=", event.connection());
  std::string line =
      absl::StrFormat("%s  %-12s  %-20s  %s%s%s", FormatTime(event.unix_micros()), event.service(),
                      event.kind(), event.message(), about.empty() ? "" : " ", about);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return line;
}

absl::Status Events(Session* session, const v1::WatchEventsRequest& request) {
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  return client->WatchEvents(request, [session](const v1::Event& event) {
    session->out << (session->json ? ToJson(event) : EventLine(event)) << std::endl;
  });
}

}  // namespace

void AddEventsCommand(CLI::App* app, Session* session) {
  struct Options {
    std::string service;
    bool follow = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app->add_subcommand("events", "Show what happened; in JSON, one per line");
  command->add_option("service", options->service, "only of this service");
  command->add_flag("-f,--follow", options->follow, "go on with what happens next");
  command->callback([session, options] {
    session->action = [session, options] {
      v1::WatchEventsRequest request;
      request.set_service(options->service);
      request.set_follow(options->follow);
      return Events(session, request);
    };
  });
}

}  // namespace baton

#include <filesystem>
#include <map>
#include <string>
#include <system_error>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/event_printer.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/session.h"
#include "supervisor/config/audit_chain.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

struct Options {
  std::string service;  // empty: all
  bool follow = false;
  bool verify = false;
  std::string file;  // empty: that of the state directory
  std::string expected_hash;
};

std::string Outcome(const v1::Change& change) {
  return absl::StrCat(change.done() ? change.outcome() : "begins",
                      change.why().empty() ? "" : absl::StrCat("  (", change.why(), ")"));
}

std::string ServiceOf(const v1::Event& event) {
  return event.service().empty() ? "-" : event.service();
}

void Print(const v1::Event& event, EventPrinter* printer) {
  const v1::Change& change = event.change();
  printer->Print(
      event, absl::StrFormat("%4d  %-8s  %-12s", change.number(), ServiceOf(event), change.what()),
      absl::StrCat(change.who(), ": ", Outcome(change)),
      absl::StrFormat("%s  %6d  %-12s  %-18s  %-14s  %s", FormatTime(event.unix_micros()),
                      change.number(), ServiceOf(event), change.who(), change.what(),
                      Outcome(change)));
}

// Without control, which writes the files: by reading them.
absl::Status Verify(Session* session, const Options& options) {
  std::string path = options.file;
  if (path.empty()) {
    path = AuditTrailPath(session->StateDir());
    // It may be a link to the file, and the older files are beside that.
    std::error_code error;
    const std::filesystem::path target = std::filesystem::canonical(path, error);
    if (!error) path = target.string();
  }
  BATON_ASSIGN_OR_RETURN(const AuditReport report, VerifyAuditFiles(path, options.expected_hash));
  session->out << path << ": " << report.records << " records in " << report.files
               << " files are as they were written, each behind the one before it";
  if (report.unchained > 0) session->out << "; " << report.unchained << " older ones have no hash";
  if (report.torn > 0) session->out << "; " << report.torn << " lines were not finished";
  session->out << "\nlast record: " << (report.last_hash.empty() ? "none" : report.last_hash)
               << std::endl;
  if (options.expected_hash.empty() || report.expected_found) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("no record has the hash ", options.expected_hash,
                   ": it was taken out, or was in a file that made room for newer ones"));
}

absl::Status Audit(Session* session, const Options& options) {
  if (options.verify) return Verify(session, options);
  if (!options.file.empty() || !options.expected_hash.empty()) {
    return absl::InvalidArgumentError("--file and --expect are for --verify: add it");
  }
  auto request = About<v1::WatchEventsRequest>(options.service);
  request.set_follow(options.follow);
  request.set_changes(true);
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  // A change whose outcome is known is one line, where nobody waits for the next.
  std::map<uint64_t, v1::Event> begun;
  EventPrinter printer(session);
  absl::Status end = client->WatchEvents(request, [&](const v1::Event& event) {
    if (session->json || options.follow || session->style.wide) return Print(event, &printer);
    if (!event.change().done()) {
      begun[event.change().number()] = event;
      return;
    }
    begun.erase(event.change().number());
    Print(event, &printer);
  });
  for (const auto& [number, event] : begun) Print(event, &printer);
  if (end.ok() && !printer.printed_any() && !session->json) {
    session->err << "nobody has changed anything\n";
  }
  return end;
}

}  // namespace

void AddAuditCommand(CLI::App* app, Session* session) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app->add_subcommand("audit", "Show what operators did, and why; in JSON, one per line");
  command->add_option("service", options->service, "only of this service");
  command->add_flag("-f,--follow", options->follow, "go on with what they do next");
  command->add_flag("--verify", options->verify,
                    "check that no record on file was changed or taken out; needs no control");
  command
      ->add_option("--file", options->file,
                   "what --verify reads [audit.log of the state directory]")
      ->type_name("FILE");
  command
      ->add_option("--expect", options->expected_hash,
                   "with --verify: a record with this hash, as a log has it, has to be there")
      ->type_name("HASH");
  command->footer(
      "What was begun and has no outcome is under way, or control ended in the middle of it. With "
      "-o wide, -o json or --follow each change is there twice, as it begins and when it is done.");
  OnChosen(command, session, options, Audit);
}

}  // namespace baton

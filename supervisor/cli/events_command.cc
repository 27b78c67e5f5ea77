#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <system_error>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/pauses.h"
#include "lib/base/status.h"
#include "proto/baton/v1/types.pb.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/invocation.h"
#include "supervisor/config/audit_chain.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kFirstPause(100);
constexpr std::chrono::milliseconds kMaxPause(5000);
constexpr size_t kRemembered = 16384;  // events of a service; more than control keeps
constexpr size_t kNarrowest = 24;      // the narrowest column to which text is wrapped

// Prints events as they come, each at once, in UTC.
class EventPrinter {
 public:
  explicit EventPrinter(Invocation* invocation) : invocation_(invocation) {}

  // With -o json prints the event, one a line. On a terminal, unless with -o wide, prints the time
  // of day, `head`, and `text`, which is wrapped beside it; each day is named once, above its first
  // event. Otherwise prints `line`.
  void Print(const v1::Event& event, const std::string& head, const std::string& text,
             const std::string& line) {
    printed_any_ = true;
    if (invocation_->json) {
      invocation_->out << ToJson(event) << std::endl;
    } else if (invocation_->style.columns > 0 && !invocation_->style.wide) {
      PrintBelowDay(event, head, text);
    } else {
      invocation_->out << Printable(line) << std::endl;
    }
  }
  bool printed_any() const { return printed_any_; }

 private:
  void PrintBelowDay(const v1::Event& event, const std::string& head, const std::string& text) {
    const std::string time = FormatTime(event.unix_micros());  // "2025-01-31T09:15:00.123456Z"
    const size_t clock = time.find('T');
    if (const std::string day = time.substr(0, clock); day != day_) {
      invocation_->out << day << " UTC\n";
      day_ = day;
    }
    const std::string begin = absl::StrCat(time.substr(clock + 1, sizeof("09:15:00.123") - 1), "  ",
                                           Printable(head), "  ");
    const size_t columns = invocation_->style.columns;
    const size_t widest = columns > kNarrowest ? columns - kNarrowest : 0;
    const size_t indent = std::min(WidthOf(begin), widest);
    invocation_->out << begin << Wrap(Printable(text), indent, WidthOf(begin), columns)
                     << std::endl;
  }

  Invocation* const invocation_;
  std::string day_;  // the last one that was named
  bool printed_any_ = false;
};

// ---------------------------------------------------------------- events

struct EventFilter {
  std::optional<uint64_t> shard;
  std::optional<uint64_t> worker;
  std::string kind;

  bool Passes(const v1::Event& event) const {
    return (!shard || (event.shard() >= 0 && static_cast<uint64_t>(event.shard()) == *shard)) &&
           (!worker || event.worker_id() == *worker) && (kind.empty() || event.kind() == kind);
  }
};

struct EventsOptions {
  std::string service;  // empty: all
  EventFilter filter;
  bool follow = false;
  bool no_reconnect = false;
};

// Events come one by one, so columns have fixed widths.
std::string EventLine(const v1::Event& event, bool wide) {
  std::string about;
  if (event.worker_id() != 0) absl::StrAppend(&about, " worker=", event.worker_id());
  if (event.shard() >= 0) absl::StrAppend(&about, " shard=", event.shard());
  if (event.connection() >= 0) absl::StrAppend(&about, " connection=", event.connection());
  const std::string sequence = wide ? absl::StrFormat("%8d  ", event.sequence()) : "";
  return absl::StrFormat("%s  %s%-12s  %-20s  %s%s%s", FormatTime(event.unix_micros()), sequence,
                         event.service(), event.kind(), event.message(), about.empty() ? "" : " ",
                         about);
}

// Prints each event once. A stream begins with logged events, so a stream that replaces another one
// repeats events of the former.
class Printer {
 public:
  Printer(Invocation* invocation, const EventFilter& filter)
      : filter_(filter), wide_(invocation->style.wide), printer_(invocation) {}

  void Print(const v1::Event& event) {
    if (!filter_.Passes(event) || !IsNew(event)) return;
    // Messages name workers and shards.
    printer_.Print(event, absl::StrFormat("%-8s  %-16s", event.service(), event.kind()),
                   event.message(), EventLine(event, wide_));
  }

  bool printed_any() const { return printer_.printed_any(); }

 private:
  // Number and time, because a keeper that was started anew counts from 1 again.
  using Key = std::pair<uint64_t, int64_t>;
  struct Printed {
    std::set<Key> known;
    std::deque<Key> oldest_first;
  };

  bool IsNew(const v1::Event& event) {
    Printed& printed = printed_[event.service()];
    const Key key(event.sequence(), event.unix_micros());
    if (!printed.known.insert(key).second) return false;
    printed.oldest_first.push_back(key);
    if (printed.oldest_first.size() > kRemembered) {
      printed.known.erase(printed.oldest_first.front());
      printed.oldest_first.pop_front();
    }
    return true;
  }

  const EventFilter& filter_;
  const bool wide_;
  EventPrinter printer_;
  std::map<std::string, Printed> printed_;  // by service
};

// Returns whether another stream would end in the same way, also with another control.
bool IsFinal(const absl::Status& end) {
  return absl::IsNotFound(end) || absl::IsPermissionDenied(end) || absl::IsInvalidArgument(end) ||
         absl::IsUnauthenticated(end) || absl::IsUnimplemented(end);
}

absl::Status Events(Invocation* invocation, const EventsOptions& options) {
  auto request = About<v1::WatchEventsRequest>(options.service);
  request.set_follow(options.follow);
  Printer printer(invocation, options.filter);
  const auto print = [&](const v1::Event& event) { printer.Print(event); };
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, invocation->Connect());
  BackOff pauses(kFirstPause, kMaxPause);
  for (;;) {
    const auto began = std::chrono::steady_clock::now();
    absl::Status end = client->WatchEvents(request, print);
    if (!request.follow()) {
      if (end.ok() && !printer.printed_any() && !invocation->json) {
        invocation->err << "no such events\n";
      }
      return end;
    }
    if (end.ok()) end = absl::UnavailableError("control has ended it");
    if (options.no_reconnect || IsFinal(end)) return end;
    invocation->err << "lost the stream of events: " << end.message() << "; trying again"
                    << std::endl;
    if (std::chrono::steady_clock::now() - began > kMaxPause) pauses.Reset();
    absl::StatusOr<OperatorClient*> again = end;
    while (!again.ok()) {
      std::this_thread::sleep_for(pauses.Next());
      again = invocation->Reconnect();
      if (IsFinal(again.status())) return again.status();
    }
    client = *again;
    invocation->err << "connected again" << std::endl;
  }
}

// ---------------------------------------------------------------- what operators did

struct AuditOptions {
  std::string service;  // empty: all
  bool follow = false;
  bool verify = false;
  std::string file;  // empty: the file in the state directory
  std::string expected_hash;
};

std::string Outcome(const v1::Change& change) {
  return absl::StrCat(change.done() ? change.outcome() : "begins",
                      change.why().empty() ? "" : absl::StrCat("  (", change.why(), ")"));
}

std::string ServiceOf(const v1::Event& event) {
  return event.service().empty() ? "-" : event.service();
}

void PrintChange(const v1::Event& event, EventPrinter* printer) {
  const v1::Change& change = event.change();
  printer->Print(
      event, absl::StrFormat("%4d  %-8s  %-12s", change.number(), ServiceOf(event), change.what()),
      absl::StrCat(change.who(), ": ", Outcome(change)),
      absl::StrFormat("%s  %6d  %-12s  %-18s  %-14s  %s", FormatTime(event.unix_micros()),
                      change.number(), ServiceOf(event), change.who(), change.what(),
                      Outcome(change)));
}

// Reads the files itself, without control.
absl::Status Verify(Invocation* invocation, const AuditOptions& options) {
  std::string path = options.file;
  if (path.empty()) {
    path = AuditTrailPath(invocation->StateDir());
    // It may be a link to the file. The older files are beside the file, not beside the link.
    std::error_code error;
    const std::filesystem::path target = std::filesystem::canonical(path, error);
    if (!error) path = target.string();
  }
  BATON_ASSIGN_OR_RETURN(const AuditReport report, VerifyAuditFiles(path, options.expected_hash));
  invocation->out << path << ": " << report.records << " records in " << report.files
                  << " files are as they were written, each behind the one before it";
  if (report.unchained > 0) {
    invocation->out << "; " << report.unchained << " older ones have no hash";
  }
  if (report.torn > 0) invocation->out << "; " << report.torn << " lines were not finished";
  invocation->out << "\nlast record: " << (report.last_hash.empty() ? "none" : report.last_hash)
                  << std::endl;
  if (options.expected_hash.empty() || report.expected_found) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("no record has the hash ", options.expected_hash,
                   ": it was taken out, or was in a file that made room for newer ones"));
}

absl::Status Audit(Invocation* invocation, const AuditOptions& options) {
  if (options.verify) return Verify(invocation, options);
  if (!options.file.empty() || !options.expected_hash.empty()) {
    return absl::InvalidArgumentError("--file and --expect are for --verify: add it");
  }
  auto request = About<v1::WatchEventsRequest>(options.service);
  request.set_follow(options.follow);
  request.set_changes(true);
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, invocation->Connect());
  // A change whose outcome is known is one line, unless the command follows.
  std::map<uint64_t, v1::Event> begun;
  EventPrinter printer(invocation);
  absl::Status end = client->WatchEvents(request, [&](const v1::Event& event) {
    if (invocation->json || options.follow || invocation->style.wide) {
      return PrintChange(event, &printer);
    }
    if (!event.change().done()) {
      begun[event.change().number()] = event;
      return;
    }
    begun.erase(event.change().number());
    PrintChange(event, &printer);
  });
  for (const auto& [number, event] : begun) PrintChange(event, &printer);
  if (end.ok() && !printer.printed_any() && !invocation->json) {
    invocation->err << "nobody has changed anything\n";
  }
  return end;
}

}  // namespace

void AddEventsCommand(CLI::App* app, Invocation* invocation) {
  auto options = std::make_shared<EventsOptions>();
  CLI::App* command = app->add_subcommand("events", "Show what happened; in JSON, one per line");
  command->add_option("service", options->service, "only of this service");
  AddNumber(command, "--shard", &options->filter.shard, "SHARD", "only of this shard");
  AddNumber(command, "--owner", &options->filter.worker, "WORKER", "only of this worker");
  command->add_option("--kind", options->filter.kind, "only of this kind, such as worker_dead")
      ->type_name("KIND");
  CLI::Option* follow =
      command->add_flag("-f,--follow", options->follow, "go on with what happens next");
  command
      ->add_flag("--no-reconnect", options->no_reconnect,
                 "with --follow: end when control goes away, instead of waiting")
      ->needs(follow);
  OnChosen(command, invocation, options, Events);
}

void AddAuditCommand(CLI::App* app, Invocation* invocation) {
  auto options = std::make_shared<AuditOptions>();
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
  OnChosen(command, invocation, options, Audit);
}

}  // namespace baton

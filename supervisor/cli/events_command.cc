#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/waiting/back_off.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/event_printer.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/session.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kFirstPause(100);
constexpr std::chrono::milliseconds kMaxPause(5000);
constexpr size_t kRemembered = 16384;  // events of a service; more than control keeps

struct Filter {
  std::optional<uint64_t> shard;
  std::optional<uint64_t> worker;
  std::string kind;

  bool Passes(const v1::Event& event) const {
    return (!shard || (event.shard() >= 0 && static_cast<uint64_t>(event.shard()) == *shard)) &&
           (!worker || event.worker_id() == *worker) && (kind.empty() || event.kind() == kind);
  }
};

struct Options {
  std::string service;  // empty: all
  Filter filter;
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

// Prints each event once. A stream begins with what is logged, so one that takes the place of
// another begins with events that the former has brought.
class Printer {
 public:
  Printer(Session* session, const Filter& filter)
      : filter_(filter), wide_(session->style.wide), printer_(session) {}

  void Print(const v1::Event& event) {
    if (!filter_.Passes(event) || !IsNew(event)) return;
    // Messages name workers and shards.
    printer_.Print(event, absl::StrFormat("%-8s  %-16s", event.service(), event.kind()),
                   event.message(), EventLine(event, wide_));
  }

  bool printed_any() const { return printer_.printed_any(); }

 private:
  // A keeper that was started anew counts from 1 again, at another time.
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

  const Filter& filter_;
  const bool wide_;
  EventPrinter printer_;
  std::map<std::string, Printed> printed_;  // by service
};

// Whether another stream would end in the same way, whoever is in control by then.
bool IsFinal(const absl::Status& end) {
  return absl::IsNotFound(end) || absl::IsPermissionDenied(end) || absl::IsInvalidArgument(end) ||
         absl::IsUnauthenticated(end) || absl::IsUnimplemented(end);
}

absl::Status Events(Session* session, const Options& options) {
  auto request = About<v1::WatchEventsRequest>(options.service);
  request.set_follow(options.follow);
  Printer printer(session, options.filter);
  const auto print = [&](const v1::Event& event) { printer.Print(event); };
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  BackOff pauses(kFirstPause, kMaxPause);
  for (;;) {
    const auto began = std::chrono::steady_clock::now();
    absl::Status end = client->WatchEvents(request, print);
    if (!request.follow()) {
      if (end.ok() && !printer.printed_any() && !session->json) session->err << "no such events\n";
      return end;
    }
    if (end.ok()) end = absl::UnavailableError("control has ended it");
    if (options.no_reconnect || IsFinal(end)) return end;
    session->err << "lost the stream of events: " << end.message() << "; trying again" << std::endl;
    if (std::chrono::steady_clock::now() - began > kMaxPause) pauses.Reset();
    absl::StatusOr<OperatorClient*> again = end;
    while (!again.ok()) {
      std::this_thread::sleep_for(pauses.Next());
      again = session->Reconnect();
      if (IsFinal(again.status())) return again.status();
    }
    client = *again;
    session->err << "connected again" << std::endl;
  }
}

}  // namespace

void AddEventsCommand(CLI::App* app, Session* session) {
  auto options = std::make_shared<Options>();
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
  OnChosen(command, session, options, Events);
}

}  // namespace baton

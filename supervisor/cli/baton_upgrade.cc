#include "supervisor/cli/upgrades.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/base/status.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/terminal.h"

namespace baton {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kReplacementLookInterval(200);
// The time for the next process to serve.
constexpr std::chrono::seconds kFollowTimeout(60);
// The time for a broker to follow another that has died.
constexpr std::chrono::seconds kBrokerTimeout(10);
constexpr double kWatchSeconds = 7;
// Baton goes back until so long before the end of the window, so that the window shows it.
constexpr double kNoticeSeconds = 2;

using Names = std::vector<std::string>;

uint32_t ProbationFor(double watch_seconds) {
  return static_cast<uint32_t>(std::max(0.0, watch_seconds - kNoticeSeconds) * 1000);
}

absl::StatusOr<Names> ServicesOf(Invocation* invocation, const std::string& named) {
  if (!named.empty()) return Names{named};
  BATON_ASSIGN_OR_RETURN(const v1::ListServicesResponse all, invocation->AskServices());
  Names names;
  for (const v1::Service& service : all.services()) {
    if (service.reachable()) {
      names.push_back(service.name());
    } else {
      invocation->err << "service " << service.name() << " has no keeper now, and is left out\n";
    }
  }
  return names;
}

absl::StatusOr<v1::Service> LookAtService(Invocation* invocation, const std::string& name) {
  BATON_ASSIGN_OR_RETURN(v1::GetServiceResponse response, invocation->AskService(name));
  return std::move(*response.mutable_service());
}

std::string DescribeKeeper(const v1::Service& service) {
  return absl::StrCat("pid ", service.keeper_pid(), ", release ",
                      service.keeper_release().empty() ? "not told" : service.keeper_release());
}

absl::Status CheckServes(const v1::Service& service) {
  const std::string& why = service.keeper_program_given_up();
  if (why.empty()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("service ", service.name(), ": ", why));
}

// Returns the service once another process than `former` is its keeper or broker (`kind`).
// `check`: whether the former one was gone back to.
absl::StatusOr<v1::Service> AwaitNext(Invocation* invocation, const std::string& name,
                                      const char* kind, int32_t former,
                                      int32_t (v1::Service::*pid_of)() const,
                                      absl::Status (*check)(const v1::Service&)) {
  const Progress progress(invocation, absl::StrCat("replacing the ", kind, " of ", name),
                          absl::StrCat("the next ", kind, " to serve"));
  const Clock::time_point deadline = Clock::now() + kFollowTimeout;
  for (;;) {
    absl::StatusOr<v1::Service> service = LookAtService(invocation, name);
    if (service.ok()) {
      const int32_t pid = (*service.*pid_of)();
      if (pid != 0 && pid != former) return service;
      BATON_RETURN_IF_ERROR(check(*service));
    }
    if (Clock::now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "no other ", kind, " of service ", name, " serves after ", kFollowTimeout.count(),
          " s; connections and workers go on: see the log, and `baton events ", name, "`"));
    }
    std::this_thread::sleep_for(kReplacementLookInterval);
  }
}

absl::Status CheckStays(const v1::Service& next, const v1::Service& now) {
  BATON_RETURN_IF_ERROR(CheckServes(now));
  if (now.keeper_pid() == next.keeper_pid()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      "service ", now.name(), ": its new keeper, ", DescribeKeeper(next), ", was followed by ",
      DescribeKeeper(now), " meanwhile: see `baton events ", now.name(), "`"));
}

// Calls `look` for `seconds`, and returns its first error. `last`: from now on a process that does
// not answer is an error.
absl::Status WatchNewProcesses(Invocation* invocation, const std::string& what, double seconds,
                               const std::function<absl::Status(bool last)>& look) {
  const Progress progress(invocation, absl::StrCat("watching ", what),
                          absl::StrCat(FormatDuration(seconds), " to be over"));
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (bool last = false; !last;) {
    last = Clock::now() >= end;
    BATON_RETURN_IF_ERROR(look(last));
    if (!last) std::this_thread::sleep_for(kReplacementLookInterval);
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- keepers

struct Replaced {
  v1::Service before, next;
};

absl::StatusOr<std::optional<Replaced>> ReplaceKeeper(Invocation* invocation,
                                                      const std::string& name,
                                                      double watch_seconds) {
  // A keeper that refuses to describe its service can be replaced all the same.
  const v1::Service before = LookAtService(invocation, name).value_or(v1::Service());
  auto request = About<v1::ReplaceKeeperRequest>(name);
  request.set_watch_window_ms(ProbationFor(watch_seconds));
  BATON_ASSIGN_OR_RETURN(const v1::ReplaceKeeperResponse response,
                         invocation->Ask(&Operator::ReplaceKeeper, request));
  BATON_ASSIGN_OR_RETURN(const v1::Service next,
                         AwaitNext(invocation, name, "keeper", response.keeper_pid(),
                                   &v1::Service::keeper_pid, CheckServes));
  BATON_RETURN_IF_ERROR(CheckStays(next, next));
  return Replaced{before, next};
}

// ---------------------------------------------------------------- drivers

std::string CodeRelease(const v1::Service& service) {
  return service.driver_code_release().empty() ? "not told" : service.driver_code_release();
}

std::string DescribeBroker(const v1::Service& service) {
  return absl::StrCat("pid ", service.broker_pid(), ", release ", CodeRelease(service));
}

absl::Status CheckDrives(const v1::Service& service) {
  const std::string& why = service.driver_code_given_up();
  if (why.empty()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("service ", service.name(), ": ", why));
}

absl::Status CheckDrivesOn(const v1::Service& next, const v1::Service& now) {
  BATON_RETURN_IF_ERROR(CheckDrives(now));
  if (now.broker_pid() == next.broker_pid()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      "service ", now.name(), ": its new broker, ", DescribeBroker(next), ", was followed by ",
      DescribeBroker(now), " meanwhile: see `baton events ", now.name(), "`"));
}

absl::Status TellNextWorkers(Invocation* invocation, const v1::Service& before) {
  BATON_ASSIGN_OR_RETURN(const v1::Service now, LookAtService(invocation, before.name()));
  if (invocation->json) return invocation->PrintJson(now);
  invocation->out << "service " << now.name()
                  << ": native workers that start from now on drive their queues with release "
                  << CodeRelease(now) << ", after " << CodeRelease(before) << ": `baton upgrade "
                  << now.name() << " --exec OBJECT` brings it to all\n";
  return absl::OkStatus();
}

// There is none for a moment after a broker's death.
absl::Status AskUntilABrokerDrives(Invocation* invocation,
                                   const v1::ReplaceDriverCodeRequest& request) {
  const Clock::time_point deadline = Clock::now() + kBrokerTimeout;
  for (;;) {
    const absl::Status asked = invocation->Ask(&Operator::ReplaceDriverCode, request).status();
    if (!absl::IsUnavailable(asked) || Clock::now() >= deadline) return asked;
    std::this_thread::sleep_for(kReplacementLookInterval);
  }
}

// Empty: no broker drives the queues of the service, or one that cannot be replaced.
absl::StatusOr<std::optional<Replaced>> ReplaceDriverCode(Invocation* invocation,
                                                          const std::string& name,
                                                          double watch_seconds) {
  BATON_ASSIGN_OR_RETURN(const v1::Service before, LookAtService(invocation, name));
  // Its baton-driver drives the queues itself, or is of a release that has no such code.
  if (before.broker_pid() == 0 && before.driver_code_release().empty() && !before.native()) {
    return std::nullopt;
  }
  auto request = About<v1::ReplaceDriverCodeRequest>(name);
  request.set_watch_window_ms(ProbationFor(watch_seconds));
  const absl::Status asked = AskUntilABrokerDrives(invocation, request);
  if (absl::IsUnimplemented(asked)) {
    invocation->err
        << "what drives the queues of service " << name
        << " stays: its baton-driver, or control, is of an earlier release, which cannot "
           "replace it. Repeat this once both are of this release\n";
    return std::nullopt;
  }
  BATON_RETURN_IF_ERROR(asked);
  if (before.native()) {
    BATON_RETURN_IF_ERROR(TellNextWorkers(invocation, before));
    return std::nullopt;
  }
  BATON_ASSIGN_OR_RETURN(const v1::Service next,
                         AwaitNext(invocation, name, "broker", before.broker_pid(),
                                   &v1::Service::broker_pid, CheckDrives));
  BATON_RETURN_IF_ERROR(CheckDrives(next));
  return Replaced{before, next};
}

// ---------------------------------------------------------------- both

// A kind of process that each service has.
struct Kind {
  const char* name;
  // Replaces that of a service. Empty: it has none that can be replaced.
  absl::StatusOr<std::optional<Replaced>> (*replace)(Invocation*, const std::string& service,
                                                     double watch_seconds);
  absl::Status (*check_stays)(const v1::Service& next, const v1::Service& now);
  std::string (*describe)(const v1::Service& service);
};
constexpr Kind kKeeper = {"keeper", ReplaceKeeper, CheckStays, DescribeKeeper};
constexpr Kind kBroker = {"broker", ReplaceDriverCode, CheckDrivesOn, DescribeBroker};

// Replaces those of the services one after the other, then watches them together.
absl::Status ReplaceAll(Invocation* invocation, const Kind& kind, const Names& names,
                        double watch_seconds) {
  std::vector<Replaced> all;
  Names of;
  for (const std::string& name : names) {
    BATON_ASSIGN_OR_RETURN(std::optional<Replaced> replaced,
                           kind.replace(invocation, name, watch_seconds));
    if (!replaced) continue;
    all.push_back(*std::move(replaced));
    of.push_back(name);
  }
  if (all.empty()) return absl::OkStatus();
  const auto look = [&](bool last) -> absl::Status {
    for (const Replaced& one : all) {
      const absl::StatusOr<v1::Service> now = LookAtService(invocation, one.next.name());
      if (now.ok()) BATON_RETURN_IF_ERROR(kind.check_stays(one.next, *now));
      if (last) BATON_RETURN_IF_ERROR(now.status());
    }
    return absl::OkStatus();
  };
  BATON_RETURN_IF_ERROR(WatchNewProcesses(
      invocation, absl::StrCat("the new ", kind.name, "s of ", absl::StrJoin(of, ", ")),
      watch_seconds, look));
  for (const Replaced& one : all) {
    if (invocation->json) {
      BATON_RETURN_IF_ERROR(invocation->PrintJson(one.next));
      continue;
    }
    invocation->out << "service " << one.next.name() << ": " << kind.name << " replaced ("
                    << kind.describe(one.before) << " -> " << kind.describe(one.next) << ")\n";
  }
  return absl::OkStatus();
}

// Splits `names` into groups that are watched together.
absl::StatusOr<std::vector<Names>> GroupsOf(const Names& names, const std::string& canary) {
  std::vector<Names> groups;
  if (canary.empty()) {
    for (const std::string& name : names) groups.push_back({name});
    return groups;
  }
  Names first = absl::StrSplit(canary, ',');
  uint32_t share = 0;
  if (absl::SimpleAtoi(absl::StripSuffix(canary, "%"), &share) && canary.back() == '%') {
    if (share == 0 || share > 99) {
      return absl::InvalidArgumentError(absl::StrCat("--canary ", canary, ": give 1% to 99%"));
    }
    first.assign(names.begin(), names.begin() + (names.size() * share + 99) / 100);
  }
  Names others;
  for (const std::string& name : first) {
    if (absl::c_count(first, name) > 1) {
      return absl::InvalidArgumentError(absl::StrCat("--canary: ", name, " is named twice"));
    }
    if (absl::c_linear_search(names, name)) continue;
    return absl::NotFoundError(absl::StrCat("--canary: there is no service ", name,
                                            " with a keeper; give names of services, or a share of "
                                            "them, such as 25%"));
  }
  absl::c_copy_if(names, std::back_inserter(others),
                  [&](const std::string& name) { return !absl::c_linear_search(first, name); });
  groups.push_back(std::move(first));
  if (!others.empty()) groups.push_back(std::move(others));
  return groups;
}

// ---------------------------------------------------------------- control and batond

using Program = v1::ReplaceProgramRequest;

std::string Describe(const v1::GetStatusResponse& status, Program::Program program) {
  return program == Program::BATOND
             ? absl::StrCat("release ",
                            status.batond_release().empty() ? "not told" : status.batond_release())
             : absl::StrCat("pid ", status.control_pid(), ", release ", status.version().release());
}

// Connects anew, because control is away meanwhile.
absl::StatusOr<v1::GetStatusResponse> LookAtControl(Invocation* invocation) {
  BATON_RETURN_IF_ERROR(invocation->Reconnect().status());
  return invocation->Ask(&Operator::GetStatus, {});
}

absl::Status CheckServes(const v1::GetStatusResponse& status, Program::Program program) {
  const std::string& why = program == Program::BATOND ? status.batond_program_given_up()
                                                      : status.control_program_given_up();
  return why.empty() ? absl::OkStatus() : absl::AbortedError(why);
}

// Returns whether `now` is of the same control under the same batond as `before`.
bool IsUnchanged(const v1::GetStatusResponse& before, const v1::GetStatusResponse& now) {
  return now.control_pid() == before.control_pid() &&
         now.batonds_followed() == before.batonds_followed();
}

// Waits for the next control, or for control to be taken in by the next batond. A control of an
// earlier release ends with its batond.
absl::StatusOr<v1::GetStatusResponse> AwaitNext(Invocation* invocation, const char* name,
                                                const v1::GetStatusResponse& former) {
  const Progress progress(invocation, absl::StrCat("replacing ", name),
                          absl::StrCat("the next ", name, " to serve"));
  const Clock::time_point deadline = Clock::now() + kFollowTimeout;
  for (;;) {
    absl::StatusOr<v1::GetStatusResponse> status = LookAtControl(invocation);
    if (status.ok() && !IsUnchanged(former, *status)) return status;
    if (Clock::now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("no other ", name, " serves after ", kFollowTimeout.count(),
                       " s; connections and workers go on: see batond's log"));
    }
    std::this_thread::sleep_for(kReplacementLookInterval);
  }
}

absl::Status ReplaceProgram(Invocation* invocation, const char* name, Program::Program program,
                            double watch_seconds) {
  BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse before, LookAtControl(invocation));
  if (before.batond_release().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(name,
                     " is not replaced: this batond is of an earlier release, which cannot do so; "
                     "`systemctl restart batond` replaces batond and control, and services go on"));
  }
  v1::ReplaceProgramRequest request;
  request.set_program(program);
  request.set_watch_window_ms(ProbationFor(watch_seconds));
  BATON_RETURN_IF_ERROR(invocation->Ask(&Operator::ReplaceProgram, request).status());
  BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse next, AwaitNext(invocation, name, before));
  BATON_RETURN_IF_ERROR(CheckServes(next, program));
  const auto look = [&](bool last) -> absl::Status {
    const absl::StatusOr<v1::GetStatusResponse> now = LookAtControl(invocation);
    if (!now.ok()) return last ? now.status() : absl::OkStatus();
    BATON_RETURN_IF_ERROR(CheckServes(*now, program));
    if (IsUnchanged(next, *now)) return absl::OkStatus();
    return absl::AbortedError(absl::StrCat("the new ", name,
                                           " was followed by another batond or control, pid ",
                                           now->control_pid(), ": see batond's log"));
  };
  BATON_RETURN_IF_ERROR(
      WatchNewProcesses(invocation, absl::StrCat("the new ", name), watch_seconds, look));
  if (invocation->json) return invocation->PrintJson(next);
  invocation->out << name << " replaced (" << Describe(before, program) << " -> "
                  << Describe(next, program) << ")\n";
  return absl::OkStatus();
}

// ---------------------------------------------------------------- plans

// Returns what is in the place of Baton's programs. Empty: a control of an earlier release does not
// tell it, nor does any tell it to viewers.
absl::StatusOr<v1::ReadProgramsResponse> ReadPrograms(Invocation* invocation) {
  absl::StatusOr<v1::ReadProgramsResponse> programs = invocation->Ask(&Operator::ReadPrograms, {});
  if (!absl::IsUnimplemented(programs.status()) && !absl::IsPermissionDenied(programs.status())) {
    return programs;
  }
  invocation->err << "the releases of the files in place are not told: "
                  << (absl::IsUnimplemented(programs.status())
                          ? "this control is of an earlier release, which does not read them"
                          : Printable(std::string(MessageOf(programs.status()))))
                  << '\n';
  return v1::ReadProgramsResponse();
}

// Empty: it is not known.
std::string ReleaseInPlace(const v1::ReadProgramsResponse& programs, const std::string& name) {
  const auto found = absl::c_find_if(
      programs.programs(), [&](const v1::ProgramFile& one) { return one.name() == name; });
  return found == programs.programs().end() ? "" : found->release();
}

// "by release 0.2.0", or what is known of it.
std::string ByWhat(const v1::ReadProgramsResponse& programs, const std::string& name) {
  const std::string release = ReleaseInPlace(programs, name);
  return absl::StrCat(
      "by ", release.empty() ? "the program in its place" : absl::StrCat("release ", release),
      ", and go back to the one before if that does not serve");
}

absl::Status PrintPrograms(Invocation* invocation, const v1::ReadProgramsResponse& programs) {
  std::vector<std::string> parts;
  for (const v1::ProgramFile& one : programs.programs()) {
    parts.push_back(absl::StrCat(
        one.name(), " ",
        one.problem().empty() ? one.release() : absl::StrCat("not told (", one.problem(), ")")));
  }
  if (parts.empty() && !invocation->json) return absl::OkStatus();
  return PrintPlan(invocation,
                   absl::StrCat("releases of the files in place: ", absl::StrJoin(parts, ", ")),
                   programs);
}

std::string DescribeDriver(const v1::Service& service, const v1::ReadProgramsResponse& programs) {
  const std::string& own = service.driver_release();
  const std::string next = ReleaseInPlace(programs, "baton-driver");
  const std::string stays =
      absl::StrCat("the driver of service ", service.name(), " (pid ", service.driver_pid(),
                   ", release ", own.empty() ? "not told" : own, ") stays");
  if (!next.empty() && next == own) {
    return absl::StrCat(stays, ": the file in its place is of the same release");
  }
  return absl::StrCat(
      stays, ": what ", next.empty() ? "another release" : absl::StrCat("release ", next),
      " changes in the work of drivers (",
      service.driver_code_release().empty() ? "driving the queues, " : "",
      "device, memory, connecting, handoffs and the order of heirs, quotas, starts of native "
      "workers, baton-nic) comes only with a new driver process, and this one's end ends the "
      "service's connections");
}

absl::Status PrintPlans(Invocation* invocation, const Names& names, bool all,
                        double watch_seconds) {
  BATON_ASSIGN_OR_RETURN(const v1::ReadProgramsResponse programs, ReadPrograms(invocation));
  std::vector<v1::Service> services;
  for (const std::string& name : names) {
    BATON_ASSIGN_OR_RETURN(services.emplace_back(), LookAtService(invocation, name));
  }
  BATON_RETURN_IF_ERROR(PrintPrograms(invocation, programs));
  for (const v1::Service& service : services) {
    auto request = About<v1::ReplaceKeeperRequest>(service.name());
    request.set_watch_window_ms(ProbationFor(watch_seconds));
    BATON_RETURN_IF_ERROR(
        PrintPlan(invocation,
                  absl::StrCat("would replace the keeper of service ", service.name(), " (",
                               DescribeKeeper(service), ") ", ByWhat(programs, "baton-keeper")),
                  request));
    if (!service.driver_code_release().empty()) {
      auto code = About<v1::ReplaceDriverCodeRequest>(service.name());
      code.set_watch_window_ms(ProbationFor(watch_seconds));
      const std::string what =
          service.native()
              ? absl::StrCat("would replace what workers of service ", service.name(),
                             " that start from then on drive their queues with (release ",
                             CodeRelease(service), ") ")
              : absl::StrCat("would replace the broker of service ", service.name(), " (",
                             DescribeBroker(service), ") ");
      BATON_RETURN_IF_ERROR(
          PrintPlan(invocation, absl::StrCat(what, ByWhat(programs, "libbaton-driver.so")), code));
    }
    // It is no request.
    if (invocation->json) continue;
    BATON_RETURN_IF_ERROR(PrintPlan(invocation, DescribeDriver(service, programs), request));
  }
  if (!all) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, LookAtControl(invocation));
  for (const auto& [program, file] :
       {std::pair(Program::CONTROL, "baton-control"), std::pair(Program::BATOND, "batond")}) {
    v1::ReplaceProgramRequest request;
    request.set_program(program);
    request.set_watch_window_ms(ProbationFor(watch_seconds));
    BATON_RETURN_IF_ERROR(
        PrintPlan(invocation,
                  absl::StrCat("would replace ", program == Program::BATOND ? "batond" : "control",
                               " (", Describe(status, program), ") ", ByWhat(programs, file)),
                  request));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status UpgradeBaton(Invocation* invocation, const BatonUpgrade& upgrade) {
  const bool all = upgrade.service.empty();
  BATON_ASSIGN_OR_RETURN(const Names names, ServicesOf(invocation, upgrade.service));
  BATON_ASSIGN_OR_RETURN(const std::vector<Names> groups, GroupsOf(names, upgrade.canary));
  const double seconds = upgrade.watch_seconds > 0 ? upgrade.watch_seconds : kWatchSeconds;
  if (upgrade.dry_run) return PrintPlans(invocation, names, all, seconds);
  size_t done = 0;
  for (const Names& group : groups) {
    absl::Status replaced = ReplaceAll(invocation, kKeeper, group, seconds);
    if (replaced.ok()) replaced = ReplaceAll(invocation, kBroker, group, seconds);
    done += group.size();
    if (replaced.ok()) continue;
    const size_t left = names.size() - done;
    return left == 0
               ? replaced
               : absl::Status(replaced.code(), absl::StrCat(replaced.message(), "; ", left,
                                                            " more services were left alone"));
  }
  if (!all) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(ReplaceProgram(invocation, "control", Program::CONTROL, seconds));
  return ReplaceProgram(invocation, "batond", Program::BATOND, seconds);
}

}  // namespace baton

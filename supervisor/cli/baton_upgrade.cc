#include "supervisor/cli/baton_upgrade.h"

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/progress.h"

namespace baton {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookInterval(200);
// For the next keeper to serve.
constexpr std::chrono::seconds kFollowTimeout(60);
// A little longer than a driver gives a new program to prove itself.
constexpr double kKeeperWatchSeconds = 7;

absl::StatusOr<std::vector<std::string>> ServicesOf(Session* session, const std::string& named) {
  if (!named.empty()) return std::vector<std::string>{named};
  BATON_ASSIGN_OR_RETURN(const v1::ListServicesResponse all, session->AskServices());
  std::vector<std::string> names;
  for (const v1::Service& service : all.services()) {
    if (service.reachable()) {
      names.push_back(service.name());
    } else {
      session->err << "service " << service.name() << " has no keeper now, and is left out\n";
    }
  }
  return names;
}

absl::StatusOr<v1::Service> Look(Session* session, const std::string& name) {
  BATON_ASSIGN_OR_RETURN(v1::GetServiceResponse response, session->AskService(name));
  return std::move(*response.mutable_service());
}

std::string Describe(const v1::Service& service) {
  return absl::StrCat("pid ", service.keeper_pid(), ", release ",
                      service.keeper_release().empty() ? "not told" : service.keeper_release());
}

// Returns the service as the keeper after `former` describes it.
absl::StatusOr<v1::Service> AwaitNext(Session* session, const std::string& name, int32_t former) {
  const Progress progress(session, absl::StrCat("replacing the keeper of ", name),
                          "the next keeper to serve");
  const Clock::time_point deadline = Clock::now() + kFollowTimeout;
  for (;;) {
    absl::StatusOr<v1::Service> service = Look(session, name);
    if (service.ok() && service->keeper_pid() != former) return service;
    if (Clock::now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "no other keeper of service ", name, " serves after ", kFollowTimeout.count(),
          " s; connections and workers go on: see the log, and `baton events ", name, "`"));
    }
    std::this_thread::sleep_for(kLookInterval);
  }
}

absl::Status CheckStays(const v1::Service& next, const v1::Service& now) {
  const std::string& why = now.keeper_program_given_up();
  if (!why.empty()) {
    return absl::AbortedError(absl::StrCat("service ", now.name(), ": ", why));
  }
  if (now.keeper_pid() == next.keeper_pid()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("service ", now.name(), ": its new keeper, ",
                                         Describe(next), ", was followed by ", Describe(now),
                                         " meanwhile: see `baton events ", now.name(), "`"));
}

absl::Status Watch(Session* session, const v1::Service& next, double seconds) {
  const Progress progress(session, absl::StrCat("watching the new keeper of ", next.name()),
                          absl::StrCat(FormatDuration(seconds), " to be over"));
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    const absl::StatusOr<v1::Service> now = Look(session, next.name());
    if (now.ok()) BATON_RETURN_IF_ERROR(CheckStays(next, *now));
    std::this_thread::sleep_for(kLookInterval);
  } while (Clock::now() < end);
  BATON_ASSIGN_OR_RETURN(const v1::Service now, Look(session, next.name()));
  return CheckStays(next, now);
}

absl::Status ReplaceKeeper(Session* session, const std::string& name, double watch_seconds) {
  BATON_ASSIGN_OR_RETURN(const v1::Service before, Look(session, name));
  BATON_ASSIGN_OR_RETURN(
      const v1::ReplaceKeeperResponse response,
      session->Ask(&OperatorClient::ReplaceKeeper, About<v1::ReplaceKeeperRequest>(name)));
  BATON_ASSIGN_OR_RETURN(const v1::Service next, AwaitNext(session, name, response.keeper_pid()));
  BATON_RETURN_IF_ERROR(CheckStays(next, next));
  BATON_RETURN_IF_ERROR(Watch(session, next, watch_seconds));
  if (session->json) return session->PrintJson(next);
  session->out << "service " << name << ": keeper replaced (" << Describe(before) << " -> "
               << Describe(next) << ")\n";
  return absl::OkStatus();
}

absl::Status PrintPlans(Session* session, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    BATON_ASSIGN_OR_RETURN(const v1::Service service, Look(session, name));
    auto request = About<v1::ReplaceKeeperRequest>(name);
    BATON_RETURN_IF_ERROR(PrintPlan(
        session,
        absl::StrCat("would replace the keeper of service ", name, " (", Describe(service),
                     ") by the program in its place, and go back to the one before if that does "
                     "not serve; its driver (pid ",
                     service.driver_pid(), ", release ", service.driver_release(),
                     ") stays: only its end, which ends or drains connections, replaces it"),
        request));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status UpgradeBaton(Session* session, const std::string& service, double watch_seconds,
                          bool dry_run) {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> names, ServicesOf(session, service));
  if (dry_run) return PrintPlans(session, names);
  const double seconds = watch_seconds > 0 ? watch_seconds : kKeeperWatchSeconds;
  for (size_t i = 0; i < names.size(); ++i) {
    const absl::Status replaced = ReplaceKeeper(session, names[i], seconds);
    if (replaced.ok()) continue;
    const size_t left = names.size() - i - 1;
    return left == 0 ? replaced
                     : absl::Status(replaced.code(),
                                    absl::StrCat(replaced.message(), "; the keepers of ", left,
                                                 " more services were left alone"));
  }
  session->PrintNext("`systemctl restart batond` replaces batond and control; services go on");
  return absl::OkStatus();
}

}  // namespace baton

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/invocation.h"
#include "supervisor/cli/terminal.h"
#include "supervisor/cli/top_view.h"

namespace baton {
namespace {

// A person who presses a key waits at most so long for it to take effect.
constexpr double kTopPatienceSeconds = 2;
constexpr char kKeys[] = "q quit, s sort, p pause";

struct TopOptions {
  std::vector<std::string> services;  // empty: all
  double delay_seconds = 2;
  uint32_t count = 0;  // 0: no limit
};

bool IsWanted(const TopOptions& options, const std::string& service) {
  return options.services.empty() || absl::c_linear_search(options.services, service);
}

absl::StatusOr<TopView> AskTopView(Invocation* invocation, const TopOptions& options,
                                   CounterRates* rates) {
  BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse status,
                         invocation->Ask(&Operator::GetStatus, {}));
  const double now = static_cast<double>(MonotonicNanoseconds()) * 1e-9;
  v1::GetStatusResponse wanted = status;
  wanted.clear_services();
  std::vector<v1::GetServiceResponse> described;
  for (const v1::Service& service : status.services()) {
    if (!IsWanted(options, service.name())) continue;
    *wanted.add_services() = service;
    if (!service.reachable()) continue;
    // A service that went away since then is shown as unreachable next time.
    auto response = invocation->AskService(service.name());
    if (response.ok()) described.push_back(*std::move(response));
  }
  if (wanted.services().empty() && !options.services.empty()) {
    return absl::NotFoundError(absl::StrCat("there is no service \"", options.services.front(),
                                            "\"; `baton service list` shows all"));
  }
  return MakeTopView(wanted, described, now, rates);
}

// Looks, shows the result, and handles keys.
class Top {
 public:
  Top(Invocation* invocation, TopOptions options)
      : invocation_(invocation),
        options_(std::move(options)),
        terminal_(invocation->json || options_.count > 0 ? -1 : invocation->console.terminal_out) {}

  absl::Status Run() {
    if (terminal_ >= 0) {
      invocation_->timeout_seconds = std::min(invocation_->timeout_seconds, kTopPatienceSeconds);
    }
    // A failure of the first look is printed on the screen that the command was typed on.
    BATON_ASSIGN_OR_RETURN(view_, AskTopView(invocation_, options_, &rates_));
    Interruption interruption(FullScreen::Leave);
    std::optional<FullScreen> screen;
    if (terminal_ >= 0) screen.emplace(invocation_->console.terminal_in, terminal_);
    for (uint32_t shown = 0;;) {
      Show(shown == 0);
      ++shown;
      if (shown == options_.count || !Wait(&interruption)) return absl::OkStatus();
      if (paused_) continue;
      absl::StatusOr<TopView> next = AskTopView(invocation_, options_, &rates_);
      problem_ = next.ok() ? "" : std::string(next.status().message());
      if (next.ok()) {
        view_ = *std::move(next);
      } else if (MayPass(next.status())) {
        invocation_->connection.reset();
      } else {
        return next.status();
      }
    }
  }

 private:
  void Show(bool first) {
    TopFrame frame{.sort = sort_, .style = invocation_->style};
    if (!problem_.empty()) {
      frame.note = "NOT NOW: " + problem_;
    } else if (paused_) {
      frame.note = "PAUSED, p goes on";
    } else if (terminal_ >= 0) {
      frame.note = kKeys;
    }
    if (invocation_->json) {
      invocation_->out << RenderTopAsJson(view_);
    } else if (terminal_ >= 0) {
      invocation_->out << Redraw(RenderTop(view_, frame), SizeOf(terminal_));
    } else {
      invocation_->out << (first ? "" : "\n") << RenderTop(view_, frame);
    }
    invocation_->out << std::flush;
  }

  // Returns, after the delay or after a key that changes what is shown, whether to go on.
  bool Wait(Interruption* interruption) {
    const int keys = terminal_ >= 0 ? invocation_->console.terminal_in : -1;
    if (!interruption->WaitForInput(options_.delay_seconds, keys)) return !interruption->asked();
    char key = 0;
    if (read(keys, &key, 1) != 1) return false;  // the terminal is gone
    if (key == 'q') return false;
    if (key == 's') sort_ = Next(sort_);
    if (key == 'p') paused_ = !paused_;
    return true;
  }

  Invocation* const invocation_;
  const TopOptions options_;
  const int terminal_;  // -1: no screen; prints one view below the other
  CounterRates rates_;
  TopView view_;
  TopSort sort_ = TopSort::kShard;
  bool paused_ = false;
  std::string problem_;  // of the last look
};

}  // namespace

void AddTopCommand(CLI::App* app, Invocation* invocation) {
  auto options = std::make_shared<TopOptions>();
  CLI::App* command = app->add_subcommand("top", "Show services and shards live, with their rates");
  command->add_option("--service", options->services, "only this one; repeat for more")
      ->type_name("SERVICE")
      ->allow_extra_args(false);
  command->add_option("-d,--delay", options->delay_seconds, "seconds between two looks")
      ->type_name("S")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  command->add_option("-n,--count", options->count, "end after so many looks, shown as blocks")
      ->type_name("COUNT")
      ->check(CLI::PositiveNumber);
  command->add_flag_callback(
      "--once", [options] { options->count = 1; }, "the same as --count 1");
  command->footer(
      "Rates are of the time since the look before, so the first has none. Keys: q quits, s sorts "
      "the shards by number, by commits or by sends in flight, p pauses. Where there is no "
      "terminal, looks are printed one below the other, until SIGINT.");
  OnChosen(command, invocation, options,
           [](Invocation* top, const TopOptions& chosen) { return Top(top, chosen).Run(); });
}

}  // namespace baton

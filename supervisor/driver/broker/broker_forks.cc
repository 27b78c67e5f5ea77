#include "supervisor/driver/broker/broker_forks.h"

#include <signal.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"
#include "supervisor/batond/spawn.h"
#include "supervisor/driver/code/code_tables.h"
#include "supervisor/driver/code/loaded_code.h"
#include "supervisor/driver/workers/spawn_plan.h"

namespace baton::driver_process {
namespace {

Identity With(Identity identity, const EngineOptions& options) {
  identity.realtime_priority = options.realtime_priority;
  identity.may_hurry = options.realtime_priority != 0;
  return identity;
}

// Returns only with an error.
absl::Status BecomeBroker(BrokerInheritance inheritance, const Identity& identity, int code_file) {
  BATON_ASSIGN_OR_RETURN(
      inheritance.lifeline,
      ConfineChild({.arena = inheritance.arena,
                    .device = inheritance.device,
                    .descriptors =
                        [&] {
                          std::vector<int> kept = inheritance.wakes->descriptors();
                          kept.insert(kept.end(),
                                      {inheritance.messages, inheritance.wake,
                                       inheritance.host_wake, inheritance.news, code_file});
                          return kept;
                        }(),
                    .lifeline = inheritance.lifeline,
                    .identity = With(identity, inheritance.options)}));
  BATON_ASSIGN_OR_RETURN(const BrokerTable table, BrokerTable::Of(inheritance));
  BATON_ASSIGN_OR_RETURN(const BatonDriverCode* const code, LoadDriverCode(code_file));
  (void)close(code_file);
  return absl::InternalError(code->run_broker(&table.host()));
}

void RunBroker(BrokerInheritance inheritance, const Identity& identity, const ProgramFile& code) {
  BeginChild("baton-broker");
  BoardStatus& failed = inheritance.board->failed[inheritance.place];
  failed.Store(BecomeBroker(std::move(inheritance), identity, code.descriptor()));
}

class PlacedForks final : public BrokerForks {
 public:
  PlacedForks(ReplaceableProgram code, const Identity& identity,
              std::function<void(const std::function<void()>&)> place)
      : code_(std::move(code)), identity_(identity), place_(std::move(place)) {}

  absl::StatusOr<ForkedChild> Fork(BrokerInheritance inheritance, Code which) override {
    BATON_ASSIGN_OR_RETURN(const ProgramFile code,
                           which == Code::kNext ? code_.ToRun() : code_.Proven());
    if (which == Code::kProven) (void)LoadDriverCode(code.descriptor());
    absl::StatusOr<ForkedChild> child = absl::UnknownError("");
    place_([&] { child = ForkChild([&] { RunBroker(std::move(inheritance), identity_, code); }); });
    return child;
  }
  std::string Reap(int pidfd) override { return ReapProgram(pidfd); }
  void Kill(int pidfd) override { (void)SendSignal(pidfd, SIGKILL); }
  absl::Status ReplaceCode(std::chrono::milliseconds probation) override {
    return code_.Replace(probation);
  }
  bool on_probation() const override { return code_.on_probation(); }
  std::chrono::milliseconds probation() const override { return code_.probation(); }
  void ProveCode() override { code_.Prove(); }
  void GiveUpCode() override { code_.GiveUp(); }

 private:
  ReplaceableProgram code_;
  const Identity identity_;
  const std::function<void(const std::function<void()>&)> place_;
};

}  // namespace

std::unique_ptr<BrokerForks> RealBrokerForks(
    ReplaceableProgram code, const Identity& identity,
    std::function<void(const std::function<void()>&)> place) {
  return std::make_unique<PlacedForks>(std::move(code), identity, std::move(place));
}

}  // namespace baton::driver_process

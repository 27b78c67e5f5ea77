#include "supervisor/driver/broker/broker_forks.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/status.h"
#include "supervisor/driver/workers/spawn_plan.h"

namespace baton::driver_process {
namespace {

// It stays the user that `baton-driver` is.
Identity IdentityOf(const EngineOptions& options) {
  Identity identity;
  identity.realtime_priority = options.realtime_priority;
  identity.may_hurry = options.realtime_priority != 0;
  return identity;
}

// Returns only with an error.
absl::Status BecomeBroker(BrokerInheritance inheritance) {
  BATON_ASSIGN_OR_RETURN(
      inheritance.lifeline,
      ConfineChild({.arena = inheritance.arena,
                    .device = inheritance.device,
                    .descriptors =
                        [&] {
                          std::vector<int> kept = inheritance.wakes->descriptors();
                          kept.insert(kept.end(), {inheritance.messages, inheritance.wake,
                                                   inheritance.host_wake, inheritance.news});
                          return kept;
                        }(),
                    .lifeline = inheritance.lifeline,
                    .identity = IdentityOf(inheritance.options)}));
  inheritance.self = getpid();
  // Lives as long as the process.
  return (new BrokerProcess(std::move(inheritance)))->Run();
}

class PlacedForks final : public BrokerForks {
 public:
  explicit PlacedForks(std::function<void(const std::function<void()>&)> place)
      : place_(std::move(place)) {}

  absl::StatusOr<ForkedChild> Fork(BrokerInheritance inheritance) override {
    absl::StatusOr<ForkedChild> child = absl::UnknownError("");
    place_([&] {
      child = ForkChild([&] {
        BeginChild("baton-broker");
        const absl::Status status = BecomeBroker(std::move(inheritance));
        std::fprintf(stderr, "baton-broker: ends: %s\n", std::string(MessageOf(status)).c_str());
      });
    });
    return child;
  }
  std::string Reap(int pidfd) override { return ReapProgram(pidfd); }
  void Kill(int pidfd) override { (void)SendSignal(pidfd, SIGKILL); }

 private:
  const std::function<void(const std::function<void()>&)> place_;
};

}  // namespace

std::unique_ptr<BrokerForks> RealBrokerForks(
    std::function<void(const std::function<void()>&)> place) {
  return std::make_unique<PlacedForks>(std::move(place));
}

}  // namespace baton::driver_process

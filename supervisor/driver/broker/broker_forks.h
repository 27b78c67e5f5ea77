// Makes and ends brokers' processes. Their code is a shared object, which can be replaced.
#ifndef SUPERVISOR_DRIVER_BROKER_BROKER_FORKS_H_
#define SUPERVISOR_DRIVER_BROKER_BROKER_FORKS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "supervisor/driver/broker/broker_process.h"
#include "supervisor/driver/workers/confine.h"
#include "supervisor/driver/workers/forked_child.h"

namespace baton {
class ReplaceableProgram;  // supervisor/batond/spawn.h
}  // namespace baton

namespace baton::driver_process {

// A simulation has its own. Thread-compatible: the driver process's one thread.
class BrokerForks {
 public:
  virtual ~BrokerForks() = default;
  // kNext: the code that is on probation.
  enum class Code { kProven, kNext };
  virtual absl::StatusOr<ForkedChild> Fork(BrokerInheritance inheritance, Code code) = 0;
  // Returns how the process has ended, once; empty: it lives.
  virtual std::string Reap(int pidfd) = 0;
  virtual void Kill(int pidfd) = 0;

  // See ReplaceableProgram.
  virtual absl::Status ReplaceCode(std::chrono::milliseconds /*probation*/) {
    return absl::UnimplementedError("brokers' code");
  }
  virtual bool on_probation() const { return false; }  // false: the code in place is the same
  virtual std::chrono::milliseconds probation() const { return {}; }
  virtual void ProveCode() {}
  virtual void GiveUpCode() {}
};

// Forks this process. `code`: see driver_code.h. Brokers become the user and group of `identity`,
// whose file of code has to be readable for them. `place` runs its argument where brokers are to
// run (ThreadsOn). A broker stores on the board why its code cannot be used.
std::unique_ptr<BrokerForks> RealBrokerForks(
    ReplaceableProgram code, const Identity& identity,
    std::function<void(const std::function<void()>&)> place);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_BROKER_BROKER_FORKS_H_

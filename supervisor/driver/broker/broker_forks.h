// Makes and ends brokers' processes.
#ifndef SUPERVISOR_DRIVER_BROKER_BROKER_FORKS_H_
#define SUPERVISOR_DRIVER_BROKER_BROKER_FORKS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "supervisor/driver/broker/broker_process.h"
#include "supervisor/driver/workers/forked_child.h"

namespace baton::driver_process {

// A simulation has its own. Thread-compatible: the driver process's one thread.
class BrokerForks {
 public:
  virtual ~BrokerForks() = default;
  virtual absl::StatusOr<ForkedChild> Fork(BrokerInheritance inheritance) = 0;
  // Returns how the process has ended, once; empty: it lives.
  virtual std::string Reap(int pidfd) = 0;
  virtual void Kill(int pidfd) = 0;
};

// Forks this process. `place` runs its argument where brokers are to run (ThreadsOn).
std::unique_ptr<BrokerForks> RealBrokerForks(
    std::function<void(const std::function<void()>&)> place);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_BROKER_BROKER_FORKS_H_

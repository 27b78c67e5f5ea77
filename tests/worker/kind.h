// In which kind of service the workers of a test serve: brokered, or native. The tests are the
// same, and are linked with one or the other.
//
// Native here is what the worker library sees of it: the host interface of lib/native/host.h, and
// nobody drives an owned shard but its owner, through it. The driver is the keeper's engine all the
// same, and the process is one: queues of the soft device do not survive a fork.
#ifndef TESTS_WORKER_KIND_H_
#define TESTS_WORKER_KIND_H_

#include <memory>

#include "supervisor/driver/engine/engine.h"
#include "tests/supervisor/keeper/keeper_thread.h"

namespace baton::testing {

class ServiceKind {
 public:
  ServiceKind();
  ~ServiceKind();

  static driver_process::EngineOptions EngineOptions();
  // From now on, and until this is destroyed, workers attach to this keeper as those of the kind
  // do.
  void Begin(keeper::testing::KeeperThread& keeper);
  // What becomes of shards whose owners are not turned by the test, and no drivers with it.
  void DriveForOwners();

 private:
  struct Hosts;
  std::unique_ptr<Hosts> hosts_;
};

}  // namespace baton::testing

#endif  // TESTS_WORKER_KIND_H_

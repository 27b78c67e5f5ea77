// How the workers of the demonstration's service come and go: brokered ones are programs that the
// demonstration starts, native ones are forked by the service's keeper.
#ifndef TESTS_DEMO_WORKERS_H_
#define TESTS_DEMO_WORKERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "tests/demo/scenario.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster.h"

namespace baton::demo {

// One process of the service, whoever started it.
class Worker {
 public:
  static absl::StatusOr<Worker> Open(uint64_t id, int version, pid_t pid);
  // One that the demonstration has started.
  static absl::StatusOr<Worker> Own(std::unique_ptr<harness::LedgerWorker> started);

  uint64_t id() const { return id_; }
  int version() const { return version_; }  // that its replies name

  absl::Status Signal(int signal) const;
  bool HasEnded() const;
  absl::Status WaitEnd() const;
  absl::Status Kill() const;  // returns when it is gone
  // The process, if it was started here.
  harness::ChildProcess* child() const { return child_.get(); }

 private:
  Worker() = default;

  uint64_t id_ = 0;
  int version_ = 0;
  FileDescriptor pidfd_;
  std::unique_ptr<harness::ChildProcess> child_;
};

// Between events one worker owns every shard. Thread-safety: none (ChildProcess).
class Workers {
 public:
  virtual ~Workers() = default;

  // What batond has to know of them.
  virtual absl::Status Configure(harness::ClusterOptions* options) const = 0;
  // Returns when there is an owner. `cluster` was started with these options, and outlives them.
  virtual absl::Status Start(harness::Cluster* cluster) = 0;
  // Ends those that are the demonstration's to end.
  virtual absl::Status Finish() = 0;

  const Worker& owner() const { return *owner_; }
  const Worker& standby() const { return *standby_; }  // after StandBy

  // One more is ready, and takes over when the owner dies.
  virtual absl::Status StandBy() = 0;
  // No more than the owner, as far as that can be had.
  virtual absl::Status DismissStandby() = 0;
  // The standby has become the owner. The former one serves no more, and may stand by, or has died.
  absl::Status OnHandoff();
  absl::Status OnDeath();

  // Kills every worker. The next one comes when it can.
  virtual absl::Status KillAll() = 0;
  virtual int VersionAfterKillAll() const = 0;
  virtual absl::Status OnKillAll() = 0;

  // File of the program that is called so.
  virtual std::string ProgramNamed(const std::string& name) const = 0;
  virtual absl::Status OnUpgrade(uint64_t new_worker_id, int version) = 0;
  virtual absl::Status OnBadUpgrade() = 0;

  // The owner, and so many that would take over from it, die of harness::kPoisonAmount.
  virtual absl::Status MakeMortal(size_t others) = 0;
  virtual absl::Status OnMortalsDead() = 0;  // all but one

 protected:
  explicit Workers(const DemoOptions& options) : options_(options) {}

  // Finds a worker that control lists.
  absl::StatusOr<Worker> Find(uint64_t id, int version);
  virtual absl::Status AfterHandoff() = 0;

  const DemoOptions& options_;
  harness::Cluster* cluster_ = nullptr;
  std::unique_ptr<Worker> owner_, standby_;
};

std::unique_ptr<Workers> MakeBrokeredWorkers(const DemoOptions& options);
std::unique_ptr<Workers> MakeNativeWorkers(const DemoOptions& options);

}  // namespace baton::demo

#endif  // TESTS_DEMO_WORKERS_H_

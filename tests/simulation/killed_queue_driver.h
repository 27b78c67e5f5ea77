// The engine's driver, which dies when the dice say so: at its crash points and in the middle of
// what it asks of the device. Another takes its place then, with nothing but the arena, the
// device's queues and the connection manager, may die of that too, and does what was asked.
#ifndef TESTS_SIMULATION_KILLED_QUEUE_DRIVER_H_
#define TESTS_SIMULATION_KILLED_QUEUE_DRIVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/local_driver.h"
#include "tests/simulation/context.h"
#include "tests/simulation/driver_deaths.h"
#include "tests/simulation/sim_device.h"

namespace baton::simulation {

class KilledQueueDriver final : public driver::QueueDriver {
 public:
  // Takes what the first driver of `local` has.
  KilledQueueDriver(native::LocalDriver* local, Context* context, SimDevice* device,
                    arena::Arena* arena, const Mortality& mortality);
  ~KilledQueueDriver() override;

  driver::CommitOutcome ApplyNext(uint32_t shard, absl::Status* error) override;
  absl::StatusOr<bool> PollCompletions(uint32_t shard) override;
  bool HandleEvent(uint32_t* shard) override;

  // Runs `work` of the engine, in which the driver may die. After a death `go_on` is called
  // instead, for the driver that follows, which may die in that, too.
  void Outlive(const std::function<void()>& work, const std::function<void()>& go_on);

  void Immortal() { deaths_.End(); }
  uint64_t deaths() const { return deaths_.count(); }
  const driver::RecoveryCounters& recovered() const { return sum_; }

 private:
  bool Dies(const char* where);
  // What `call` returns, by whoever lives to do it.
  template <typename Call>
  auto Survive(const Call& call);
  void Follow();
  void CheckGoneOn(const std::function<void()>& go_on);
  std::unique_ptr<QueueDriver> Recovered();
  std::unique_ptr<QueueDriver> RecoveredOnceMore();
  std::string Snapshot() const;

  Context* const context_;
  SimDevice* const sim_device_;
  arena::Arena* const memory_;
  native::LocalDriver* const local_;
  DriverDeaths deaths_;
  bool outlived_ = false;   // Outlive() runs, and nobody else outlives the driver
  std::vector<bool> news_;  // by shard: its owner may have missed something
  int running_ = 0;
  driver::RecoveryCounters sum_;
};

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_KILLED_QUEUE_DRIVER_H_

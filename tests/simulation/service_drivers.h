// The processes of a simulated service that have its device: one with the engine, whose driver dies
// and is followed in its place, or `baton-driver` with its brokers.
#ifndef TESTS_SIMULATION_SERVICE_DRIVERS_H_
#define TESTS_SIMULATION_SERVICE_DRIVERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/queue_driver.h"
#include "lib/verbs/verbs.h"
#include "supervisor/driver/engine/engine.h"
#include "supervisor/driver/engine/engine_listener.h"
#include "supervisor/driver/engine/service_engine.h"
#include "tests/simulation/context.h"
#include "tests/simulation/driver_deaths.h"
#include "tests/simulation/sim_device.h"

namespace baton::simulation {

// The pointers outlive what is made of it.
struct ServiceParts {
  Context* context = nullptr;
  SimDevice* device = nullptr;
  arena::Arena* arena = nullptr;
  driver_process::EngineListener* listener = nullptr;
  driver_process::EngineOptions options;
  Mortality mortality;
};

class ServiceDrivers {
 public:
  virtual ~ServiceDrivers() = default;

  virtual driver_process::ServiceEngine& engine() = 0;
  // One that is not in the middle of something does something.
  virtual void Run() = 0;
  // The process that has the engine does `work` when it runs next.
  virtual void Post(std::function<void()> work) = 0;
  // Returns whether that process is in the middle of something, so that nothing can be asked of it.
  virtual bool is_busy() const = 0;
  // These do what an order does, at once. REQUIRES: !is_busy().
  virtual absl::StatusOr<uint32_t> Connect(uint32_t shard, std::string_view private_data,
                                           uint64_t tag) = 0;
  virtual absl::Status CheckPlace(uint32_t slot) = 0;
  // `baton-driver` has come to one of its crash points.
  virtual void OnHostPoint(std::string_view where) = 0;
  // The lock of the worker's thread is marked. Returns whether anybody has seen it.
  virtual bool NoteDeath(uint32_t slot, uint64_t id) = 0;

  // No driver dies any more.
  virtual void Immortal() = 0;
  virtual uint64_t deaths() const = 0;
  virtual driver::RecoveryCounters recovered() const = 0;
};

// One step of TurnLoop: a turn, or the end of a sleep and a turn, and perhaps a sleep after it.
// `signalled`: the device has sent a signal.
template <typename Driver>
void TurnOrSleep(Context* context, bool signalled, Driver* driver, bool* asleep) {
  if (*asleep) {
    if (!signalled && !driver->AwaitSignal(0)) return;
    *asleep = false;
    driver->EndSleep();
    context->Note("driver: wakes");
  }
  const bool worked = driver->Turn();
  context->Note("driver: turn", worked);
  if (worked || !context->dice.OneIn(2)) return;
  *asleep = driver->BeginSleep();
  context->Note("driver: sleeps", *asleep);
  if (!*asleep) driver->EndSleep();
}

std::unique_ptr<ServiceDrivers> OneProcess(const ServiceParts& parts);
std::unique_ptr<ServiceDrivers> HostAndBrokers(const ServiceParts& parts);

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_SERVICE_DRIVERS_H_

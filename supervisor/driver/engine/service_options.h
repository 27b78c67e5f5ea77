// The settings of a service that its engine and its drivers share.
#ifndef SUPERVISOR_DRIVER_ENGINE_SERVICE_OPTIONS_H_
#define SUPERVISOR_DRIVER_ENGINE_SERVICE_OPTIONS_H_

#include <cstdint>

namespace baton::driver_process {

// An operator configures these for brokered and native services alike.
struct ServiceOptions {
  // After a death, a successor starts only when the whole former process is proven dead. After a
  // release it starts at once.
  bool outside_effects = false;
  // The engine's thread has this priority; in a native service, the workers' threads that notice
  // deaths have it. 0: none.
  int realtime_priority = 0;
  // Deaths on one completion after which its connection is failed.
  uint32_t poison_deaths = 3;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_SERVICE_OPTIONS_H_

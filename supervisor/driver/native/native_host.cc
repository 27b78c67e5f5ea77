// The symbol of the driver's executable that a service's object uses (lib/native/host.md).
#include "lib/native/host.h"
#include "supervisor/driver/workers/fork_worker.h"

extern "C" BatonNativeHost* baton_native_host() {
  return baton::driver_process::HostOfThisProcess();
}

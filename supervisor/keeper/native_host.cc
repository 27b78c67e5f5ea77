// What a service's object finds in the keeper's executable (lib/native/host.md).
#include "lib/native/host.h"
#include "supervisor/keeper/fork_worker.h"

extern "C" BatonNativeHost* baton_native_host() { return baton::keeper::HostOfThisProcess(); }

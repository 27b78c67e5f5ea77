// The symbol of the driver's executable that a service's object uses (lib/native/host.md).
#include "lib/native/host.h"
#include "supervisor/keeper/fork_worker.h"

extern "C" BatonNativeHost* baton_native_host() { return baton::keeper::HostOfThisProcess(); }

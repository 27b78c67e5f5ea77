// Declares a worker library and has no main.
#include "lib/native/host.h"

extern "C" const BatonNativeObject baton_native_object = {BATON_NATIVE_VERSION,
                                                          sizeof(BatonNativeObject), "9.8.7"};

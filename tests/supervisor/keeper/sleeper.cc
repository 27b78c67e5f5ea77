// An object of a native worker that never attaches, nor ends.
#include <unistd.h>

#include "lib/native/host.h"

extern "C" const BatonNativeObject baton_native_object = {BATON_NATIVE_VERSION,
                                                          sizeof(BatonNativeObject), "a test"};

int main() {
  for (;;) pause();
}

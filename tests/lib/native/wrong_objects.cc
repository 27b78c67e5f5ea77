// Objects that are no native workers. BUILD.bazel compiles this file once for each of the macros.
#include "lib/native/host.h"

#if defined(FOREIGN_OBJECT)

// It is a program of something else.
int main() { return 0; }

#elif defined(HEADLESS_OBJECT)

// It declares a worker library and has no main.
extern "C" const BatonNativeObject baton_native_object = {BATON_NATIVE_VERSION,
                                                          sizeof(BatonNativeObject), "9.8.7"};

#elif defined(INCOMPLETE_OBJECT)

// It needs what no library of its has.
extern "C" const BatonNativeObject baton_native_object = {BATON_NATIVE_VERSION,
                                                          sizeof(BatonNativeObject), "9.8.7"};

void FunctionThatNobodyHas();

int main() {
  FunctionThatNobodyHas();
  return 0;
}

#elif defined(NEWER_OBJECT)

// It is of a release whose native interface is another.
extern "C" const BatonNativeObject baton_native_object = {99, sizeof(BatonNativeObject), "9.8.7"};

int main() { return 0; }

#endif

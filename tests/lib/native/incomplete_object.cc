// Needs what no library of its has.
#include "lib/native/host.h"

extern "C" const BatonNativeObject baton_native_object = {BATON_NATIVE_VERSION,
                                                          sizeof(BatonNativeObject), "9.8.7"};

void FunctionThatNobodyHas();

int main() {
  FunctionThatNobodyHas();
  return 0;
}

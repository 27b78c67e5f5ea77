// Of a release whose native interface is another.
#include "lib/native/host.h"

extern "C" const BatonNativeObject baton_native_object = {99, sizeof(BatonNativeObject), "9.8.7"};

int main() { return 0; }

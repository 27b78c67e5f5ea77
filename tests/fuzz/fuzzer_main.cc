// One fuzzer: libFuzzer's entry for the target that BATON_FUZZ_TARGET names.
#include "tests/fuzz/program.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baton::fuzz::BATON_FUZZ_TARGET(data, size);
  return 0;
}

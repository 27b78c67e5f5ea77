// What another process writes at the very moment that its driver reads: in a build with clang
// (--config=fuzz) every load and every copy that the driver and the engine make is seen before it
// is made, so an input says between which two of them something changes. Other builds see none.
#ifndef TESTS_FUZZ_SHARED_READS_H_
#define TESTS_FUZZ_SHARED_READS_H_

#include <cstddef>
#include <cstdint>

#include "tests/fuzz/program.h"

namespace baton::fuzz {

// Changes of the words that are about to be read, or of those behind them.
struct Interference {
  uint32_t reads_before = 0;  // left alone first, and between two changes
  uint32_t times = 0;
  uint32_t words_behind = 0;
  bool add = false;  // to what is there; else it is replaced
  uint64_t value = 0;

  static Interference Of(Program& program) {
    Interference some;
    some.reads_before = program.Byte() % 96;
    some.times = 1 + program.Byte() % 4;
    some.words_behind = program.Byte() % 16;
    const uint64_t value = program.Near(0);
    some.add = (some.times & 1) != 0;
    some.value = value << (program.Byte() % 64);
    return some;
  }
};

// Watches the reads of one memory. Only the thread that reads the memory uses this class.
class SharedReads {
 public:
  static void Watch(void* memory, size_t bytes);
  static void Forget();
  static void Interfere(const Interference& interference);
  static uint64_t seen();  // reads since Watch
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_SHARED_READS_H_

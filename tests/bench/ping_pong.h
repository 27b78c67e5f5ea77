// What two threads need to tell each other something, without any of Baton: the limit of every
// path that crosses from one processor to another.
#ifndef TESTS_BENCH_PING_PONG_H_
#define TESTS_BENCH_PING_PONG_H_

#include <cstdint>
#include <vector>

namespace baton::bench {

// Of those that we may run on. -1, both: there is only one, and nothing is bound to any.
struct TwoProcessors {
  int ours = -1;
  int others = -1;
};
TwoProcessors FindTwoProcessors();

// The calling thread, from now on; -1: wherever it may run.
void RunOnProcessor(int processor);

// There and back, `count` times, over two cache lines: the calling thread, and one on `processor`
// that echoes. Both spin. In nanoseconds.
std::vector<uint32_t> CacheLinePingPong(uint32_t count, int processor);

// One message of a client, handed on by an engine to a worker, and its answer back the same way:
// three threads that do nothing else, and sleep whenever a look is in vain (FUTEX_WAIT).
std::vector<uint32_t> FutexChain(uint32_t count);

}  // namespace baton::bench

#endif  // TESTS_BENCH_PING_PONG_H_

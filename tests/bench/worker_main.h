// The workers of the benchmark share this: their command line, and their life.
#ifndef TESTS_BENCH_WORKER_MAIN_H_
#define TESTS_BENCH_WORKER_MAIN_H_

#include <string>

#include "worker/worker.h"

namespace baton::bench {

// Attaches `service`, listens, says "bench server ready port=N", and serves until it is asked to
// end. Returns the exit code of `program`.
int ServeWorker(int argc, char** argv, const std::string& program, const std::string& description,
                Service* service);

}  // namespace baton::bench

#endif  // TESTS_BENCH_WORKER_MAIN_H_

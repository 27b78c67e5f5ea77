// nvmed as a program: a worker of Baton with its command line.
#ifndef WORKER_EXAMPLES_NVMED_NVMED_PROGRAM_H_
#define WORKER_EXAMPLES_NVMED_NVMED_PROGRAM_H_

#include <cstdint>

namespace baton::nvmed {

// Serves as `version` until it is asked to end. Returns the exit status.
int Main(uint32_t version, int argc, char** argv);

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_NVMED_PROGRAM_H_

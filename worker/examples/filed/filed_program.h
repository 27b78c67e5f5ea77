// filed as a program: a worker of Baton with its command line.
#ifndef WORKER_EXAMPLES_FILED_FILED_PROGRAM_H_
#define WORKER_EXAMPLES_FILED_FILED_PROGRAM_H_

#include <cstdint>

namespace baton::filed {

// Serves as `version` until it is asked to end. Returns the exit status.
int Main(uint32_t version, int argc, char** argv);

}  // namespace baton::filed

#endif  // WORKER_EXAMPLES_FILED_FILED_PROGRAM_H_

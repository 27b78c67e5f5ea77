// Reaps a process that was started for a worker.
#ifndef SUPERVISOR_DRIVER_WORKERS_REAP_PROGRAM_H_
#define SUPERVISOR_DRIVER_WORKERS_REAP_PROGRAM_H_

#include <string>

namespace baton::driver_process {

// Returns how it ended, "was killed by signal 6 (Aborted)"; empty while it runs. Does not block.
// One that is no child of this process has only "ended".
std::string ReapProgram(int pidfd);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_WORKERS_REAP_PROGRAM_H_

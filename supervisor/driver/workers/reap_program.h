// Reaps a process that was started for a worker.
#ifndef SUPERVISOR_DRIVER_WORKERS_REAP_PROGRAM_H_
#define SUPERVISOR_DRIVER_WORKERS_REAP_PROGRAM_H_

#include <string>

namespace baton::driver_process {

// Reaps the process if it has ended, and returns how: "was killed by signal 6 (Aborted)", or just
// "ended" if it is no child of this process. Returns "" while it runs. Does not block.
std::string ReapProgram(int pidfd);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_WORKERS_REAP_PROGRAM_H_

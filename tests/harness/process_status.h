// Reads what the kernel says about processes, and finds which process is whose.
#ifndef TESTS_HARNESS_PROCESS_STATUS_H_
#define TESTS_HARNESS_PROCESS_STATUS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace baton::harness {

// Children of all threads of the process.
std::vector<pid_t> ChildrenOf(pid_t process);

// A field of /proc/PID/status, for example "State"; "" if there is no such process.
std::string StatusOf(pid_t process, const std::string& field);

// Returns true for a zombie, too: it has no memory and no ports any more.
bool IsGone(pid_t process);

// The number of descriptors that the process has open; 0 if it is gone.
size_t DescriptorsOf(pid_t process);

// The process that is the NIC of this keeper's service; 0 if it has none.
pid_t NicOf(pid_t keeper);

}  // namespace baton::harness

#endif  // TESTS_HARNESS_PROCESS_STATUS_H_

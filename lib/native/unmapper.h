// The memory of a process that has ended is unmapped in small pieces.
//
// The kernel unmaps it in one go: milliseconds for a hundred megabytes. A kernel that is not
// preempted gives that processor to nobody meanwhile, and those who wait for it may be the heir,
// who was woken there, and the NIC.
#ifndef LIB_NATIVE_UNMAPPER_H_
#define LIB_NATIVE_UNMAPPER_H_

#include "absl/status/status.h"

namespace baton::native {

inline constexpr char kUnmapperName[] = "baton-unmapper";  // in /proc/PID/comm

// Starts a process that shares this process's memory, but no descriptor. It sleeps until this
// process has ended, in whatever way, unmaps all shared mappings piece by piece, and ends. It is a
// child of which wait(2) does not tell. Called once in a process; takes under a millisecond. An
// error: the process's end is as ever.
absl::Status StartUnmapper();

}  // namespace baton::native

#endif  // LIB_NATIVE_UNMAPPER_H_

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

// Starts a process that shares this process's memory, and no descriptor but `kept` (-1: none). It
// sleeps until this process has ended, unmaps all shared mappings piece by piece, and ends. It is a
// child of which wait(2) does not tell. Called once in a process; takes under a millisecond. An
// error: the process's end is as ever.
//
// So the memory of a process that has ended, and what it had mapped of devices and files, stays for
// some time: 30 ms for 100 MB, and for a large mapping up to 200 ms. Requests of aio(7) end with
// it. If the process executes another program, the unmapper keeps what was mapped before until that
// has ended. Whoever kills it, as the kernel does for want of memory, takes its effect away.
absl::Status StartUnmapper(int kept);

}  // namespace baton::native

#endif  // LIB_NATIVE_UNMAPPER_H_

// Unmaps the memory of an ended process in small pieces.
//
// The kernel would unmap it in one go, which takes milliseconds for 100 MB. A kernel without
// preemption runs nothing else on that processor meanwhile, though the heir or the NIC may wait.
#ifndef LIB_NATIVE_UNMAPPER_H_
#define LIB_NATIVE_UNMAPPER_H_

#include "absl/status/status.h"

namespace baton::native {

inline constexpr char kUnmapperName[] = "baton-unmapper";  // in /proc/PID/comm

// Starts a process that shares this process's memory, and no descriptor but `kept` (-1: none). It
// sleeps until this process has ended, unmaps all shared mappings piece by piece, and ends. wait(2)
// does not report this child. Call it once in a process; it takes under a millisecond. Error: the
// kernel unmaps the memory as usual.
//
// The memory of the ended process, including mapped devices and files, stays for some time: 30 ms
// for 100 MB, and up to 200 ms for a large mapping. Requests of aio(7) end with it. If this process
// executes another program, the unmapper keeps the former mappings until that has ended. If the
// unmapper is killed, for example for want of memory, the kernel unmaps as usual.
absl::Status StartUnmapper(int kept);

}  // namespace baton::native

#endif  // LIB_NATIVE_UNMAPPER_H_

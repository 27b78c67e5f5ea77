// These functions change a process's page tables so that an heir does not wait: they fill those of
// a standby, and empty those of an ended process.
#ifndef LIB_NATIVE_MAPPINGS_H_
#define LIB_NATIVE_MAPPINGS_H_

#include <cstddef>

#include "absl/status/status.h"

namespace baton::native {

// Prevents page faults in a forked standby when it takes over. Fills this process's page tables:
// shared memory, code, and its own copies of the private pages that it shares with its parent since
// fork(2). Pages that fail, and all pages on a kernel before 5.14, are left to page faults. Takes
// milliseconds.
//
// If this process has one thread, which unmaps nothing meanwhile, it also reads a byte of each
// page. A hypervisor without nested page tables fills its own tables only then: 5 us for each page
// were measured, where a first access to a page without Prefault() takes 11 us.
//
// `left_out`: memory that is not touched.
struct LeftOut {
  const void* begin = nullptr;
  size_t bytes = 0;
};
void Prefault(LeftOut left_out = {});

inline constexpr char kUnmapperName[] = "baton-unmapper";  // in /proc/PID/comm

// Starts a process that shares this process's memory, and no descriptor but `kept` (-1: none). It
// sleeps until this process has ended, unmaps all shared mappings piece by piece, and ends. wait(2)
// does not report this child. Call it once in a process; it takes under a millisecond. Error: the
// kernel unmaps the memory as usual.
//
// The kernel would unmap the memory in one go, which takes milliseconds for 100 MB. A kernel
// without preemption runs nothing else on that processor meanwhile, though the heir or the NIC may
// wait.
//
// The memory of the ended process, including mapped devices and files, stays for some time: 30 ms
// for 100 MB, and up to 200 ms for a large mapping. Requests of aio(7) end with it. If this process
// executes another program, the unmapper keeps the former mappings until that has ended. If the
// unmapper is killed, for example for want of memory, the kernel unmaps as usual.
absl::Status StartUnmapper(int kept);

}  // namespace baton::native

#endif  // LIB_NATIVE_MAPPINGS_H_

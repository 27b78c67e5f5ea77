// Prevents page faults in a forked standby when it takes over.
#ifndef LIB_NATIVE_PREFAULT_H_
#define LIB_NATIVE_PREFAULT_H_

namespace baton::native {

// Fills this process's page tables: shared memory, code, and its own copies of the private pages
// that it shares with its parent since fork(2). Pages that fail, and all pages on a kernel before
// 5.14, are left to page faults. Takes milliseconds.
void Prefault();

}  // namespace baton::native

#endif  // LIB_NATIVE_PREFAULT_H_

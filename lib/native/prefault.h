// A forked process that stands by takes no page fault when it is needed.
#ifndef LIB_NATIVE_PREFAULT_H_
#define LIB_NATIVE_PREFAULT_H_

namespace baton::native {

// Fills this process's page tables for all that it has mapped: shared memory, code, and its own
// copies of the private pages that fork(2) has left it together with its parent. What cannot be
// had, or a kernel before 5.14 cannot do, is left to page faults. Takes milliseconds.
void Prefault();

}  // namespace baton::native

#endif  // LIB_NATIVE_PREFAULT_H_

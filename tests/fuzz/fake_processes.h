// Stands between the keeper's code and the system, by the linker's --wrap, while a Guard lives:
// the processes behind its clients are event descriptors that die when they are killed, and no
// address but this machine's is bound or connected to.
#ifndef TESTS_FUZZ_FAKE_PROCESSES_H_
#define TESTS_FUZZ_FAKE_PROCESSES_H_

#include <cstdint>

#include "lib/base/file_descriptor.h"

namespace baton::fuzz {

class FakeProcesses {
 public:
  class Guard {
   public:
    Guard();
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
  };

  // Sets the user of whoever connects from now on, and whether their processes can be killed.
  static void SetPeer(uint32_t uid, bool killable);
  static void KillAll();                  // those that live end by themselves
  static void KillOne(uint32_t ordinal);  // the n-th that was made, if there is one
  static uint32_t count();                // made since the guard

  // One that the keeper has started: what it gets for a pidfd.
  static FileDescriptor Start();

  // A port that something in this process listens on; 0: none.
  static uint16_t listening_port();
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_FAKE_PROCESSES_H_

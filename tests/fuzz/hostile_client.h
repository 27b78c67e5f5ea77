// A client of a NIC that writes whatever it can: messages to its sockets, and bytes to the memory
// in which its queues lie.
#ifndef TESTS_FUZZ_HOSTILE_CLIENT_H_
#define TESTS_FUZZ_HOSTILE_CLIENT_H_

#include <cstdint>

#include "lib/base/file_descriptor.h"
#include "lib/nic/control_format.h"
#include "lib/nic/control_socket.h"
#include "lib/nic/nic.h"
#include "tests/fuzz/hostile_memory.h"
#include "tests/fuzz/hostile_queues.h"
#include "tests/fuzz/program.h"

namespace baton::fuzz {

class HostileClient : private HostileQueues {
 public:
  // All of them outlive it. It opens a file for objects, and makes some of each kind.
  HostileClient(nic::Nic* nic, const Victim& victim, HostileMemory* memory, Program* program);

  // Does the next thing of the program.
  void Step();

 private:
  void Open();
  void MakeObjects();
  void Close();

  // Messages. Call returns the number that the reply has, or 0 if the NIC has refused.
  template <typename Message>
  uint32_t Call(Message message, int passed = -1);
  nic::control::Reply Exchange(const void* bytes, size_t size, int passed);
  void Judge(const void* bytes, size_t size, int passed, const nic::control::Reply& reply);
  void CallAnything();
  void CallBytes();
  void MakeAnything();
  template <typename Message>
  void CallWith(Message message) {
    (void)Call(message);
  }

  nic::control::Place Place(uint64_t near);

  nic::Nic* const nic_;
  FileDescriptor file_;
  FileDescriptor calls_;
  bool file_abused_ = false;  // the NIC may have ended it
  uint32_t last_tag_ = 0;
  FileDescriptor answer_;  // came with the last reply
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_HOSTILE_CLIENT_H_

// A client of a NIC that writes whatever it can: messages to its sockets, and bytes to the memory
// in which its queues lie.
#ifndef TESTS_FUZZ_HOSTILE_CLIENT_H_
#define TESTS_FUZZ_HOSTILE_CLIENT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "lib/nic/control_format.h"
#include "lib/nic/control_socket.h"
#include "lib/nic/nic.h"
#include "tests/fuzz/honest_client.h"
#include "tests/fuzz/hostile_memory.h"
#include "tests/fuzz/program.h"

namespace baton::fuzz {

class HostileClient {
 public:
  // All of them outlive it. It opens a file for objects, and makes some of each kind.
  HostileClient(nic::Nic* nic, const HonestClient* honest, HostileMemory* memory, Program* program);

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

  // What messages and requests name: mostly what there is, sometimes another client's.
  uint32_t Number();
  nic::control::Place Place(uint64_t near);
  uint32_t Key();
  uint64_t Address();
  uint32_t Length();

  // Memory.
  void PostSend();
  void PostReceive();
  void PostShared();
  void WriteBytes();
  void Ring(uint32_t second_word);
  void RingAnything();
  void Consume();

  struct Queues {  // a queue pair of MakeObjects
    uint32_t number = 0;
    uint16_t sends = 0;
    uint16_t receives = 0;
  };

  nic::Nic* const nic_;
  const HonestClient* const honest_;
  HostileMemory* const memory_;
  Program& program_;
  FileDescriptor file_;
  FileDescriptor calls_;
  bool file_abused_ = false;  // the NIC may have ended it
  uint32_t last_tag_ = 0;
  std::vector<uint32_t> numbers_;  // of all that it has made
  std::array<Queues, 2> queue_pairs_;
  uint32_t memory_file_ = 0;
  uint32_t reg_ = 0;
  uint32_t channel_ = 0;
  uint32_t key_ = 0;
  uint32_t queue_ = 0;
  uint32_t shared_ = 0;
  uint16_t shared_posted_ = 0;
  uint32_t rung_ = 0;
  uint32_t second_rung_ = 0;
  uint32_t armed_ = 0;
  uint32_t consumed_ = 0;
  FileDescriptor wake_;
  FileDescriptor answer_;  // came with the last reply
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_HOSTILE_CLIENT_H_

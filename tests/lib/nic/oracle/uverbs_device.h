// An mlx5 device as libibverbs and libmlx5 see one in this process: their system calls are answered
// here, and a NIC in software has the objects.
#ifndef TESTS_LIB_NIC_ORACLE_UVERBS_DEVICE_H_
#define TESTS_LIB_NIC_ORACLE_UVERBS_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "lib/base/file_descriptor.h"
#include "lib/nic/client.h"
#include "tests/lib/nic/harness.h"

namespace baton::nic::oracle {

// The records of a completion queue: libmlx5 has no public names for them.
inline constexpr size_t kConsumedRecord = 0;
inline constexpr size_t kArmRecord = 1;

// The only one of its process, while it lives. Thread-compatible.
//
// libmlx5 stores its doorbells in one word, so the NIC has to look at the records instead. Scan()
// asks it to. A look at a completion queue that nobody armed yet
// makes an event in vain.
class UverbsDevice {
 public:
  // The device reaches the memory of `arena` alone, whose first page is a doorbell page. Both
  // outlive it.
  UverbsDevice(Client* client, SharedFile* arena);
  UverbsDevice(const UverbsDevice&) = delete;
  UverbsDevice& operator=(const UverbsDevice&) = delete;
  ~UverbsDevice();

  // Opens it by Debian's libibverbs. The caller closes the context before the device ends.
  ibv_context* Open();

  // Asks the NIC to look at all records in its next turn, and passes on the events that it made.
  void Scan();

  // Returns the doorbell that libmlx5 stored last for a send, if it stored one since the last call.
  std::optional<uint64_t> TakeRing();

  verbs::mlx5::DoorbellPage* page() const;
  int wake() const { return reg_.descriptor.get(); }

  // ---------------------------------------------------------------- system calls
  // Each returns what the kernel would, with errno set where that is -1.
  static bool IsPath(const char* path);
  static UverbsDevice* OfDescriptor(int fd);  // nullptr: it is none of the device's
  static UverbsDevice* Current();
  int OpenDescriptor();
  int Control(unsigned long request, void* argument);

 private:
  class Attributes;
  struct CompletionChannel {
    uint64_t user_handle = 0;  // of the completion queue
    int events = -1;           // libibverbs reads them from the other end
    uint32_t reported = 0;     // events so far
    Client::Made channel;      // the NIC's
  };
  struct QueuePairState {
    bool fresh = true;  // a new one is in INIT on the NIC, and in RESET for libibverbs
    uint32_t peer = 0;
  };

  int InvokeWrite(Attributes* attributes);
  int Command(uint32_t number, bool extended, Attributes* attributes);
  int AllocateRegister(Attributes* attributes);
  int GetContext(Attributes* attributes);
  int QueryDevice(bool extended, Attributes* attributes);
  int QueryPort(Attributes* attributes);
  int RegisterMemory(Attributes* attributes);
  int CreateCompletionChannel(Attributes* attributes);
  int CreateCompletionQueue(bool extended, Attributes* attributes);
  int DestroyCompletionQueue(Attributes* attributes);
  int CreateQueuePair(bool extended, Attributes* attributes);
  int ModifyQueuePair(Attributes* attributes);
  int QueryQueuePair(Attributes* attributes);
  int Destroy(control::Kind kind, uint32_t number);
  control::Place PlaceOf(uint64_t address) const;

  Client* const client_;
  SharedFile* const arena_;
  FileDescriptor uar_pages_;  // what libmlx5 maps and stores doorbells to
  uint8_t* uar_ = nullptr;
  uint32_t uar_count_ = 0;
  int descriptor_ = -1;  // libibverbs has it
  uint32_t file_ = 0;
  Client::Made reg_;
  uint32_t domains_ = 0;
  std::map<int, FileDescriptor> event_ends_;        // by the end that libibverbs has
  std::map<uint32_t, CompletionChannel> channels_;  // by the number of the completion queue
  std::map<uint32_t, QueuePairState> queue_pairs_;
};

}  // namespace baton::nic::oracle

#endif  // TESTS_LIB_NIC_ORACLE_UVERBS_DEVICE_H_

// An mlx5 device as libibverbs and libmlx5 see one in this process: their system calls are answered
// here, and a NIC in software has the objects.
#ifndef TESTS_LIB_NIC_ORACLE_UVERBS_DEVICE_H_
#define TESTS_LIB_NIC_ORACLE_UVERBS_DEVICE_H_

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

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
// asks it to. A look at a completion queue that nobody armed yet makes an event in vain. A
// completion channel has one completion queue.
class UverbsDevice {
 public:
  // The device reaches the memory of `arena`, whose first page is a doorbell page, and what was
  // added. Both outlive it.
  UverbsDevice(Client* client, SharedFile* arena);
  UverbsDevice(const UverbsDevice&) = delete;
  UverbsDevice& operator=(const UverbsDevice&) = delete;
  ~UverbsDevice();

  // Memory of a memfd that is mapped at `begin`.
  void AddMemory(int memfd, const uint8_t* begin, size_t bytes);

  // Opens it by Debian's libibverbs. The caller closes the context before the device ends.
  ibv_context* Open();

  // Asks the NIC to look at all records in its next turn. Any process may call it, in any thread.
  void Scan() const;
  // Does so every 50 us, for a NIC in another process.
  void ScanAtMost(uint64_t scans) const;

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
  bool HasEvents(int fd) const { return channels_.contains(fd); }
  ssize_t ReadEvent(int fd, void* event, size_t size);

 private:
  class Attributes;
  struct Memory {
    uint64_t begin;
    uint64_t bytes;
    uint32_t file;
  };
  struct CompletionChannel {
    uint32_t number = 0;       // the NIC's
    uint32_t queue = 0;        // its completion queue
    uint64_t user_handle = 0;  // of that
    uint32_t reported = 0;     // events so far
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
  std::vector<Memory> memories_;
  Client::Made reg_;
  uint32_t domains_ = 0;
  std::map<int, CompletionChannel> channels_;  // by the descriptor, which libibverbs has
  std::map<uint32_t, QueuePairState> queue_pairs_;
};

}  // namespace baton::nic::oracle

#endif  // TESTS_LIB_NIC_ORACLE_UVERBS_DEVICE_H_

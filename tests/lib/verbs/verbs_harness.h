// Two devices and what a test needs to connect and drive them, in terms of verbs.h alone.
#ifndef TESTS_LIB_VERBS_VERBS_HARNESS_H_
#define TESTS_LIB_VERBS_VERBS_HARNESS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/verbs/verbs.h"

namespace baton::verbs::testing {

struct DeviceFactory {
  std::string name;
  std::function<absl::StatusOr<std::unique_ptr<Device>>()> create;
  std::string host;  // an address of the device
};

// A device with one completion queue for all; keeps what it took.
struct Side {
  explicit Side(std::unique_ptr<Device> owned, uint32_t entries = 4096);
  ~Side();

  void Turn();  // one turn of the loop
  std::unique_ptr<QueuePair> MakeQueuePair(uint32_t sends = 64, uint32_t receives = 64,
                                           uint32_t sges = 4, uint32_t inline_bytes = 0);

  std::unique_ptr<Device> device;
  std::unique_ptr<CompletionQueue> queue;
  std::unique_ptr<QueuePair> queue_pair;
  std::unique_ptr<ConnectionId> id;
  std::deque<CmEvent> events;
  std::deque<DeviceEvent> device_events;
  std::deque<Completion> completions;
  absl::Status poll_status;
};

// Shared memory with a region over all of it, as verbs.h wants it.
class Buffer {
 public:
  Buffer(Device* device, size_t size, uint32_t access);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  uint64_t address(size_t offset = 0) const { return reinterpret_cast<uintptr_t>(data_) + offset; }
  ScatterGather Sge(size_t offset, size_t length) const {
    return {address(offset), static_cast<uint32_t>(length), region->lkey()};
  }
  void Fill(size_t offset, std::string_view text);
  std::string Text(size_t offset, size_t length) const;
  uint64_t& Word(size_t offset) const { return *reinterpret_cast<uint64_t*>(data_ + offset); }

  std::unique_ptr<MemoryRegion> region;

 private:
  uint8_t* data_;
  size_t size_;
};

inline constexpr uint32_t kAllAccess = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic;

// Turns both sides until `done` returns true, for at most fifteen seconds (ten times as long in the
// virtual machine). Returns whether it did. `done` may poll a completion: it is not called again
// after that.
bool Pump(Side& a, Side& b, const std::function<bool()>& done);

// Whether `side` got an event of this type next; it is moved to *event.
bool AwaitEvent(Side& side, Side& other, CmEventType type, CmEvent* event);
// The next completion of `side`; a wr_id of ~0 when none came.
Completion AwaitCompletion(Side& side, Side& other);

// The server listens, the client connects, both reach kEstablished.
struct ConnectOptions {
  ConnectionParameters client = {};
  ConnectionParameters server = {};
  std::string host = "127.0.0.1";
};
void Connect(Side& client, Side& server, const ConnectOptions& options = {});

SendRequest Request(Opcode opcode, uint64_t wr_id);
// For the one-sided opcodes.
SendRequest RemoteRequest(Opcode opcode, uint64_t wr_id, uint64_t remote_address, uint32_t rkey);

absl::Status PostReceive(QueuePair& queue_pair, uint64_t wr_id,
                         const std::vector<ScatterGather>& sges);
absl::Status PostSend(QueuePair& queue_pair, SendRequest request,
                      const std::vector<ScatterGather>& sges);

}  // namespace baton::verbs::testing

#endif  // TESTS_LIB_VERBS_VERBS_HARNESS_H_

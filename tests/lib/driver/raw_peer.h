// The other end of a connection, in plain verbs on a device of its own: knows nothing of Baton.
#ifndef TESTS_LIB_DRIVER_RAW_PEER_H_
#define TESTS_LIB_DRIVER_RAW_PEER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/verbs/verbs.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::driver::testing {

// Its memory has kSlots receive slots and as many send slots of kSlotBytes.
class RawPeer {
 public:
  static constexpr uint32_t kSlots = 64;
  static constexpr uint32_t kSlotBytes = 1024;

  explicit RawPeer(uint32_t max_requests = kSlots,
                   const verbs::testing::Fabric& fabric = verbs::testing::FabricUnderTest());
  ~RawPeer();

  void Connect(uint16_t port, std::string_view private_data = {});
  uint16_t Listen();  // and accepts, or with Refuse rejects, the first that asks
  void Refuse(std::string_view private_data) {
    refuse_ = true;
    answer_ = private_data;
  }
  void AnswerWith(std::string_view private_data) { answer_ = private_data; }
  void Disconnect();
  void Vanish();  // destroys its connection: it is gone as when its process dies

  void Turn();  // one turn of its loop

  // Posts a receive of a whole slot; its message is told in `received`.
  void Receive();
  void Send(std::string_view text);  // at most kSlotBytes
  // Any request whose local buffer is `length` bytes of the send slot that Send would take next.
  void Post(verbs::SendRequest request, uint32_t length);

  uint8_t* memory() const { return memory_; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_); }
  uint32_t rkey() const { return region_->rkey(); }
  uint8_t* send_slot(uint64_t index) const {
    return memory_ + (kSlots + index % kSlots) * kSlotBytes;
  }

  verbs::ConnectionParameters parameters;  // of Connect

  bool established = false;
  bool rejected = false;
  bool unreachable = false;
  bool disconnected = false;
  std::string private_data;             // of the answer, or of who asked
  std::vector<std::string> received;    // messages, oldest first
  std::vector<uint32_t> immediates;     // of those that had one
  std::vector<verbs::Completion> sent;  // completions of sends, oldest first
  uint32_t flushed_receives = 0;        // or failed

 private:
  verbs::ScatterGather Sge(const uint8_t* at, uint32_t length) const;
  void OnEvent(verbs::CmEvent event);

  const verbs::testing::Fabric fabric_;
  std::unique_ptr<verbs::Device> device_;
  uint8_t* memory_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::Listener> listener_;
  std::unique_ptr<verbs::ConnectionId> id_;
  std::string answer_;
  bool refuse_ = false;
  uint64_t posted_sends_ = 0;
  uint64_t posted_receives_ = 0;
};

// Turns until `done` holds, for at most ten seconds (wait_until.h) or BATON_PUMP_MS; whether it
// came to that.
bool Pump(const std::function<void()>& turn, const std::function<bool()>& done);

}  // namespace baton::driver::testing

#endif  // TESTS_LIB_DRIVER_RAW_PEER_H_

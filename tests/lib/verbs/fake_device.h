// Base classes of the devices in memory that tests and benchmarks use. A device overrides what
// makes it particular.
#ifndef TESTS_LIB_VERBS_FAKE_DEVICE_H_
#define TESTS_LIB_VERBS_FAKE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::testing {

constexpr CompletionOpcode CompletionOf(Opcode opcode) {
  switch (opcode) {
    case Opcode::kWrite:
    case Opcode::kWriteWithImmediate:
      return CompletionOpcode::kWrite;
    case Opcode::kRead:
      return CompletionOpcode::kRead;
    case Opcode::kCompareAndSwap:
      return CompletionOpcode::kCompareAndSwap;
    case Opcode::kFetchAndAdd:
      return CompletionOpcode::kFetchAndAdd;
    default:
      return CompletionOpcode::kSend;
  }
}

// A work request that was posted. It owns its list of buffers.
struct PostedRequest {
  explicit PostedRequest(const SendRequest& request);
  explicit PostedRequest(const ReceiveRequest& request);

  Completion Complete(uint32_t qp_number,
                      CompletionStatus status = CompletionStatus::kSuccess) const;
  // Returns the content of the buffers.
  std::string Gather() const;
  // Fills the buffers in their order. Returns the number of bytes that have no room.
  size_t Scatter(std::string_view bytes) const;

  uint64_t wr_id;
  bool receive;
  Opcode opcode = Opcode::kSend;
  uint32_t immediate = 0;
  bool inline_data = false;
  absl::InlinedVector<ScatterGather, 4> sges;
};

// Completions that nobody has polled yet, oldest first.
class CompletionFifo {
 public:
  void Add(const Completion& completion) { ready_.push_back(completion); }
  // Copies the oldest completions. Returns their number.
  size_t Copy(absl::Span<Completion> completions) const;
  void Drop(size_t count);  // the oldest

  bool Has(uint64_t wr_id) const;
  // Returns the wr_id of the last completion of a queue pair's sends, or receives.
  std::optional<uint64_t> Last(uint32_t queue_pair, bool receive) const;
  bool empty() const { return ready_.empty(); }
  size_t size() const { return ready_.size(); }
  const Completion& operator[](size_t i) const { return ready_[i]; }

 private:
  std::deque<Completion> ready_;
};

class KeyedRegion : public MemoryRegion {
 public:
  explicit KeyedRegion(uint32_t key) : key_(key) {}
  uint32_t lkey() const override { return key_; }
  uint32_t rkey() const override { return key_; }

 private:
  const uint32_t key_;
};

class FakeListener final : public Listener {
 public:
  explicit FakeListener(Address address) : address_(std::move(address)) {}
  Address address() const override { return address_; }

 private:
  const Address address_;
};

// A connection of a peer that wants nothing. Every operation succeeds.
class FakeConnectionId : public ConnectionId {
 public:
  Address local_address() const override { return {"127.0.0.1", 1}; }
  Address peer_address() const override { return {"127.0.0.1", 2}; }
  ReadDepths depths() const override { return {16, 16}; }
  absl::Status Accept(QueuePair*, const ConnectionParameters&) override { return absl::OkStatus(); }
  absl::Status Reject(std::string_view) override { return absl::OkStatus(); }
  absl::Status Disconnect() override { return absl::OkStatus(); }
};

class FakeQueuePair : public QueuePair {
 public:
  explicit FakeQueuePair(uint32_t number) : number_(number) {}
  uint32_t number() const override { return number_; }
  QueuePairState state() const override { return state_; }
  absl::Status SetError() override;

 protected:
  QueuePairState state_ = QueuePairState::kInit;

 private:
  const uint32_t number_;
};

class FakeDevice : public Device {
 public:
  static constexpr uint32_t kMaxPrivateData = 196;

  // The limits are higher than any test needs. There are no shared receive queues.
  DeviceLimits limits() const override;
  absl::StatusOr<std::unique_ptr<MemoryRegion>> RegisterMemory(void* address, size_t length,
                                                               uint32_t access) override;
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const Address& address, int backlog) override;
  bool NextEvent(CmEvent* event) override;
  bool NextDeviceEvent(DeviceEvent* event) override;
  void Progress() override {}
  int event_fd() const override { return -1; }
  // One process has all users of the device, so nothing has to survive a fork.
  absl::Status CheckForkable() const override { return absl::OkStatus(); }

  // These queue an event for NextEvent() or NextDeviceEvent().
  void Report(CmEventType type, ConnectionId* id);
  void Report(const DeviceEvent& event) { device_events_.push_back(event); }

 protected:
  // Returns true if one region contains the buffer and has the right kLocalWrite.
  bool IsRegistered(const ScatterGather& sge) const;

  Listener* listener_ = nullptr;  // the last that was made
  // A new connection in here may use the device: the destructor of a derived class clears events_.
  std::deque<CmEvent> events_;
  std::deque<DeviceEvent> device_events_;

 private:
  class Region;
  struct Range {
    uint64_t address = 0;
    uint64_t length = 0;
    uint32_t access = 0;
  };

  std::map<uint32_t, Range> regions_;  // by key
  uint32_t last_key_ = 0;
};

}  // namespace baton::verbs::testing

#endif  // TESTS_LIB_VERBS_FAKE_DEVICE_H_

// A verbs device without a wire: everything that its peers do, the test does, one step at a time.
// Aborts when its user breaks the contract of lib/verbs, or asks it to touch memory outside the
// regions that were registered.
#ifndef TESTS_FUZZ_MEMORY_DEVICE_H_
#define TESTS_FUZZ_MEMORY_DEVICE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/verbs/verbs.h"

namespace baton::fuzz {

class MemoryDevice;

class MemoryCompletionQueue final : public verbs::CompletionQueue {
 public:
  explicit MemoryCompletionQueue(uint32_t entries) : entries_(entries) {}
  absl::StatusOr<int> Poll(absl::Span<verbs::Completion> completions) override;
  absl::Status RequestNotification() override { return absl::OkStatus(); }
  void Add(const verbs::Completion& completion);

 private:
  const uint32_t entries_;
  std::deque<verbs::Completion> completions_;
};

class MemoryQueuePair final : public verbs::QueuePair {
 public:
  MemoryQueuePair(MemoryDevice* device, const verbs::QueuePairOptions& options, uint32_t number);
  ~MemoryQueuePair() override;

  uint32_t number() const override { return number_; }
  verbs::QueuePairState state() const override { return state_; }
  absl::Status PostSend(absl::Span<const verbs::SendRequest> requests, size_t* posted) override;
  absl::Status PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                           size_t* posted) override;
  absl::Status SetError() override;

  // ---- The peer's side and the wire's.
  void Fail() { state_ = verbs::QueuePairState::kError; }
  void Ready() { state_ = verbs::QueuePairState::kReadyToSend; }
  // The oldest send completes; its message, if it is a SEND, is given to `*message`. False: none.
  bool CompleteSend(verbs::CompletionStatus status, std::string* message = nullptr);
  // A message arrives and takes the oldest receive. False: there is none.
  bool Deliver(std::string_view message);
  // One request is flushed, in the error state. False: nothing is left.
  bool Flush();

 private:
  struct Request {
    uint64_t wr_id = 0;
    verbs::Opcode opcode = verbs::Opcode::kSend;
    std::vector<verbs::ScatterGather> sges;
  };
  // Work requests reach a queue once each and in the order of their numbers.
  static void CheckOrder(uint64_t wr_id, uint64_t* next);

  MemoryDevice* const device_;
  const verbs::QueuePairOptions options_;
  const uint32_t number_;
  verbs::QueuePairState state_ = verbs::QueuePairState::kInit;
  std::deque<Request> sends_, receives_;
  uint64_t next_send_ = 0, next_receive_ = 0;
};

class MemoryConnection final : public verbs::ConnectionId {
 public:
  MemoryConnection(MemoryDevice* device, bool active, MemoryQueuePair* queue_pair);
  ~MemoryConnection() override;

  verbs::Address local_address() const override { return {"127.0.0.1", 1}; }
  verbs::Address peer_address() const override { return {"127.0.0.1", 2}; }
  verbs::ReadDepths depths() const override { return {16, 16}; }
  absl::Status Accept(verbs::QueuePair* queue_pair,
                      const verbs::ConnectionParameters& parameters) override;
  absl::Status Reject(std::string_view private_data) override;
  absl::Status Disconnect() override;

  // ---- The peer's side.
  void Establish();  // if it can be
  void Refuse();     // the peer rejects, or is not there
  void End();        // the peer disconnects, or gives up before it is established

  MemoryQueuePair* queue_pair() const { return queue_pair_; }
  bool established() const { return established_; }

 private:
  friend class MemoryDevice;

  MemoryDevice* const device_;
  const bool active_;
  MemoryQueuePair* queue_pair_;
  bool reported_ = false;  // its user has it
  bool answered_ = false;  // Accept or Reject was called, or it connects by itself
  bool established_ = false;
  bool ended_ = false;
};

class MemoryDevice final : public verbs::Device {
 public:
  static constexpr uint32_t kMaxPrivateData = 196;

  ~MemoryDevice() override;
  std::string_view name() const override { return "memory"; }
  verbs::DeviceLimits limits() const override;
  absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> RegisterMemory(void* address, size_t length,
                                                                      uint32_t access) override;
  absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> CreateCompletionQueue(
      uint32_t entries) override;
  absl::StatusOr<std::unique_ptr<verbs::QueuePair>> CreateQueuePair(
      const verbs::QueuePairOptions& options) override;
  absl::StatusOr<std::unique_ptr<verbs::Listener>> Listen(const verbs::Address& address,
                                                          int backlog) override;
  absl::StatusOr<std::unique_ptr<verbs::ConnectionId>> Connect(
      const verbs::Address& address, verbs::QueuePair* queue_pair,
      const verbs::ConnectionParameters& parameters) override;
  bool NextEvent(verbs::CmEvent* event) override;
  void Progress() override {}
  int event_fd() const override { return -1; }

  // ---- The peers' side.
  void RequestConnection(std::string_view private_data);  // somebody connects to our listener
  const std::vector<MemoryConnection*>& connections() const { return connections_; }
  const std::vector<MemoryQueuePair*>& queue_pairs() const { return queue_pairs_; }
  uint64_t posts() const { return posts_; }

  // Called whenever the user posts: what happens meanwhile in other threads.
  std::function<void()> meanwhile;
  bool refuse_queue_pairs = false;

 private:
  friend class MemoryQueuePair;
  friend class MemoryConnection;
  class Region;

  void CheckLocal(const verbs::ScatterGather& sge) const;
  void Report(verbs::CmEventType type, MemoryConnection* id);
  void OnPost();

  struct Range {
    uint64_t address = 0;
    uint64_t length = 0;
    uint32_t access = 0;
  };
  std::map<uint32_t, Range> regions_;  // by key
  uint32_t next_key_ = 1;
  uint32_t next_number_ = 1;
  uint64_t posts_ = 0;
  std::vector<MemoryQueuePair*> queue_pairs_;
  std::vector<MemoryConnection*> connections_;  // that the user has, or is to get
  std::deque<verbs::CmEvent> events_;
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_MEMORY_DEVICE_H_

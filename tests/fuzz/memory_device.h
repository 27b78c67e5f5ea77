// A verbs device without a wire: everything that its peers do, the test does, one step at a time.
// Aborts when its user breaks the contract of lib/verbs, or asks it to touch memory outside the
// regions that were registered.
#ifndef TESTS_FUZZ_MEMORY_DEVICE_H_
#define TESTS_FUZZ_MEMORY_DEVICE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/verbs/verbs.h"
#include "tests/lib/verbs/fake_device.h"

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
  verbs::testing::CompletionFifo completions_;
};

class MemoryQueuePair final : public verbs::testing::FakeQueuePair {
 public:
  MemoryQueuePair(MemoryDevice* device, const verbs::QueuePairOptions& options, uint32_t number);
  ~MemoryQueuePair() override;

  absl::Status PostSend(absl::Span<const verbs::SendRequest> requests, size_t* posted) override;
  absl::Status PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                           size_t* posted) override;

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
  using Request = verbs::testing::PostedRequest;

  // Work requests reach a queue once each and in the order of their numbers.
  static void CheckOrder(uint64_t wr_id, uint64_t* next);
  void CheckBuffers(absl::Span<const verbs::ScatterGather> sges) const;

  MemoryDevice* const device_;
  const verbs::QueuePairOptions options_;
  std::deque<Request> sends_, receives_;
  uint64_t next_send_ = 0, next_receive_ = 0;
};

class MemoryConnection final : public verbs::testing::FakeConnectionId {
 public:
  MemoryConnection(MemoryDevice* device, bool active, MemoryQueuePair* queue_pair);
  ~MemoryConnection() override;

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

class MemoryDevice final : public verbs::testing::FakeDevice {
 public:
  ~MemoryDevice() override;
  std::string_view name() const override { return "memory"; }
  absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> CreateCompletionQueue(
      uint32_t entries) override;
  absl::StatusOr<std::unique_ptr<verbs::QueuePair>> CreateQueuePair(
      const verbs::QueuePairOptions& options) override;
  absl::StatusOr<std::unique_ptr<verbs::ConnectionId>> Connect(
      const verbs::Address& address, verbs::QueuePair* queue_pair,
      const verbs::ConnectionParameters& parameters) override;
  bool NextEvent(verbs::CmEvent* event) override;

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

  void OnPost();

  // Where somebody connects to, whoever else listens.
  const std::unique_ptr<verbs::Listener> requested_ =
      FakeDevice::Listen({"127.0.0.1", 9}, 1).value();
  uint32_t next_number_ = 1;
  uint64_t posts_ = 0;
  std::vector<MemoryQueuePair*> queue_pairs_;
  std::vector<MemoryConnection*> connections_;  // that the user has, or is to get
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_MEMORY_DEVICE_H_

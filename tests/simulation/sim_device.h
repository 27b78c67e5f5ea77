// A verbs device in memory, which does one thing whenever the schedule lets it: executes a send,
// carries a message, writes a completion, reports an event. In order per queue, and otherwise when
// the dice say so. It reads and writes buffers only when it executes, as a NIC does.
#ifndef TESTS_SIMULATION_SIM_DEVICE_H_
#define TESTS_SIMULATION_SIM_DEVICE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/verbs/verbs.h"
#include "tests/lib/verbs/fake_device.h"
#include "tests/simulation/context.h"

namespace baton::simulation {

using verbs::testing::PostedRequest;

struct Wire;

struct Message {
  verbs::Opcode opcode = verbs::Opcode::kSend;
  uint32_t immediate = 0;
  std::string bytes;
};

// A peer, on the other end of a wire.
class RemoteEnd {
 public:
  virtual ~RemoteEnd() = default;
  virtual void OnAccepted(std::string_view private_data) = 0;
  virtual void OnRejected(std::string_view private_data) = 0;
  virtual void OnMessage(const Message& message) = 0;
  virtual void OnDisconnected() = 0;
};

// Peers that the service connects to.
class RemoteListener {
 public:
  virtual ~RemoteListener() = default;
  // Null: nobody answers. Fills in the private data of the answer.
  virtual RemoteEnd* OnRequest(Wire* wire) = 0;
};

// What a checker wants to know of the device.
class DeviceObserver {
 public:
  virtual ~DeviceObserver() = default;
  virtual void OnSendPosted(const verbs::SendRequest& request) = 0;
  virtual void OnReceivePosted(const verbs::ReceiveRequest& request) = 0;
  virtual void OnCompleted(const verbs::Completion& completion) = 0;
};

class SimDevice;
class SimId;
class SimQueuePair;

// One connection, from the request to the end of both sides.
struct Wire {
  RemoteEnd* peer = nullptr;
  SimId* id = nullptr;
  SimQueuePair* queue_pair = nullptr;
  std::string request_data, answer_data;
  std::deque<Message> to_peer, to_us;
  bool requested = false;    // the request was reported
  bool answered = false;     // accept or reject was called
  bool accepted = false;     // it was accept
  bool peer_ready = false;   // the peer knows that it was accepted
  bool established = false;  // and we know that it does
  bool we_closed = false, peer_told = false;
  bool peer_closed = false, we_told = false;
  SimQueuePair* connecting = nullptr;  // of a connection that the service asked for
  bool peer_left = false;              // by itself: it hears of nothing any more
  bool broken = false;                 // by an injected fault
};

class SimCompletionQueue final : public verbs::CompletionQueue {
 public:
  SimCompletionQueue(SimDevice* device, uint32_t entries) : device_(device), entries_(entries) {}
  absl::StatusOr<int> Poll(absl::Span<verbs::Completion> completions) override;
  void TakeOver() override;
  absl::Status RequestNotification() override;
  void Push(const verbs::Completion& completion);
  const verbs::testing::CompletionFifo& ready() const { return ready_; }

 private:
  void Drop(size_t count);
  void PollAndDie(absl::Span<verbs::Completion> completions);

  SimDevice* const device_;
  const uint32_t entries_;
  verbs::testing::CompletionFifo ready_;
  bool notify_ = false;
};

// Its receives are taken in any order: no device promises one.
class SimSharedQueue final : public verbs::SharedReceiveQueue {
 public:
  SimSharedQueue(SimDevice* device, uint32_t entries, uint32_t index)
      : device_(device), entries_(entries), index_(index) {}
  absl::Status PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                           size_t* posted) override;
  absl::Status ArmLimit(uint32_t) override { return absl::OkStatus(); }
  absl::StatusOr<bool> IsQueued(uint64_t wr_id) const override;

  bool empty() const { return receives_.empty(); }
  size_t size() const { return receives_.size(); }
  uint32_t index() const { return index_; }
  PostedRequest Take();

 private:
  SimDevice* const device_;
  const uint32_t entries_;
  const uint32_t index_;  // in the order in which they were made: of shards
  std::deque<PostedRequest> receives_;
};

class SimQueuePair final : public verbs::testing::FakeQueuePair {
 public:
  SimQueuePair(SimDevice* device, uint32_t number, const verbs::QueuePairOptions& options)
      : FakeQueuePair(number),
        device_(device),
        options_(options),
        shared_(static_cast<SimSharedQueue*>(options.shared_receive_queue)) {}
  ~SimQueuePair() override;

  absl::Status PostSend(absl::Span<const verbs::SendRequest> requests, size_t* posted) override;
  absl::Status PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                           size_t* posted) override;
  absl::StatusOr<std::optional<uint64_t>> LastQueued(bool receive) const override;
  absl::Status SetError() override;
  absl::Status SetReset() override;
  absl::Status SetInit() override {
    state_ = verbs::QueuePairState::kInit;
    return absl::OkStatus();
  }
  bool holds_no_receive() const override { return holds_no_receive_; }

  void Connect(Wire* wire);
  bool idle() const { return sends_.empty() && receives_.empty(); }

  // The device's steps; false: there is nothing of the kind to do.
  bool Transmit();     // executes the next send
  bool Acknowledge();  // completes the oldest that has arrived
  bool TakeMessage();  // into the oldest receive; without one the peer is told "not ready"
  bool Flush(
      bool send);  // completes the oldest of a queue in error, or tells that it holds no receive
  bool may_hold_receive() const {
    return shared_ != nullptr && state_ == verbs::QueuePairState::kError && !holds_no_receive_;
  }
  bool FailSend();  // the peer does not answer any more
  void Arrived() { ++arrived_; }
  // Its work request has its place in the queue until then.
  void Polled(bool send) { --(send ? unpolled_sends_ : unpolled_receives_); }
  // A driver died when it had taken this completion, and before its cursor said so.
  void PolledUnseen(uint64_t wr_id, bool send) { unseen_[send ? 0 : 1] = wr_id; }
  // The next driver rings for what is queued, and brings the cursors up to date.
  void TakeOver(const SimCompletionQueue* queue);
  const SimSharedQueue* shared() const { return shared_; }
  bool Holds(uint64_t wr_id) const;  // a receive of its shared queue
  // SetError, by the device itself.
  void Fail() { state_ = verbs::QueuePairState::kError; }

 private:
  bool Refuse();
  size_t Lifetime(size_t requests);
  [[noreturn]] void DieUnrung(size_t posted);
  bool CheckBuffers(const PostedRequest& posted, const char* otherwise);
  void Complete(bool send, const verbs::Completion& completion);

  SimDevice* const device_;
  const verbs::QueuePairOptions options_;
  Wire* wire_ = nullptr;
  std::deque<PostedRequest> sends_;    // executed, then arrived, then completed
  size_t executed_ = 0, arrived_ = 0;  // of those in sends_
  std::deque<PostedRequest> receives_;
  size_t unrung_ = 0;  // of those in sends_, the last: the device has not heard of them yet
  uint32_t unpolled_sends_ = 0, unpolled_receives_ = 0;
  std::optional<uint64_t> unseen_[2];  // of sends, of receives
  SimSharedQueue* const shared_;
  bool holds_no_receive_ = false;
};

class SimId final : public verbs::testing::FakeConnectionId {
 public:
  SimId(SimDevice* device, Wire* wire) : device_(device), wire_(wire) { wire->id = this; }
  ~SimId() override;
  absl::Status Accept(verbs::QueuePair* queue_pair,
                      const verbs::ConnectionParameters& parameters) override;
  absl::Status Reject(std::string_view private_data) override;
  absl::Status Disconnect() override;

 private:
  SimDevice* const device_;
  Wire* const wire_;
};

class SimDevice final : public verbs::testing::FakeDevice {
 public:
  SimDevice(Context* context, DeviceObserver* observer) : context_(context), observer_(observer) {}
  ~SimDevice() override;

  // Now and then the provider refuses to post.
  void RefusePosts(bool refuse) { refuse_posts_ = refuse; }
  // It says what is queued, as mlx5's queues do, or not, as Soft-RoCE's.
  void SetAnswers(bool answers) { answers_ = answers; }

  // One thing, of one wire or queue pair; false: that one had nothing to do.
  bool Step(bool faults);
  // Nothing is on its way or waits for the driver.
  bool Quiet() const;
  // These stand for event_fd(): events, and RequestNotification, kept. In the process that opened
  // the device each of them signals, until Progress(), unless forked ones poll: those have
  // notified().
  bool signalled() const { return has_events_ || notified_; }
  bool has_events() const { return has_events_; }
  bool notified() const { return notified_; }
  void ForgetNotification();
  // Forked processes drive the queues, and these are reused.
  void SetForked() { forked_ = true; }
  bool has_time_wait() const override { return !forked_; }
  // Work requests that were ever posted.
  uint64_t posts() const { return posts_; }

  // ---- Of the peers.
  void SetRemoteListener(RemoteListener* listener) { remote_listener_ = listener; }
  Wire* Request(RemoteEnd* peer, std::string private_data);
  bool listening() const { return listener_ != nullptr; }

  std::string_view name() const override { return "simulated"; }
  verbs::DeviceLimits limits() const override;
  absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> CreateCompletionQueue(
      uint32_t entries) override;
  absl::StatusOr<std::unique_ptr<verbs::QueuePair>> CreateQueuePair(
      const verbs::QueuePairOptions& options) override;
  absl::StatusOr<std::unique_ptr<verbs::SharedReceiveQueue>> CreateSharedReceiveQueue(
      uint32_t entries, uint32_t max_scatter_gather) override;
  absl::StatusOr<std::unique_ptr<verbs::ConnectionId>> Connect(
      const verbs::Address& address, verbs::QueuePair* queue_pair,
      const verbs::ConnectionParameters& parameters) override;
  bool NextEvent(verbs::CmEvent* event) override;
  void Progress() override;

  // Receives that no message has taken yet.
  size_t shared_receives(uint32_t shard) const { return shared_queues_[shard]->size(); }

 private:
  friend class SimCompletionQueue;
  friend class SimSharedQueue;
  friend class SimId;
  friend class SimQueuePair;

  bool StepWire(bool faults);
  bool Manage(Wire& wire);
  void AnswerRequest(Wire& wire);
  bool Break(Wire& wire);
  void Report(Wire& wire, verbs::CmEventType type);

  Context* const context_;
  DeviceObserver* const observer_;
  std::vector<std::unique_ptr<Wire>> wires_;
  std::vector<Wire*> open_;  // that may have something to do
  uint64_t posts_ = 0;
  uint32_t last_queue_pair_ = 0;
  RemoteListener* remote_listener_ = nullptr;
  bool has_events_ = false, notified_ = false;
  bool forked_ = false;
  bool refuse_posts_ = false;
  bool answers_ = false;
  std::vector<SimCompletionQueue*> queues_;
  std::vector<SimQueuePair*> queue_pairs_;
  std::vector<SimSharedQueue*> shared_queues_;
};

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_SIM_DEVICE_H_

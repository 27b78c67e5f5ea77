// A device that does what its test says, and nothing by itself: the driver can be killed in the
// middle of a post or a poll, before or after its effect.
#ifndef TESTS_LIB_DRIVER_SCRIPTED_DEVICE_H_
#define TESTS_LIB_DRIVER_SCRIPTED_DEVICE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/verbs/verbs.h"
#include "tests/lib/verbs/fake_device.h"

namespace baton::driver::testing {

// Unwinds a driver that was killed; its test then takes it for dead.
struct DriverDied {};

using verbs::testing::PostedRequest;

class ScriptedDevice final : public verbs::testing::FakeDevice {
 public:
  // ---- The script.

  // The next post kills: after so many of its requests are posted. Negative: it does not.
  int die_after_posting = -1;
  // The next posts are refused. `queue_refused`: and nevertheless posted.
  int refuse = 0;
  bool queue_refused = false;
  // The next queue pairs are not put in the error state.
  int refuse_errors = 0;
  enum class PollDeath : uint8_t {
    kNone,
    kBeforeTaking,  // copied, and still in the queue
    kHalfWritten,   // half copied, and still in the queue
    kAfterTaking,
  };
  PollDeath die_polling = PollDeath::kNone;
  std::function<void()> when_polled;  // before anything is taken
  // It says what is queued. `lie`: it says this instead; `is_confused`: that it makes no sense.
  bool answers = false;
  std::optional<uint64_t> lie;
  bool is_confused = false;
  // A driver died in a post, and nobody has rung since: CompletionQueue::TakeOver does.
  bool is_unrung = false;
  int asked_unrung = 0;  // how often it was asked then

  // What was posted to the queue pair with this number and has not completed, oldest first.
  std::vector<PostedRequest> outstanding(uint32_t queue_pair, bool receive) const;
  // Everything that was ever posted.
  const std::vector<PostedRequest>& history() const { return history_; }
  // Completes the oldest of the queue. `bytes` go into the buffers of a receive.
  void Complete(uint32_t queue_pair, bool receive, std::string_view bytes = {},
                verbs::CompletionStatus status = verbs::CompletionStatus::kSuccess);
  void Flush(uint32_t queue_pair);               // all of it
  void Lose(uint32_t queue_pair, bool receive);  // forgets all of it
  // Another process has put it in error.
  void FailElsewhere(uint32_t queue_pair) {
    queue_pairs_[queue_pair - 1].state = verbs::QueuePairState::kError;
  }
  uint32_t flushes(uint32_t queue_pair) const { return queue_pairs_[queue_pair - 1].flushes; }
  // The shared receives that have not completed. All shared receives are in one queue here.
  const std::deque<PostedRequest>& shared() const { return shared_; }
  // Completes the shared receive at `place` of that queue.
  void CompleteShared(uint32_t queue_pair, size_t place, std::string_view bytes = {},
                      verbs::CompletionStatus status = verbs::CompletionStatus::kSuccess);
  // Queue pairs in error have no shared receive any more.
  bool holds_no_receive = true;
  const verbs::SharedReceiveQueue* shared_queue = nullptr;  // the last that was made
  uint32_t limit = 0;                                       // as it was armed last
  bool destroyed(uint32_t queue_pair) const { return queue_pairs_[queue_pair - 1].destroyed; }
  // The id of the connection in this slot.
  verbs::ConnectionId* IdOf(uint32_t connection) const;

  // ---- verbs::Device.
  std::string_view name() const override { return "scripted"; }
  verbs::DeviceLimits limits() const override;
  absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> CreateCompletionQueue(uint32_t) override;
  absl::StatusOr<std::unique_ptr<verbs::QueuePair>> CreateQueuePair(
      const verbs::QueuePairOptions& options) override;
  absl::StatusOr<std::unique_ptr<verbs::SharedReceiveQueue>> CreateSharedReceiveQueue(
      uint32_t, uint32_t) override;
  absl::StatusOr<std::unique_ptr<verbs::ConnectionId>> Connect(
      const verbs::Address& address, verbs::QueuePair* queue_pair,
      const verbs::ConnectionParameters& parameters) override;

 private:
  friend class ScriptedId;
  friend class ScriptedQueue;
  friend class ScriptedQueuePair;
  friend class ScriptedSharedQueue;

  struct State {  // of a queue pair
    verbs::QueuePairState state = verbs::QueuePairState::kInit;
    std::deque<PostedRequest> sends, receives;
    bool destroyed = false;
    uint32_t flushes = 0;  // that were asked for
  };
  // kOk: it may be asked.
  absl::Status CheckAsked();
  // The last of `queue`, or of the completions that nobody has polled.
  absl::StatusOr<std::optional<uint64_t>> LastOf(const std::deque<PostedRequest>& queue,
                                                 uint32_t queue_pair, bool receive) const;
  absl::Status Post(std::deque<PostedRequest>* queue, const std::vector<PostedRequest>& requests,
                    size_t* posted);
  void Fill(const PostedRequest& request, uint32_t queue_pair, std::string_view bytes,
            verbs::CompletionStatus status);

  std::deque<State> queue_pairs_;  // by number - 1
  std::vector<verbs::ConnectionId*> ids_;
  verbs::testing::CompletionFifo completions_;
  std::deque<PostedRequest> shared_;
  std::vector<PostedRequest> history_;
};

}  // namespace baton::driver::testing

#endif  // TESTS_LIB_DRIVER_SCRIPTED_DEVICE_H_

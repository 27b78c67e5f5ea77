// A driver is killed after each of its instructions while it posts, polls, arms, resets or follows
// another one. The next goes on with what it left. What was posted is executed once, and what has
// completed is told once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <vector>

#include "lib/base/check.h"
#include "lib/verbs/mlx5/fifo_doorbell.h"
#include "lib/verbs/mlx5/queue_pair.h"
#include "tests/lib/verbs/mlx5/queue_memory.h"
#include "tests/native/stepper.h"

namespace baton::verbs::mlx5 {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kInvalidWrId = ~uint64_t{0};
constexpr uint32_t kFired = 2;                // the sequence of the last event
constexpr uint16_t kBefore = kSendSlots - 1;  // the second of two requests is behind the end

// The process that is killed shares this memory with the test.
struct Shared {
  std::atomic<bool> begin;
  Completion taken[kEntries];
};

class KilledDriverTest : public ::testing::Test {
 protected:
  KilledDriverTest()
      : memory_(QueueMemory::Map(), &QueueMemory::Unmap),
        shared_(static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    BATON_CHECK(shared_ != MAP_FAILED);
  }
  ~KilledDriverTest() override { munmap(shared_, sizeof(Shared)); }

  // Kills `drive` after every `stride` instructions from `first` on, and calls `check` each time,
  // until `drive` has ended.
  void KillEverywhere(uint64_t stride, uintptr_t first, const std::function<void()>& prepare,
                      const std::function<void()>& drive, const std::function<void()>& check) {
    for (uint64_t instructions = 0;; instructions += stride) {
      prepare();
      shared_->begin = false;
      const pid_t driver = fork();
      if (driver == 0) {
        while (!shared_->begin) sched_yield();
        drive();
      }
      bool ended = false;
      {
        native::Stepper stepper(driver);
        shared_->begin = true;
        BATON_CHECK(stepper.RunTo({first}) == first);
        ended = instructions > 0 && !stepper.Step(instructions);
        if (!ended) {
          kill(driver, SIGKILL);
          BATON_CHECK(waitpid(driver, nullptr, 0) == driver);
        }
      }
      check();
      if (ended || HasFatalFailure()) return;
    }
  }

  // The driver of the two that follow each other.
  SendQueue Sender() { return {memory_->send_queue(), kQueuePair, {1, 0}, &doorbell_}; }
  static std::vector<SendRequest> Requests() {
    std::vector<SendRequest> requests(2);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].opcode = Opcode::kFetchAndAdd;
      requests[i].wr_id = 500 + i;
      requests[i].compare_add = 1 + i;
      requests[i].remote_address = 0x4000;
      requests[i].sges = {&kWord, 1};
    }
    return requests;
  }
  // Nothing is left of the round before, whose driver wrote the same.
  void PrepareToPost() {
    std::fill(std::begin(memory_->sends), std::end(memory_->sends), uint8_t{0});
    std::fill(std::begin(memory_->notes), std::end(memory_->notes), SendNote());
    StoreRecord(&memory_->records[MLX5_SND_DBR], kBefore);
    memory_->cursors.sent = kBefore;
  }
  void PostAndEnd() {
    size_t posted = 0;
    (void)Sender().Post(Requests(), &posted);
    _exit(0);  // nothing else is of interest
  }
  // The queue as a driver has it that begins, or follows another one.
  std::unique_ptr<CompletionQueue> Queue() {
    auto queue = std::make_unique<CompletionQueue>(memory_->completion_queue(), kCompletionQueue,
                                                   &doorbell_);
    queue->Add(memory_->completing());
    queue->Resume();
    return queue;
  }
  // Prepares for a driver that consumes from the beginning, and makes the device write these.
  void PrepareToTake(std::initializer_list<Executed> completions) {
    memory_->consumed = 0;
    memory_->taken = 0;
    memory_->cursors = {};
    memory_->notes[0] = {100, 1, 0};
    memory_->notes[1] = {102, 2, 0};
    memory_->wr_ids[0] = 101;
    CompletionWriter writer(memory_->found_completions());
    for (Executed executed : completions) {
      executed.qp_number = kQueuePair;
      BATON_CHECK(writer.Write(executed));
    }
  }
  // Returns what a device executes that has executed all before `kBefore`.
  std::vector<uint64_t> Execute() {
    std::vector<uint64_t> added;
    const auto queued = static_cast<uint16_t>(LoadRecord(&memory_->records[MLX5_SND_DBR]));
    for (uint16_t counter = kBefore; counter != queued;) {
      FoundSend found;
      const absl::Status status = ReadSend(memory_->found_sends(), counter, queued, &found);
      EXPECT_TRUE(status.ok()) << status;
      if (!status.ok()) break;
      EXPECT_EQ(memory_->notes[counter % kSendSlots].wr_id, 500 + added.size());
      added.push_back(found.compare_add);
      counter = static_cast<uint16_t>(counter + found.slots);
    }
    return added;
  }

  static constexpr ScatterGather kWord = {0x2000, 8, 3};
  const std::unique_ptr<QueueMemory, void (*)(QueueMemory*)> memory_;
  Shared* const shared_;
  RememberingDoorbell doorbell_;
};

TEST_F(KilledDriverTest, shouldExecuteWhatItPostedOnce) {
  int queued = 0;
  int not_queued = 0;
  KillEverywhere(
      1, native::CodeOf(&SendQueue::Post), [this] { PrepareToPost(); }, [this] { PostAndEnd(); },
      [this, &queued, &not_queued] {
        SendQueue heir = Sender();
        const bool was_queued = heir.queued() != kBefore;
        (was_queued ? queued : not_queued) += 1;
        if (!was_queued) {
          size_t posted = 0;
          ASSERT_TRUE(heir.Post(Requests(), &posted).ok());
        }
        heir.RingAgain();
        ASSERT_THAT(Execute(), ElementsAre(1, 2));
      });
  EXPECT_GT(queued, 0);
  EXPECT_GT(not_queued, 0);
}

// The control: an heir that posts again whatever it finds is found out.
TEST_F(KilledDriverTest, shouldSeeWhatIsPostedTwice) {
  int twice = 0;
  KillEverywhere(
      7, native::CodeOf(&SendQueue::Post), [this] { PrepareToPost(); }, [this] { PostAndEnd(); },
      [this, &twice] {
        size_t posted = 0;
        ASSERT_TRUE(Sender().Post(Requests(), &posted).ok());
        const auto end = static_cast<uint16_t>(LoadRecord(&memory_->records[MLX5_SND_DBR]));
        twice += end == static_cast<uint16_t>(kBefore + 4) ? 1 : 0;
      });
  EXPECT_GT(twice, 0);
}

TEST_F(KilledDriverTest, shouldTellEachCompletionOnce) {
  int again = 0;
  KillEverywhere(
      1, native::CodeOf(&CompletionQueue::Take),
      [this] {
        PrepareToTake({{}, {.kind = MLX5_CQE_RESP_SEND}, {.counter = 1}});
        for (Completion& completion : shared_->taken) completion.wr_id = kInvalidWrId;
      },
      [this] {
        (void)Queue()->Take(absl::MakeSpan(shared_->taken));
        _exit(0);
      },
      [this, &again] {
        std::vector<uint64_t> told;
        for (const Completion& completion : shared_->taken) {
          if (completion.wr_id != kInvalidWrId) told.push_back(completion.wr_id);
        }
        Completion rest[kEntries];
        const absl::StatusOr<int> taken = Queue()->Take(absl::MakeSpan(rest));
        ASSERT_TRUE(taken.ok()) << taken.status();
        for (int i = 0; i < *taken; ++i) {
          // The last that the killed one had may not have been consumed.
          if (i == 0 && !told.empty() && told.back() == rest[0].wr_id) {
            ++again;
            continue;
          }
          told.push_back(rest[i].wr_id);
        }
        ASSERT_THAT(told, ElementsAre(100, 101, 102));
        ASSERT_EQ(memory_->cursors.sent, 2);
        ASSERT_EQ(memory_->cursors.received, 1);
      });
  EXPECT_GT(again, 0);
}

// The device ignores an arm of the sequence whose event it made last.
TEST_F(KilledDriverTest, shouldNeverArmInVain) {
  uint32_t armed[4] = {};
  KillEverywhere(
      1, native::CodeOf(&CompletionQueue::RequestNotification),
      [this] {
        StoreRecord(&memory_->arm_record, ArmValue(kFired, 0));
        memory_->arming = kFired | kArmed;
        PrepareToTake({{}});
      },
      [this] {
        Queue()->RequestNotification();
        _exit(0);
      },
      [this, &armed] {
        const uint32_t before = LoadRecord(&memory_->arm_record) >> kSequenceShift;
        const auto heir = Queue();
        heir->RequestNotification();
        const uint32_t now = LoadRecord(&memory_->arm_record) >> kSequenceShift;
        ASSERT_NE(now, kFired);
        Completion completion;
        ASSERT_EQ(*heir->Take({&completion, 1}), 1);
        heir->RequestNotification();
        ASSERT_EQ(LoadRecord(&memory_->arm_record) >> kSequenceShift, (now + 1) % 4);
        ++armed[before];
      });
  EXPECT_GT(armed[kFired], 0u);
  EXPECT_GT(armed[(kFired + 1) % 4], 0u);
}

TEST_F(KilledDriverTest, shouldPostReceivesOnce) {
  constexpr uint16_t kPosted = kReceiveSlots - 1;  // the second of two is behind the end
  const ScatterGather buffers[] = {{0x3000, 100, 4}, {0x5000, 200, 5}};
  const std::vector<ReceiveRequest> requests = {{600, {&buffers[0], 1}}, {601, {&buffers[1], 1}}};
  int queued = 0;
  int not_queued = 0;
  KillEverywhere(
      1, native::CodeOf(&ReceiveQueue::Post),
      [this] {
        std::fill(std::begin(memory_->receives), std::end(memory_->receives), uint8_t{0});
        std::fill(std::begin(memory_->wr_ids), std::end(memory_->wr_ids), uint64_t{0});
        StoreRecord(&memory_->records[MLX5_RCV_DBR], kPosted);
        memory_->cursors.received = kPosted;
      },
      [&] {
        size_t posted = 0;
        (void)ReceiveQueue(memory_->receive_queue()).Post(requests, &posted);
        _exit(0);
      },
      [&] {
        ReceiveQueue heir(memory_->receive_queue());
        const bool was_queued = heir.queued() != kPosted;
        (was_queued ? queued : not_queued) += 1;
        if (!was_queued) {
          size_t posted = 0;
          ASSERT_TRUE(heir.Post(requests, &posted).ok());
        }
        ASSERT_EQ(heir.queued(), kPosted + 2);
        for (uint16_t i = 0; i < 2; ++i) {
          const uint32_t slot = (kPosted + i) % kReceiveSlots;
          ScatterGather found[kReceiveBytes / kSegmentBytes];
          ASSERT_EQ(ReadReceive(memory_->receives + slot * kReceiveBytes, kReceiveBytes,
                                absl::MakeSpan(found)),
                    1u);
          ASSERT_EQ(found[0].address, buffers[i].address);
          ASSERT_EQ(found[0].length, buffers[i].length);
          ASSERT_EQ(memory_->wr_ids[slot], 600u + i);
        }
      });
  EXPECT_GT(queued, 0);
  EXPECT_GT(not_queued, 0);
}

// The dead driver had consumed a send, and not brought its cursor up to date. Its heir is killed
// while it does that.
TEST_F(KilledDriverTest, shouldFollowADriverThatWasKilledAsItFollowedAnother) {
  KillEverywhere(
      1, native::CodeOf(&CompletionQueue::Resume),
      [this] {
        PrepareToTake({{}, {.counter = 1}});
        memory_->cursors = {3, 0, 0};
        StoreRecord(&memory_->consumed, 1);
        memory_->taken = Pack({.consumed = 1, .place = 7, .use = 3, .receive = false, .cursor = 1});
      },
      [this] {
        (void)Queue();
        _exit(0);
      },
      [this] {
        const auto heir = Queue();
        ASSERT_EQ(memory_->cursors.sent, 1);
        Completion completion;
        ASSERT_EQ(*heir->Take({&completion, 1}), 1);
        ASSERT_EQ(completion.wr_id, 102u);
        ASSERT_EQ(memory_->cursors.sent, 2);
      });
}

// A device that obeys, and outlives its drivers.
class SharedCommands final : public Commands {
 public:
  explicit SharedCommands(std::atomic<QueuePairState>* state) : state_(state) {}
  absl::Status Modify(uint32_t, QueuePairState state) override {
    state_->store(state);
    return absl::OkStatus();
  }
  absl::StatusOr<QueuePairState> Query(uint32_t) override { return state_->load(); }
  void DestroyQueuePair(uint32_t) override {}

 private:
  std::atomic<QueuePairState>* const state_;
};

[[gnu::noinline]] void ResetAndEnd(QueuePair* queue_pair) {
  (void)queue_pair->SetReset();
  _exit(0);
}

// Whoever resets what a killed driver has left makes it as new, and what was consumed in the former
// use is no cursor of the next one.
TEST_F(KilledDriverTest, shouldBeAsNewAfterAResetThatWasKilled) {
  constexpr QueuePairLayout kLayout = {kSendSlots, kReceiveSlots, kReceiveBytes};
  constexpr size_t kBytes = kLayout.bytes() + sizeof(std::atomic<QueuePairState>);
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const begin = static_cast<uint8_t*>(memory);
  auto* const state = new (begin + kLayout.bytes()) std::atomic<QueuePairState>();
  auto* const records = reinterpret_cast<__be32*>(begin);
  QueueCursors& cursors = *kLayout.SendsAt(begin).cursors;
  SharedCommands commands(state);
  const auto make = [&] {
    return std::make_unique<QueuePair>(kLayout, begin, kQueuePair, SendQueueLimits{1, 0}, &commands,
                                       &doorbell_);
  };
  int done = 0;
  KillEverywhere(
      1, native::CodeOf(&ResetAndEnd),
      [&] {
        *state = QueuePairState::kError;
        StoreRecord(&records[MLX5_SND_DBR], 9);
        StoreRecord(&records[MLX5_RCV_DBR], 5);
        cursors = {3, 9, 5};
        memory_->consumed = htobe32(14);
        memory_->taken = Pack({.consumed = 14, .place = 7, .use = 3, .receive = true, .cursor = 5});
      },
      [&] { ResetAndEnd(make().get()); },
      [&] {
        done += cursors.use == 4 ? 1 : 0;
        const auto heir = make();
        ASSERT_TRUE(heir->SetReset().ok());
        ASSERT_EQ(state->load(), QueuePairState::kReset);
        CompletionQueue queue(memory_->completion_queue(), kCompletionQueue, &doorbell_);
        queue.Add(kLayout.CompletingAt(begin, kQueuePair, 7));
        queue.Resume();
        ASSERT_EQ(heir->sends_queued(), 0);
        ASSERT_EQ(heir->receives_queued(), 0);
        ASSERT_EQ(cursors.sent, 0);
        ASSERT_EQ(cursors.received, 0);
        ASSERT_GT(cursors.use, 3u);
      });
  EXPECT_GT(done, 0);
  munmap(memory, kBytes);
}

// Memory that the stepped heir and its NIC share.
struct SharedPage {
  DoorbellPage page;
  std::atomic<bool> begin;

  // Takes all values, in the NIC's order of steps, and returns the last.
  uint64_t TakeAll() {
    uint64_t last = 0;
    for (;; ++page.sq_head, page.sends[(page.sq_head - 1) % kSendPlaces] = 0) {
      const uint64_t value = page.sends[page.sq_head % kSendPlaces];
      if (value == 0) return last;
      last = value;
    }
  }
};

[[gnu::noinline]] void RingAndEnd(FifoDoorbell* bell, uint64_t value) {
  bell->Ring(value);
  _exit(0);
}

// A driver was killed between its value and its tail. The NIC takes the value after any instruction
// of its heir's first ring, which arrives all the same.
TEST(TakenOverDoorbellTest, shouldArriveWheneverTheNicTakesWhatWasLeft) {
  void* const memory =
      mmap(nullptr, sizeof(SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const shared = new (memory) SharedPage();
  bool ended = false;
  for (uint64_t instructions = 1; !ended; ++instructions) {
    shared->page = {};
    shared->page.sends[0] = 1;
    shared->begin = false;
    const pid_t heir = fork();
    if (heir == 0) {
      while (!shared->begin) sched_yield();
      FifoDoorbell bell(&shared->page, -1);
      RingAndEnd(&bell, 2);
    }
    native::Stepper stepper(heir);
    shared->begin = true;
    ASSERT_NE(stepper.RunTo({native::CodeOf(&RingAndEnd)}), 0u);
    ended = !stepper.Step(instructions);
    uint64_t last = 0;
    if (!ended) {
      last = shared->TakeAll();
      stepper.Detach();
      ASSERT_EQ(waitpid(heir, nullptr, 0), heir);
    }
    if (const uint64_t more = shared->TakeAll(); more != 0) last = more;
    ASSERT_EQ(last, 2u) << instructions;
    ASSERT_EQ(shared->page.attention, 0u);
  }
  munmap(memory, sizeof(SharedPage));
}

}  // namespace
}  // namespace baton::verbs::mlx5

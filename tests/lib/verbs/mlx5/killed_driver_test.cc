// A driver is killed after each of its instructions while it posts, polls, arms, resets or follows
// another one. The next goes on with what it left. What was posted is executed once, and what has
// completed is told once. No slot of a shared receive queue is lost, and none is posted twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/check.h"
#include "lib/verbs/mlx5/fifo_doorbell.h"
#include "lib/verbs/mlx5/polling.h"
#include "lib/verbs/mlx5/queue_pair.h"
#include "tests/lib/verbs/mlx5/queue_memory.h"
#include "tests/lib/verbs/mlx5/shared_queue.h"
#include "tests/native/stepper.h"

namespace baton::verbs::mlx5 {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr uint64_t kInvalidWrId = ~uint64_t{0};
constexpr uint32_t kFired = 2;                // the sequence of the last event
constexpr uint16_t kBefore = kSendSlots - 1;  // the second of two requests is behind the end

// The process that is killed shares this memory with the test.
struct Shared {
  std::atomic<bool> begin;
  Completion taken[kEntries];
  Completion more_taken[kEntries];  // of another queue
  std::atomic<uint32_t> kept_count;
  uint64_t kept[2 * kEntries];  // wr_ids
};

// Keeps wr_ids as a driver's log keeps completions.
class Log {
 public:
  static constexpr bool kTogether = true;
  class Run {
   public:
    explicit Run(Log* log) : log_(*log) {}
    bool Keep(const PlainCompletion& plain) { return log_.Append(plain.wr_id); }

   private:
    Log& log_;
  };

  explicit Log(Shared* shared) : shared_(*shared) {}
  Run Sends(uint64_t) { return Run(this); }
  Run Receives(uint64_t) { return Run(this); }
  bool Keep(const Completion& completion) { return Append(completion.wr_id); }

 private:
  bool Append(uint64_t wr_id) {
    const uint32_t count = shared_.kept_count.load();
    shared_.kept[count] = wr_id;
    shared_.kept_count.store(count + 1);
    return true;
  }

  Shared& shared_;
};

[[gnu::noinline]] int TakeTogether(CompletionQueue* queue, Shared* shared) {
  Log log(shared);
  return queue->TakeEach(kEntries, &log);
}

// All memory that this process shares with those that it has forked.
class SharedMemory {
 public:
  SharedMemory() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      uintptr_t begin = 0, end = 0;
      char rights[8] = {};
      BATON_CHECK(std::sscanf(line.c_str(), "%lx-%lx %7s", &begin, &end, rights) == 3);
      if (std::string_view(rights) == "rw-s") {
        regions_.emplace_back(reinterpret_cast<uint8_t*>(begin), end - begin);
      }
    }
    BATON_CHECK(!regions_.empty());
  }
  std::vector<uint8_t> Copy() const {
    std::vector<uint8_t> copy;
    for (const absl::Span<uint8_t> region : regions_) {
      copy.insert(copy.end(), region.begin(), region.end());
    }
    return copy;
  }
  void PutBack(const std::vector<uint8_t>& copy) const {
    auto next = copy.begin();
    for (const absl::Span<uint8_t> region : regions_) {
      const auto end = next + static_cast<ptrdiff_t>(region.size());
      std::copy(next, end, region.begin());
      next = end;
    }
  }

 private:
  std::vector<absl::Span<uint8_t>> regions_;
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

  // Stops `drive` after every `stride` instructions from `first` on, and calls `check` each time,
  // until `drive` has ended. `check` finds what a driver leaves that is killed there: other
  // processes see of a driver what it shares with them, and a stopped one changes that no more than
  // a dead one. Afterwards it is put back, and the driver goes on.
  void KillEverywhere(uint64_t stride, uintptr_t first, const std::function<void()>& prepare,
                      const std::function<void()>& drive, const std::function<void()>& check) {
    prepare();
    shared_->begin = false;
    const pid_t driver = fork();
    if (driver == 0) {
      while (!shared_->begin) sched_yield();
      drive();
    }
    native::Stepper stepper(driver);
    shared_->begin = true;
    BATON_CHECK(stepper.RunTo({first}) == first);
    const SharedMemory memory;
    for (bool ended = false;; ended = !stepper.Step(stride)) {
      const std::vector<uint8_t> left = memory.Copy();
      prepare();  // for what the check's process has for itself
      memory.PutBack(left);
      check();
      if (ended) return;
      if (HasFatalFailure()) break;
      memory.PutBack(left);
    }
    kill(driver, SIGKILL);
    BATON_CHECK(waitpid(driver, nullptr, 0) == driver);
  }
  // Resets the queue pair behind so many instructions of an heir that takes over. Then the heir
  // goes on. `ended`: it had ended before.
  void ResetBehind(uint64_t steps, bool* ended) {
    shared_->begin = false;
    const pid_t heir = fork();
    if (heir == 0) {
      while (!shared_->begin) sched_yield();
      (void)Queue();
      _exit(0);
    }
    native::Stepper stepper(heir);
    shared_->begin = true;
    const uintptr_t begin = native::CodeOf(&CompletionQueue::TakeOver);
    ASSERT_EQ(stepper.RunTo({begin}), begin);
    *ended = steps != 0 && !stepper.Step(steps);
    // SetReset() stores them in this order.
    std::atomic_ref(memory_->cursors.use).store(4);
    std::atomic_ref(memory_->cursors.sent).store(0);
    std::atomic_ref(memory_->cursors.received).store(0);
    if (*ended) return;
    stepper.Detach();
    ASSERT_EQ(waitpid(heir, nullptr, 0), heir);
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
    queue->TakeOver();
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
      const absl::Status status = ReadSend(memory_->found_sends(), counter, queued, {}, &found);
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
        const std::optional<uint64_t> last = heir.LastQueued().value();
        ASSERT_TRUE(!last.has_value() || *last == 501);
        const bool was_queued = last.has_value();
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

// Those that are consumed together come again together.
TEST_F(KilledDriverTest, shouldGiveAgainWhatWasKeptAndNotConsumed) {
  const std::vector<uint64_t> all = {100, 102, 103, 101, 104};
  size_t most_again = 0;
  KillEverywhere(
      1, native::CodeOf(&TakeTogether),
      [this] {
        PrepareToTake({{.code = MLX5_OPCODE_SEND},
                       {.code = MLX5_OPCODE_SEND, .counter = 1},
                       {.code = MLX5_OPCODE_SEND, .counter = 2},
                       {.kind = MLX5_CQE_RESP_SEND},
                       {.kind = MLX5_CQE_RESP_SEND}});
        memory_->notes[2] = {103, 3, 0};
        memory_->wr_ids[1] = 104;
        shared_->kept_count = 0;
      },
      [this] {
        (void)TakeTogether(Queue().get(), shared_);
        _exit(0);
      },
      [this, &all, &most_again] {
        const size_t kept = shared_->kept_count;
        ASSERT_THAT(std::vector<uint64_t>(shared_->kept, shared_->kept + kept),
                    ElementsAreArray(all.begin(), all.begin() + static_cast<ptrdiff_t>(kept)));
        const int taken = TakeTogether(Queue().get(), shared_);
        ASSERT_GE(taken, 0);
        const auto rest = static_cast<size_t>(taken);
        ASSERT_GE(kept + rest, all.size());
        ASSERT_THAT(std::vector<uint64_t>(shared_->kept + kept, shared_->kept + kept + rest),
                    ElementsAreArray(all.end() - taken, all.end()));
        ASSERT_EQ(memory_->cursors.sent, 3);
        ASSERT_EQ(memory_->cursors.received, 2);
        most_again = std::max(most_again, kept + rest - all.size());
      });
  EXPECT_EQ(most_again, 3u);
}

// What an heir is given by its polls is what the queues say is left.
TEST_F(KilledDriverTest, shouldSayWhatIsQueuedAndWasNotTold) {
  int nothing = 0;
  int something = 0;
  KillEverywhere(
      1, native::CodeOf(&CompletionQueue::Take),
      [this] {
        PrepareToTake({{}, {.kind = MLX5_CQE_RESP_SEND}, {.counter = 1}});
        StoreRecord(&memory_->records[MLX5_SND_DBR], 2);
        StoreRecord(&memory_->records[MLX5_RCV_DBR], 1);
      },
      [this] {
        (void)Queue()->Take(absl::MakeSpan(shared_->taken));
        _exit(0);
      },
      [this, &nothing, &something] {
        const auto heir = Queue();
        const std::optional<uint64_t> send = Sender().LastQueued().value();
        const std::optional<uint64_t> receive =
            ReceiveQueue(memory_->receive_queue()).LastQueued().value();
        Completion rest[kEntries];
        const int taken = heir->Take(absl::MakeSpan(rest)).value();
        ASSERT_EQ(send, taken >= 1 ? std::optional<uint64_t>(102) : std::nullopt);
        ASSERT_EQ(receive, taken >= 2 ? std::optional<uint64_t>(101) : std::nullopt);
        (send.has_value() ? something : nothing) += 1;
      });
  EXPECT_GT(nothing, 0);
  EXPECT_GT(something, 0);
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
        const std::optional<uint64_t> last = heir.LastQueued().value();
        ASSERT_TRUE(!last.has_value() || *last == 601);
        const bool was_queued = last.has_value();
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
      1, native::CodeOf(&CompletionQueue::TakeOver),
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

// The driver that died had taken all there was, and the queue pair is reset behind any instruction
// of its heir. Nothing of the former use is a cursor of the next one, also where the cursor was
// still to be stored.
TEST_F(KilledDriverTest, shouldStoreNoCursorAfterAReset) {
  constexpr uint64_t kBeforeTheEnd = 10;  // instructions: the heir was there, and not at its end
  for (const uint16_t sent : {0, 1}) {
    uint64_t steps = 0;
    for (bool ended = false; !ended; ++steps) {
      PrepareToTake({});
      memory_->cursors = {3, sent, 1};
      StoreRecord(&memory_->consumed, 1);
      memory_->taken = Pack({.consumed = 1, .place = 7, .use = 3, .receive = false, .cursor = 1});
      ASSERT_NO_FATAL_FAILURE(ResetBehind(steps, &ended));
      ASSERT_EQ(memory_->cursors.sent, 0) << "reset after " << steps << " instructions";
    }
    EXPECT_GT(steps, kBeforeTheEnd);
  }
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

// A reset of what a killed driver has left makes it as new. What was consumed in the former use
// is no cursor of the next one.
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
    return std::make_unique<QueuePair>(kLayout.MemoryAt(begin), kQueuePair, SendQueueLimits{1, 0},
                                       &commands, &doorbell_);
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
        queue.TakeOver();
        ASSERT_EQ(heir->sends_queued(), 0);
        ASSERT_EQ(heir->receives_queued(), 0);
        ASSERT_EQ(cursors.sent, 0);
        ASSERT_EQ(cursors.received, 0);
        ASSERT_GT(cursors.use, 3u);
      });
  EXPECT_GT(done, 0);
  munmap(memory, kBytes);
}

[[gnu::noinline]] void PostSharedAndEnd(SharedReceiveQueue* queue,
                                        absl::Span<const ReceiveRequest> requests) {
  size_t posted = 0;
  (void)queue->PostReceive(requests, &posted);
  _exit(0);
}

[[gnu::noinline]] void TakeSharedAndEnd(SharingDriver* driver, Shared* shared) {
  (void)driver->queues[0].Take(absl::MakeSpan(shared->taken));
  (void)driver->queues[1].Take(absl::MakeSpan(shared->more_taken));
  _exit(0);
}

[[gnu::noinline]] void TakeOverAndEnd(SharingDriver* driver) {
  driver->TakeOver();
  _exit(0);
}

// Three queue pairs share receives, and complete in two queues.
class KilledSharingDriverTest : public KilledDriverTest {
 protected:
  // Leaves slots 1 and 2 taken, and the next slots are 7, 3, 0, 4, 5 and 6.
  void PrepareToPost() {
    sharing_.Renew();
    for (Completion& completion : shared_->taken) completion.wr_id = kInvalidWrId;
    for (Completion& completion : shared_->more_taken) completion.wr_id = kInvalidWrId;
    SharingDriver driver(&sharing_, &commands_);
    BATON_CHECK(driver.Post(100, kPosted) == kPosted);
    BATON_CHECK(sharing_.TakeAll().size() == kPosted);
    for (const uint16_t slot : {3, 0, 4, 5, 6}) BATON_CHECK(sharing_.Complete(1, slot));
    BATON_CHECK(driver.Poll(0).size() == kFreed);
    held_ = {1, 2};
  }
  // Posts two receives more. One completes in queue 0, beside an earlier one, and one in queue 1.
  void PrepareToTake() {
    PrepareToPost();
    SharingDriver driver(&sharing_, &commands_);
    BATON_CHECK(driver.Post(200, 2) == 2);
    BATON_CHECK(sharing_.TakeAll().size() == 2);
    BATON_CHECK(sharing_.Complete(0, 3) && sharing_.Complete(1, 1) && sharing_.Complete(2, 7));
    held_ = {2};
  }
  // Returns the wr_ids that were told in a queue, by the killed driver and by its heir. The heir
  // may tell the last one again that the killed one had, which was not consumed.
  std::vector<uint64_t> Told(absl::Span<const Completion> killed, SharingDriver* heir,
                             size_t queue) {
    std::vector<uint64_t> told;
    for (const Completion& completion : killed) {
      if (completion.wr_id != kInvalidWrId) told.push_back(completion.wr_id);
    }
    std::vector<uint64_t> rest = heir->Poll(queue);
    if (!told.empty() && !rest.empty() && told.back() == rest.front()) {
      told.pop_back();
      ++again_;
    }
    told.insert(told.end(), rest.begin(), rest.end());
    return told;
  }
  // Fills the queue twice. Each time all slots but one are outstanding, once each, and together all
  // slots were. Each receive completes with its own wr_id.
  void ExpectAllSlots(SharingDriver* driver) {
    std::set<uint16_t> all(held_.begin(), held_.end());
    const size_t room = kSharedSlots - 1 - held_.size();
    ASSERT_EQ(driver->Post(1000, kSharedSlots), room);
    std::vector<uint16_t> slots = sharing_.TakeAll();
    ASSERT_EQ(slots.size(), room);
    all.insert(slots.begin(), slots.end());
    ASSERT_EQ(all.size(), kSharedSlots - 1);
    std::vector<uint64_t> completed;
    for (size_t i = room; i-- > 0;) {
      ASSERT_TRUE(sharing_.Complete(0, slots[i]));
      completed.push_back(1000 + i);
    }
    ASSERT_THAT(driver->Poll(0), ElementsAreArray(completed));
    ASSERT_EQ(driver->Post(2000, kSharedSlots), room);
    slots = sharing_.TakeAll();
    ASSERT_EQ(std::set<uint16_t>(slots.begin(), slots.end()).size(), room);
    all.insert(slots.begin(), slots.end());
    ASSERT_EQ(all.size(), kSharedSlots);
  }

  static constexpr uint16_t kPosted = kSharedSlots - 1;
  static constexpr uint16_t kFreed = kPosted - 2;
  SharedQueue sharing_;
  std::atomic<QueuePairState> state_;
  SharedCommands commands_{&state_};
  std::vector<uint16_t> held_;  // slots that the device has taken and not completed
  int again_ = 0;
};

TEST_F(KilledSharingDriverTest, shouldPostSharedReceivesOnce) {
  const ScatterGather buffers[] = {{200, 100, 4}, {201, 200, 5}};
  const std::vector<ReceiveRequest> requests = {{200, {&buffers[0], 1}}, {201, {&buffers[1], 1}}};
  int queued = 0;
  int not_queued = 0;
  KillEverywhere(
      1, native::CodeOf(&PostSharedAndEnd), [this] { PrepareToPost(); },
      [this, &requests] {
        SharingDriver driver(&sharing_, &commands_);
        PostSharedAndEnd(&driver.receives, requests);
      },
      [this, &queued, &not_queued] {
        SharingDriver heir(&sharing_, &commands_);
        heir.TakeOver();
        const bool was_queued = heir.receives.IsQueued(201).value();
        ASSERT_EQ(heir.receives.IsQueued(200).value(), was_queued);
        (was_queued ? queued : not_queued) += 1;
        if (!was_queued) ASSERT_EQ(heir.Post(200, 2), 2u);
        ASSERT_EQ(heir.receives.receives_queued(), kPosted + 2);
        uint64_t wr_id = 200;
        for (const uint16_t slot : {7, 3}) {
          const auto taken = sharing_.Take();
          ASSERT_TRUE(taken.ok() && taken->has_value()) << taken.status();
          ASSERT_EQ((*taken)->slot, slot);
          ASSERT_EQ((*taken)->sge_count, 1u);
          ASSERT_EQ(sharing_.buffers[0].address, wr_id);
          ASSERT_TRUE(sharing_.Complete(2, slot));
          ++wr_id;
        }
        ASSERT_THAT(heir.Poll(1), ElementsAre(200, 201));
        ASSERT_NO_FATAL_FAILURE(ExpectAllSlots(&heir));
      });
  EXPECT_GT(queued, 0);
  EXPECT_GT(not_queued, 0);
}

TEST_F(KilledSharingDriverTest, shouldTellEachSharedReceiveOnceAndFreeItsSlot) {
  int pending = 0;
  KillEverywhere(
      1, native::CodeOf(&TakeSharedAndEnd), [this] { PrepareToTake(); },
      [this] {
        SharingDriver driver(&sharing_, &commands_);
        TakeSharedAndEnd(&driver, shared_);
      },
      [this, &pending] {
        pending += UnpackFreed(*sharing_.memory().freed).pending ? 1 : 0;
        SharingDriver heir(&sharing_, &commands_);
        heir.TakeOver();
        ASSERT_FALSE(UnpackFreed(*sharing_.memory().freed).pending);
        ASSERT_TRUE(heir.receives.IsQueued(102).value());
        ASSERT_EQ(heir.receives.IsQueued(200).value(),
                  LoadRecord(&sharing_.queue(1).consumed) == 0);
        ASSERT_THAT(Told(shared_->taken, &heir, 0), ElementsAre(201, 101));
        ASSERT_THAT(Told(shared_->more_taken, &heir, 1), ElementsAre(200));
        ASSERT_EQ(UnpackFreed(*sharing_.memory().freed).freed, kFreed + 3);
        ASSERT_EQ(sharing_.pair(0).cursors.received, 1);
        ASSERT_EQ(sharing_.pair(1).cursors.received, kFreed + 1);
        ASSERT_EQ(sharing_.pair(2).cursors.received, 1);
        ASSERT_NO_FATAL_FAILURE(ExpectAllSlots(&heir));
      });
  EXPECT_GT(again_, 0);
  EXPECT_GT(pending, 0);
}

// The control: an heir that does not take over loses a slot, and is found out.
TEST_F(KilledSharingDriverTest, shouldSeeASlotThatIsLost) {
  int lost = 0;
  KillEverywhere(
      7, native::CodeOf(&TakeSharedAndEnd), [this] { PrepareToTake(); },
      [this] {
        SharingDriver driver(&sharing_, &commands_);
        TakeSharedAndEnd(&driver, shared_);
      },
      [this, &lost] {
        SharingDriver heir(&sharing_, &commands_);
        (void)heir.Poll(0);
        (void)heir.Poll(1);
        lost += heir.Post(1000, kSharedSlots) < kSharedSlots - 1 - held_.size() ? 1 : 0;
      });
  EXPECT_GT(lost, 0);
}

// The dead driver was about to consume a completion, or had consumed it, and had not settled
// whether its slot is free. Its heir is killed while it does that.
TEST_F(KilledSharingDriverTest, shouldSettleASlotWhoeverIsKilledMeanwhile) {
  for (uint32_t consumed = kFreed; consumed <= kFreed + 1; ++consumed) {
    KillEverywhere(
        1, native::CodeOf(&TakeOverAndEnd),
        [this, consumed] {
          PrepareToPost();
          BATON_CHECK(sharing_.Complete(1, 2));
          SharingDriver driver(&sharing_, &commands_);
          driver.receives.BeginFree(2, kCompletionQueue, kFreed + 1);
          StoreRecord(&sharing_.queue(0).consumed, consumed);
          sharing_.queue(0).taken =
              Pack({.consumed = kFreed + 1, .place = 1, .receive = true, .cursor = kFreed + 1});
          held_ = {1};
        },
        [this] {
          SharingDriver driver(&sharing_, &commands_);
          TakeOverAndEnd(&driver);
        },
        [this, consumed] {
          SharingDriver heir(&sharing_, &commands_);
          heir.TakeOver();
          ASSERT_EQ(heir.Poll(0).size(), kFreed + 1 - consumed);
          ASSERT_EQ(sharing_.pair(1).cursors.received, kFreed + 1);
          ASSERT_NO_FATAL_FAILURE(ExpectAllSlots(&heir));
        });
  }
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

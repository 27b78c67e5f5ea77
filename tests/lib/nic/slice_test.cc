// A NIC in a process of its own, and drivers that are killed. The NIC executes each request once,
// and each completion is polled once, whichever process goes on.
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/nic/harness.h"
#include "tests/native/stepper.h"

namespace baton::nic {
namespace {

using verbs::Completion;
using verbs::CompletionStatus;
using verbs::Opcode;
using verbs::SendRequest;

constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(30);
constexpr uint64_t kInvalidWrId = ~uint64_t{0};

uint64_t Deadline() {
  return MonotonicNanoseconds() +
         static_cast<uint64_t>(std::chrono::nanoseconds(harness::Patient(kPatience)).count());
}

bool Eventually(const std::function<bool()>& done) {
  for (const uint64_t deadline = Deadline(); !done(); sched_yield()) {
    if (MonotonicNanoseconds() > deadline) return false;
  }
  return true;
}

// Waits for the next completion. wr_id: kInvalidWrId if there is none in time.
Completion Next(Driver* driver) {
  Completion completion;
  completion.wr_id = kInvalidWrId;
  Eventually([&] { return driver->queue().Take({&completion, 1}).value_or(1) != 0; });
  return completion;
}

SendRequest AddOne(const Shard& shard, uint64_t wr_id, const verbs::ScatterGather& result,
                   const uint64_t* counter) {
  SendRequest add =
      RequestOf(Opcode::kFetchAndAdd, wr_id, result, shard.AddressOf(counter), shard.key());
  add.compare_add = 1;
  return add;
}

TEST(SliceTest, shouldExecuteInAnotherProcess) {
  NicProcess nic;
  const std::unique_ptr<Client> client = nic.Open();
  Shard shard(client.get(), {});
  Driver driver(&shard);
  std::strcpy(reinterpret_cast<char*>(shard.data()), "hello");
  driver.Receive(1, 50, shard.SgeOf(shard.data() + 100, 10));
  const verbs::ScatterGather from = shard.SgeOf(shard.data(), 6);
  driver.Send(0, RequestOf(Opcode::kSend, 1, from));
  EXPECT_EQ(Next(&driver).wr_id, 50u);
  EXPECT_EQ(Next(&driver).wr_id, 1u);
  EXPECT_STREQ(reinterpret_cast<char*>(shard.data()) + 100, "hello");
}

// A register has 256 places.
TEST(SliceTest, shouldExecuteAllThatWasRungWhileItWasStopped) {
  constexpr uint32_t kQueuePairs = 1000;
  NicProcess nic;
  const std::unique_ptr<Client> client = nic.Open();
  Shard shard(client.get(),
              {.queue_pairs = kQueuePairs, .entry_count = 2048, .data_bytes = 16 * kQueuePairs});
  Driver driver(&shard);
  for (int round = 0; round < 3; ++round) {
    nic.Stop();
    for (uint32_t i = 0; i < kQueuePairs; ++i) {
      const verbs::ScatterGather result = shard.SgeOf(&shard.word(kQueuePairs + i), 8);
      driver.Send(i, AddOne(shard, i, result, &shard.word(i)));
    }
    nic.Continue();
    std::vector<int> completed(kQueuePairs);
    for (uint32_t i = 0; i < kQueuePairs; ++i) {
      const Completion completion = Next(&driver);
      ASSERT_LT(completion.wr_id, kQueuePairs);
      ASSERT_EQ(completion.status, CompletionStatus::kSuccess);
      ++completed[completion.wr_id];
    }
    for (uint32_t i = 0; i < kQueuePairs; ++i) {
      ASSERT_EQ(completed[i], 1);
      ASSERT_EQ(shard.word(i), static_cast<uint64_t>(round + 1));
    }
  }
}

// A ring that the single step begins at.
[[gnu::noinline]] void RingAndEnd(verbs::mlx5::FifoDoorbell* bell, uint64_t bytes) {
  bell->Ring(bytes);
  _exit(0);
}

class LastRing final : public verbs::mlx5::Doorbell {
 public:
  explicit LastRing(verbs::mlx5::FifoDoorbell* bell) : bell_(bell) {}
  void Ring(uint64_t bytes) override { RingAndEnd(bell_, bytes); }
  void Arm(uint64_t) override {}
  void ReceivesPosted(uint32_t, const uint32_t&) override {}

 private:
  verbs::mlx5::FifoDoorbell* const bell_;
};

struct Gate {
  std::atomic<bool> open;
};

// The driver has queued a request and is killed in its ring, after each instruction.
TEST(SliceTest, shouldExecuteOnceWhereverTheRingIsKilled) {
  NicProcess nic;
  const std::unique_ptr<Client> client = nic.Open();
  Shard shard(client.get(), {});
  void* const memory =
      mmap(nullptr, sizeof(Gate), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const gate = new (memory) Gate();
  const verbs::ScatterGather result = shard.SgeOf(&shard.word(1), 8);
  uint64_t posted = 0;
  bool ended = false;
  for (uint64_t instructions = 1; !ended; ++instructions) {
    gate->open = false;
    const pid_t killed = fork();
    if (killed == 0) {
      while (!gate->open) sched_yield();
      Driver driver(&shard);
      driver.TakeOver();
      LastRing bell(&driver.bell());
      verbs::mlx5::SendQueue queue(shard.layout().SendsAt(shard.queue_pair(0)), shard.number(0),
                                   kSendLimits, &bell);
      const SendRequest add = AddOne(shard, posted, result, &shard.word(0));
      size_t queued = 0;
      (void)queue.Post({&add, 1}, &queued);
    }
    {
      native::Stepper stepper(killed);
      gate->open = true;
      ASSERT_NE(stepper.RunTo({native::CodeOf(&RingAndEnd)}), 0u);
      ended = !stepper.Step(instructions);
      if (!ended) {
        kill(killed, SIGKILL);
        ASSERT_EQ(waitpid(killed, nullptr, 0), killed);
      }
    }
    Driver heir(&shard);
    heir.TakeOver();
    ASSERT_EQ(Next(&heir).wr_id, posted) << instructions;
    ASSERT_EQ(shard.word(0), ++posted) << instructions;
    // And the page is as good as before.
    heir.Send(0, AddOne(shard, posted, result, &shard.word(0)));
    ASSERT_EQ(Next(&heir).wr_id, posted) << instructions;
    ASSERT_EQ(shard.word(0), ++posted) << instructions;
    ASSERT_EQ(shard.page()->attention, 0u);
  }
  EXPECT_GT(posted, 40u);
  munmap(memory, sizeof(Gate));
}

// The state of the worker's own service, in memory that outlives it.
struct Journal {
  std::atomic<uint64_t> steps;  // so that a kill can be aimed
  uint64_t posted;              // sends of the first queue pair; the queue itself may be ahead
  uint64_t receives_posted;     // of the second
  uint64_t sent;                // completions of each
  uint64_t received;
  Completion taken;   // by Take, and perhaps not noted yet
  uint64_t last;      // the wr_id that was noted last
  uint64_t waits;     // for an event
  uint64_t repeated;  // completions that were told again, as may be after a kill
  bool failed;
};

// Fetch-and-adds and sends take turns. Each is one slot, so the queue's counter counts requests.
class Worker {
 public:
  static constexpr uint64_t kRequests = 60'000;
  static constexpr uint64_t kWindow = 12;  // of both queues
  static constexpr uint64_t kReceiveBit = uint64_t{1} << 63;

  Worker(Shard* shard, Journal* journal) : shard_(shard), journal_(journal), driver_(shard) {}

  // Goes on from what a killed one left.
  void TakeOver() {
    driver_.TakeOver();
    journal_->posted = Current(journal_->posted, driver_[0].sends_queued());
    journal_->receives_posted = Current(journal_->receives_posted, driver_[1].receives_queued());
    if (journal_->taken.wr_id != kInvalidWrId) Note(journal_->taken);
    may_repeat_ = true;
  }

  void Run(std::mt19937_64* random) {
    while (journal_->sent < kRequests || journal_->received < kRequests / 2) {
      journal_->steps.fetch_add(1, std::memory_order_relaxed);
      switch ((*random)() % 4) {
        case 0:
          PostSends(1 + (*random)() % 4);
          break;
        case 1:
          PostReceives(1 + (*random)() % 4);
          break;
        default:
          if (!Take() && (*random)() % 4 == 0) WaitForEvent();
      }
    }
  }

  // The index of a send among sends, and what it carries.
  static uint64_t PayloadOf(uint64_t index) { return 0x5e9d'0000'0000 + index; }

 private:
  // The driver was killed before it could note what it had queued.
  static uint64_t Current(uint64_t noted, uint16_t queued) {
    return noted + static_cast<uint16_t>(queued - static_cast<uint16_t>(noted));
  }
  // Places of requests, in the data: the counter, then results, payloads, and receives.
  uint64_t* Result(uint64_t request) const { return &shard_->word(8 + request % 16); }
  uint64_t* Payload(uint64_t request) const { return &shard_->word(24 + request % 16); }
  uint64_t* Arrival(uint64_t receive) const { return &shard_->word(40 + receive % 16); }

  void PostSends(uint64_t count) {
    std::vector<SendRequest> requests;
    std::vector<verbs::ScatterGather> sges(count);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t request = journal_->posted + i;
      if (request == kRequests || request - journal_->sent >= kWindow) break;
      if (request % 2 == 0) {
        sges[i] = shard_->SgeOf(Result(request), 8);
        requests.push_back(AddOne(*shard_, request, sges[i], &shard_->word(0)));
      } else {
        *Payload(request) = PayloadOf(request / 2);
        sges[i] = shard_->SgeOf(Payload(request), 8);
        requests.push_back(RequestOf(Opcode::kSend, request, sges[i]));
      }
    }
    if (requests.empty()) return;
    size_t posted = 0;
    Expect(driver_[0].PostSend(requests, &posted).ok() && posted == requests.size(), "post");
    journal_->posted += posted;
  }

  void PostReceives(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t receive = journal_->receives_posted;
      if (receive == kRequests / 2 || receive - journal_->received >= kWindow) return;
      driver_.Receive(1, receive | kReceiveBit, shard_->SgeOf(Arrival(receive), 8));
      ++journal_->receives_posted;
    }
  }

  bool Take() {
    journal_->taken.wr_id = kInvalidWrId;
    const absl::StatusOr<int> taken = driver_.queue().Take({&journal_->taken, 1});
    Expect(taken.ok(), "take");
    if (*taken == 0) return false;
    took_ = true;
    // It was not consumed by the killed one, which has noted it.
    if (std::exchange(may_repeat_, false) && journal_->taken.wr_id == journal_->last) {
      ++journal_->repeated;
    } else {
      Note(journal_->taken);
    }
    return true;
  }

  void Note(const Completion& completion) {
    const bool receive = (completion.wr_id & kReceiveBit) != 0;
    const uint64_t index = completion.wr_id & ~kReceiveBit;
    uint64_t& next = receive ? journal_->received : journal_->sent;
    // The killed one has taken and noted it.
    if (!took_ && index + 1 == next) {
      journal_->last = completion.wr_id;
      return;
    }
    Expect(completion.status == CompletionStatus::kSuccess, "status");
    Expect(index == next, receive ? "the order of receives" : "the order of sends");
    if (receive) {
      Expect(*Arrival(index) == PayloadOf(index), "what was received");
    } else if (index % 2 == 0) {
      Expect(*Result(index) == index / 2, "what was fetched");
    }
    ++next;
    journal_->last = completion.wr_id;
  }

  // Asks for an event, polls once more, and waits.
  void WaitForEvent() {
    uint8_t events[64];
    while (recv(shard_->events(), events, sizeof(events), MSG_DONTWAIT) > 0) {
    }
    driver_.queue().RequestNotification();
    if (Take() || !SomethingCompletes()) return;
    ++journal_->waits;
    pollfd entry = {shard_->events(), POLLIN, 0};
    Expect(poll(&entry, 1, static_cast<int>(harness::Patient(kPatience).count())) == 1,
           "an event of a completion");
  }
  // The oldest send is no SEND that waits for a receive of ours.
  bool SomethingCompletes() const {
    const uint64_t oldest = journal_->sent;
    if (oldest == journal_->posted) return false;
    return oldest % 2 == 0 || oldest / 2 < journal_->receives_posted;
  }

  void Expect(bool good, const char* what) {
    if (good) return;
    std::fprintf(stderr, "wrong: %s (sent %lu, received %lu)\n", what, journal_->sent,
                 journal_->received);
    journal_->failed = true;
    _exit(1);
  }

  Shard* const shard_;
  Journal* const journal_;
  Driver driver_;
  bool took_ = false;        // this process has taken any
  bool may_repeat_ = false;  // it has taken none since it took over
};

TEST(SliceTest, shouldExecuteEachRequestOnceHoweverOftenItsDriverIsKilled) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", seed);
  std::mt19937_64 random(seed);
  NicProcess nic;
  const std::unique_ptr<Client> client = nic.Open();
  Shard shard(client.get(), {});
  void* const memory =
      mmap(nullptr, sizeof(Journal), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const journal = new (memory) Journal();
  journal->taken.wr_id = journal->last = kInvalidWrId;
  int kills = 0;
  for (bool done = false; !done;) {
    const uint64_t worker_seed = random();
    const pid_t worker = fork();
    if (worker == 0) {
      std::mt19937_64 worker_random(worker_seed);
      Worker heir(&shard, journal);
      heir.TakeOver();
      heir.Run(&worker_random);
      _exit(0);
    }
    const uint64_t target = journal->steps + random() % 300;
    int status = 0;
    pid_t ended = 0;
    ASSERT_TRUE(Eventually([&] {
      ended = waitpid(worker, &status, WNOHANG);
      return ended != 0 || journal->steps >= target;
    }));
    if (ended == 0) {
      for (uint64_t spins = random() % 2000; spins > 0; --spins) {
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
      kill(worker, SIGKILL);
      ASSERT_EQ(waitpid(worker, &status, 0), worker);
    }
    if (WIFSIGNALED(status)) {
      ASSERT_EQ(WTERMSIG(status), SIGKILL);
      ++kills;
    }
    ASSERT_FALSE(journal->failed);
    done = WIFEXITED(status);
    ASSERT_TRUE(!done || WEXITSTATUS(status) == 0);
  }
  EXPECT_EQ(shard.word(0), Worker::kRequests / 2);
  EXPECT_EQ(journal->sent, Worker::kRequests);
  EXPECT_EQ(journal->received, Worker::kRequests / 2);
  std::printf("%d kills, %lu completions told again, %lu waits\n", kills, journal->repeated,
              journal->waits);
  EXPECT_GT(kills, 0);
  munmap(memory, sizeof(Journal));
}

}  // namespace
}  // namespace baton::nic

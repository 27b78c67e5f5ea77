#include "supervisor/driver/broker/brokers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/harness/expectations.h"

namespace baton::driver_process {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

// Processes that only the test knows.
struct Forked {
  pid_t pid = 0;
  uint32_t place = 0;
  int pidfd = -1;
  BrokerForks::Code code = BrokerForks::Code::kProven;
  bool dead = false;
};

class TestForks final : public BrokerForks {
 public:
  explicit TestForks(std::vector<Forked>* all, const bool* refuses)
      : all_(all), refuses_(refuses) {}

  absl::StatusOr<ForkedChild> Fork(BrokerInheritance inheritance, Code code) override {
    if (*refuses_) return absl::ResourceExhaustedError("no process");
    ForkedChild child;
    child.pid = static_cast<pid_t>(all_->size() + 1);
    child.pidfd.Reset(eventfd(0, EFD_CLOEXEC));
    all_->push_back({child.pid, inheritance.place, child.pidfd.get(), code});
    return child;
  }
  std::string Reap(int pidfd) override {
    for (Forked& one : *all_) {
      if (one.pidfd != pidfd || !one.dead) continue;
      one.pidfd = -1;
      return "was killed";
    }
    return "";
  }
  void Kill(int pidfd) override {
    for (Forked& one : *all_) {
      if (one.pidfd == pidfd) one.dead = true;
    }
  }
  absl::Status ReplaceCode(std::chrono::milliseconds probation) override {
    probation_ = probation;
    code_ = "on probation";
    return absl::OkStatus();
  }
  bool on_probation() const override { return code_ == "on probation"; }
  std::chrono::milliseconds probation() const override { return probation_; }
  void ProveCode() override { code_ = "proven"; }
  void GiveUpCode() override { code_ = "given up"; }

  const std::string& code() const { return code_; }

 private:
  std::vector<Forked>* const all_;
  const bool* const refuses_;
  std::chrono::milliseconds probation_{};
  std::string code_;
};

class BrokersTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(brokers_.Start()); }

  // The broker's turn.
  void Drive(const Forked& broker) {
    board_->took_lock_ns.store(now_);
    board_->driver.store(broker.pid);
    board_->generation.fetch_add(1);
  }
  // The host's beats, in which nobody looks at the board. Returns who was killed by the last one.
  pid_t Beats(int count) {
    pid_t killed = 0;
    for (int i = 0; i < count; ++i) {
      board_->told.fetch_add(1);
      now_ += kSecond;
      killed = brokers_.Beat();
    }
    return killed;
  }
  size_t CountLive() const {
    size_t count = 0;
    for (const Forked& one : all_) count += !one.dead;
    return count;
  }

  static constexpr std::chrono::seconds kProbation{7};
  using Code = BrokerForks::Code;

  // The latest that lives.
  Forked& Last() {
    for (size_t i = all_.size(); i-- > 1;) {
      if (!all_[i].dead) return all_[i];
    }
    return all_[0];
  }
  void Turn(uint64_t after_ns = 0) {
    now_ += after_ns;
    ASSERT_OK(brokers_.Turn());
  }
  // The first broker drives, and the next one is forked to replace it.
  void BeginReplacing() {
    Drive(all_[0]);
    ASSERT_NO_FATAL_FAILURE(Turn());
    ASSERT_OK(brokers_.Replace(kProbation));
    ASSERT_NO_FATAL_FAILURE(Turn());
    ASSERT_EQ(all_.size(), 3u);
    EXPECT_EQ(all_[2].code, Code::kNext);
    EXPECT_EQ(CountLive(), 3u);
  }
  // The next one is ready, and so is a twin that waits behind it. The one that drives is to leave.
  void PrepareTakeover() {
    ASSERT_NO_FATAL_FAILURE(BeginReplacing());
    board_->ready[all_[2].place].store(true);
    ASSERT_NO_FATAL_FAILURE(Turn());
    EXPECT_TRUE(all_[1].dead);
    ASSERT_NO_FATAL_FAILURE(Turn());
    ASSERT_EQ(all_.size(), 4u);
    EXPECT_EQ(all_[3].code, Code::kProven);
    EXPECT_EQ(board_->leaves.load(), 0);
    board_->ready[all_[3].place].store(true);
    ASSERT_NO_FATAL_FAILURE(Turn());
    EXPECT_EQ(board_->leaves.load(), 0);  // a `baton-driver` that follows would not know them
    ASSERT_NO_FATAL_FAILURE(Turn(kSecond / 5));
    ASSERT_NO_FATAL_FAILURE(Turn());
    EXPECT_EQ(board_->leaves.load(), all_[0].pid);
    EXPECT_TRUE(brokers_.TakeLeaveAsked());
    EXPECT_FALSE(all_[0].dead);
  }
  // The next one drives, on probation, and its twin is of the former code.
  void ReplaceTheDriver() {
    ASSERT_NO_FATAL_FAILURE(PrepareTakeover());
    all_[0].dead = true;
    Drive(all_[2]);
    ASSERT_NO_FATAL_FAILURE(Turn());
    ASSERT_NO_FATAL_FAILURE(Turn(kSecond));
    ASSERT_EQ(all_.size(), 4u);
    EXPECT_EQ(brokers_.twin(), all_[3].pid);
  }
  void ExpectGivenUp(const std::string& why) {
    EXPECT_EQ(forks_->code(), "given up");
    EXPECT_THAT(brokers_.code_given_up(), ::testing::HasSubstr(why));
    EXPECT_EQ(told_.back(), "driver_code_given_up");
    EXPECT_OK(brokers_.Replace(kProbation));  // it is over
  }

  uint64_t now_ = kSecond;
  bool refuses_ = false;
  std::vector<Forked> all_;
  std::vector<std::string> told_, messages_;  // events: their kinds, and what they say
  TestForks* forks_ = nullptr;
  SharedBoard board_ = SharedBoard::Make().value();
  Brokers brokers_{board_.get(),
                   std::unique_ptr<TestForks>(forks_ = new TestForks(&all_, &refuses_)),
                   [] { return BrokerInheritance(); },
                   [this](std::string_view kind, const std::string& message) {
                     told_.emplace_back(kind);
                     messages_.push_back(message);
                   },
                   [this] { return now_; },
                   30 * kSecond};
};

TEST_F(BrokersTest, shouldForkTwoWithPlacesOfTheirOwn) {
  ASSERT_EQ(all_.size(), 2u);
  EXPECT_NE(all_[0].place, all_[1].place);
}

// They fill their page tables, which takes as long as the service is large.
TEST_F(BrokersTest, shouldLeaveBrokersThatAreNotReadyYet) {
  Beats(20);
  EXPECT_EQ(CountLive(), 2u);
  Beats(50);
  EXPECT_EQ(CountLive(), 0u);
}

TEST_F(BrokersTest, shouldKillReadyBrokersThatDoNotDrive) {
  for (const Forked& one : all_) board_->ready[one.place].store(true);
  Beats(2);
  EXPECT_EQ(CountLive(), 0u);
}

TEST_F(BrokersTest, shouldKillTheOneThatDrivesAndHangs) {
  Drive(all_[0]);
  EXPECT_EQ(Beats(2), all_[0].pid);
  EXPECT_EQ(CountLive(), 1u);
}

// Its successor may drive before its end is known.
TEST_F(BrokersTest, shouldSayWhichBrokerHasDied) {
  Drive(all_[0]);
  all_[1].dead = true;
  ASSERT_NO_FATAL_FAILURE(Turn());
  ASSERT_NO_FATAL_FAILURE(Turn(kSecond));
  ASSERT_EQ(all_.size(), 3u);
  Drive(all_[2]);
  ASSERT_NO_FATAL_FAILURE(Turn());
  EXPECT_THAT(messages_.back(), ::testing::HasSubstr("has died: process 1; process 3 drives"));
  all_[0].dead = true;
  ASSERT_NO_FATAL_FAILURE(Turn(kSecond));
  ASSERT_EQ(all_.size(), 4u);
  all_[2].dead = all_[3].dead = true;  // its twin, too
  ASSERT_NO_FATAL_FAILURE(Turn(kSecond));
  Drive(Last());
  ASSERT_NO_FATAL_FAILURE(Turn());
  EXPECT_THAT(messages_.back(), ::testing::HasSubstr("has died: (process 3) was killed"));
}

// The end of the broker that left for it is no news any more.
TEST_F(BrokersTest, shouldSayWhichBrokerHasDiedAfterAReplacement) {
  ASSERT_NO_FATAL_FAILURE(ReplaceTheDriver());
  Drive(all_[3]);
  ASSERT_NO_FATAL_FAILURE(Turn());
  EXPECT_EQ(told_.back(), "broker_followed");
  EXPECT_THAT(messages_.back(), ::testing::HasSubstr("has died: process 3; process 4 drives"));
}

// The host was stopped itself, and has not tried.
TEST_F(BrokersTest, shouldForkOthersHoweverLongThereWasNone) {
  Drive(all_[0]);
  for (Forked& one : all_) one.dead = true;
  ASSERT_OK(brokers_.Turn());
  now_ += 60 * kSecond;
  ASSERT_OK(brokers_.Turn());
  EXPECT_TRUE(brokers_.any_live());
}

TEST_F(BrokersTest, shouldGiveUpWhenNoneCanBeForkedForSeconds) {
  Drive(all_[0]);
  for (Forked& one : all_) one.dead = true;
  refuses_ = true;
  ASSERT_OK(brokers_.Turn());
  for (int i = 0; i < 4; ++i) {
    now_ += kSecond;
    ASSERT_OK(brokers_.Turn());
  }
  now_ += 3 * kSecond;
  EXPECT_TRUE(absl::IsInternal(brokers_.Turn()));
}

// ---------------------------------------------------------------- the next code

TEST_F(BrokersTest, shouldReplaceTheBrokerAndThenItsTwin) {
  ASSERT_NO_FATAL_FAILURE(ReplaceTheDriver());
  EXPECT_EQ(told_, std::vector<std::string>{"broker_replaced"});
  ASSERT_NO_FATAL_FAILURE(Turn(5 * kSecond));
  EXPECT_EQ(forks_->code(), "on probation");
  ASSERT_NO_FATAL_FAILURE(Turn(kSecond));
  ASSERT_NO_FATAL_FAILURE(Turn(kSecond));
  EXPECT_EQ(forks_->code(), "proven");
  EXPECT_TRUE(all_[3].dead);
  ASSERT_EQ(all_.size(), 5u);
  EXPECT_EQ(brokers_.driver(), all_[2].pid);
  EXPECT_EQ(brokers_.twin(), 0);  // it is not ready yet
  board_->ready[all_[4].place].store(true);
  EXPECT_EQ(brokers_.twin(), all_[4].pid);
  EXPECT_EQ(brokers_.code_given_up(), "");
  EXPECT_EQ(told_.back(), "driver_code_proven");
}

TEST_F(BrokersTest, shouldReplaceOneAtATime) {
  ASSERT_NO_FATAL_FAILURE(BeginReplacing());
  EXPECT_TRUE(absl::IsAborted(brokers_.Replace(kProbation)));
}

TEST_F(BrokersTest, shouldReplaceNoneOnProbation) {
  ASSERT_NO_FATAL_FAILURE(ReplaceTheDriver());
  EXPECT_TRUE(absl::IsAborted(brokers_.Replace(kProbation)));
}

TEST_F(BrokersTest, shouldKillOneThatDoesNotLeave) {
  ASSERT_NO_FATAL_FAILURE(PrepareTakeover());
  ASSERT_NO_FATAL_FAILURE(Turn(kSecond));
  EXPECT_TRUE(all_[0].dead);
}

// The kernel has given the lock to the twin after all.
TEST_F(BrokersTest, shouldHaveATwinLeaveThatHasTheLockFirst) {
  ASSERT_NO_FATAL_FAILURE(PrepareTakeover());
  all_[0].dead = true;
  Drive(all_[3]);
  ASSERT_NO_FATAL_FAILURE(Turn());
  EXPECT_EQ(board_->leaves.load(), all_[3].pid);
  all_[3].dead = true;
  Drive(all_[2]);
  ASSERT_NO_FATAL_FAILURE(Turn());
  EXPECT_EQ(told_, std::vector<std::string>{"broker_replaced"});
}

// It could not read what it was sent, and another one is forked.
TEST_F(BrokersTest, shouldNotBlameTheCodeOfABrokerThatWasSentTooMuch) {
  ASSERT_NO_FATAL_FAILURE(BeginReplacing());
  for (int i = 0; i < 97; ++i) brokers_.Send({});
  EXPECT_TRUE(all_[2].dead);
  ASSERT_NO_FATAL_FAILURE(Turn());
  ASSERT_NO_FATAL_FAILURE(Turn());
  EXPECT_EQ(forks_->code(), "on probation");
  EXPECT_EQ(std::count_if(all_.begin(), all_.end(),
                          [](const Forked& one) { return !one.dead && one.code == Code::kNext; }),
            1);
}

// Its death is not known yet when the probation is over.
TEST_F(BrokersTest, shouldNotProveTheCodeOfABrokerThatWasKilled) {
  ASSERT_NO_FATAL_FAILURE(ReplaceTheDriver());
  Drive(all_[3]);
  ASSERT_NO_FATAL_FAILURE(Turn(8 * kSecond));
  EXPECT_EQ(forks_->code(), "on probation");
  EXPECT_FALSE(all_[3].dead);
}

TEST_F(BrokersTest, shouldLeaveTheBrokerThatDrivesIfTheNextEndsFirst) {
  ASSERT_NO_FATAL_FAILURE(BeginReplacing());
  board_->failed[all_[2].place].Store(absl::FailedPreconditionError("it is no code of drivers"));
  all_[2].dead = true;
  ASSERT_NO_FATAL_FAILURE(Turn(kSecond));
  ASSERT_NO_FATAL_FAILURE(Turn(kSecond));
  EXPECT_FALSE(all_[0].dead);
  EXPECT_EQ(Last().code, Code::kProven);
  ExpectGivenUp("it is no code of drivers");
}

TEST_F(BrokersTest, shouldLeaveTheBrokerThatDrivesIfTheNextIsNeverReady) {
  ASSERT_NO_FATAL_FAILURE(BeginReplacing());
  ASSERT_NO_FATAL_FAILURE(Turn(29 * kSecond));
  EXPECT_FALSE(all_[2].dead);
  ASSERT_NO_FATAL_FAILURE(Turn(kSecond));
  EXPECT_FALSE(all_[0].dead);
  EXPECT_TRUE(all_[2].dead);
  ExpectGivenUp("ready in time");
}

TEST_F(BrokersTest, shouldGoBackIfTheNextEndsOnProbation) {
  ASSERT_NO_FATAL_FAILURE(ReplaceTheDriver());
  all_[2].dead = true;
  Drive(all_[3]);
  ASSERT_NO_FATAL_FAILURE(Turn());
  ASSERT_NO_FATAL_FAILURE(Turn(kSecond));
  EXPECT_EQ(brokers_.driver(), all_[3].pid);
  EXPECT_EQ(Last().code, Code::kProven);
  EXPECT_THAT(told_, ::testing::Contains("broker_followed"));
  EXPECT_THAT(brokers_.code_given_up(), ::testing::HasSubstr("was killed"));
}

TEST_F(BrokersTest, shouldGoBackIfTheNextHangsOnProbation) {
  ASSERT_NO_FATAL_FAILURE(ReplaceTheDriver());
  EXPECT_EQ(Beats(2), all_[2].pid);
  ASSERT_NO_FATAL_FAILURE(Turn());
  EXPECT_EQ(forks_->code(), "given up");
}

// The twin drives until the next one is ready.
TEST_F(BrokersTest, shouldHaveATwinIfTheFormerEndsBeforeTheNextIsReady) {
  ASSERT_NO_FATAL_FAILURE(BeginReplacing());
  all_[0].dead = true;
  Drive(all_[1]);
  ASSERT_NO_FATAL_FAILURE(Turn());
  ASSERT_NO_FATAL_FAILURE(Turn(kSecond));
  EXPECT_EQ(brokers_.driver(), all_[1].pid);
  EXPECT_FALSE(all_[2].dead);
  EXPECT_EQ(all_.back().code, Code::kProven);
  EXPECT_EQ(CountLive(), 3u);
}

// The lock has come to it by the death of the former one.
TEST_F(BrokersTest, shouldTakeTheNextThatDrivesForReady) {
  ASSERT_NO_FATAL_FAILURE(BeginReplacing());
  all_[0].dead = all_[1].dead = true;
  Drive(all_[2]);
  for (int i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(Turn(kSecond));
  EXPECT_EQ(Last().code, Code::kProven);
  ASSERT_NO_FATAL_FAILURE(Turn(8 * kSecond));
  EXPECT_EQ(forks_->code(), "proven");
}

TEST_F(BrokersTest, shouldReplaceNoneWhileNoneDrives) {
  EXPECT_TRUE(absl::IsUnavailable(brokers_.Replace(kProbation)));
}

}  // namespace
}  // namespace baton::driver_process

#include "supervisor/driver/broker/brokers.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

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
  bool dead = false;
};

class TestForks final : public BrokerForks {
 public:
  explicit TestForks(std::vector<Forked>* all, const bool* refuses)
      : all_(all), refuses_(refuses) {}

  absl::StatusOr<ForkedChild> Fork(BrokerInheritance inheritance) override {
    if (*refuses_) return absl::ResourceExhaustedError("no process");
    ForkedChild child;
    child.pid = static_cast<pid_t>(all_->size() + 1);
    child.pidfd.Reset(eventfd(0, EFD_CLOEXEC));
    all_->push_back({child.pid, inheritance.place, child.pidfd.get()});
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

 private:
  std::vector<Forked>* const all_;
  const bool* const refuses_;
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

  uint64_t now_ = kSecond;
  bool refuses_ = false;
  std::vector<Forked> all_;
  SharedBoard board_ = SharedBoard::Make().value();
  Brokers brokers_{board_.get(),
                   std::make_unique<TestForks>(&all_, &refuses_),
                   [] { return BrokerInheritance(); },
                   [](std::string_view, const std::string&) {},
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

}  // namespace
}  // namespace baton::driver_process

// An owner is killed after each number of instructions from the start of its loop's turn, of its
// recovery, and of what these do that is further away; and the next one goes on: a peer that knows
// nothing of it misses no message, and gets none twice or in another order.
//
// The first owner of each case is stepped through all of them, and tells where they are. The others
// run to one of these places not far before their end, and are stepped on from it: a step takes
// long. What they find differs, and so may their way: for one that is elsewhere after its steps,
// and is killed all the same, another one is stepped all its own way.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/native/checking_peer.h"
#include "tests/native/echo_service.h"
#include "tests/native/native_environment.h"
#include "tests/native/stepped_owners.h"

namespace baton::native {
namespace {

// Few, so that a number of instructions reaches far.
constexpr uint32_t kWindow = 1;
constexpr uint32_t kTries = 20;
constexpr uint64_t kRunCost = 10;       // of a run from a place to the next, in steps
constexpr uint64_t kReportEvery = 100;  // places
// At least this share of the places on the first owner's way must be where another one was killed.
// The soft device's NIC runs beside the owner, so more depends on when it has done what.
double LeastFound() { return IsSoftUnderTest() ? 0.5 : 0.75; }
// From the post to the cursor that says that it was done, more or less.
constexpr uint64_t kPostInstructions = 600;

using Advance = std::function<absl::StatusOr<bool>()>;

class NativeSteps : public ::testing::Test {
 protected:
  NativeSteps() {
    options_.sleeps = false;
    options_.connections = 2;
    options_.depth = 2 * kWindow;
  }

  // `advance` runs the next owner to where the instructions are counted from; false: it has killed
  // one that did not come there, and is to be called again.
  void Run(const Advance& advance) {
    const uint64_t steps = harness::Setting("BATON_NATIVE_STEPS", 1000);
    const uint64_t stride = harness::Setting("BATON_NATIVE_STRIDE", 100);
    const uint64_t begin = MonotonicNanoseconds();
    FindWay(advance, steps);
    if (HasFatalFailure()) return;
    uint64_t found = 0, places = 0;
    for (uint64_t n = 1; n <= steps; n += stride) {
      bool there = false;
      KillAfter(advance, n, LandmarkFor(n), &there);
      if (HasFatalFailure()) return;
      if (!there) KillAfter(advance, n, 0, &there);
      if (HasFatalFailure()) return;
      if (there) ++found;
      if (++places % kReportEvery == 0) Report(found, places);
    }
    owners_->Begin();
    const absl::Status status = owners_->RunToWork();
    ASSERT_TRUE(status.ok()) << status;
    owners_->Release();
    ASSERT_TRUE(peer_->Finish());
    const PeerRecord& record = peer_->record();
    std::cout << (MonotonicNanoseconds() - begin) / 1'000'000'000 << " s; ";
    Report(found, places);
    EXPECT_GE(static_cast<double>(found), LeastFound() * static_cast<double>(places))
        << "too few owners were killed at the instruction that was meant";
    EXPECT_STREQ(service_->record().failure, "");
    EXPECT_EQ(service_->Ended(), 0u);
    EXPECT_STREQ(record.failure, "");
    EXPECT_EQ(record.answered, record.sent);
    EXPECT_EQ(record.lost, 0u);
    EXPECT_EQ(record.repeated, 0u);
    EXPECT_EQ(record.reordered, 0u);
    EXPECT_EQ(record.torn, 0u);
    EXPECT_EQ(record.miscounted, 0u);
    EXPECT_GT(record.sent, kills_);
  }

  void SetUp() override {
    peer_.emplace(HostUnderTest(), options_.connections, kWindow);
    service_.emplace(HostUnderTest(), options_);
    peer_->Connect(service_->port());
    ASSERT_TRUE(service_->Establish());
    owners_.emplace(&*service_, &*peer_, options_, kWindow);
  }

  // An owner dies with sends in its hands, so that its successor has something to recover.
  absl::Status LeaveWork(uint64_t instructions) {
    Stepper& owner = owners_->Begin();
    BATON_RETURN_IF_ERROR(owners_->RunToWork());
    if (owner.RunTo({StartOfPost()}) == 0 || !owner.Step(random_() % instructions)) {
      return absl::InternalError(service_->record().failure);
    }
    owners_->Kill();
    return absl::OkStatus();
  }

  EchoOptions options_;
  std::mt19937_64 random_{harness::Setting("BATON_NATIVE_SEED", 1)};
  std::optional<CheckingPeer> peer_;
  std::optional<EchoService> service_;
  std::optional<SteppedOwners> owners_;

 private:
  void Begin(const Advance& advance) {
    for (uint32_t i = 0; i < kTries; ++i) {
      const absl::StatusOr<bool> there = advance();
      ASSERT_TRUE(there.ok()) << there.status();
      if (*there) return;
    }
    FAIL() << "no owner comes to where the instructions are counted from";
  }

  void Kill() {
    owners_->Kill();
    ++kills_;
    ASSERT_STREQ(service_->record().failure, "");
    ASSERT_STREQ(peer_->record().failure, "");
  }

  void Report(uint64_t found, uint64_t places) const {
    const PeerRecord& record = peer_->record();
    std::cout << kills_ << " kills for " << places << " places, " << found
              << " of them on the first one's way; " << record.sent << " messages, " << record.lost
              << " lost, " << record.repeated << " repeated, " << record.reordered << " reordered, "
              << record.torn << " torn, " << record.miscounted
              << " miscounted; ambiguous sends: " << owners_->sends_found_posted()
              << " had been posted, " << owners_->sends_never_posted() << " had not" << std::endl;
  }

  void FindWay(const Advance& advance, uint64_t steps) {
    ASSERT_NO_FATAL_FAILURE(Begin(advance));
    Stepper& owner = owners_->owner();
    std::map<uintptr_t, uint64_t> passed;
    std::set<std::string> functions;
    for (uint64_t n = 0; n <= steps; ++n) {
      const uintptr_t place = owner.position();
      way_.push_back(place);
      times_.push_back(n == 0 ? 0 : ++passed[place]);
      const std::string function = FunctionAt(place);
      if (functions.insert(function).second) std::cout << "  " << n << ": " << function << "\n";
      ASSERT_TRUE(n == steps || owner.Step(1)) << service_->record().failure;
    }
    Kill();
  }

  // The step after which its way can best be taken up.
  uint64_t LandmarkFor(uint64_t n) const {
    const auto cost = [&](uint64_t step) { return n - step + kRunCost * times_[step]; };
    uint64_t best = 0;
    for (uint64_t step = 1; step <= n; ++step) {
      if (cost(step) < cost(best)) best = step;
    }
    return best;
  }

  // By way of `landmark`; 0: all the way. `*there`: it was at that place of the first one's way.
  void KillAfter(const Advance& advance, uint64_t n, uint64_t landmark, bool* there) {
    ASSERT_NO_FATAL_FAILURE(Begin(advance));
    Stepper& owner = owners_->owner();
    bool passed = true;
    for (uint64_t i = 0; i < times_[landmark] && passed; ++i) {
      passed = owner.RunTo({way_[landmark], StartOfTurn()}) == way_[landmark];
    }
    if (passed) {
      ASSERT_TRUE(owner.Step(n - landmark)) << service_->record().failure;
    }
    *there = passed && owner.position() == way_[n];
    SCOPED_TRACE(testing::Message() << "instruction " << n << ", " << FunctionAt(owner.position()));
    Kill();
  }

  std::vector<uintptr_t> way_;   // where it is after so many steps
  std::vector<uint64_t> times_;  // how often it has come there by then
  uint64_t kills_ = 0;
};

TEST_F(NativeSteps, shouldLoseNothingFromTheStartOfATurn) {
  Run([this]() -> absl::StatusOr<bool> {
    owners_->Begin();
    BATON_RETURN_IF_ERROR(owners_->RunToWork());
    return true;
  });
}

TEST_F(NativeSteps, shouldLoseNothingFromTheStartOfACommit) {
  Run([this]() -> absl::StatusOr<bool> {
    owners_->Begin();
    BATON_RETURN_IF_ERROR(owners_->RunToWork());
    return owners_->owner().RunTo({StartOfCommit()}) != 0;
  });
}

TEST_F(NativeSteps, shouldLoseNothingFromTheStartOfAPost) {
  Run([this]() -> absl::StatusOr<bool> {
    owners_->Begin();
    BATON_RETURN_IF_ERROR(owners_->RunToWork());
    return owners_->owner().RunTo({StartOfPost()}) != 0;
  });
}

TEST_F(NativeSteps, shouldLoseNothingFromTheStartOfRecovery) {
  Run([this]() -> absl::StatusOr<bool> {
    BATON_RETURN_IF_ERROR(LeaveWork(kPostInstructions));
    return owners_->Begin().RunTo({StartOfRecovery()}) != 0;
  });
}

// The poll of what the dead one has not taken, and what is logged of it.
TEST_F(NativeSteps, shouldLoseNothingFromTheFirstPollOfARecovery) {
  Run([this]() -> absl::StatusOr<bool> {
    BATON_RETURN_IF_ERROR(LeaveWork(kPostInstructions));
    return owners_->Begin().RunTo({StartOfPoll()}) != 0;
  });
}

// The first request that a recovery posts: a marker, when it cannot know without, or where the
// device says what is queued, a send that was not.
TEST_F(NativeSteps, shouldLoseNothingFromTheFirstPostOfARecovery) {
  Run([this]() -> absl::StatusOr<bool> {
    BATON_RETURN_IF_ERROR(LeaveWork(kPostInstructions / 4));
    const uintptr_t reached = owners_->Begin().RunTo({StartOfPost(), StartOfTurn()});
    if (reached == StartOfTurn()) owners_->Kill();  // it knew
    return reached == StartOfPost();
  });
}

}  // namespace
}  // namespace baton::native

int main(int argc, char** argv) {
  baton::native::CheckingPeer::RunIfPeer(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

// A Baton of brokered or of native workers under load. One of its processes is killed at one place
// of its work after the other.
#ifndef TESTS_CRASH_STEPS_FIXTURE_H_
#define TESTS_CRASH_STEPS_FIXTURE_H_

#include <cstdint>
#include <cstdio>
#include <functional>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/crash/crash_fixture.h"
#include "tests/harness/binaries.h"
#include "tests/harness/setting.h"

namespace baton::crash {

// The parameter: its workers are native.
class StepsTest : public CrashTest, public testing::WithParamInterface<bool> {
 protected:
  struct Plan {
    const char* killed;         // in words
    uint64_t step;              // every how many places
    uint64_t first;             // the first of them
    uint64_t kills_of_a_baton;  // after so many a new one begins
  };
  static constexpr uint64_t kReportEvery = 200;

  static bool IsNative() { return GetParam(); }

  // Starts a Baton, and ends it with a look at what its peer has seen.
  virtual void Begin() = 0;
  virtual void End() = 0;

  // `kill` kills at the place of this number, from 1 to `places`. `nth`: of all kills, from 1.
  // `last`: no other follows.
  using Kill = std::function<void(uint64_t place, uint64_t nth, bool last)>;
  void KillAtEach(const Plan& plan, uint64_t places, const Kill& kill) {
    uint64_t kills = 0;
    for (uint64_t place = plan.first; place <= places; place += plan.step) {
      SCOPED_TRACE(absl::StrCat("place ", place));
      const bool last = place + plan.step > places;
      if (!cluster_) ASSERT_NO_FATAL_FAILURE(Begin());
      ASSERT_NO_FATAL_FAILURE(kill(place, ++kills, last));
      if (kills % plan.kills_of_a_baton == 0 || last) ASSERT_NO_FATAL_FAILURE(End());
      if (kills % kReportEvery != 0) continue;
      std::printf("%llu %s were killed\n", Printable(kills), plan.killed);
      std::fflush(stdout);
    }
    std::printf("%llu %s of %s workers were killed, at one in %llu of %llu places\n",
                Printable(kills), plan.killed, IsNative() ? "native" : "brokered",
                Printable(plan.step), Printable(places));
  }

  // With two native workers, or with none yet.
  void StartBaton() {
    harness::ClusterOptions options;
    if (IsNative()) {
      options.native_object = harness::Binaries().Find("ledger-v1.so").value();
      options.batond_arguments = {"--native-workers", "2"};
    }
    ASSERT_NO_FATAL_FAILURE(StartCluster(options));
    if (IsNative()) ASSERT_OK(cluster_->WaitUntilListening());
  }
  void StartLoad() {
    ASSERT_NO_FATAL_FAILURE(StartPeer(1000));
    ASSERT_OK(peer_->Settle());
  }
  void ExpectNothingLostUntilNow() {
    ASSERT_OK(peer_->Settle());
    ExpectNothingLost();
    ASSERT_FALSE(HasFailure());
  }
  // The caller has ended its workers.
  void StopBaton() {
    peer_.reset();
    ASSERT_OK(cluster_->Stop());
    cluster_.reset();
  }
};

}  // namespace baton::crash

#endif  // TESTS_CRASH_STEPS_FIXTURE_H_

// The harness of the tests of devices is tested here.
#include "tests/lib/verbs/verbs_harness.h"

#include <gtest/gtest.h>

#include "lib/verbs/soft/soft_device.h"

namespace baton::verbs::testing {
namespace {

// More than the calls until a pump sleeps, and those of two sleeps.
constexpr int kCalls = 48;

// A test that polls a completion in `done` finds it once.
TEST(Pump, shouldNotAskAgainWhatHasSaidThatItIsDone) {
  Side a{soft::CreateSoftDevice({}).value()};
  Side b{soft::CreateSoftDevice({}).value()};
  for (int last = 1; last <= kCalls; ++last) {
    int calls = 0;
    ASSERT_TRUE(Pump(a, b, [&] { return ++calls == last; })) << last;
    EXPECT_EQ(calls, last);
  }
}

}  // namespace
}  // namespace baton::verbs::testing

#include "lib/base/memory_shortage.h"

#include <unistd.h>

#include <fstream>

#include "gtest/gtest.h"

namespace baton {
namespace {

int Score() {
  int score = 0;
  std::ifstream("/proc/self/oom_score_adj") >> score;
  return score;
}
// Returns false if this process has no right to that.
bool SetScore(int score) {
  std::ofstream("/proc/self/oom_score_adj") << score << std::flush;
  return Score() == score;
}

// In a process of its own: a score that was raised stays so without CAP_SYS_RESOURCE.
[[noreturn]] void SeeScores() {
  const int before = Score();
  GoLikeOthersWhenMemoryIsShort();
  if (Score() != (before < 0 ? 0 : before)) _exit(1);
  GoLastWhenMemoryIsShort();
  const bool may_lower = SetScore(-901);
  if (may_lower) {
    GoLastWhenMemoryIsShort();
    if (Score() != -901) _exit(2);
    GoLikeOthersWhenMemoryIsShort();
    if (Score() != 0) _exit(3);
    GoLastWhenMemoryIsShort();
    if (Score() != -900) _exit(4);
  } else if (Score() != (before < 0 ? 0 : before)) {
    _exit(5);
  }
  GoFirstWhenMemoryIsShort();
  _exit(Score() == 500 ? 0 : 6);
}

TEST(MemoryShortageTest, shouldChangeItsScoreAsFarAsItMay) {
  EXPECT_EXIT(SeeScores(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace baton

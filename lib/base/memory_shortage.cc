#include "lib/base/memory_shortage.h"

#include <fstream>

namespace baton {
namespace {

constexpr const char* kFile = "/proc/self/oom_score_adj";

void SetScore(int score) { std::ofstream(kFile) << score; }

}  // namespace

void GoFirstWhenMemoryIsShort() { SetScore(kFirstToGo); }

void GoLastWhenMemoryIsShort() { SetScore(kLastToGo); }

void GoLikeOthersWhenMemoryIsShort() {
  int score = 0;
  if (std::ifstream(kFile) >> score && score < 0) SetScore(0);
}

}  // namespace baton

#include "lib/base/memory_shortage.h"

#include <fstream>

namespace baton {
namespace {

constexpr const char* kFile = "/proc/self/oom_score_adj";
constexpr int kFirstToGo = 500, kLastToGo = -900;

int Score() {
  int score = 0;
  std::ifstream(kFile) >> score;
  return score;
}

void SetScore(int score) { std::ofstream(kFile) << score; }

}  // namespace

void GoFirstWhenMemoryIsShort() { SetScore(kFirstToGo); }

void GoLastWhenMemoryIsShort() {
  if (Score() > kLastToGo) SetScore(kLastToGo);
}

void GoLikeOthersWhenMemoryIsShort() {
  if (Score() < 0) SetScore(0);
}

}  // namespace baton

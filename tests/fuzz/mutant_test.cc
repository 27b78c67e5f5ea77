// Linked with one source of Baton's that has a defect: an input of the corpora has to show it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/targets.h"

namespace baton::fuzz {
namespace {

using Target = void (*)(const uint8_t* data, size_t size);

void RunAll(const std::filesystem::path& corpus, Target target) {
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
    target(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
}

bool IsCaught(const char* name, Target target) {
  const std::filesystem::path corpus = std::filesystem::path("tests/fuzz/corpus") / name;
  EXPECT_FALSE(std::filesystem::is_empty(corpus));
  const pid_t child = fork();
  if (child == 0) {
    RunAll(corpus, target);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

TEST(MutantTest, MUTANT) {
#ifdef MUTANT_OF_CAPSULES
  EXPECT_TRUE(IsCaught("nvme_capsule", NvmeCapsule));
#else
  EXPECT_TRUE(IsCaught("hostile_worker", HostileWorker) ||
              IsCaught("hostile_engine", HostileEngine));
#endif
}

}  // namespace
}  // namespace baton::fuzz

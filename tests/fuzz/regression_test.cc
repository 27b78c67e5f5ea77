// Every input that the corpora keep goes through its fuzz target once: whatever a fuzzer has found
// stays fixed.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/program.h"

namespace baton::fuzz {
namespace {

struct Target {
  const char* name;
  void (*run)(const uint8_t* data, size_t size);
};

void PrintTo(const Target& target, std::ostream* out) { *out << target.name; }

class FuzzRegression : public ::testing::TestWithParam<Target> {};

TEST_P(FuzzRegression, shouldTakeEveryInputOfTheCorpus) {
  const std::filesystem::path corpus = std::filesystem::path("tests/fuzz/corpus") / GetParam().name;
  ASSERT_TRUE(std::filesystem::is_directory(corpus)) << corpus;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    files.push_back(entry.path());
  }
  ASSERT_FALSE(files.empty());
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    ASSERT_TRUE(in) << file;
    const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
    std::printf("%s\n", file.c_str());
    std::fflush(stdout);  // a target that fails aborts, and this is the input
    GetParam().run(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Corpus, FuzzRegression,
    ::testing::Values(Target{"config", ConfigText}, Target{"control_config", ControlConfigText},
                      Target{"hostile_worker", HostileWorker},
                      Target{"hostile_engine", HostileEngine},
                      Target{"frame_stream", FrameStreamBytes}, Target{"soft_wire", SoftWire},
                      Target{"keeper_sockets", KeeperSockets}, Target{"nvme_capsule", NvmeCapsule},
                      Target{"nic_clients", NicClients}, Target{"nic_queues", NicQueues},
                      Target{"arena_inspection", ArenaInspection}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace baton::fuzz

#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <optional>
#include <string>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/config/down_reason.h"
#include "supervisor/config/placement.h"
#include "supervisor/config/state_files.h"
#include "tests/harness/temp_directory.h"

namespace baton {
namespace {

class DownReasonTest : public ::testing::Test {
 protected:
  std::string Reason() const { return DownReason(directory_.path(), "kv"); }

  const harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
  const std::string path_ = DownReasonPath(directory_.path(), "kv");
};

TEST_F(DownReasonTest, shouldBeWhatWasSetUntilThatIsTakenBack) {
  EXPECT_EQ(Reason(), "");
  SetDownReason(directory_.path(), "kv", "no device:\nit was removed");
  EXPECT_EQ(Reason(), "no device: it was removed");
  SetDownReason(directory_.path(), "kv", "");
  EXPECT_EQ(Reason(), "");
}

TEST_F(DownReasonTest, shouldBeTheFirstLineAndOfThatWholeCharacters) {
  std::ofstream(path_) << "first\nsecond\n";
  EXPECT_EQ(Reason(), "first");
  std::ofstream(path_) << std::string(20'000, 'x');
  EXPECT_EQ(Reason(), std::string(1024, 'x'));
  for (const size_t before : {1021, 1022, 1023}) {
    std::ofstream(path_) << std::string(before, 'x') << "\xf0\x9f\x94\xa5 and more";
    EXPECT_EQ(Reason(), std::string(before, 'x'));
  }
}

TEST_F(DownReasonTest, shouldNotWaitForAFifoThatNobodyWrites) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  std::future<std::string> reason = std::async(std::launch::async, [this] { return Reason(); });
  EXPECT_EQ(reason.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  {
    // It fails unless somebody waits all the same, who then goes on.
    const FileDescriptor writer(open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    EXPECT_FALSE(writer);
  }
  EXPECT_EQ(reason.get(), "");
}

TEST_F(DownReasonTest, shouldBeNothingWhereThereIsNoFileButSomethingElse) {
  const std::string other = directory_.File("secret");
  std::ofstream(other) << "secret\n";
  std::filesystem::create_symlink(other, path_);
  EXPECT_EQ(Reason(), "");
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_EQ(Reason(), "");
}

// Two nodes, and a device on the second.
std::map<std::string, std::string> TwoNodes() {
  return {{"/sys/devices/system/node/online", "0-1\n"},
          {"/sys/devices/system/node/node0/cpulist", "0-3\n"},
          {"/sys/devices/system/node/node1/cpulist", "4-7\n"},
          {"/sys/class/infiniband/mlx5_0/device/numa_node", "1\n"}};
}

std::string PlacementIn(const std::map<std::string, std::string>& files,
                        const std::string& configured, const std::string& device) {
  v1::Placement placement;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(configured, &placement));
  return DescribePlacement(
      PlacementOf(placement, device, [&](const std::string& path) -> std::optional<std::string> {
        const auto file = files.find(path);
        if (file == files.end()) return std::nullopt;
        return file->second;
      }));
}

TEST(PlacementTest, ShouldBeWhereTheDeviceIs) {
  EXPECT_EQ(PlacementIn(TwoNodes(), "", "mlx5_0"), "CPUs 4-7, memory of NUMA node 1");
}

TEST(PlacementTest, ShouldBeWhereTheConfigurationSays) {
  EXPECT_EQ(PlacementIn(TwoNodes(), "numa_node: 0", "mlx5_0"), "CPUs 0-3, memory of NUMA node 0");
  EXPECT_EQ(PlacementIn(TwoNodes(), "cpus: '5'", "mlx5_0"), "CPUs 5, memory of NUMA node 1");
  EXPECT_EQ(PlacementIn(TwoNodes(), "cpus: '2' numa_node: 1", ""), "CPUs 2, memory of NUMA node 1");
  EXPECT_EQ(PlacementIn({}, "cpus: '2'", ""), "CPUs 2");
}

TEST(PlacementTest, ShouldBeAnywhereWhereNothingIsKnown) {
  EXPECT_EQ(PlacementIn(TwoNodes(), "", ""), "");
  EXPECT_EQ(PlacementIn(TwoNodes(), "", "mlx5_1"), "");
  EXPECT_EQ(PlacementIn({}, "", "mlx5_0"), "");
  auto files = TwoNodes();
  files["/sys/class/infiniband/mlx5_0/device/numa_node"] = "-1\n";
  EXPECT_EQ(PlacementIn(files, "", "mlx5_0"), "");
  // Whatever the device says, there is one node alone.
  files = TwoNodes();
  files["/sys/devices/system/node/online"] = "0\n";
  EXPECT_EQ(PlacementIn(files, "", "mlx5_0"), "");
}

}  // namespace
}  // namespace baton

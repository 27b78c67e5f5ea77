#include "supervisor/config/placement.h"

#include <map>
#include <optional>
#include <string>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

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

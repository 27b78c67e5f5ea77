#include "supervisor/config/cgroup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::cgroup {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CgroupTest, shouldFindTheGroupOfTheUnifiedHierarchy) {
  EXPECT_EQ(GroupOf("1:name=systemd:/old\n0::/system.slice/batond.service\n"),
            "/system.slice/batond.service");
  EXPECT_EQ(GroupOf("1:name=systemd:/old\n"), std::nullopt);
  EXPECT_EQ(GroupOf(""), std::nullopt);
}

TEST(CgroupTest, shouldGoUpToTheRoot) {
  EXPECT_THAT(Chain("/system.slice/batond.service"),
              ElementsAre("/system.slice/batond.service", "/system.slice"));
  EXPECT_THAT(Chain("/"), IsEmpty());
}

TEST(CgroupTest, shouldReadWhatADeviceIsLimitedTo) {
  const char file[] = "mlx5_0 hca_handle=2 hca_object=2000\nrxe0 hca_handle=max hca_object=60";
  EXPECT_EQ(RdmaValue(file, "mlx5_0", "hca_handle"), 2u);
  EXPECT_EQ(RdmaValue(file, "mlx5_0", "hca_object"), 2000u);
  EXPECT_EQ(RdmaValue(file, "rxe0", "hca_handle"), std::nullopt);
  EXPECT_EQ(RdmaValue(file, "rxe0", "hca_object"), 60u);
  EXPECT_EQ(RdmaValue(file, "rxe", "hca_object"), std::nullopt);
  EXPECT_EQ(RdmaValue(file, "rxe0", "hca"), std::nullopt);
  EXPECT_EQ(RdmaValue("rxe0 hca_object", "rxe0", "hca_object"), std::nullopt);
}

}  // namespace
}  // namespace baton::cgroup

#include "supervisor/doctor/this_machine.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "supervisor/doctor/rdma_devices.h"
#include "tests/harness/temp_directory.h"

namespace baton::doctor {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

class ThisMachineTest : public testing::Test {
 protected:
  void Put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  const harness::TempDirectory root_ = *harness::TempDirectory::Create();
  const ThisMachine machine_{root_.path()};
};

TEST_F(ThisMachineTest, ShouldReadFilesWithoutTheirLastLineEnd) {
  Put("/proc/x", "one\ntwo\n");
  Put("/proc/empty", "");
  EXPECT_EQ(machine_.Read("/proc/x"), "one\ntwo");
  EXPECT_EQ(machine_.Read("/proc/empty"), "");
  EXPECT_EQ(machine_.Read("/proc/none"), std::nullopt);
}

TEST_F(ThisMachineTest, ShouldListNamesInOrder) {
  Put("/sys/b/x", "");
  Put("/sys/a", "");
  EXPECT_THAT(machine_.List("/sys"), ElementsAre("a", "b"));
  EXPECT_THAT(machine_.List("/none"), IsEmpty());
}

TEST_F(ThisMachineTest, ShouldTellTypeModeAndOwner) {
  Put("/run/x", "");
  chmod(root_.File("run/x").c_str(), 0640);
  const std::optional<FileFacts> facts = machine_.Look("/run/x");
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->mode, static_cast<uint32_t>(S_IFREG | 0640));
  EXPECT_EQ(facts->uid, geteuid());
  EXPECT_EQ(facts->device, "");
  EXPECT_EQ(machine_.Look("/none"), std::nullopt);
}

TEST_F(ThisMachineTest, ShouldTellTheNumberOfADevicesNode) {
  const std::optional<FileFacts> null = ThisMachine().Look("/dev/null");
  ASSERT_TRUE(null);
  EXPECT_TRUE(S_ISCHR(null->mode));
  EXPECT_EQ(null->device, "1:3");
}

TEST_F(ThisMachineTest, ShouldTellWhatALinkNames) {
  Put("/sys/x", "");
  std::filesystem::create_symlink("../../bus/pci/drivers/mlx5_core", root_.File("driver"));
  EXPECT_EQ(machine_.LinkName("/driver"), "mlx5_core");
  EXPECT_EQ(machine_.LinkName("/sys/x"), "");
}

TEST_F(ThisMachineTest, ShouldReadDevicesAsTheKernelShowsThem) {
  const std::string device = "/sys/class/infiniband/rxe0";
  Put(device + "/node_type", "1: CA\n");
  Put(device + "/ports/1/state", "4: ACTIVE\n");
  Put(device + "/ports/1/phys_state", "5: LinkUp\n");
  Put(device + "/ports/1/link_layer", "Ethernet\n");
  Put(device + "/ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
  Put(device + "/ports/1/gids/10", "0000:0000:0000:0000:0000:0000:0000:0000\n");
  Put(device + "/ports/1/gid_attrs/types/0", "RoCE v2\n");
  Put(device + "/ports/1/gid_attrs/ndevs/0", "dummy0\n");
  Put("/sys/class/infiniband_verbs/abi_version", "6\n");
  Put("/sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0\n");
  Put("/sys/class/infiniband_verbs/uverbs0/dev", "231:192\n");
  const std::vector<RdmaDevice> devices = ReadRdmaDevices(machine_);
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(devices[0].name, "rxe0");
  EXPECT_EQ(devices[0].node_type, "CA");
  EXPECT_EQ(devices[0].node, "uverbs0");
  EXPECT_EQ(devices[0].node_number, "231:192");
  const Port* const port = devices[0].FindPort(1);
  ASSERT_TRUE(port);
  EXPECT_EQ(port->state, "ACTIVE");
  EXPECT_EQ(port->physical_state, "LinkUp");
  EXPECT_TRUE(port->ethernet);
  EXPECT_EQ(port->interface, "dummy0");
  ASSERT_EQ(port->gids.size(), 1u);
  EXPECT_EQ(port->gids[0].address, "10.0.0.1");
  EXPECT_EQ(port->gids[0].type, "RoCE v2");
  EXPECT_EQ(devices[0].FindPort(2), nullptr);
}

TEST_F(ThisMachineTest, ShouldFindAddressesGroupsAndTheLibrary) {
  const ThisMachine machine;
  EXPECT_THAT(machine.Addresses(), Contains(Field(&InterfaceAddress::address, "127.0.0.1")));
  EXPECT_EQ(machine.GroupId("root"), 0u);
  EXPECT_EQ(machine.GroupId("no-such-group"), std::nullopt);
  EXPECT_TRUE(machine.VerbsLibrary().starts_with("libibverbs.so.")) << machine.VerbsLibrary();
}

TEST(IdentityTest, ShouldKnowUsersByName) {
  EXPECT_EQ(OwnIdentity().uid, geteuid());
  EXPECT_TRUE(OwnIdentity().self);
  const absl::StatusOr<Identity> root = IdentityOf("root");
  ASSERT_TRUE(root.ok());
  EXPECT_EQ(root->uid, 0u);
  EXPECT_EQ(root->self, geteuid() == 0);
  EXPECT_EQ(IdentityOf("no-such-user").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace baton::doctor

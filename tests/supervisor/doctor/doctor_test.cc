// Each defect of a machine that is otherwise sound is found, with the cure that ends it.
#include "supervisor/doctor/doctor.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "supervisor/config/config.h"
#include "tests/supervisor/doctor/fake_machine.h"

namespace baton::doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr uint64_t kMayLock = uint64_t{1} << 14;   // CAP_IPC_LOCK
constexpr uint64_t kMayEnter = uint64_t{1} << 21;  // CAP_SYS_ADMIN

std::string Text(const v1::DoctorReport& report) { return report.DebugString(); }

class DoctorTest : public testing::Test {
 protected:
  v1::DoctorReport Diagnose() { return doctor::Diagnose(machine_, request_); }

  // The finding of that check which is not OK; fails when there is not exactly one.
  v1::Finding Found(const std::string& check) {
    const v1::DoctorReport report = Diagnose();
    std::vector<v1::Finding> found;
    for (const v1::Finding& finding : report.findings()) {
      if (finding.check() == check && finding.severity() != v1::SEVERITY_OK) {
        found.push_back(finding);
      }
    }
    EXPECT_EQ(found.size(), 1u) << Text(report);
    return found.empty() ? v1::Finding() : found[0];
  }

  // Returns the only problem, and expects that there is no warning.
  v1::Finding OnlyProblem() {
    const v1::DoctorReport report = Diagnose();
    EXPECT_EQ(report.problems(), 1u) << Text(report);
    EXPECT_EQ(report.warnings(), 0u) << Text(report);
    for (const v1::Finding& finding : report.findings()) {
      if (finding.severity() == v1::SEVERITY_PROBLEM) return finding;
    }
    return {};
  }
  v1::Finding OnlyWarning() {
    const v1::DoctorReport report = Diagnose();
    EXPECT_EQ(report.problems(), 0u) << Text(report);
    EXPECT_EQ(report.warnings(), 1u) << Text(report);
    for (const v1::Finding& finding : report.findings()) {
      if (finding.severity() == v1::SEVERITY_WARNING) return finding;
    }
    return {};
  }

  void ExpectSound() {
    const v1::DoctorReport report = Diagnose();
    EXPECT_EQ(report.problems() + report.warnings(), 0u) << Text(report);
    EXPECT_GT(report.findings_size(), 8);
  }

  void Configure(const std::string& services) {
    absl::StatusOr<v1::Config> config =
        ParseConfig("state_dir: \"/run/baton\" " + services, "baton.conf");
    ASSERT_TRUE(config.ok()) << config.status();
    request_.config = *std::move(config);
    request_.config_file = "baton.conf";
  }

  FakeMachine machine_;
  Request request_{.identity = {"baton", 1000, 1000, {kRdmaGroup}, true},
                   .state_dir = "/run/baton",
                   .config_file = {},
                   .config = {},
                   .running = {}};
};

TEST_F(DoctorTest, ShouldFindNothingWrongWithASoundMachine) {
  ExpectSound();
  const v1::DoctorReport report = Diagnose();
  for (const v1::Finding& finding : report.findings()) {
    EXPECT_NE(finding.message(), "");
    EXPECT_EQ(finding.consequence() + finding.cure(), "");
  }
  EXPECT_THAT(Text(report), HasSubstr("RoCE, ACTIVE, 10.0.0.1 (index 1) on eth0"));
}

TEST_F(DoctorTest, ShouldGiveAConsequenceAndACureForWhateverIsWrong) {
  machine_.Remove("/sys/module/rdma_ucm");
  machine_.Remove("/sys/class/misc/rdma_cm");
  machine_.Put("/sys/class/infiniband/rxe0/ports/1/state", "1: DOWN");
  machine_.PutLimits("/proc/self", "65536", "100", 0);
  machine_.groups.clear();
  const v1::DoctorReport report = Diagnose();
  EXPECT_GE(report.problems(), 4u) << Text(report);
  for (const v1::Finding& finding : report.findings()) {
    if (finding.severity() == v1::SEVERITY_OK) continue;
    EXPECT_NE(finding.consequence(), "") << finding.DebugString();
    EXPECT_NE(finding.cure(), "") << finding.DebugString();
  }
}

TEST_F(DoctorTest, ShouldFindAnOldKernel) {
  machine_.Put("/proc/sys/kernel/osrelease", "5.10.0-28-amd64");
  const v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.message(), "Linux 5.10.0-28-amd64 is older than 5.16");
  EXPECT_THAT(finding.cure(), StartsWith("apt-get install linux-image-amd64"));
}

TEST_F(DoctorTest, ShouldFindAModuleThatIsNotLoaded) {
  machine_.Remove("/sys/module/rdma_ucm");
  machine_.Remove("/sys/class/misc/rdma_cm");
  const v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.check(), "module");
  EXPECT_EQ(finding.message(), "not loaded: rdma_ucm");
  EXPECT_EQ(finding.consequence(), "no program can listen or connect");
  EXPECT_THAT(finding.cure(), StartsWith("modprobe -a rdma_ucm && "));
}

TEST_F(DoctorTest, ShouldTakeAModuleThatIsBuiltInAsLoaded) {
  machine_.Remove("/sys/module");
  ExpectSound();
}

TEST_F(DoctorTest, ShouldFindAModuleThatTheKernelsPackageLacks) {
  machine_.Remove("/sys/module/ib_uverbs");
  machine_.Remove("/sys/class/infiniband_verbs");
  machine_.Put("/lib/modules/6.1.0-56-amd64/modules.dep",
               "kernel/drivers/infiniband/core/ib_core.ko:");
  const v1::Finding finding = Found("module");
  EXPECT_THAT(finding.message(), HasSubstr("this kernel's package does not bring them all"));
  EXPECT_THAT(finding.cure(), StartsWith("apt-get install linux-image-amd64"));
  machine_.Put("/lib/modules/6.1.0-56-amd64/modules.dep",
               "kernel/drivers/infiniband/core/ib_uverbs.ko.xz: kernel/…/ib_core.ko");
  EXPECT_THAT(Found("module").cure(), StartsWith("modprobe -a ib_uverbs"));
}

TEST_F(DoctorTest, ShouldSayThatSoftWorksWhereThereIsNoDevice) {
  machine_.Remove("/sys/class/infiniband");
  machine_.Remove("/sys/class/infiniband_verbs");
  const v1::Finding finding = OnlyWarning();
  EXPECT_EQ(finding.message(), "this machine has no RDMA device");
  EXPECT_THAT(finding.consequence(), StartsWith("services on the soft device work"));
  EXPECT_THAT(finding.cure(), StartsWith("modprobe -a rdma_rxe rdma_ucm && rdma link add rxe0 type "
                                         "rxe netdev eth0"));
}

TEST_F(DoctorTest, ShouldFindTheCardWhoseRdmaModuleIsNotLoaded) {
  machine_.Remove("/sys/class/infiniband");
  machine_.PutLink("/sys/class/net/eth0/device/driver", "mlx5_core");
  v1::Finding finding = OnlyWarning();
  EXPECT_THAT(finding.message(), HasSubstr("the RDMA half of eth0 (mlx5_core), module mlx5_ib"));
  EXPECT_THAT(finding.cure(), StartsWith("modprobe -a mlx5_ib rdma_ucm"));
  machine_.PutDirectory("/sys/module/mlx5_ib", 0755, 0);
  EXPECT_EQ(OnlyWarning().message(), "this machine has no RDMA device");
}

TEST_F(DoctorTest, ShouldFindAKernelWithoutSoftRoce) {
  machine_.Remove("/sys/class/infiniband");
  machine_.Put("/lib/modules/6.1.0-56-amd64/modules.dep", "kernel/fs/ext4/ext4.ko:");
  EXPECT_THAT(OnlyWarning().message(), HasSubstr("kernel 6.1.0-56-amd64 has no Soft-RoCE"));
}

TEST_F(DoctorTest, ShouldFindANodeThatIsMissing) {
  machine_.Remove("/dev/infiniband/uverbs0");
  const v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.check(), "node");
  EXPECT_EQ(finding.subject(), "rxe0");
  EXPECT_EQ(finding.cure(),
            "mkdir -p /dev/infiniband && mknod -m 0660 /dev/infiniband/uverbs0 c 231 192 && chgrp "
            "rdma /dev/infiniband/uverbs0");
}

TEST_F(DoctorTest, ShouldFindANodeOfAnotherDevice) {
  machine_.PutNode("/dev/infiniband/rdma_cm", 0660, kRdmaGroup, "10:99");
  const v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.subject(), "rdma_cm");
  EXPECT_THAT(finding.message(),
              HasSubstr("is not the device 10:124 that the kernel has, but 10:99"));
  machine_.Put("/dev/infiniband/rdma_cm", "");
  EXPECT_THAT(OnlyProblem().message(), HasSubstr("but no character device"));
}

TEST_F(DoctorTest, ShouldFindANodeThatTheUserMayNotOpen) {
  request_.identity.groups.clear();
  v1::DoctorReport report = Diagnose();
  EXPECT_EQ(report.problems(), 2u) << Text(report);  // uverbs0 and rdma_cm
  machine_.PutNode("/dev/infiniband/rdma_cm", 0660, 1000, "10:124");
  v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.message(),
            "user baton may not open /dev/infiniband/uverbs0 (mode 0660, uid 0, "
            "group rdma)");
  EXPECT_EQ(finding.cure(), "usermod -a -G rdma baton");
  machine_.PutNode("/dev/infiniband/uverbs0", 0600, 0, "231:192");
  EXPECT_EQ(
      OnlyProblem().cure(),
      "chgrp rdma /dev/infiniband/uverbs0 && chmod 0660 /dev/infiniband/uverbs0 && usermod -a "
      "-G rdma baton");
}

TEST_F(DoctorTest, ShouldFindModesThatLetNobodyIn) {
  machine_.PutNode("/dev/infiniband/uverbs0", 0000, kRdmaGroup, "231:192");
  EXPECT_EQ(OnlyProblem().cure(), "chmod 0660 /dev/infiniband/uverbs0");
  request_.identity = {"root", 0, 0, {}, true};
  machine_.PutDirectory("/run/baton", 0700, 0);
  ExpectSound();
}

TEST_F(DoctorTest, ShouldJudgeByTheClassThatFitsAndNotByALaterOne) {
  machine_.PutNode("/dev/infiniband/uverbs0", 0606, kRdmaGroup, "231:192");
  EXPECT_THAT(OnlyProblem().message(), StartsWith("user baton may not open"));
}

TEST_F(DoctorTest, ShouldWarnOfNodesThatAreOpenToEveryone) {
  machine_.PutNode("/dev/infiniband/uverbs0", 0666, 0, "231:192");
  const v1::Finding finding = OnlyWarning();
  EXPECT_THAT(finding.message(), StartsWith("every user may open /dev/infiniband/uverbs0"));
  EXPECT_THAT(finding.cure(), HasSubstr("deploy/udev/70-baton-rdma.rules /etc/udev/rules.d/"));
}

TEST_F(DoctorTest, ShouldFindThatThereIsNoGroup) {
  machine_.groups.clear();
  const v1::Finding finding = OnlyWarning();
  EXPECT_EQ(finding.message(), "there is no group rdma");
  EXPECT_THAT(finding.cure(), StartsWith("groupadd --system rdma && "));
}

TEST_F(DoctorTest, ShouldFindADeviceWithoutProvider) {
  machine_.providers.clear();
  const v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.subject(), "rxe0");
  EXPECT_EQ(finding.cure(), "apt-get install ibverbs-providers");
}

TEST_F(DoctorTest, ShouldFindADeviceThatCannotBeOpened) {
  machine_.opening = absl::PermissionDeniedError("Operation not permitted (errno 1)");
  const v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.check(), "device");
  EXPECT_EQ(finding.message(), "cannot be opened: Operation not permitted (errno 1)");
  EXPECT_THAT(finding.cure(), HasSubstr("DeviceAllow=char-infiniband_verbs rw"));
  // The doctor cannot try to open the device as another user.
  request_.identity.self = false;
  machine_.PutLimits("/proc/self", "unlimited", "1048576", 0);
  ExpectSound();
}

TEST_F(DoctorTest, ShouldRefuseIwarpWithTheReason) {
  machine_.Put("/sys/class/infiniband/rxe0/node_type", "4: RNIC");
  const v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.message(), "is iWARP");
  EXPECT_THAT(finding.consequence(), HasSubstr("cannot be made before their connections"));
  EXPECT_THAT(finding.cure(), HasSubstr("InfiniBand or RoCE"));
  EXPECT_THAT(machine_.asked, IsEmpty());
}

TEST_F(DoctorTest, ShouldRefuseADeviceWithoutReliableConnections) {
  machine_.Put("/sys/class/infiniband/rxe0/node_type", "6: usNIC UDP");
  EXPECT_EQ(OnlyProblem().message(), "is of type usNIC UDP, without reliable connections");
}

TEST_F(DoctorTest, ShouldFindAPortThatIsDown) {
  machine_.Put("/sys/class/infiniband/rxe0/ports/1/state", "1: DOWN");
  machine_.Put("/sys/class/infiniband/rxe0/ports/1/phys_state", "3: Disabled");
  machine_.Put("/sys/class/net/eth0/flags", "0x1002");
  v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.subject(), "rxe0 port 1");
  EXPECT_EQ(finding.message(), "is DOWN (Disabled)");
  EXPECT_EQ(finding.cure(), "ip link set eth0 up");
  machine_.Put("/sys/class/net/eth0/flags", "0x1003");  // up, and there is no link
  EXPECT_THAT(OnlyProblem().cure(), HasSubstr("look at the cable"));
}

TEST_F(DoctorTest, ShouldFindThatNoAddressIsOnTheInterface) {
  machine_.Remove("/sys/class/infiniband/rxe0/ports/1/gids/1");
  machine_.addresses = {{"lo", "127.0.0.1"}, {"eth0", "fe80::883d:f6ff:fe3e:8479"}};
  const v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.message(), "has no GID: there is no IPv4 or IPv6 address on eth0");
  EXPECT_EQ(finding.cure(), "ip addr add ADDRESS/PREFIX dev eth0");
}

TEST_F(DoctorTest, ShouldFindAnAddressThatTheDeviceHasMissed) {
  machine_.Remove("/sys/class/infiniband/rxe0/ports/1/gids/1");
  const v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.message(), "has no GID for the addresses of eth0");
  EXPECT_EQ(finding.cure(), "ip link set eth0 down && ip link set eth0 up");
}

TEST_F(DoctorTest, ShouldFindAPortThatSpeaksRoceVersion1Only) {
  machine_.PutGid("rxe0", 1, "0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1", "eth0");
  EXPECT_EQ(OnlyProblem().message(), "has no GID of type RoCE v2");
}

TEST_F(DoctorTest, ShouldTakeAnIpv6AddressAsOne) {
  machine_.PutGid("rxe0", 1, "2001:0db8:0000:0000:0000:0000:0000:0007", "RoCE v2", "eth0");
  ExpectSound();
  EXPECT_THAT(Text(Diagnose()), HasSubstr("2001:db8::7 (index 1)"));
}

class InfinibandTest : public DoctorTest {
 protected:
  InfinibandTest() {
    machine_.Put("/sys/class/infiniband/rxe0/ports/1/link_layer", "InfiniBand");
    machine_.Remove("/sys/class/infiniband/rxe0/ports/1/gid_attrs");
    machine_.Put("/sys/class/infiniband/rxe0/device/net/ib0/flags", "0x1003");
    machine_.addresses.push_back({"ib0", "10.1.0.1"});
  }
};

TEST_F(InfinibandTest, ShouldBeSoundWithAnAddressOnItsIpoibInterface) { ExpectSound(); }

TEST_F(InfinibandTest, ShouldFindThatThereIsNoSubnetManager) {
  machine_.Put("/sys/class/infiniband/rxe0/ports/1/state", "2: INIT");
  EXPECT_THAT(OnlyProblem().cure(), HasSubstr("systemctl enable --now opensm"));
}

TEST_F(InfinibandTest, ShouldFindThatThereIsNoIpoibInterface) {
  machine_.Remove("/sys/class/infiniband/rxe0/device");
  EXPECT_THAT(OnlyProblem().cure(), StartsWith("modprobe ib_ipoib"));
}

TEST_F(InfinibandTest, ShouldFindThatTheIpoibInterfaceHasNoAddress) {
  machine_.addresses.pop_back();
  EXPECT_EQ(OnlyProblem().cure(), "ip addr add ADDRESS/PREFIX dev ib0");
}

TEST_F(DoctorTest, ShouldOnlyWarnOfADefectWhereAnotherDeviceWorks) {
  machine_.PutDevice("mlx5_0", "uverbs1", "231:193");
  machine_.providers.emplace_back("mlx5_0");
  ExpectSound();
  machine_.Put("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
  EXPECT_EQ(OnlyWarning().subject(), "mlx5_0 port 1");
  machine_.Put("/sys/class/infiniband/rxe0/ports/1/state", "1: DOWN");
  EXPECT_EQ(Diagnose().problems(), 2u);
}

TEST_F(DoctorTest, ShouldFindTooLittleLockableMemory) {
  machine_.PutLimits("/proc/self", "65536", "1048576", 0);
  v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.check(), "memlock");
  EXPECT_THAT(finding.message(),
              StartsWith("the hard RLIMIT_MEMLOCK of this shell is 1 MiB; a service of "
                         "default size registers 17 MiB"));
  EXPECT_THAT(finding.cure(),
              StartsWith("echo 'baton - memlock unlimited' >>/etc/security/limits.d"));
  machine_.PutLimits("/proc/self", "65536", "1048576", kMayLock);
  ExpectSound();
  request_.identity.self = false;  // the capability is ours, not that user's
  EXPECT_EQ(OnlyProblem().check(), "memlock");
}

TEST_F(DoctorTest, ShouldOnlyWarnWhereTheQueuesMayNotFitTheLockableMemory) {
  machine_.PutLimits("/proc/self", std::to_string(17 << 20), "1048576", 0);
  EXPECT_EQ(OnlyWarning().check(), "memlock");
  machine_.PutLimits("/proc/self", std::to_string(64 << 20), "1048576", 0);
  ExpectSound();
}

TEST_F(DoctorTest, ShouldLookAtHardLimitsWhichKeepersRaiseTheirsTo) {
  machine_.Put("/proc/self/limits",
               "Max open files 100 1048576 files\nMax locked memory 65536 unlimited bytes\n");
  ExpectSound();
  machine_.Put("/proc/self/limits",
               "Max open files 100 1048576 files\nMax locked memory 65536 65536 bytes\n");
  EXPECT_EQ(OnlyProblem().check(), "memlock");
}

TEST_F(DoctorTest, ShouldLookAtTheLimitsOfTheBatondThatRuns) {
  machine_.PutLimits("/proc/self", "65536", "1048576", 0);
  machine_.PutLimits("/proc/4711", "unlimited", "1048576", 0);
  machine_.Put("/run/baton/batond.lock", "4711");
  machine_.Put("/run/baton/operator.sock", "");
  EXPECT_EQ(Diagnose().problems(), 1u) << "the pid is another program's";
  machine_.Put("/proc/4711/comm", "batond");
  ExpectSound();
  machine_.PutLimits("/proc/4711", "65536", "1048576", 0);
  const v1::Finding finding = OnlyProblem();
  EXPECT_THAT(finding.message(),
              StartsWith("the hard RLIMIT_MEMLOCK of batond (pid 4711) is 1 MiB"));
  EXPECT_THAT(finding.cure(), HasSubstr("LimitMEMLOCK=infinity; then: systemctl restart batond"));
}

TEST_F(DoctorTest, ShouldFindTooFewDescriptors) {
  machine_.PutLimits("/proc/self", "unlimited", "256", 0);
  const v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.check(), "nofile");
  EXPECT_THAT(finding.message(), StartsWith("the hard RLIMIT_NOFILE of this shell is 256"));
}

TEST_F(DoctorTest, ShouldFindTooLittleMemory) {
  machine_.Put("/proc/meminfo", "MemAvailable:    4096 kB");
  const v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.check(), "memory");
  EXPECT_EQ(finding.message(), "4 MiB available; arenas need 22 MiB");
}

TEST_F(DoctorTest, ShouldFindThatMemoryFilesAreRefused) {
  machine_.Put("/proc/sys/vm/memfd_noexec", "2");
  EXPECT_EQ(OnlyProblem().cure(), "sysctl vm.memfd_noexec=1");
  machine_.Put("/proc/sys/vm/memfd_noexec", "1");
  ExpectSound();
}

TEST_F(DoctorTest, ShouldFindAStateDirectoryThatOthersMayWrite) {
  machine_.PutDirectory("/run/baton", 0770, 1000);
  EXPECT_EQ(OnlyProblem().cure(), "chmod go-w /run/baton");
}

TEST_F(DoctorTest, ShouldFindAStateDirectoryOfAnother) {
  machine_.PutDirectory("/run/baton", 0700, 0);
  EXPECT_THAT(OnlyProblem().cure(), StartsWith("chown baton /run/baton"));
}

TEST_F(DoctorTest, ShouldFindThatTheStateDirectoryIsNone) {
  machine_.Put("/run/baton", "");
  EXPECT_EQ(OnlyProblem().cure(), "rm /run/baton");
}

TEST_F(DoctorTest, ShouldFindThatTheStateDirectoryCannotBeMade) {
  machine_.Remove("/run/baton");
  machine_.PutDirectory("/run", 0755, 0);
  EXPECT_EQ(OnlyProblem().cure(), "install -d -m 0700 -o baton /run/baton");
  machine_.PutDirectory("/run", 01777, 0);
  ExpectSound();
  machine_.Remove("/run");
  EXPECT_EQ(OnlyProblem().message(), "/run is missing");
}

TEST_F(DoctorTest, ShouldFindABatondThatHasNoOperatorSocket) {
  machine_.Put("/run/baton/batond.lock", "4711");
  machine_.Put("/proc/4711/comm", "batond");
  machine_.PutLimits("/proc/4711", "unlimited", "1048576", 0);
  EXPECT_EQ(OnlyWarning().check(), "socket");
}

TEST_F(DoctorTest, ShouldNotCallRdmaAProblemForServicesOnTheSoftDevice) {
  Configure("services { name: \"kv\" device { soft {} } }");
  ExpectSound();
  machine_.Put("/sys/class/infiniband/rxe0/ports/1/state", "1: DOWN");
  machine_.Remove("/dev/infiniband/uverbs0");
  machine_.PutLimits("/proc/self", "65536", "1048576", 0);
  const v1::DoctorReport report = Diagnose();
  EXPECT_EQ(report.problems(), 0u) << Text(report);
  EXPECT_EQ(report.warnings(), 2u) << Text(report);
}

TEST_F(DoctorTest, ShouldAddUpTheMemoryOfAllServices) {
  machine_.Put("/proc/meminfo", "MemAvailable:    1048576 kB");
  const std::string service = " device { soft {} } buffer_bytes: 600000000 }";
  Configure("services { name: \"a\"" + service);
  ExpectSound();
  Configure("services { name: \"a\"" + service + "services { name: \"b\"" + service);
  EXPECT_THAT(OnlyProblem().message(), StartsWith("1024 MiB available; arenas need 11"));
}

TEST_F(DoctorTest, ShouldCountTheHeapsOfShards) {
  machine_.Put("/proc/meminfo", "MemAvailable:    1048576 kB");
  Configure("services { name: \"a\" device { soft {} } shards: 4 shard_heap_bytes: 300000000 }");
  EXPECT_THAT(OnlyProblem().message(), StartsWith("1024 MiB available; arenas need 11"));
  EXPECT_EQ(OnlyProblem().cure(),
            "in baton.conf: smaller buffer_bytes, shard_heap_bytes and max_connections");
}

TEST_F(DoctorTest, ShouldTellThatAServiceFitsOnItsDevice) {
  Configure(
      "services { name: \"kv\" device { rdma { device: \"rxe0\" } } "
      "listeners { host: \"10.0.0.1\" port: 7471 } listeners { port: 7472 } }");
  ExpectSound();
  EXPECT_THAT(Text(Diagnose()), HasSubstr("fits on rxe0 port 1: 64 connections"));
}

TEST_F(DoctorTest, ShouldCallItAProblemThatAServicesDeviceIsNotThere) {
  Configure("services { name: \"kv\" device { rdma { device: \"mlx5_0\" } } }");
  v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.subject(), "kv");
  EXPECT_EQ(finding.message(), "device mlx5_0 is not there; there are rxe0");
  EXPECT_EQ(finding.cure(), "in baton.conf, service kv: device: \"rxe0\"");
  machine_.Remove("/sys/class/infiniband");
  EXPECT_EQ(Diagnose().problems(), 2u) << "of the machine, and of the service";
  EXPECT_THAT(Found("service").message(), HasSubstr("there is none"));
}

TEST_F(DoctorTest, ShouldAskForANameWhereThereAreSeveralDevices) {
  machine_.PutDevice("mlx5_0", "uverbs1", "231:193");
  machine_.providers.emplace_back("mlx5_0");
  Configure("services { name: \"kv\" device { rdma {} } }");
  EXPECT_EQ(OnlyProblem().message(), "names no device, and there are several: mlx5_0, rxe0");
  machine_.Remove("/sys/class/infiniband/mlx5_0");
  ExpectSound();
}

TEST_F(DoctorTest, ShouldFindThatAServicesPortIsNotThere) {
  Configure("services { name: \"kv\" device { rdma { port: 2 } } }");
  const v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.message(), "device rxe0 has no port 2");
  EXPECT_EQ(finding.cure(), "in baton.conf, service kv: port: 1");
}

TEST_F(DoctorTest, ShouldOnlyWarnOfDevicesThatNoServiceUses) {
  machine_.PutDevice("mlx5_0", "uverbs1", "231:193");
  machine_.providers.emplace_back("mlx5_0");
  Configure("services { name: \"kv\" device { rdma { device: \"rxe0\" } } }");
  machine_.Put("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
  EXPECT_EQ(OnlyWarning().subject(), "mlx5_0 port 1");
  Configure("services { name: \"kv\" device { rdma { device: \"mlx5_0\" } } }");
  EXPECT_EQ(OnlyProblem().subject(), "mlx5_0 port 1");
}

TEST_F(DoctorTest, ShouldFindAListenerOnAnAddressThatTheDeviceLacks) {
  Configure(
      "services { name: \"kv\" device { rdma {} } "
      "listeners { host: \"10.0.0.9\" port: 7471 } }");
  const v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.message(), "listens on 10.0.0.9, which is no address of rxe0 port 1");
  EXPECT_THAT(finding.cure(), StartsWith("ip addr add 10.0.0.9/PREFIX dev eth0"));
}

TEST_F(DoctorTest, ShouldFindAServiceThatIsTooLargeForItsDevice) {
  Configure("services { name: \"kv\" device { rdma {} } max_connections: 300 }");
  v1::Finding finding = OnlyProblem();
  EXPECT_THAT(finding.message(), StartsWith("device rxe0 is too small, the service needs 38480 "
                                            "entries in each completion queue"));
  EXPECT_EQ(finding.cure(),
            "in baton.conf, service kv: max_connections: 255  # or what else the message names");
  Configure("services { name: \"kv\" device { rdma {} } max_connections: 255 }");
  ExpectSound();  // as it says
  machine_.limits.max_send_requests = 64;
  EXPECT_THAT(OnlyProblem().message(),
              HasSubstr("needs 72 sends outstanding on each queue pair, of which it has 64"));
  machine_.limits.max_send_requests = 72;
  ExpectSound();
  machine_.limits.max_scatter_gather = 3;
  EXPECT_THAT(OnlyProblem().cure(), HasSubstr("service kv: what the message names"));
}

TEST_F(DoctorTest, ShouldAddUpTheConnectionsOfADevicesServices) {
  machine_.limits.max_queue_pairs = 100;
  Configure("services { name: \"a\" device { rdma {} } }");
  ExpectSound();
  Configure(
      "services { name: \"a\" device { rdma {} } } "
      "services { name: \"b\" device { rdma {} } }");
  EXPECT_THAT(OnlyProblem().message(), HasSubstr("may need 128 queue pairs together; it has 100"));
}

constexpr char kPool[] = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
constexpr char kTwoOnThePool[] =
    "services { name: \"a\" device { rdma {} } huge_pages: HUGE_PAGES_2_MIB } "
    "services { name: \"b\" device { rdma {} } huge_pages: HUGE_PAGES_2_MIB "
    "buffer_bytes: 4194304 }";

TEST_F(DoctorTest, ShouldCountTheHugePagesThatServicesAskFor) {
  Configure(kTwoOnThePool);
  EXPECT_THAT(OnlyWarning().message(),
              HasSubstr("10 huge pages of 2 MiB needed, and this kernel or processor has none"));
  machine_.Put(std::string(kPool) + "nr_hugepages", "12");
  machine_.Put(std::string(kPool) + "free_hugepages", "9");
  machine_.Put(std::string(kPool) + "resv_hugepages", "2");
  const v1::Finding finding = OnlyWarning();
  EXPECT_EQ(finding.check(), "huge pages");
  EXPECT_EQ(finding.message(), "a 8, b 2: 10 huge pages of 2 MiB needed, 7 free");
  EXPECT_THAT(finding.cure(), StartsWith(absl::StrCat("echo 15 >", kPool, "nr_hugepages  #")));
  machine_.Put(std::string(kPool) + "free_hugepages", "12");
  ExpectSound();
  // Those that run have theirs.
  machine_.Put(std::string(kPool) + "free_hugepages", "2");
  machine_.Put("/run/baton/batond.lock", "4711");
  machine_.Put("/run/baton/operator.sock", "");
  machine_.Put("/proc/4711/comm", "batond");
  machine_.PutLimits("/proc/4711", "unlimited", "1048576", 0);
  ExpectSound();
}

TEST_F(DoctorTest, ShouldCountTheHugePagesOfTheNodeThatAServiceIsOn) {
  machine_.Put(std::string(kPool) + "nr_hugepages", "100");
  machine_.Put(std::string(kPool) + "free_hugepages", "100");
  const std::string pool = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/";
  machine_.Put(pool + "nr_hugepages", "3");
  machine_.Put(pool + "free_hugepages", "3");
  Configure(
      "services { name: \"a\" device { rdma {} } huge_pages: HUGE_PAGES_2_MIB "
      "placement { numa_node: 0 } }");
  const v1::Finding finding = Found("huge pages");
  EXPECT_EQ(finding.message(), "a 8: 8 huge pages of 2 MiB on NUMA node 0 needed, 3 free");
  EXPECT_THAT(finding.cure(), StartsWith(absl::StrCat("echo 8 >", pool, "nr_hugepages")));
}

TEST_F(DoctorTest, ShouldFindANetworkNamespaceThatIsNotThere) {
  machine_.PutLimits("/proc/self", "unlimited", "1048576", kMayEnter);
  Configure("services { name: \"kv\" device { soft {} } network_namespace: \"blue\" }");
  const v1::Finding finding = OnlyProblem();
  EXPECT_EQ(finding.check() + " " + finding.subject(), "network kv");
  EXPECT_THAT(finding.message(), HasSubstr("/run/netns/blue: No such file or directory"));
  EXPECT_EQ(finding.cure(), "ip netns add blue");
  machine_.namespaces = {"blue"};
  ExpectSound();
}

TEST_F(DoctorTest, ShouldFindThatANetworkNamespaceCannotBeEntered) {
  machine_.namespaces = {"blue"};
  Configure("services { name: \"kv\" device { soft {} } network_namespace: \"blue\" }");
  EXPECT_THAT(OnlyProblem().message(), HasSubstr("baton has no CAP_SYS_ADMIN"));
  EXPECT_THAT(OnlyProblem().cure(), HasSubstr("AmbientCapabilities=CAP_SYS_ADMIN"));
}

TEST_F(DoctorTest, ShouldKnowWhatRdmaDevicesDoInNetworkNamespaces) {
  machine_.PutLimits("/proc/self", "unlimited", "1048576", kMayEnter);
  machine_.namespaces = {"blue"};
  Configure("services { name: \"kv\" device { rdma {} } network_namespace: \"blue\" }");
  ExpectSound();
  machine_.Put("/sys/module/ib_core/parameters/netns_mode", "Y");
  ExpectSound();
  machine_.Put("/sys/module/ib_core/parameters/netns_mode", "N");
  EXPECT_THAT(OnlyWarning().message(), HasSubstr("in one network namespace only"));
  machine_.Put("/sys/module/ib_core/parameters/netns_mode", "Y");
  machine_.Put("/sys/class/infiniband/rxe0/parent", "eth0");
  EXPECT_THAT(OnlyProblem().message(), HasSubstr("rxe0 is Soft-RoCE"));
}

TEST_F(DoctorTest, ShouldCompareTheLockableMemoryWithEachKeepersOwn) {
  const std::string service = " device { rdma {} } buffer_bytes: 67108864 }";
  Configure("services { name: \"a\"" + service + "services { name: \"b\"" + service);
  machine_.PutLimits("/proc/self", std::to_string(80 << 20), "1048576", 0);
  ExpectSound();  // for each, not for both
  machine_.PutLimits("/proc/self", std::to_string(64 << 20), "1048576", 0);
  const v1::DoctorReport report = Diagnose();
  EXPECT_EQ(report.problems(), 2u) << Text(report);
  EXPECT_THAT(Text(report), HasSubstr("is 64 MiB; service a registers 65 MiB"));
}

class DoctorPlacementTest : public DoctorTest {
 protected:
  // Two nodes of 4 CPUs and 8 GiB, and the device on the second.
  void SetUp() override {
    machine_.Put("/sys/devices/system/cpu/online", "0-7");
    machine_.Put("/sys/devices/system/node/online", "0-1");
    for (int node = 0; node < 2; ++node) {
      const std::string directory = "/sys/devices/system/node/node" + std::to_string(node);
      machine_.Put(directory + "/cpulist", node == 0 ? "0-3" : "4-7");
      machine_.Put(directory + "/meminfo",
                   "Node " + std::to_string(node) + " MemTotal:        8388608 kB");
    }
    machine_.Put("/sys/class/infiniband/rxe0/device/numa_node", "1");
  }
  void Place(const std::string& placement) {
    Configure("services { name: \"kv\" device { rdma {} } placement { " + placement + " } }");
  }
};

TEST_F(DoctorPlacementTest, ShouldTellWhereAServiceIs) {
  Place("");
  ExpectSound();
  EXPECT_THAT(Text(Diagnose()), HasSubstr("on CPUs 4-7, memory of NUMA node 1"));
  Place("cpus: \"5\"");
  ExpectSound();
}

TEST_F(DoctorPlacementTest, ShouldFindCpusAndNodesThatAreNotThere) {
  Place("cpus: \"6-9\"");
  EXPECT_THAT(Found("placement").message(), HasSubstr("CPU 8 is not online: there are 0-7"));
  Place("cpus: \"0\" numa_node: 2");
  EXPECT_THAT(Text(Diagnose()), HasSubstr("there is no NUMA node 2: there are 0-1"));
}

TEST_F(DoctorPlacementTest, ShouldFindWhatIsFarFromEachOther) {
  Place("cpus: \"3-4\"");
  EXPECT_THAT(OnlyWarning().message(), HasSubstr("CPU 3 is not of NUMA node 1"));
  EXPECT_THAT(OnlyWarning().cure(), HasSubstr("cpus: \"4-7\""));
  Place("numa_node: 0");
  EXPECT_THAT(OnlyWarning().message(), HasSubstr("on NUMA node 0, and rxe0 is on 1"));
}

TEST_F(DoctorPlacementTest, ShouldFindAnArenaThatIsLargerThanItsNode) {
  machine_.Put("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:  16384 kB");
  Place("");
  EXPECT_THAT(OnlyWarning().message(), HasSubstr("MiB, and NUMA node 1 has 16"));
}

TEST_F(DoctorTest, ShouldSayThatLimitsItCannotReadAreNotKnown) {
  Configure("services { name: \"kv\" device { rdma {} } }");
  request_.identity.self = false;
  machine_.PutLimits("/proc/self", "unlimited", "1048576", 0);
  machine_.opening = absl::PermissionDeniedError("no");
  EXPECT_THAT(OnlyWarning().message(), StartsWith("the limits of rxe0 cannot be read"));
}

}  // namespace
}  // namespace baton::doctor

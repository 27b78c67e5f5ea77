// Faults seeded into a sound machine, one at a time: each is found, nothing else is, and the
// finding names a cure.
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "supervisor/config/config.h"
#include "supervisor/doctor/doctor.h"
#include "tests/supervisor/doctor/fake_machine.h"

namespace baton::doctor {
namespace {

using ::testing::HasSubstr;

struct Fault {
  std::string name;
  std::function<void(FakeMachine&, Request&)> seed;
  v1::Severity severity;
  std::string check;
  std::string message;  // part of it
  std::string cure;     // part of it
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

constexpr v1::Severity kProblem = v1::SEVERITY_PROBLEM;
constexpr v1::Severity kWarning = v1::SEVERITY_WARNING;
constexpr char kPort[] = "/sys/class/infiniband/rxe0/ports/1/";
constexpr char kGroup[] = "/sys/fs/cgroup/user.slice/session-1.scope/";

v1::Version VersionOf(const std::string& release) {
  v1::Version version;
  version.set_release(release);
  version.set_layout_version(2);
  version.set_protocol_version(1);
  return version;
}

RunningVersions Running(const std::string& own, const std::string& control,
                        const std::string& keeper) {
  return {own, VersionOf(control), {{"kv", VersionOf(keeper)}}, ""};
}

std::vector<Fault> FaultsOfTheKernelAndItsDevices() {
  return {
      {"OldKernel",
       [](FakeMachine& machine, Request&) {
         machine.Put("/proc/sys/kernel/osrelease", "5.10.0-28-amd64");
       },
       kProblem, "kernel", "older than 5.16", "apt-get install linux-image-amd64"},
      {"ModuleNotLoaded",
       [](FakeMachine& machine, Request&) {
         machine.Remove("/sys/module/rdma_ucm");
         machine.Remove("/sys/class/misc/rdma_cm");
       },
       kProblem, "module", "not loaded: rdma_ucm", "modprobe -a rdma_ucm"},
      {"NodeMissing",
       [](FakeMachine& machine, Request&) { machine.Remove("/dev/infiniband/uverbs0"); }, kProblem,
       "node", "/dev/infiniband/uverbs0 is missing", "mknod -m 0660 /dev/infiniband/uverbs0"},
      {"NodeOfAnotherDevice",
       [](FakeMachine& machine, Request&) {
         machine.PutNode("/dev/infiniband/rdma_cm", 0660, kRdmaGroup, "10:99");
       },
       kProblem, "node", "but 10:99", "mknod -m 0660 /dev/infiniband/rdma_cm c 10 124"},
      {"NodeNotPermitted",
       [](FakeMachine& machine, Request&) {
         machine.PutNode("/dev/infiniband/uverbs0", 0600, 0, "231:192");
       },
       kProblem, "node", "user baton may not open", "chgrp rdma /dev/infiniband/uverbs0"},
      {"NodeOpenToAll",
       [](FakeMachine& machine, Request&) {
         machine.PutNode("/dev/infiniband/uverbs0", 0666, kRdmaGroup, "231:192");
       },
       kWarning, "node", "every user may open", "70-baton-rdma.rules"},
      {"NoGroupRdma",
       [](FakeMachine& machine, Request& request) {
         machine.groups.clear();
         request.identity = {"root", 0, 0, {}, true};
         machine.PutDirectory("/run/baton", 0700, 0);
       },
       kWarning, "group", "there is no group rdma", "groupadd --system rdma"},
      {"NoProvider", [](FakeMachine& machine, Request&) { machine.providers.clear(); }, kProblem,
       "device", "libibverbs has no provider", "apt-get install ibverbs-providers"},
      {"PortDown",
       [](FakeMachine& machine, Request&) {
         machine.Put(std::string(kPort) + "state", "1: DOWN");
         machine.Put("/sys/class/net/eth0/flags", "0x1002");
       },
       kProblem, "port", "is DOWN", "ip link set eth0 up"},
      {"NoLink",
       [](FakeMachine& machine, Request&) {
         machine.Put(std::string(kPort) + "state", "1: DOWN");
         machine.Put(std::string(kPort) + "phys_state", "3: Disabled");
       },
       kProblem, "port", "is DOWN", "look at the cable and the switch"},
      {"NoAddress",
       [](FakeMachine& machine, Request&) {
         machine.Remove(std::string(kPort) + "gids/1");
         machine.addresses.pop_back();
       },
       kProblem, "port", "has no GID", "ip addr add ADDRESS/PREFIX dev eth0"},
      {"RoceVersion1",
       [](FakeMachine& machine, Request&) {
         machine.PutGid("rxe0", 1, "0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1", "eth0");
       },
       kProblem, "port", "has no GID of type RoCE v2", "RoCE v2"},
      {"NoDevice", [](FakeMachine& machine, Request&) { machine.Remove("/sys/class/infiniband"); },
       kWarning, "device", "this machine has no RDMA device", "rdma link add rxe0 type rxe"},
      {"OneNamespacePerDevice",
       [](FakeMachine& machine, Request&) {
         machine.Put("/sys/module/ib_core/parameters/netns_mode", "N");
       },
       kWarning, "netns", "in one network namespace only", "rdma system set netns shared"},
  };
}

void RunBatond(FakeMachine& machine) {
  machine.Put("/run/baton/batond.lock", "4711");
  machine.Put("/run/baton/operator.sock", "");
  machine.Put("/proc/4711/comm", "batond");
  machine.PutLimits("/proc/4711", "unlimited", "1048576", 0);
}

std::vector<Fault> FaultsOfLimitsAndMemory() {
  return {
      {"Memlock",
       [](FakeMachine& machine, Request&) {
         machine.PutLimits("/proc/self", "65536", "1048576", 0);
       },
       kProblem, "memlock", "RLIMIT_MEMLOCK of this shell is 1 MiB", "memlock unlimited"},
      {"Descriptors",
       [](FakeMachine& machine, Request&) {
         machine.PutLimits("/proc/self", "unlimited", "128", 0);
       },
       kProblem, "nofile", "RLIMIT_NOFILE of this shell is 128", "nofile 1048576"},
      {"Memory",
       [](FakeMachine& machine, Request&) {
         machine.Put("/proc/meminfo", "MemAvailable:    4096 kB");
       },
       kProblem, "memory", "4 MiB available", "free memory"},
      {"MemoryFilesRefused",
       [](FakeMachine& machine, Request&) { machine.Put("/proc/sys/vm/memfd_noexec", "2"); },
       kProblem, "memory", "vm.memfd_noexec is 2", "sysctl vm.memfd_noexec=1"},
      {"HugePagesDenied",
       [](FakeMachine& machine, Request&) {
         machine.Put("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                     "always within_size advise never [deny] force");
       },
       kWarning, "huge pages", "denied huge pages", "echo never >/sys/kernel/mm"},
      {"NoHugePages",
       [](FakeMachine& machine, Request&) {
         machine.Remove("/sys/kernel/mm/transparent_hugepage");
       },
       kWarning, "huge pages", "no transparent huge pages", "apt-get install linux-image-amd64"},
      {"NoDevShm", [](FakeMachine& machine, Request&) { machine.Remove("/dev/shm"); }, kWarning,
       "/dev/shm", "/dev/shm is missing", "mount -t tmpfs"},
      {"DevShmOfRoot",
       [](FakeMachine& machine, Request&) { machine.PutDirectory("/dev/shm", 0755, 0); }, kWarning,
       "/dev/shm", "not every user may make files", "chmod 1777 /dev/shm"},
      {"GroupWithoutMemory",
       [](FakeMachine& machine, Request&) {
         machine.Put(std::string(kGroup) + "memory.max", "8388608");
       },
       kProblem, "cgroup", "memory.max is 8 MiB; arenas need",
       "systemctl set-property session-1.scope MemoryMax="},
      {"GroupAboveWithoutProcesses",
       [](FakeMachine& machine, Request&) {
         machine.Put("/sys/fs/cgroup/user.slice/pids.max", "10");
       },
       kProblem, "cgroup", "pids.max is 10", "systemctl set-property user.slice TasksMax=infinity"},
      {"GroupWithoutQueuePairs",
       [](FakeMachine& machine, Request&) {
         machine.Put(std::string(kGroup) + "rdma.max", "rxe0 hca_handle=2 hca_object=16");
       },
       kProblem, "cgroup", "rdma.max allows 16 hca_object of rxe0; its services need",
       "hca_object=max' >/sys/fs/cgroup/user.slice/session-1.scope/rdma.max"},
  };
}

std::vector<Fault> FaultsOfTheRest() {
  return {
      {"SlowClock",
       [](FakeMachine& machine, Request&) {
         machine.Put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet");
       },
       kWarning, "clock", "tells the time by hpet", "echo tsc >/sys/devices/system/clocksource"},
      {"ClockAstray", [](FakeMachine& machine, Request&) { machine.clock_is_synchronized = false; },
       kWarning, "clock", "nobody keeps the clock", "timedatectl set-ntp true"},
      {"StateDirectoryOpen",
       [](FakeMachine& machine, Request&) { machine.PutDirectory("/run/baton", 0770, 1000); },
       kProblem, "state directory", "writable by others", "chmod go-w /run/baton"},
      {"StateDirectoryOfAnother",
       [](FakeMachine& machine, Request&) { machine.PutDirectory("/run/baton", 0700, 0); },
       kProblem, "state directory", "belongs to uid 0", "chown baton /run/baton"},
      {"NoOperatorSocket",
       [](FakeMachine& machine, Request&) {
         RunBatond(machine);
         machine.Remove("/run/baton/operator.sock");
       },
       kWarning, "socket", "operator.sock is missing", "journalctl -u batond"},
      {"BatondInAnotherNamespace",
       [](FakeMachine& machine, Request&) {
         RunBatond(machine);
         machine.PutLink("/proc/4711/ns/net", "net:[4026532000]");
       },
       kWarning, "netns", "another network namespace", "nsenter -t 4711 -n baton doctor"},
      {"AnotherRelease",
       [](FakeMachine& machine, Request& request) {
         RunBatond(machine);
         request.running = Running("0.2.0", "0.1.0", "0.1.0");
       },
       kWarning, "version", "this program is of release 0.2.0, control is of 0.1.0", "install"},
      {"KeeperOfTheReleaseBefore",
       [](FakeMachine& machine, Request& request) {
         RunBatond(machine);
         request.running = Running("0.2.0", "0.2.0", "0.1.0");
       },
       kWarning, "version", "its keeper is of release 0.1.0",
       "baton upgrade --baton kv  # connections live on"},
      {"WorkersOfTheReleaseBefore",
       [](FakeMachine& machine, Request& request) {
         RunBatond(machine);
         request.running = Running("0.2.0", "0.2.0", "0.2.0");
         request.running->workers["kv"] = {{"0.1.9", 2}, {"0.2.0", 3}};
       },
       kWarning, "version", "2 workers were built with the library of release 0.1.9",
       "baton upgrade kv"},
      {"WorkerOfAnOldRelease",
       [](FakeMachine& machine, Request& request) {
         RunBatond(machine);
         request.running = Running("0.2.0", "0.2.0", "0.2.0");
         request.running->workers["kv"] = {{"", 1}};
       },
       kWarning, "version", "1 worker was built with the library of an older release",
       "baton upgrade kv"},
      {"BatondDoesNotTell",
       [](FakeMachine& machine, Request& request) {
         RunBatond(machine);
         request.running = RunningVersions{"0.2.0", {}, {}, "uid 1000 may not operate Baton"};
       },
       kWarning, "version", "uid 1000 may not operate Baton", "as an operator"},
  };
}

std::vector<Fault> AllFaults() {
  std::vector<Fault> all;
  for (const auto& some :
       {FaultsOfTheKernelAndItsDevices(), FaultsOfLimitsAndMemory(), FaultsOfTheRest()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

Request SoundRequest() {
  return {.identity = {"baton", 1000, 1000, {kRdmaGroup}, true},
          .state_dir = "/run/baton",
          .config_file = {},
          .config = {},
          .running = {}};
}

std::vector<v1::Finding> Wrong(const v1::DoctorReport& report) {
  std::vector<v1::Finding> wrong;
  for (const v1::Finding& finding : report.findings()) {
    if (finding.severity() != v1::SEVERITY_OK) wrong.push_back(finding);
  }
  return wrong;
}

TEST(SoundMachineTest, ShouldHaveNoFindings) {
  const FakeMachine machine;
  EXPECT_TRUE(Wrong(Diagnose(machine, SoundRequest())).empty());
}

TEST(SoundMachineTest, ShouldHaveNoFindingsWhileItsBatondRuns) {
  FakeMachine machine;
  RunBatond(machine);
  Request request = SoundRequest();
  request.running = Running("0.1.0", "0.1.0", "0.1.0");
  request.running->workers["kv"] = {{"0.1.0", 2}};
  const v1::DoctorReport report = Diagnose(machine, request);
  EXPECT_TRUE(Wrong(report).empty()) << report.DebugString();
}

class SeededFaultTest : public testing::TestWithParam<Fault> {};

TEST_P(SeededFaultTest, ShouldBeFoundAloneAndWithACure) {
  const Fault& fault = GetParam();
  FakeMachine machine;
  Request request = SoundRequest();
  fault.seed(machine, request);
  const v1::DoctorReport report = Diagnose(machine, request);
  const std::vector<v1::Finding> found = Wrong(report);
  ASSERT_EQ(found.size(), 1u) << report.DebugString();
  EXPECT_EQ(found[0].severity(), fault.severity) << found[0].DebugString();
  EXPECT_EQ(found[0].check(), fault.check);
  EXPECT_THAT(found[0].message(), HasSubstr(fault.message));
  EXPECT_NE(found[0].consequence(), "");
  EXPECT_THAT(found[0].cure(), HasSubstr(fault.cure));
}

INSTANTIATE_TEST_SUITE_P(All, SeededFaultTest, testing::ValuesIn(AllFaults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::doctor

// memd on Baton, brokered and native: what its clients lease, and what they do with it, while memd
// is upgraded, killed at each step, and killed at random. Clients check every result
// (memd_checker.h), and at the end nothing is left of them.
// BATON_KILLS: how many owners are killed at random moments (10); BATON_SEED: of these (printed).
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/cluster.h"
#include "tests/harness/expectations.h"
#include "tests/harness/file_content.h"
#include "tests/harness/setting.h"
#include "tests/harness/wait_until.h"
#include "tests/worker/examples/example_fixture.h"
#include "tests/worker/examples/memd/memd_load.h"

namespace baton::memd {
namespace {

using examples::ExampleWorker;
using examples::kTimeout;
using ::testing::HasSubstr;

constexpr uint32_t kShards = 2;
constexpr uint64_t kHeapBytes = 1 << 20;  // of a shard
constexpr uint32_t kMostLeases = 4;       // of a connection, by its state

// Points that every owner passes while clients work. The first passings of some are those of the
// adoption.
const char* const kServingPoints[] = {
    "memd-request-begin",     "memd-request-executed", "memd-reply-staged",
    "memd-request-end",       "memd-notice-counted",   "lease-granted",
    "lease-revoked",          "worker-heap-allocated", "worker-heap-freed",
    "worker-receive-staged",  "worker-send-staged",    "worker-state-staged",
    "deliver-before-handler", "deliver-after-handler", "commit-before-publish",
    "commit-published",
};
const char* const kAdoptionPoints[] = {"memd-adopt-begin", "memd-adopt-end"};
const char* const kAcceptPoints[] = {"memd-accept-begin", "memd-accept-end"};
// Points that an owner passes when a client leaves that has a lease, or when the lease has ended
// that has so many milliseconds.
const std::pair<const char*, uint64_t> kEndPoints[] = {
    {"memd-end-begin", 0},     {"memd-end-freed", 0},   {"memd-overdue-begin", 1},
    {"memd-overdue-freed", 1}, {"memd-overdue-end", 1},
};

class MemdTest : public examples::ExampleTest<MemdLoad> {
 protected:
  MemdTest() : ExampleTest("memd") {}

  static std::vector<std::string> Capacity() {
    // See StateBytesFor in memd_state.h.
    return {"--shard-heap-bytes", absl::StrCat(kHeapBytes), "--connection-state-bytes",
            absl::StrCat(32 + 80 * kMostLeases)};
  }
  void StartCluster(std::vector<std::string> more = {}, uint32_t max_connections = 16) {
    harness::ClusterOptions options;
    options.shards = kShards;
    options.max_connections = max_connections;
    options.batond_arguments = Capacity();
    options.batond_arguments.insert(options.batond_arguments.end(), more.begin(), more.end());
    ASSERT_NO_FATAL_FAILURE(Start(std::move(options)));
  }
  // A cluster with a worker.
  void StartService(std::vector<std::string> more = {}) {
    ASSERT_NO_FATAL_FAILURE(StartCluster(std::move(more)));
    ASSERT_NO_FATAL_FAILURE(StartWorker({}, &worker_));
  }
  // A cluster whose workers are native, and listen.
  void StartNative(const std::string& object, std::vector<std::string> more = {},
                   uint32_t workers = 8) {
    const std::vector<std::string> native = NativeArguments(object, {}, workers);
    more.insert(more.end(), native.begin(), native.end());
    ASSERT_NO_FATAL_FAILURE(StartCluster(std::move(more)));
    ASSERT_OK(cluster_->WaitUntilListening());
    port_ = cluster_->port();
  }

  std::unique_ptr<MemdClient> NewClient() const {
    auto client = ConnectClient(port_);
    EXPECT_OK(client);
    return client.ok() ? *std::move(client) : nullptr;
  }
  void StartLoads(int count) {
    for (int i = 0; i < count; ++i) {
      MemdCheckerOptions options;
      options.bytes = 16 * 1024 + 4096 * i;
      options.seed = loads_.size() + 1;
      options.shared = shared_;
      loads_.push_back(std::make_unique<MemdLoad>(port_, options));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }

  // Starts clients that rest between two rounds. Owners die at named points, which a few rounds
  // reach.
  void StartSlowLoads(int count) {
    ASSERT_NO_FATAL_FAILURE(StartLoads(count));
    for (const auto& load : loads_) load->SlowDown();
  }

  void ExpectFree() {
    EXPECT_OK(harness::WaitUntil(
        "all memory to be free", [&] { return Rest().empty(); }, kTimeout));
    EXPECT_EQ(Rest(), "");
  }
  // Every byte of each heap can be leased: what memd says of its memory is not all that is looked
  // at.
  void ExpectEveryByteFree() {
    std::vector<std::unique_ptr<MemdClient>> clients;
    uint32_t heaps = 0;
    while (heaps < kShards && clients.size() < size_t{4} * kShards) {
      clients.push_back(NewClient());
      ASSERT_NE(clients.back(), nullptr);
      const auto whole = clients.back()->Allocate({.bytes = kHeapBytes});
      if (whole.ok()) {
        ++heaps;
      } else {
        EXPECT_TRUE(absl::IsResourceExhausted(whole.status())) << whole.status();
      }
    }
    EXPECT_EQ(heaps, kShards) << "some of a heap is missing: " << Rest();
  }
  // No bytes are leased, and no peer has access to any.
  void ExpectNothingLeft() {
    ExpectNoConnections();
    ExpectFree();
  }
  // Returns the leases that are left, in words; empty: none.
  std::string Rest() {
    const auto service = cluster_->GetService();
    const auto keeper = cluster_->keeper().Describe();
    if (!service.ok() || !keeper.ok()) return "no answer";
    std::string rest;
    if (service->service().accounts().grants() != 0) {
      absl::StrAppend(&rest, service->service().accounts().grants(), " grants ");
    }
    for (const auto& load : keeper->shard_loads()) {
      if (load.heap().use().kept() == 0 && load.heap().use().scratch() == 0) continue;
      absl::StrAppend(&rest, load.heap().use().ShortDebugString(), " ");
    }
    return rest;
  }

  std::optional<RemoteMemory> shared_;  // that all loads add to
};

// ---------------------------------------------------------------- what clients may do

TEST_F(MemdTest, shouldLeaseMemoryAndTakeItBack) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const auto client = NewClient();
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(client->greeting().most_leases, kMostLeases);
  const auto lease = client->Allocate({.bytes = 100'000});
  ASSERT_OK(lease);
  EXPECT_EQ(lease->memory.bytes, 100'000u);
  std::vector<uint8_t> bytes(100'000, 7), back(100'000);
  ASSERT_OK(client->Write(lease->memory, 0, bytes));
  ASSERT_OK(client->Read(lease->memory, 0, absl::MakeSpan(back)));
  EXPECT_EQ(back, bytes);
  const auto before = client->FetchAdd(lease->memory, 8, 1);
  ASSERT_OK(before);
  EXPECT_EQ(*before, 0x0707070707070707u);
  const auto swapped = client->CompareSwap(lease->memory, 8, *before + 1, 5);
  ASSERT_OK(swapped);
  EXPECT_EQ(*swapped, *before + 1);
  ASSERT_OK(client->Free(lease->id));
  ASSERT_OK(client->Free(lease->id));
  EXPECT_TRUE(absl::IsNotFound(client->Stat(lease->id).status()));
}

TEST_F(MemdTest, shouldReturnTheSameLeaseForARepeatedRequest) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const auto client = NewClient();
  ASSERT_NE(client, nullptr);
  AllocateOptions options;
  options.bytes = 4096;
  options.milliseconds = 60'000;
  options.number = client->NewNumber();
  const auto first = client->Allocate(options);
  ASSERT_OK(first);
  std::unique_ptr<ExampleWorker> second;
  ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &second));
  ASSERT_OK(worker_->process->Kill());
  const auto again = client->Allocate(options);
  ASSERT_OK(again);
  EXPECT_EQ(again->id, first->id);
  EXPECT_EQ(again->memory.rkey, first->memory.rkey);
  EXPECT_EQ(again->memory.address, first->memory.address);
  EXPECT_EQ(again->server_version, 2u);
  options.bytes = 8192;
  EXPECT_TRUE(absl::IsAlreadyExists(client->Allocate(options).status()));
}

// The worker is stopped, so that no answer can come in time.
TEST_F(MemdTest, shouldAnswerARequestThatWasGivenUpAndRepeated) {
  ASSERT_NO_FATAL_FAILURE(StartService({"--hang-timeout-ms", "600000"}));
  const auto client = NewClient();
  ASSERT_NE(client, nullptr);
  AllocateOptions options;
  options.bytes = 4096;
  options.number = client->NewNumber();
  ASSERT_OK(worker_->process->Signal(SIGSTOP));
  ASSERT_OK(harness::WaitUntil("the worker to be stopped", [&] {
    return harness::StatusOf(worker_->process->pid(), "State").starts_with("T");
  }));
  client->set_patience(std::chrono::milliseconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(client->Allocate(options).status()));
  ASSERT_OK(worker_->process->Signal(SIGCONT));
  client->set_patience(kTimeout);
  const auto lease = client->Allocate(options);
  ASSERT_OK(lease);
  // Both were answered with one lease: there is room for all the others.
  for (uint32_t i = 1; i < kMostLeases; ++i) ASSERT_OK(client->Allocate({.bytes = 64}));
  const auto more = client->Allocate({.bytes = 64});
  EXPECT_TRUE(absl::IsResourceExhausted(more.status())) << more.status();
  ASSERT_OK(client->FetchAdd(lease->memory, 0, 1));
}

TEST_F(MemdTest, shouldRefuseWhatItCannotLeaseAndGoOn) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(StartWorker({.arguments = {"--most-bytes", "65536"}}, &worker_));
  const auto client = NewClient();
  ASSERT_NE(client, nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(client->Allocate({.bytes = 0}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client->Allocate({.bytes = 8, .rights = 0}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client->Allocate({.bytes = 8, .rights = 8}).status()));
  const auto long_time = client->Allocate({.bytes = 8, .milliseconds = ~uint64_t{0}});
  EXPECT_TRUE(absl::IsInvalidArgument(long_time.status())) << long_time.status();
  const auto large = client->Allocate({.bytes = 65537});
  EXPECT_TRUE(absl::IsResourceExhausted(large.status())) << large.status();
  EXPECT_THAT(large.status().ToString(), HasSubstr("a client has 65536 at most"));
  EXPECT_TRUE(absl::IsNotFound(client->Renew(4711, 1000).status()));
  ASSERT_OK(client->Allocate({.bytes = 65536}));
}

// The worker is stopped while a lease ends, so that a request is there before its timer is: one
// with the number of that lease, and for more than a client may have.
TEST_F(MemdTest, shouldLimitWhatARequestGetsInPlaceOfALeaseThatIsOver) {
  constexpr std::chrono::milliseconds kDuration(500);
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--hang-timeout-ms", "600000"}));
  ASSERT_NO_FATAL_FAILURE(StartWorker({.arguments = {"--most-bytes", "65536"}}, &worker_));
  const auto client = NewClient();
  ASSERT_NE(client, nullptr);
  AllocateOptions options;
  options.bytes = 65536;
  options.milliseconds = kDuration.count();
  options.number = client->NewNumber();
  ASSERT_OK(client->Allocate(options));
  const auto over = std::chrono::steady_clock::now() + kDuration;
  ASSERT_OK(worker_->process->Signal(SIGSTOP));
  ASSERT_OK(harness::WaitUntil("the worker to be stopped", [&] {
    return harness::StatusOf(worker_->process->pid(), "State").starts_with("T");
  }));
  options.bytes = 100'000;
  client->set_patience(std::chrono::milliseconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(client->Allocate(options).status()));
  ASSERT_OK(harness::WaitUntil("the lease's time to be over",
                               [&] { return std::chrono::steady_clock::now() > over; }));
  ASSERT_OK(worker_->process->Signal(SIGCONT));
  client->set_patience(kTimeout);
  const auto large = client->Allocate(options);
  EXPECT_TRUE(absl::IsResourceExhausted(large.status())) << large.status();
  ASSERT_OK(client->Allocate({.bytes = 65536}));
}

// The client library refuses what would end the connection; this one asks for it with other
// numbers.
TEST_F(MemdTest, shouldEndTheConnectionOfAClientThatExceedsItsLeaseAndNoOther) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  ASSERT_NO_FATAL_FAILURE(StartLoads(2));
  const std::vector<uint8_t> bytes(16);
  for (const uint32_t rights : {uint32_t{kRead}, uint32_t{kRead | kWrite}}) {
    SCOPED_TRACE(rights);
    const auto client = NewClient();
    ASSERT_NE(client, nullptr);
    const auto lease = client->Allocate({.bytes = 64, .rights = rights});
    ASSERT_OK(lease);
    RemoteMemory memory = lease->memory;
    EXPECT_TRUE(absl::IsOutOfRange(client->Write(memory, 56, bytes)));
    // Either it may not WRITE, or not so far.
    memory.rights = kAllRights;
    memory.bytes = 4096;
    EXPECT_TRUE(absl::IsUnavailable(client->Write(memory, 56, bytes)));
    EXPECT_TRUE(absl::IsUnavailable(client->Stat(lease->id).status()));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  ExpectNothingLost();
  ExpectNothingLeft();
}

TEST_F(MemdTest, shouldCountNoticesWithoutEverLackingAReceive) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const auto client = NewClient();
  ASSERT_NE(client, nullptr);
  const auto lease = client->Allocate({.bytes = 4096});
  const auto other = client->Allocate({.bytes = 4096});
  ASSERT_OK(lease);
  ASSERT_OK(other);
  const std::vector<uint8_t> bytes(100);
  for (uint32_t i = 0; i < 5 * kNoticeWindow; ++i) {
    ASSERT_OK(client->Notify(*lease, i, bytes));
    if (i % 5 == 0) ASSERT_OK(client->Notify(*other, 0, {}));
  }
  const auto stat = client->Stat(lease->id), other_stat = client->Stat(other->id);
  ASSERT_OK(stat);
  ASSERT_OK(other_stat);
  EXPECT_EQ(stat->notices, 5 * kNoticeWindow);
  EXPECT_EQ(other_stat->notices, kNoticeWindow);
}

TEST_F(MemdTest, shouldFreeALeaseWhoseTimeIsOver) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const auto client = NewClient();
  ASSERT_NE(client, nullptr);
  const auto lease = client->Allocate({.bytes = 4096, .milliseconds = 1});
  ASSERT_OK(lease);
  // The timer does it: nothing else looks.
  EXPECT_OK(harness::WaitUntil(
      "the memory to be free", [&] { return Rest().empty(); }, kTimeout));
  EXPECT_TRUE(absl::IsFailedPrecondition(client->FetchAdd(lease->memory, 0, 1).status()));
  EXPECT_TRUE(absl::IsNotFound(client->Renew(lease->id, 1000).status()));
  // Time runs while nobody serves, too.
  const auto next = client->Allocate({.bytes = 4096, .milliseconds = 1});
  ASSERT_OK(next);
  ASSERT_OK(worker_->process->Kill());
  ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &worker_));
  EXPECT_OK(harness::WaitUntil(
      "the memory to be free", [&] { return Rest().empty(); }, kTimeout));
  ASSERT_OK(client->Allocate({.bytes = 4096}));
}

TEST_F(MemdTest, shouldFreeWhatAClientLeavesBehind) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  auto client = NewClient();
  ASSERT_NE(client, nullptr);
  for (uint32_t i = 0; i < kMostLeases; ++i) {
    ASSERT_OK(client->Allocate({.bytes = 1000, .milliseconds = i * 100'000}));
  }
  EXPECT_OK(harness::WaitUntil("the leases to be seen", [&] {
    return Rest().find(absl::StrCat(kMostLeases, " grants")) != std::string::npos;
  }));
  client.reset();
  ExpectNothingLeft();
}

TEST_F(MemdTest, shouldServeConnectionsThatShareReceives) {
  ASSERT_NO_FATAL_FAILURE(StartService({"--shared-receive-queue-depth", "64"}));
  ASSERT_NO_FATAL_FAILURE(StartLoads(4));
  std::unique_ptr<ExampleWorker> next;
  ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &next));
  ASSERT_OK(worker_->process->Kill());
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  ExpectNothingLost();
  ExpectNothingLeft();
}

TEST_F(MemdTest, shouldRefuseAServiceThatIsTooSmallAndSayWhatWouldDo) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--buffer-bytes", "65536"}));
  ASSERT_NO_FATAL_FAILURE(ExpectRefused({}, "raise buffer_bytes to "));
}

// ---------------------------------------------------------------- owners come and go

TEST_F(MemdTest, shouldLoseNothingOverUpgradesAndKills) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  ASSERT_NO_FATAL_FAILURE(StartLoads(4));
  for (const char* program : {"memd-v2", "memd-v1", "memd-v2"}) {
    ASSERT_NO_FATAL_FAILURE(UpgradeTo(program));
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  for (int i = 0; i < 4; ++i) {
    std::unique_ptr<ExampleWorker> next;
    ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 1 + i % 2}, &next));
    if (i == 0) {
      // The owner is the upgrade's process, and no child of ours.
      ASSERT_OK(cluster_->Handoff(next->id));
    } else {
      ASSERT_OK(worker_->process->Kill());
    }
    worker_ = std::move(next);
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ExpectNothingLost();
  ExpectNothingLeft();
}

// One-sided work goes on while nobody owns the shards.
TEST_F(MemdTest, shouldAnswerAtomicsWhileNoWorkerLives) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const auto client = NewClient();
  ASSERT_NE(client, nullptr);
  const auto lease = client->Allocate({.bytes = 4096});
  ASSERT_OK(lease);
  ASSERT_OK(worker_->process->Kill());
  for (uint64_t i = 0; i < 1000; ++i) {
    const auto before = client->FetchAdd(lease->memory, 0, 1);
    ASSERT_OK(before);
    ASSERT_EQ(*before, i);
  }
  ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &worker_));
  const auto stat = client->Stat(lease->id);
  ASSERT_OK(stat);
  EXPECT_EQ(stat->memory.rkey, lease->memory.rkey);
  EXPECT_EQ(stat->memory.address, lease->memory.address);
}

TEST_F(MemdTest, shouldLoseNothingWhereverItsOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  ASSERT_NO_FATAL_FAILURE(StartSlowLoads(3));
  for (const char* point : kServingPoints) {
    for (const int passing : {1, 4}) {
      ASSERT_NO_FATAL_FAILURE(ExpectProgressOverDeathAt(point, passing));
    }
  }
  for (const char* point : kAdoptionPoints) {
    ASSERT_NO_FATAL_FAILURE(ExpectProgressOverDeathAt(point, 1));
  }
  ExpectNothingLost();
  ExpectNothingLeft();
  ExpectEveryByteFree();
}

TEST_F(MemdTest, shouldServeAConnectionWhoseAcceptDied) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  for (const char* point : kAcceptPoints) {
    SCOPED_TRACE(point);
    ASSERT_NO_FATAL_FAILURE(MakeDoomedOwner(point, 1));
    ASSERT_NO_FATAL_FAILURE(StartLoads(1));
    ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ExpectNothingLost();
}

// A client leaves, or its time is over, and the owner dies of it.
TEST_F(MemdTest, shouldLeakNothingWhenItsOwnerDiesTakingMemoryBack) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  ASSERT_NO_FATAL_FAILURE(StartLoads(1));
  for (const auto& [point, milliseconds] : kEndPoints) {
    SCOPED_TRACE(point);
    ASSERT_NO_FATAL_FAILURE(MakeDoomedOwner(point, 1));
    auto client = NewClient();
    ASSERT_NE(client, nullptr);
    ASSERT_OK(client->Allocate({.bytes = 4096, .milliseconds = milliseconds}));
    if (milliseconds == 0) client.reset();
    ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ExpectNothingLost();
  ExpectNothingLeft();
  ExpectEveryByteFree();
}

// Native owners die at the points of the three tests before.
TEST_F(MemdTest, shouldLoseNothingWhereverItsNativeOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(MakeCrashPoints());
  ASSERT_NO_FATAL_FAILURE(StartNative("memd-v1-test-hooks.so"));
  ASSERT_NO_FATAL_FAILURE(StartSlowLoads(3));
  for (const char* point : kServingPoints) {
    for (const uint32_t passing : {1, 4}) {
      ASSERT_NO_FATAL_FAILURE(ExpectProgressOverNativeDeathAt(point, passing));
    }
  }
  for (const char* point : kAdoptionPoints) {
    ASSERT_NO_FATAL_FAILURE(ExpectProgressOverNativeHeirsDeathAt(point));
  }
  for (const char* point : kAcceptPoints) {
    SCOPED_TRACE(point);
    crash_points_->Arm(point, 1);
    ASSERT_NO_FATAL_FAILURE(StartLoads(1));
    ASSERT_NO_FATAL_FAILURE(ExpectNativeDeath());
  }
  for (const auto& [point, milliseconds] : kEndPoints) {
    SCOPED_TRACE(point);
    crash_points_->Arm(point, 1);
    auto client = NewClient();
    ASSERT_NE(client, nullptr);
    ASSERT_OK(client->Allocate({.bytes = 4096, .milliseconds = milliseconds}));
    if (milliseconds == 0) client.reset();
    ASSERT_NO_FATAL_FAILURE(ExpectNativeDeath());
  }
  ExpectNothingLost();
  ExpectNothingLeft();
  ExpectEveryByteFree();
}

// ---------------------------------------------------------------- the command line

class MemdCommandTest : public MemdTest {
 protected:
  void StartCommand(const std::vector<std::string>& arguments,
                    std::unique_ptr<harness::ChildProcess>* process) {
    const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
    harness::ChildOptions child;
    ASSERT_OK_AND_ASSIGN(child.program, harness::Binaries().Find("memd-cli"));
    child.log_path = absl::StrCat(cluster_->directory(), "/memd-cli-", logs_.size(), ".log");
    logs_.push_back(child.log_path);
    child.arguments = {"--device", fabric.device, absl::StrCat(fabric.host, ":", port_)};
    child.arguments.insert(child.arguments.end(), arguments.begin(), arguments.end());
    ASSERT_OK_AND_ASSIGN(*process, harness::ChildProcess::Start(child));
  }
  static void ExpectSuccess(harness::ChildProcess& process) {
    const auto end = process.WaitEnd(kTimeout);
    ASSERT_OK(end);
    EXPECT_TRUE(WIFEXITED(*end) && WEXITSTATUS(*end) == 0) << process.LogTail();
  }
  // Returns what follows `name` in the line, up to a blank.
  static std::string ValueOf(const std::string& line, const std::string& name) {
    const size_t at = line.find(name + "=");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 1;
    return line.substr(begin, line.find(' ', begin) - begin);
  }
};

TEST_F(MemdCommandTest, shouldKeepAFileThatAnotherCommandGetsAfterTheOwnersDeath) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const std::string from = absl::StrCat(cluster_->directory(), "/from");
  const std::string to = absl::StrCat(cluster_->directory(), "/to");
  std::string content(300'000, 'a');
  for (size_t i = 0; i < content.size(); i += 7) content[i] = static_cast<char>(i);
  std::ofstream(from, std::ios::binary) << content;
  std::unique_ptr<harness::ChildProcess> put, get;
  ASSERT_NO_FATAL_FAILURE(StartCommand({"put", from}, &put));
  const auto line = put->ReadLineWith("lease=", kTimeout);
  ASSERT_OK(line);
  std::unique_ptr<ExampleWorker> next;
  ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &next));
  ASSERT_OK(worker_->process->Kill());
  ASSERT_NO_FATAL_FAILURE(StartCommand(
      {"get", ValueOf(*line, "rkey"), ValueOf(*line, "address"), ValueOf(*line, "bytes"), to},
      &get));
  const auto got = get->ReadLineWith("bytes=", kTimeout);
  ASSERT_OK(got);
  EXPECT_EQ(ValueOf(*got, "checksum"), ValueOf(*line, "checksum"));
  EXPECT_EQ(ValueOf(*got, "bytes"), absl::StrCat(content.size()));
  ASSERT_NO_FATAL_FAILURE(ExpectSuccess(*get));
  EXPECT_TRUE(harness::ReadFile(to) == content);
  put->CloseInput();
  ASSERT_NO_FATAL_FAILURE(ExpectSuccess(*put));
  ExpectNothingLeft();
}

TEST_F(MemdCommandTest, shouldCountAndHold) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  std::unique_ptr<harness::ChildProcess> add, hold;
  ASSERT_NO_FATAL_FAILURE(StartCommand({"add", "--count", "100", "--value", "3"}, &add));
  const auto sum = add->ReadLine(kTimeout);
  ASSERT_OK(sum);
  EXPECT_EQ(*sum, "300");
  ASSERT_NO_FATAL_FAILURE(ExpectSuccess(*add));
  ASSERT_NO_FATAL_FAILURE(StartCommand({"hold", "--until-stdin-closes"}, &hold));
  ASSERT_OK(hold->ReadLineWith("holding lease=", kTimeout));
  std::unique_ptr<ExampleWorker> next;
  ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &next));
  ASSERT_OK(worker_->process->Kill());
  hold->CloseInput();
  const auto line = hold->ReadLineWith("rounds=", kTimeout);
  ASSERT_OK(line);
  EXPECT_EQ(ValueOf(*line, "lost"), "0");
  ASSERT_NO_FATAL_FAILURE(ExpectSuccess(*hold));
}

// ---------------------------------------------------------------- random kills, both kinds

class MemdKillTest : public MemdTest {
 protected:
  // A client that does nothing but keep the memory that all loads add to.
  void LeaseShared() {
    holder_ = NewClient();
    ASSERT_NE(holder_, nullptr);
    const auto lease = holder_->Allocate({.bytes = 4096});
    ASSERT_OK(lease);
    shared_ = lease->memory;
  }
  // Each addition was made once: there was one in each round of each load.
  void ExpectShared() {
    uint64_t rounds = 0;
    for (const auto& load : loads_) {
      EXPECT_OK(load->Stop());
      rounds += load->answers();
    }
    const auto sum = holder_->FetchAdd(*shared_, 0, 0);
    ASSERT_OK(sum);
    EXPECT_EQ(*sum, rounds);
    holder_.reset();
    ExpectNothingLost();
    ExpectNothingLeft();
    ExpectEveryByteFree();
  }
  RandomKills Begin() {
    const uint64_t seed = harness::Setting("BATON_SEED", std::random_device{}());
    std::printf("%llu kills, BATON_SEED=%llu\n", static_cast<unsigned long long>(kills_),
                static_cast<unsigned long long>(seed));
    random_.seed(seed);
    RandomKills plan;
    plan.kills = kills_;
    plan.latest_us = 60'000 * harness::Slowness();
    plan.period = MemdLoad::kPeriod;
    // The holder's device answers the service's signs of life only while the holder waits.
    plan.after = [this] { ASSERT_OK(holder_->FetchAdd(*shared_, 0, 0)); };
    return plan;
  }
  // Some completions may be there at three deaths that they have nothing to do with.
  static std::vector<std::string> WithoutPoison() { return {"--poison-deaths", "1000"}; }

  const uint64_t kills_ = harness::Setting("BATON_KILLS", 10);
  std::mt19937_64 random_;
  std::unique_ptr<MemdClient> holder_;
};

TEST_F(MemdKillTest, shouldLoseNothingAtRandomKills) {
  ASSERT_NO_FATAL_FAILURE(StartService(WithoutPoison()));
  RandomKills plan = Begin();
  plan.before = [this](const ExampleWorker& heir) { ASSERT_OK(cluster_->Handoff(heir.id)); };
  ASSERT_NO_FATAL_FAILURE(LeaseShared());
  ASSERT_NO_FATAL_FAILURE(StartLoads(4));
  ASSERT_NO_FATAL_FAILURE(KillAtRandom(plan, random_));
  ExpectShared();
}

TEST_F(MemdKillTest, shouldLoseNothingAtRandomKillsAndUpgradesOfNativeWorkers) {
  const RandomKills plan = Begin();
  const uint32_t workers = kills_ > 100 ? 24 : 8;
  ASSERT_NO_FATAL_FAILURE(StartNative("memd-v1.so", WithoutPoison(), workers));
  ASSERT_NO_FATAL_FAILURE(LeaseShared());
  ASSERT_NO_FATAL_FAILURE(StartLoads(3));
  ASSERT_NO_FATAL_FAILURE(KillNativeAtRandom(plan, kShards, random_));
  for (const char* object : {"memd-v2.so", "memd-v1.so"}) {
    ASSERT_NO_FATAL_FAILURE(UpgradeTo(object));
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
    ASSERT_OK(holder_->FetchAdd(*shared_, 0, 0));
  }
  ExpectShared();
}

}  // namespace
}  // namespace baton::memd

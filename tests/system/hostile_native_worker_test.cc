// Native workers overwrite all the memory that they share with their driver and its keeper, and
// keepers die meanwhile: it costs their own service's connections, and nothing else.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/arena/layout.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/binaries.h"
#include "tests/harness/cluster.h"
#include "tests/harness/expectations.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/temp_directory.h"
#include "tests/harness/wait_until.h"

namespace baton {
namespace {

using harness::Cluster;
using harness::ClusterOptions;
using harness::PeerOptions;
using harness::PeerProcess;
using ::testing::HasSubstr;

constexpr int kKeepers = 6;

// A process that does nothing, and whose number the workers write everywhere.
class Bait {
 public:
  Bait() : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  ~Bait() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Bait(const Bait&) = delete;
  Bait& operator=(const Bait&) = delete;

  pid_t pid() const { return pid_; }
  bool lives() const {
    siginfo_t change = {};
    const int options = WEXITED | WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT;
    return waitid(P_PID, static_cast<id_t>(pid_), &change, options) == 0 && change.si_pid == 0;
  }

 private:
  const pid_t pid_;
};

class HostileNativeWorker : public testing::Test {
 protected:
  // Two services: "ledger", and "hostile", whose workers are.
  void SetUp() override {
    auto directory = harness::TempDirectory::Create();
    ASSERT_OK(directory);
    directory_ = std::make_unique<harness::TempDirectory>(*std::move(directory));
    ASSERT_EQ(setenv("BATON_HOSTILE_ORDER", Order().c_str(), 1), 0);
    ClusterOptions options;
    options.by_file = true;
    auto cluster = Cluster::Start(options);
    unsetenv("BATON_HOSTILE_ORDER");
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
    ASSERT_OK_AND_ASSIGN(owner_, cluster_->StartLedger(1));
    ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(harness::SteadyLoad()));
    ASSERT_NO_FATAL_FAILURE(AddHostile());
  }
  void TearDown() override {
    if (HasFailure() && cluster_) cluster_->DumpLogs();
  }

  void AddHostile() {
    std::string arguments;
    for (const std::string& argument :
         {"--socket", "unused", "--service", "hostile", "--listen", "127.0.0.1:0"}) {
      absl::StrAppend(&arguments, " arguments: \"", argument, "\"");
    }
    ASSERT_OK(cluster_->WriteConfig(absl::StrCat(
        "} services { name: \"hostile\" device { soft {} } shards: 2 max_connections: 16 ",
        "mode: NATIVE native { workers: 2 object: \"",
        harness::Binaries().Find("hostile-ledger.so").value(), "\" uid: ", geteuid(),
        " gid: ", getegid(), arguments, " }")));
    ASSERT_OK(cluster_->batond().Signal(SIGHUP));
    v1::GetServiceResponse service;
    ASSERT_OK(harness::WaitUntil(
        "the hostile service to listen",
        [&] {
          const auto got = cluster_->operators().GetService("hostile");
          if (got.ok()) service = *got;
          return service.service().listeners_size() > 0;
        },
        std::chrono::seconds(30)));
    PeerOptions load;
    load.program = harness::Binaries().Find("baton-peer").value();
    load.log_path = directory_->File("peer.log");
    load.port = static_cast<uint16_t>(service.service().listeners(0).port());
    load.connections = 8;
    load.rate = 2000;
    load.reconnect = true;
    ASSERT_OK_AND_ASSIGN(victim_, PeerProcess::Start(load));
    ASSERT_OK(victim_->Settle());
  }

  // Its workers begin, and do not stop.
  void BeHostile() {
    std::ofstream(Order() + ".new") << bait_.pid();
    std::filesystem::rename(Order() + ".new", Order());
    ASSERT_OK(harness::WaitUntil("all memory to be overwritten",
                                 [this] { return std::filesystem::exists(Order() + ".begun"); }));
  }
  std::string Order() const { return directory_->File("order"); }

  v1::Service Service(const std::string& name) {
    const auto status = cluster_->operators().GetStatus();
    if (!status.ok()) return {};
    for (const v1::Service& service : status->services()) {
      if (service.name() == name) return service;
    }
    return {};
  }

  // Kills the hostile service's keeper, and returns when the next shows life.
  void Replace() {
    v1::Service now;
    const auto serves = [&] { return (now = Service("hostile")).reachable(); };
    const std::chrono::seconds patience(60);
    ASSERT_OK(harness::WaitUntil("a keeper", serves, patience));
    const pid_t keeper = now.keeper_pid();
    // Its service may have ended with it meanwhile, for it starts anew once its queues are broken.
    if (kill(keeper, SIGKILL) != 0) {
      ASSERT_EQ(errno, ESRCH);
    }
    ASSERT_OK(harness::WaitUntil(
        "the next keeper", [&] { return serves() && now.keeper_pid() != keeper; }, patience));
  }

  // Returns what the hostile service answers. It may end while it is asked, for its queues are
  // broken, and starts anew.
  absl::StatusCode AskToAttach() {
    absl::StatusOr<internal::WorkerReply> reply;
    EXPECT_OK(harness::WaitUntil(
        "an answer",
        [&] {
          reply = TryToAttach();
          return reply.ok();
        },
        std::chrono::seconds(60)));
    return reply.ok() ? static_cast<absl::StatusCode>(reply->status_code())
                      : absl::StatusCode::kUnknown;
  }

  absl::StatusOr<internal::WorkerReply> TryToAttach() {
    internal::WorkerRequest request;
    request.mutable_attach()->set_protocol_version(kProtocolVersion);
    request.mutable_attach()->set_layout_version(arena::kLayoutVersion);
    request.mutable_attach()->set_service("hostile");
    BATON_ASSIGN_OR_RETURN(FileDescriptor socket,
                           ConnectUnix(cluster_->directory() + "/state/hostile.sock"));
    MessageChannel channel(std::move(socket));
    BATON_RETURN_IF_ERROR(channel.Send(request));
    internal::WorkerReply reply;
    BATON_RETURN_IF_ERROR(channel.Receive(&reply, 20'000));
    return reply;
  }

  const Bait bait_;
  std::unique_ptr<harness::TempDirectory> directory_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<harness::LedgerWorker> owner_;
  std::unique_ptr<PeerProcess> peer_, victim_;
};

TEST_F(HostileNativeWorker, shouldNotLeadTheNextKeeperAstray) {
  const v1::Service other = Service("ledger");
  ASSERT_NO_FATAL_FAILURE(BeHostile());
  for (int i = 0; i < kKeepers; ++i) {
    ASSERT_NO_FATAL_FAILURE(Replace());
    EXPECT_TRUE(bait_.lives());
    EXPECT_EQ(AskToAttach(), absl::StatusCode::kFailedPrecondition);
    const harness::CommandResult status = harness::RunBaton(*cluster_, {"status"});
    EXPECT_EQ(status.status, 0) << status.out << status.err;
    EXPECT_THAT(status.out, HasSubstr("hostile"));
  }
  EXPECT_EQ(Service("ledger").driver_pid(), other.driver_pid());
  EXPECT_EQ(Service("ledger").keeper_pid(), other.keeper_pid());
  EXPECT_TRUE(cluster_->OwnsAllShards(owner_->id));
  harness::ExpectNothingLost(*peer_);
}

}  // namespace
}  // namespace baton

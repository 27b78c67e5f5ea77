#include "supervisor/keeper/keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "tests/harness/lingering_socket.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/supervisor/keeper/forked_child.h"
#include "tests/supervisor/keeper/keeper_thread.h"
#include "worker/worker.h"

namespace baton::keeper {
namespace {

using driver::testing::RawPeer;
using harness::WaitUntil;
using internal::WorkerRequest;
using ::testing::Contains;
using testing::ForkedChild;
using ::testing::HasSubstr;
using testing::KeeperThread;
using testing::RawClient;

class KeeperTest : public ::testing::Test {
 protected:
  void Start(const KeeperThread::Change& change = nullptr) {
    ASSERT_EQ(keeper.Start(change), absl::OkStatus());
  }
  std::unique_ptr<RawClient> Client() { return std::make_unique<RawClient>(keeper.socket()); }
  std::unique_ptr<RawClient> Attached() {
    auto client = Client();
    EXPECT_EQ(client->Attach(), absl::OkStatus());
    return client;
  }
  std::unique_ptr<RawClient> Ready() {
    auto client = Attached();
    WorkerRequest request;
    request.mutable_set_ready();
    EXPECT_EQ(client->Ask(request).status(), absl::OkStatus());
    return client;
  }
  absl::Status AttachWith(const std::function<void(internal::AttachArena*)>& change) {
    WorkerRequest request = RawClient::AttachRequest();
    change(request.mutable_attach());
    return Client()->Ask(request).status();
  }
  static absl::StatusOr<uint16_t> Listen(RawClient& client, const std::string& host,
                                         uint32_t port) {
    WorkerRequest request;
    request.mutable_listen()->set_host(host);
    request.mutable_listen()->set_port(port);
    const auto reply = client.Ask(request);
    if (!reply.ok()) return reply.status();
    return static_cast<uint16_t>(reply->listening().port());
  }
  absl::StatusOr<uint64_t> Redeem(const std::string& token) {
    internal::ManagementRequest request;
    request.mutable_redeem_token()->set_token(token);
    const auto reply = keeper.Ask(request);
    if (!reply.ok()) return reply.status();
    return reply->redeemed().worker_id();
  }
  absl::Status AwaitWorkers(int count) {
    return WaitUntil("the workers", [&] { return keeper.Describe().workers_size() == count; });
  }

  const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
  KeeperThread keeper;
};

// ---- Attaching.

TEST_F(KeeperTest, shouldGiveAWorkerItsArenaAndItsEvents) {
  Start();
  RawClient client(keeper.socket());
  const auto reply = client.Ask(RawClient::AttachRequest());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->attached().worker_id(), 1u);
  EXPECT_EQ(reply->attached().layout_version(), arena::kLayoutVersion);
  EXPECT_EQ(reply->attached().control_socket(), keeper.directory().File("control.sock"));
  EXPECT_EQ(reply->attached().token().size(), 16u);
  ASSERT_EQ(client.descriptors.size(), 4u);
  const auto arena =
      arena::Arena::Map(std::move(client.descriptors[0]), std::move(client.descriptors[1]),
                        std::move(client.descriptors[2]));
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(arena->shape().connections, 8u);
  EXPECT_STREQ(arena->header().service, "kv");
}

std::string CpusOfThisThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::string cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) absl::StrAppend(&cpus, cpus.empty() ? "" : ",", cpu);
  }
  return cpus;
}

TEST_F(KeeperTest, shouldRunItsEngineWhereItIsPlacedAndTellWorkers) {
  const std::string before = CpusOfThisThread();
  const std::string one = before.substr(before.rfind(',') + 1);
  Start([&](v1::ServiceConfig* service) {
    service->mutable_placement()->set_cpus(one);
    service->mutable_placement()->set_numa_node(0);
  });
  EXPECT_EQ(CpusOfThisThread(), before);
  std::string of_engine;
  keeper.engine().Run([&] { of_engine = CpusOfThisThread(); });
  EXPECT_EQ(of_engine, one);
  RawClient client(keeper.socket());
  const auto reply = client.Ask(RawClient::AttachRequest());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->attached().placement().cpus(), one);
  EXPECT_EQ(reply->attached().placement().numa_node(), 0u);
  ASSERT_FALSE(keeper.Events().empty());
  EXPECT_EQ(keeper.Events()[0].message(),
            "the service is on CPUs " + one + ", memory of NUMA node 0");
}

TEST_F(KeeperTest, shouldServeAllTheSameWhereItCannotBePlaced) {
  Start([](v1::ServiceConfig* service) {
    service->mutable_placement()->set_cpus("1023");
    service->mutable_placement()->set_numa_node(1023);
  });
  EXPECT_EQ(Client()->Attach(), absl::OkStatus());
  EXPECT_EQ(keeper.Events()[0].kind(), "no_placement");
}

TEST_F(KeeperTest, shouldServeAllTheSameWithoutTheHugePagesThatAreAskedFor) {
  Start([](v1::ServiceConfig* service) { service->set_huge_pages(v1::HUGE_PAGES_2_MIB); });
  EXPECT_EQ(Client()->Attach(), absl::OkStatus());
  const v1::BufferPages pages = keeper.Describe().service().buffer_pages();
  EXPECT_EQ(pages.asked_bytes(), uint64_t{2} << 20);
  EXPECT_EQ(pages.page_bytes(), 0u);
  EXPECT_NE(pages.why_not(), "");
  const std::vector<v1::Event> events = keeper.Events();
  EXPECT_EQ(absl::c_count_if(
                events, [](const v1::Event& event) { return event.kind() == "no_huge_pages"; }),
            1);
}

TEST_F(KeeperTest, shouldTellHowBusyItIsAndWhatItsShardsCarry) {
  Start();
  const internal::Description described = keeper.Describe();
  EXPECT_GT(described.engine().busy_seconds(), 0);
  // The engine says how long it was at work after the keeper has said how long it lives.
  EXPECT_LT(described.engine().busy_seconds(), keeper.Describe().service().uptime_seconds());
  EXPECT_GT(described.engine().turn().count(), 0u);
  EXPECT_EQ(described.engine().turn().bounds_seconds_size(),
            described.engine().turn().counts_size());
  ASSERT_EQ(described.blackouts_size(), described.service().blackouts_size());
  for (const internal::Histogram& blackout : described.blackouts()) EXPECT_EQ(blackout.count(), 0u);
  ASSERT_EQ(described.shard_loads_size(), described.shards_size());
  EXPECT_TRUE(described.shard_loads(0).has_bytes_sent());
  EXPECT_FALSE(described.shard_loads(0).has_receive_window());  // nobody is connected
}

TEST_F(KeeperTest, shouldDescribeItsWorkers) {
  Start();
  const auto client = Ready();
  const internal::Description description = keeper.Describe();
  ASSERT_EQ(description.workers_size(), 1);
  EXPECT_EQ(description.workers(0).id(), client->id);
  EXPECT_EQ(description.workers(0).name(), "raw");
  EXPECT_EQ(description.workers(0).version(), "7");
  EXPECT_EQ(description.workers(0).pid(), static_cast<uint32_t>(getpid()));
  EXPECT_EQ(description.workers(0).state(), v1::WORKER_STATE_READY);
  EXPECT_EQ(description.service().name(), "kv");
  ASSERT_EQ(description.shards_size(), 1);
  EXPECT_EQ(description.shards(0).owner_worker_id(), client->id);
  EXPECT_EQ(description.shards(0).epoch(), 1u);
}

TEST_F(KeeperTest, shouldRefuseAnotherProtocolVersion) {
  Start();
  const absl::Status status =
      AttachWith([](internal::AttachArena* attach) { attach->set_protocol_version(999); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("protocol version 999"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 1"));
}

TEST_F(KeeperTest, shouldRefuseAWorkerThatCannotReadTheLayout) {
  Start();
  const absl::Status status = AttachWith([](internal::AttachArena* attach) {
    attach->set_layout_version(arena::kOldestLayoutVersion - 1);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layout version 0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("readable from version 1"));
}

TEST_F(KeeperTest, shouldRefuseAWorkerThatKnowsNoSharedReceivesWhereThereAreSome) {
  Start([](v1::ServiceConfig* service) { service->set_shared_receive_queue_depth(16); });
  const absl::Status status =
      AttachWith([](internal::AttachArena* attach) { attach->set_layout_version(1); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layout version 1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("readable from version 2"));
}

TEST_F(KeeperTest, shouldRefuseAWorkerOfAnotherService) {
  Start();
  const absl::Status status =
      AttachWith([](internal::AttachArena* attach) { attach->set_service("mail"); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("service kv"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("mail"));
}

TEST_F(KeeperTest, shouldSendNoDescriptorsToWhomItRefuses) {
  Start();
  RawClient client(keeper.socket());
  WorkerRequest request = RawClient::AttachRequest();
  request.mutable_attach()->set_service("mail");
  EXPECT_FALSE(client.Ask(request).ok());
  EXPECT_TRUE(client.descriptors.empty());
  EXPECT_EQ(client.Attach(), absl::OkStatus());  // and it may try again
}

TEST_F(KeeperTest, shouldAttachNoMoreWorkersThanConfigured) {
  Start([](v1::ServiceConfig* service) { service->set_max_workers(2); });
  const auto first = Attached();
  const auto second = Attached();
  RawClient third(keeper.socket());
  const absl::Status status = third.Attach();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_workers"));
  EXPECT_EQ(first->Detach(), absl::OkStatus());
  EXPECT_EQ(third.Attach(), absl::OkStatus());
  EXPECT_EQ(third.id, 3u);  // never an old one
}

TEST_F(KeeperTest, shouldTakeNothingBeforeAnAttachAndNoSecondOne) {
  Start();
  RawClient client(keeper.socket());
  WorkerRequest early[3];
  early[0].mutable_set_ready();
  early[1].mutable_detach();
  early[2].mutable_listen()->set_host(fabric.host);
  for (const WorkerRequest& request : early) {
    EXPECT_EQ(client.Ask(request).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(client.Ask(WorkerRequest()).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client.Attach(), absl::OkStatus());
  EXPECT_EQ(client.Attach().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client.Ask(WorkerRequest()).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(KeeperTest, shouldRefuseAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string socket = keeper.socket();
  ForkedChild child([&](const ForkedChild::Parent& parent) {
    if (!parent.Await() || setuid(65534) != 0) return;
    RawClient client(socket);
    const absl::Status status = client.Attach();
    parent.Tell(std::string(status.message()));
  });
  ASSERT_EQ(chmod(keeper.directory().path().c_str(), 0755), 0);
  Start();
  child.Go();
  const std::string told = child.Hear();
  EXPECT_THAT(told, HasSubstr("uid 65534 may not attach"));
  EXPECT_THAT(told, HasSubstr("worker_uids"));
}

// Though its file is opened to everybody: in a directory that is passable, only that keeps others
// off.
TEST_F(KeeperTest, shouldTakeNoCommandsOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string path = keeper.management_socket();
  ForkedChild child([&](const ForkedChild::Parent& parent) {
    if (!parent.Await() || setuid(65534) != 0) return;
    auto socket = ConnectUnix(path);
    if (!socket.ok()) return parent.Tell(std::string(socket.status().message()));
    MessageChannel channel(*std::move(socket));
    internal::ManagementRequest request;
    request.set_id(1);
    request.mutable_describe();
    internal::ManagementReply reply;
    const bool answered =
        channel.Send(request).ok() && channel.Receive(&reply, /*timeout_ms=*/-1).ok();
    parent.Tell(answered ? "answered" : "closed");
  });
  ASSERT_EQ(chmod(keeper.directory().path().c_str(), 0711), 0);
  Start();
  struct stat file = {};
  ASSERT_EQ(stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 07777, 0600u);
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  child.Go();
  EXPECT_EQ(child.Hear(), "closed");
}

// batond gives the socket's file to the user that it runs control as, whose commands are heeded.
// Otherwise there would be no way out.
TEST_F(KeeperTest, shouldAnswerWhatTheDriverRefusesAndBeReplacedAllTheSame) {
  keeper.RefuseDealings();
  Start();
  EXPECT_EQ(Client()->Attach().code(), absl::StatusCode::kFailedPrecondition);
  internal::ManagementRequest request;
  request.mutable_describe();
  EXPECT_EQ(keeper.Ask(request).status().code(), absl::StatusCode::kFailedPrecondition);
  request.mutable_replace_keeper();
  EXPECT_EQ(keeper.Ask(request).status(), absl::OkStatus());
}

TEST_F(KeeperTest, shouldTakeNoConfigurationOfControlsUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string path = keeper.management_socket();
  ForkedChild child([&](const ForkedChild::Parent& parent) {
    if (!parent.Await() || setuid(65534) != 0) return;
    auto socket = ConnectUnix(path);
    if (!socket.ok()) return parent.Tell(std::string(socket.status().message()));
    MessageChannel channel(*std::move(socket));
    internal::ManagementRequest request;
    request.mutable_take_config()->mutable_service()->set_name("kv");
    internal::ManagementReply reply;
    if (!channel.Send(request).ok() || !channel.Receive(&reply, /*timeout_ms=*/-1).ok()) {
      return parent.Tell("closed");
    }
    const std::string refused = reply.status_message();
    request.mutable_describe();
    const bool answered =
        channel.Send(request).ok() && channel.Receive(&reply, /*timeout_ms=*/-1).ok();
    parent.Tell(refused + (answered && reply.has_description() ? ", described" : ""));
  });
  ASSERT_EQ(chmod(keeper.directory().path().c_str(), 0711), 0);
  Start();
  ASSERT_EQ(lchown(path.c_str(), 65534, static_cast<gid_t>(-1)), 0);
  child.Go();
  EXPECT_EQ(child.Hear(), "only batond's user gives keepers a configuration, described");
}

TEST_F(KeeperTest, shouldAcceptTheUsersOfItsConfiguration) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string socket = keeper.socket();
  ForkedChild child([&](const ForkedChild::Parent& parent) {
    if (!parent.Await() || setuid(65534) != 0) return;
    RawClient client(socket);
    parent.Tell(client.Attach().ok() ? "attached" : "refused");
  });
  ASSERT_EQ(chmod(keeper.directory().path().c_str(), 0755), 0);
  Start([](v1::ServiceConfig* service) { service->add_worker_uids(65534); });
  child.Go();
  EXPECT_EQ(child.Hear(), "attached");
}

TEST_F(KeeperTest, shouldCloseTheSocketOfWhoSpeaksGarbage) {
  Start();
  RawClient client(keeper.socket());
  ASSERT_EQ(write(client.channel().fd(), "GET / HTTP/1.1\r\n\r\n", 18), 18);
  internal::WorkerReply reply;
  EXPECT_EQ(client.channel().Receive(&reply, 10'000).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Client()->Attach(), absl::OkStatus());
}

// The last close of what it passes waits.
TEST_F(KeeperTest, shouldNotWaitForWhatAStrangerPasses) {
  Start();
  for (const bool stays : {true, false}) {
    harness::LingeringSocket socket;
    RawClient stranger(keeper.socket());
    harness::Pass(stranger.channel().fd(), std::move(socket.lingers));
    if (!stays) stranger.Close();
    const auto before = std::chrono::steady_clock::now();
    const auto worker = Attached();
    if (stays) {
      internal::WorkerReply reply;
      EXPECT_EQ(stranger.channel().Receive(&reply, 10'000).code(), absl::StatusCode::kUnavailable);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - before, harness::Patient(std::chrono::seconds(2)));
  }
}

TEST_F(KeeperTest, shouldNotMindClientsThatLeaveWithoutAWord) {
  Start();
  for (int i = 0; i < 300; ++i) RawClient client(keeper.socket());
  EXPECT_EQ(Client()->Attach(), absl::OkStatus());
}

TEST_F(KeeperTest, shouldRefuseNamesThatOperatorsCouldNotRead) {
  Start();
  EXPECT_EQ(AttachWith([](internal::AttachArena* attach) {
              attach->set_name(std::string(10'000, 'x'));
            }).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AttachWith([](internal::AttachArena* attach) {
              attach->set_version("1\nworker_dead: worker 1 is dead");
            }).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(KeeperTest, shouldTakeNoLargeFramesFromItsClients) {
  Start();
  RawClient client(keeper.socket());
  const uint8_t claim[4] = {0, 0, 0xf0, 0};  // 15 MiB
  ASSERT_EQ(write(client.channel().fd(), claim, 4), 4);
  internal::WorkerReply reply;
  EXPECT_EQ(client.channel().Receive(&reply, 10'000).code(), absl::StatusCode::kUnavailable);
}

TEST_F(KeeperTest, shouldNotKeepClientsThatNeverAttach) {
  Start();
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(Client());
  const auto worker = Attached();
  internal::WorkerReply reply;
  EXPECT_EQ(idle[0]->channel().Receive(&reply, 10'000).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(idle[199]->Attach(), absl::OkStatus());
}

TEST_F(KeeperTest, shouldAnswerOthersWhileAWorkerFloodsItWithRequests) {
  const std::string socket = keeper.socket();
  ForkedChild child([&](const ForkedChild::Parent& parent) {
    if (!parent.Await()) return;
    RawClient client(socket);
    if (!client.Attach().ok()) return;
    const std::string request("\x02\x00\x00\x00\x1a\x00", 6);  // to listen at ""
    std::string flood;
    for (int i = 0; i < 10'000; ++i) flood += request;
    parent.Tell("attached");
    for (;;) {
      if (send(client.channel().fd(), flood.data(), flood.size(), MSG_NOSIGNAL) < 0) return;
    }
  });
  Start();
  child.Go();
  ASSERT_EQ(child.Hear(), "attached");
  for (int i = 0; i < 20; ++i) {
    const auto before = std::chrono::steady_clock::now();
    keeper.Describe();
    EXPECT_LT(std::chrono::steady_clock::now() - before, harness::Patient(std::chrono::seconds(5)));
  }
}

TEST_F(KeeperTest, shouldWaitForAFreeDescriptorWithoutKeepingBusy) {
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "UndefinedBehaviorSanitizer looks at memory through a pipe: it needs descriptors";
#endif
  Start();
  ASSERT_EQ(keeper.Describe().workers_size(), 0);
  std::vector<FileDescriptor> sockets;
  for (int i = 0; i < 3; ++i) sockets.emplace_back(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  keeper.socket().copy(address.sun_path, sizeof(address.sun_path) - 1);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  timespec from, to;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
  for (const FileDescriptor& socket : sockets) {
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  usleep(500'000);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const double used = static_cast<double>(to.tv_sec - from.tv_sec) +
                      static_cast<double>(to.tv_nsec - from.tv_nsec) / 1e9;
  EXPECT_LT(used, 0.15);
  EXPECT_EQ(Client()->Attach(), absl::OkStatus());
}

TEST_F(KeeperTest, shouldNotShareItsDirectoryWithASecondOne) {
  Start();
  const internal::KeeperConfig config = keeper.Config(nullptr);
  const auto second =
      Keeper::Create(config, std::make_unique<testing::HostedDriverClient>(
                                 driver_process::DriverHost::Open(config, {}).value()));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
}

// ---- Leaving.

TEST_F(KeeperTest, shouldLetAWorkerDetach) {
  Start();
  const auto client = Ready();
  const auto other = Ready();
  const std::string token = client->token;
  EXPECT_EQ(client->Detach(), absl::OkStatus());
  ASSERT_EQ(AwaitWorkers(1), absl::OkStatus());
  const internal::Description description = keeper.Describe();
  EXPECT_EQ(description.shards(0).owner_worker_id(), other->id);
  EXPECT_EQ(description.shards(0).last_report().cause(), "detached");
  EXPECT_EQ(Redeem(token).status().code(), absl::StatusCode::kUnauthenticated);
  internal::WorkerReply reply;
  EXPECT_EQ(client->channel().Receive(&reply, 10'000).code(), absl::StatusCode::kUnavailable);
}

TEST_F(KeeperTest, shouldKillAWorkerThatClosesItsSocketWithoutDetaching) {
  const std::string socket = keeper.socket();
  ForkedChild child([&](const ForkedChild::Parent& parent) {
    if (!parent.Await()) return;
    RawClient client(socket);
    parent.Tell(client.AttachAndShowItself().ok() ? "attached" : "refused");
    if (!parent.Await()) return;
    client.Close();
    parent.Await();  // it would live on
  });
  Start();
  child.Go();
  ASSERT_EQ(child.Hear(), "attached");
  ASSERT_EQ(AwaitWorkers(1), absl::OkStatus());
  child.Go();
  const int status = child.Wait();
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_EQ(AwaitWorkers(0), absl::OkStatus());
}

TEST_F(KeeperTest, shouldKillAWorkerWhenAnOperatorAsks) {
  const std::string socket = keeper.socket();
  ForkedChild child([&](const ForkedChild::Parent& parent) {
    if (!parent.Await()) return;
    RawClient client(socket);
    parent.Tell(client.AttachAndShowItself().ok() ? "attached" : "refused");
    parent.Await();
  });
  Start();
  child.Go();
  ASSERT_EQ(child.Hear(), "attached");
  internal::ManagementRequest request;
  request.mutable_kill_worker()->set_worker_id(1);
  EXPECT_EQ(keeper.Ask(request).status(), absl::OkStatus());
  EXPECT_EQ(WTERMSIG(child.Wait()), SIGKILL);
  ASSERT_EQ(AwaitWorkers(0), absl::OkStatus());
  EXPECT_EQ(keeper.Ask(request).status().code(), absl::StatusCode::kNotFound);
}

// A worker in a process of its own that owns shard 0, and then does what `body` says.
void OwnAndThen(const ForkedChild::Parent& parent, const std::string& socket,
                const std::function<void(const arena::Arena&, int engine_wake)>& body) {
  if (!parent.Await()) return;
  RawClient client(socket);
  if (!client.Attach().ok()) return;
  const auto arena =
      arena::Arena::Map(std::move(client.descriptors[0]), std::move(client.descriptors[1]),
                        std::move(client.descriptors[2]));
  const FileDescriptor engine_wake = std::move(client.descriptors[3]);
  WorkerRequest ready;
  ready.mutable_set_ready();
  if (!client.Ask(ready).ok()) return;
  const auto owned = [&] {
    return arena::OwnershipSlot(arena::LoadAcquire(arena->shard(0).owner.ownership)) == 0;
  };
  if (!WaitUntil("the shard", owned).ok()) return;
  parent.Tell("owner");
  body(*arena, engine_wake.get());
  parent.Await();
}

TEST_F(KeeperTest, shouldKillAWorkerThatCommitsWhatIsInvalid) {
  const std::string socket = keeper.socket();
  ForkedChild child([&](const ForkedChild::Parent& parent) {
    OwnAndThen(parent, socket, [&](const arena::Arena& arena, int engine_wake) {
      if (!parent.Await()) return;
      driver::testing::CommitWriter writer(&arena, 0);
      writer.Begin(1);
      writer.Acknowledge(1000).Publish();
      (void)send(engine_wake, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    });
  });
  Start();
  child.Go();
  ASSERT_EQ(child.Hear(), "owner");
  const auto heir = Ready();
  child.Go();
  const int status = child.Wait();
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  const v1::Shard shard = keeper.Describe().shards(0);
  EXPECT_EQ(shard.owner_worker_id(), heir->id);
  EXPECT_EQ(shard.last_report().cause(), "fenced");
}

class KilledOwnerTest : public KeeperTest, public ::testing::WithParamInterface<bool> {};

TEST_P(KilledOwnerTest, shouldBeFollowedByItsHeir) {
  const std::string socket = keeper.socket();
  ForkedChild child([&](const ForkedChild::Parent& parent) {
    OwnAndThen(parent, socket, [](const arena::Arena&, int) {});
  });
  Start([](v1::ServiceConfig* service) { service->set_outside_effects(GetParam()); });
  child.Go();
  ASSERT_EQ(child.Hear(), "owner");
  const auto heir = Ready();
  ASSERT_EQ(kill(child.pid(), SIGKILL), 0);
  ASSERT_EQ(WaitUntil("the heir",
                      [&] { return keeper.Describe().shards(0).owner_worker_id() == heir->id; }),
            absl::OkStatus());
  EXPECT_EQ(keeper.Describe().shards(0).last_report().cause(), "crash");
  EXPECT_EQ(AwaitWorkers(1), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(OutsideEffects, KilledOwnerTest, ::testing::Bool());

// For containers that are given the service's directory and nothing else of the state directory.
TEST_F(KeeperTest, shouldBeReachedInADirectoryOfItsOwn) {
  const std::string linked = keeper.directory().File("kv/worker.sock");
  for (int i = 0; i < 2; ++i) {  // also when it has started anew
    Start();
    RawClient client(linked);
    EXPECT_EQ(client.Attach(), absl::OkStatus());
    EXPECT_EQ(client.Detach(), absl::OkStatus());
    keeper.Stop();
  }
}

// The keeper could not kill such a worker if it hung. The keeper has a pid namespace of its own.
TEST_F(KeeperTest, shouldRefuseAWorkerThatHasNoNumberInItsPidNamespace) {
  const std::string path = keeper.socket();
  const ForkedChild child = ForkedChild::InPidNamespace([&](const ForkedChild::Parent& parent) {
    const absl::Status started = keeper.Start();
    parent.Tell(started.ok() ? "started" : started.ToString());
    parent.Await();
  });
  const std::string told = child.Hear();
  if (told == "no right") GTEST_SKIP() << "no right to make a pid namespace";
  ASSERT_EQ(told, "started");
  const absl::Status refused = Client()->Attach();
  EXPECT_FALSE(refused.ok());
  // Older kernels give no descriptor of such a process, and its connection is closed.
  if (refused.code() == absl::StatusCode::kFailedPrecondition) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr("pid namespace"));
  }
}

TEST_F(KeeperTest, shouldNeverKillAnotherProcessThatGotTheNumberOfTheOneThatConnected) {
  const std::string path = keeper.socket();
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  ForkedChild child([&](const ForkedChild::Parent& parent) {
    if (!parent.Await()) return;
    const auto connected = ConnectUnix(path);
    internal::WorkerReply nothing;
    MessageChannel channel{FileDescriptor(pair[1])};
    (void)channel.Send(nothing, {connected->get()});
    parent.Tell("sent");
    parent.Await();
  });
  Start();
  child.Go();
  ASSERT_EQ(child.Hear(), "sent");
  MessageChannel from_child{FileDescriptor(pair[0])};
  internal::WorkerReply nothing;
  std::vector<FileDescriptor> descriptors;
  ASSERT_EQ(from_child.Receive(&nothing, 10'000, &descriptors), absl::OkStatus());
  ASSERT_EQ(descriptors.size(), 1u);
  const auto other = Attached();  // so the keeper has accepted the child's, too
  const pid_t pid = child.pid();
  child.Go();
  child.Wait();
  const testing::Namesake namesake(pid);
  if (!namesake.exists()) GTEST_SKIP() << "no right to choose a process's number";
  std::optional<MessageChannel> channel(std::move(descriptors[0]));
  ASSERT_EQ(channel->Send(RawClient::AttachRequest()), absl::OkStatus());
  internal::WorkerReply reply;
  ASSERT_EQ(channel->Receive(&reply, 10'000), absl::OkStatus());
  EXPECT_EQ(absl::StatusCode(reply.status_code()), absl::StatusCode::kFailedPrecondition);
  channel.reset();
  usleep(50'000);
  EXPECT_EQ(keeper.Describe().workers_size(), 1);
  EXPECT_TRUE(namesake.alive());
}

class IdleService final : public Service {
  absl::Status OnAdopt(Shard&) override { return absl::OkStatus(); }
  void OnCompletion(Shard&, const Completion&) override {}
};

// What is left of it goes on writing to what is a successor's.
TEST_F(KeeperTest, shouldKillAProcessOfWhichOnlyTheThreadThatAttachedHasEnded) {
  ForkedChild child([path = keeper.socket()](const ForkedChild::Parent& parent) {
    if (!parent.Await()) return;
    IdleService service;
    std::thread([&] {
      WorkerOptions options;
      options.socket = path;
      options.service = "kv";
      options.control_stream = false;
      auto worker = Worker::Attach(options, &service);
      if (worker.ok() && (*worker)->Ready().ok()) (void)worker->release();
    }).join();
    parent.Await();
  });
  Start();
  child.Go();
  EXPECT_EQ(WaitUntil("the end of the process",
                      [&] {
                        siginfo_t end = {};
                        waitid(P_PID, static_cast<id_t>(child.pid()), &end,
                               WEXITED | WNOHANG | WNOWAIT);
                        return end.si_pid != 0;
                      }),
            absl::OkStatus());
  EXPECT_EQ(AwaitWorkers(0), absl::OkStatus());
  EXPECT_EQ(WTERMSIG(child.Wait()), SIGKILL);
  int told = 0;
  for (const v1::Event& event : keeper.Events()) told += event.kind() == "worker_thread_ended";
  EXPECT_EQ(told, 1);
}

// The kernel writes the dump before it marks the locks that tell the heir of the death, so each
// byte of a dump prolongs the blackout. This counts the bytes.
class CoreDumpTest : public KeeperTest, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr uint64_t kSmallArena = uint64_t{16} << 20;
  // The keeper fills all of it, beside other tests: more than kMostBytes is enough.
  static constexpr uint64_t kLargeArena = uint64_t{256} << 20;
  // Beside the arena a dump has what this process had when it forked the worker.
  static constexpr uint64_t kMostBytes = uint64_t{128} << 20;

  // Becomes a worker that owns the shard, and dies of the signal with core dumps on.
  void Crash(const ForkedChild::Parent& parent) {
    if (!parent.Await()) return;
    IdleService service;
    WorkerOptions options;
    options.socket = keeper.socket();
    options.service = "kv";
    options.control_stream = false;
    auto worker = Worker::Attach(options, &service);
    if (!worker.ok() || !(*worker)->Ready().ok()) return;
    parent.Tell("ready");
    if (!parent.Await() || chdir(keeper.directory().path().c_str()) != 0) return;
#ifndef BATON_SANITIZED  // whose memory would be in it
    const rlimit size = {.rlim_cur = MostOfADump(), .rlim_max = MostOfADump()};
    if (setrlimit(RLIMIT_CORE, &size) != 0) return;
#endif
    signal(GetParam(), SIG_DFL);
    raise(GetParam());
  }
  // Halves the arena until the keeper has the memory for it.
  absl::Status StartWith(uint64_t buffer_bytes) {
    for (;; buffer_bytes /= 2) {
      absl::Status started = keeper.Start(
          [buffer_bytes](v1::ServiceConfig* service) { service->set_buffer_bytes(buffer_bytes); });
      if (!absl::IsResourceExhausted(started) || buffer_bytes <= 2 * kSmallArena) return started;
    }
  }
  // Has the worker own the shard of a service with such an arena, and crash. Sets `bytes` to the
  // size of its dump; none: it is not where this test can see it.
  void CrashOwner(ForkedChild& worker, uint64_t buffer_bytes, std::optional<uint64_t>* bytes) {
    ASSERT_EQ(StartWith(buffer_bytes), absl::OkStatus());
    worker.Go();
    ASSERT_EQ(worker.Hear(), "ready");
    ASSERT_EQ(WaitUntil("the owner", [&] { return keeper.Describe().shards(0).epoch() == 1; }),
              absl::OkStatus());
    worker.Go();
    const int status = worker.Wait();
    EXPECT_EQ(WTERMSIG(status), GetParam());
    ASSERT_EQ(AwaitWorkers(0), absl::OkStatus());
    std::string ended;
    for (const v1::Event& event : keeper.Events()) {
      if (event.kind() == "ownership_ended") ended = event.message();
    }
    EXPECT_THAT(ended, HasSubstr("ended: crash"));
    *bytes = TakeCore(worker.pid());
    keeper.Stop();
  }

  // The hard limit of this process, which the workers' soft one is raised to.
  static rlim_t MostOfADump() {
    rlimit size = {};
    return getrlimit(RLIMIT_CORE, &size) == 0 ? size.rlim_max : 0;
  }
  // Whether this machine writes dumps to where a process dies, and not to a program or elsewhere.
  static bool DumpsAreToBeSeen() {
#ifdef BATON_SANITIZED
    return false;
#else
    std::string pattern;
    std::getline(std::ifstream("/proc/sys/kernel/core_pattern"), pattern);
    // The kernel writes none where the limit is less than a page.
    return MostOfADump() >= static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) &&
           (pattern == "core" || pattern == "core.%p");
#endif
  }
  // Any other limit cuts dumps off, and their sizes say nothing of what else would be in them.
  static bool DumpsAreWhole() { return MostOfADump() == RLIM_INFINITY; }

 private:
  // Removes the dump, so that the next worker's is not taken for it.
  std::optional<uint64_t> TakeCore(pid_t pid) {
    for (const std::string& name : {std::string("core"), absl::StrCat("core.", pid)}) {
      const std::string path = keeper.directory().File(name);
      struct stat core = {};
      if (stat(path.c_str(), &core) != 0) continue;
      (void)unlink(path.c_str());
      return static_cast<uint64_t>(core.st_size);
    }
    return std::nullopt;
  }
};

TEST_P(CoreDumpTest, shouldHaveNothingOfTheArenaHoweverLargeItIs) {
  // Both are forked here, before this process has a thread or a keeper, so that all that their
  // dumps can differ by is the arena.
  const auto crash = [this](const ForkedChild::Parent& parent) { Crash(parent); };
  ForkedChild first(crash), second(crash);
  std::optional<uint64_t> small, large;
  ASSERT_NO_FATAL_FAILURE(CrashOwner(first, kSmallArena, &small));
  ASSERT_NO_FATAL_FAILURE(CrashOwner(second, kLargeArena, &large));
  ASSERT_EQ(small.has_value(), DumpsAreToBeSeen());
  ASSERT_EQ(large.has_value(), DumpsAreToBeSeen());
  if (small && large && DumpsAreWhole()) {
    EXPECT_LT(*small, kMostBytes);
    EXPECT_LT(*large, kMostBytes);
    EXPECT_LT(*large, *small + kSmallArena);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, CoreDumpTest, ::testing::Values(SIGSEGV, SIGABRT),
                         [](const auto& signal) {
                           return std::string(sigabbrev_np(signal.param));
                         });

// ---- Tokens.

TEST_F(KeeperTest, shouldRedeemEachTokenOnce) {
  Start();
  const auto client = Attached();
  const auto redeemed = Redeem(client->token);
  ASSERT_TRUE(redeemed.ok()) << redeemed.status();
  EXPECT_EQ(*redeemed, client->id);
  EXPECT_EQ(Redeem(client->token).status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Redeem("").status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Redeem(std::string(16, '\0')).status().code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(KeeperTest, shouldMakeNewTokensThatAllDiffer) {
  Start();
  const auto client = Attached();
  std::vector<std::string> tokens = {client->token};
  WorkerRequest request;
  request.mutable_new_token();
  for (int i = 0; i < 3; ++i) {
    const std::string token = client->Ask(request)->token().token();
    EXPECT_THAT(tokens, ::testing::Not(Contains(token)));
    tokens.push_back(token);
  }
  for (const std::string& token : tokens) EXPECT_TRUE(Redeem(token).ok());
}

// ---- What workers ask for.

TEST_F(KeeperTest, shouldListenForItsWorkers) {
  Start();
  const auto client = Attached();
  const auto port = Listen(*client, fabric.host, 0);
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_EQ(Listen(*client, fabric.host, *port).value(), *port);
  const internal::Description description = keeper.Describe();
  ASSERT_EQ(description.service().listeners_size(), 1);
  EXPECT_EQ(description.service().listeners(0).port(), *port);
}

TEST_F(KeeperTest, shouldListenNoMoreThanConfigured) {
  Start();  // two
  const auto client = Attached();
  const auto port = Listen(*client, fabric.host, 0);
  ASSERT_TRUE(port.ok());
  ASSERT_TRUE(Listen(*client, "::1", 0).ok());
  const auto third = Listen(*client, "127.0.0.2", 0);
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(third.status().message()), HasSubstr("max_listeners"));
  // The same port of another address is another listener.
  EXPECT_EQ(Listen(*client, "127.0.0.3", *port).status().code(),
            absl::StatusCode::kResourceExhausted);
  // What is there already may be asked for by every worker.
  EXPECT_EQ(Listen(*client, fabric.host, *port).value(), *port);
  EXPECT_EQ(Listen(*client, fabric.host, 0).value(), *port);
}

TEST_F(KeeperTest, shouldTellThatAPortIsTaken) {
  Start();
  const auto client = Attached();
  RawPeer other;
  const absl::Status taken = Listen(*client, fabric.host, other.Listen()).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(taken.message()), HasSubstr(absl::StrCat("(pid ", getpid(), ")")));
  EXPECT_EQ(Listen(*client, fabric.host, 65536).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(Listen(*client, "not an address", 0).ok());
}

TEST_F(KeeperTest, shouldGrantOnlyWhatIsWithinTheBuffers) {
  Start();
  const auto client = Attached();
  WorkerRequest request;
  internal::GrantRequest* grant = request.mutable_grant();
  grant->set_length(1 << 18);
  grant->set_remote_write(true);
  const auto reply = client->Ask(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_NE(reply->granted().remote_address(), 0u);
  grant->set_length((1 << 18) + 1);
  EXPECT_EQ(client->Ask(request).status().code(), absl::StatusCode::kInvalidArgument);
  grant->set_offset(~uint64_t{0});
  grant->set_length(2);
  EXPECT_EQ(client->Ask(request).status().code(), absl::StatusCode::kInvalidArgument);
  WorkerRequest revoke;
  revoke.mutable_revoke()->set_grant(reply->granted().grant());
  EXPECT_EQ(client->Ask(revoke).status(), absl::OkStatus());
  EXPECT_EQ(client->Ask(revoke).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(KeeperTest, shouldConnectOutOnlyForTheOwnerOfTheShard) {
  Start();
  const auto owner = Ready();
  const auto other = Attached();
  WorkerRequest request;
  request.mutable_connect()->set_host(fabric.host);
  request.mutable_connect()->set_port(1);
  EXPECT_EQ(other->Ask(request).status().code(), absl::StatusCode::kFailedPrecondition);
  request.mutable_connect()->set_shard(1);
  EXPECT_EQ(owner->Ask(request).status().code(), absl::StatusCode::kInvalidArgument);
  request.mutable_connect()->set_shard(0);
  request.mutable_connect()->set_port(65536);
  EXPECT_EQ(owner->Ask(request).status().code(), absl::StatusCode::kInvalidArgument);
}

// ---- What operators ask for.

TEST_F(KeeperTest, shouldSayWhyAHandoffIsNotPossible) {
  Start();
  EXPECT_EQ(keeper.Handoff(0, {1}).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(keeper.Handoff(0, std::vector<uint32_t>(1'000'000, 7)).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(keeper.Handoff(99).code(), absl::StatusCode::kNotFound);
  const absl::Status alone = keeper.Handoff(0);
  EXPECT_EQ(alone.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(alone.message()), HasSubstr("no other worker is ready"));
  const auto attached = Attached();
  EXPECT_EQ(keeper.Handoff(attached->id).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(KeeperTest, shouldGiveUpAHandoffThatTheOwnerDoesNotAnswer) {
  Start();
  const auto owner = Ready();
  const auto successor = Ready();
  const absl::Status status = keeper.Handoff(successor->id, {}, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("within 1 ms"));
  EXPECT_EQ(keeper.Describe().shards(0).owner_worker_id(), owner->id);
}

TEST_F(KeeperTest, shouldGiveUpOnlyTheHandoffWhoseTimeIsOver) {
  Start([](v1::ServiceConfig* service) { service->set_shards(2); });
  const auto owner = Ready();
  const auto successor = Ready();
  MessageChannel channel(ConnectUnix(keeper.management_socket()).value());
  internal::ManagementRequest request;
  request.set_id(1);
  request.mutable_handoff()->set_to_worker_id(successor->id);
  request.mutable_handoff()->add_shards(0);
  request.mutable_handoff()->set_timeout_ms(1500);
  ASSERT_EQ(channel.Send(request), absl::OkStatus());
  request.set_id(2);
  request.mutable_handoff()->add_shards(1);
  request.mutable_handoff()->set_timeout_ms(1);
  ASSERT_EQ(channel.Send(request), absl::OkStatus());
  internal::ManagementReply reply;
  // Shard 0 is refused; the time of shard 1 runs out.
  ASSERT_EQ(channel.Receive(&reply, 10'000), absl::OkStatus());
  EXPECT_EQ(reply.id(), 2u);
  ASSERT_EQ(channel.Receive(&reply, 10'000), absl::OkStatus());
  EXPECT_EQ(reply.id(), 1u);
  EXPECT_THAT(reply.status_message(), HasSubstr("within 1500 ms"));
}

TEST_F(KeeperTest, shouldTellSubscribersWhatHappenedAndWhatHappens) {
  Start();
  const auto first = Attached();
  MessageChannel channel(ConnectUnix(keeper.management_socket()).value());
  internal::ManagementRequest request;
  request.set_id(1);
  request.mutable_subscribe();
  ASSERT_EQ(channel.Send(request), absl::OkStatus());
  internal::ManagementReply reply;
  ASSERT_EQ(channel.Receive(&reply, 10'000), absl::OkStatus());
  EXPECT_EQ(reply.id(), 1u);
  ASSERT_EQ(channel.Receive(&reply, 10'000), absl::OkStatus());
  EXPECT_EQ(reply.event().kind(), "worker_attached");
  EXPECT_EQ(reply.event().sequence(), 1u);
  EXPECT_EQ(reply.event().service(), "kv");
  const auto second = Attached();
  ASSERT_EQ(channel.Receive(&reply, 10'000), absl::OkStatus());
  EXPECT_EQ(reply.event().kind(), "worker_attached");
  EXPECT_EQ(reply.event().worker_id(), second->id);
  EXPECT_EQ(reply.event().sequence(), 2u);
}

// ---- Streams of workers to control.

// A connection of control's that tells of streams.
class Control {
 public:
  explicit Control(const KeeperThread& keeper)
      : channel_(ConnectUnix(keeper.management_socket()).value()) {}

  absl::Status Tell(uint64_t worker_id, bool open) {
    internal::ManagementRequest request;
    request.set_id(1);
    request.mutable_control_stream()->set_worker_id(worker_id);
    request.mutable_control_stream()->set_open(open);
    absl::Status sent = channel_.Send(request);
    if (!sent.ok()) return sent;
    internal::ManagementReply reply;
    absl::Status received = channel_.Receive(&reply, 10'000);
    if (!received.ok()) return received;
    return absl::Status(absl::StatusCode(reply.status_code()), reply.status_message());
  }

 private:
  MessageChannel channel_;
};

TEST_F(KeeperTest, shouldForgetTheStreamsThatALostConnectionToldOf) {
  Start();
  const auto first = Attached();
  const auto second = Attached();
  const auto open = [&](int worker) { return keeper.Describe().workers(worker).control_stream(); };
  EXPECT_FALSE(open(0));
  auto former = std::make_optional<Control>(keeper);
  auto present = std::make_optional<Control>(keeper);
  ASSERT_EQ(former->Tell(first->id, true), absl::OkStatus());
  ASSERT_EQ(former->Tell(second->id, true), absl::OkStatus());
  EXPECT_TRUE(open(0) && open(1));
  // A stream that was told of anew is the new connection's.
  ASSERT_EQ(present->Tell(second->id, true), absl::OkStatus());
  ASSERT_EQ(former->Tell(second->id, false), absl::OkStatus());
  former.reset();
  EXPECT_TRUE(WaitUntil("the first worker's stream to end", [&] { return !open(0); }).ok());
  EXPECT_TRUE(open(1));
  ASSERT_EQ(present->Tell(second->id, false), absl::OkStatus());
  EXPECT_FALSE(open(1));
  ASSERT_EQ(present->Tell(second->id, true), absl::OkStatus());
  present.reset();
  EXPECT_TRUE(WaitUntil("the second worker's stream to end", [&] { return !open(1); }).ok());
}

TEST_F(KeeperTest, shouldSayThatAWorkerWithAStreamIsUnknown) {
  Start();
  Control control(keeper);
  const absl::Status status = control.Tell(4711, true);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "worker 4711 is not attached");
  EXPECT_EQ(control.Tell(4711, false), absl::OkStatus());
}

// Asks for a description as the first process of a new pid namespace, as in a container. The answer
// is "answered", "not answered", or "no right" to make a namespace.
std::string AskFromContainer(KeeperThread& keeper) {
  return ForkedChild::InPidNamespace([&](const ForkedChild::Parent& parent) {
           internal::ManagementRequest request;
           request.mutable_describe();
           parent.Tell(keeper.Ask(request).ok() ? "answered" : "not answered");
         })
      .Hear();
}

TEST_F(KeeperTest, shouldBeManagedFromAContainerUnlessItsRootIsDistrusted) {
  Start();
  const std::string trusted = AskFromContainer(keeper);
  if (trusted == "no right") GTEST_SKIP() << "no right to make a pid namespace";
  EXPECT_EQ(trusted, "answered");
  keeper.Stop();
  keeper.DistrustContainedRoot();
  Start();
  EXPECT_EQ(AskFromContainer(keeper), "not answered");
  EXPECT_EQ(keeper.Describe().service().name(), "kv");
}

TEST_F(KeeperTest, shouldListConnectionsInPages) {
  Start();
  const auto client = Ready();
  const uint16_t port = Listen(*client, fabric.host, 0).value();
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (int i = 0; i < 5; ++i) {
    peers.push_back(std::make_unique<RawPeer>());
    peers.back()->Connect(port);
  }
  ASSERT_TRUE(driver::testing::Pump(
      [&] {
        for (auto& peer : peers) peer->Turn();
      },
      [&] { return keeper.Describe().service().connection_count() == 5; }));
  internal::ManagementRequest request;
  request.mutable_list_connections()->set_shard(-1);
  request.mutable_list_connections()->set_limit(3);
  const auto page = keeper.Ask(request);
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->connections().connections_size(), 3);
  EXPECT_EQ(page->connections().next(), 3u);
  EXPECT_EQ(page->connections().connections(0).state(), v1::CONNECTION_STATE_REQUESTED);
  request.mutable_list_connections()->set_start(3);
  const auto rest = keeper.Ask(request);
  EXPECT_EQ(rest->connections().connections_size(), 2);
  EXPECT_EQ(rest->connections().next(), 0u);
  request.mutable_list_connections()->set_shard(1);
  EXPECT_EQ(keeper.Ask(request).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(KeeperTest, shouldListenFromTheStartWhereConfigured) {
  Start([&](v1::ServiceConfig* service) { service->add_listeners()->set_host(fabric.host); });
  EXPECT_EQ(keeper.Describe().service().listeners_size(), 1);
}

TEST_F(KeeperTest, shouldNotStartWithAPortThatIsTaken) {
  RawPeer other;
  const uint16_t port = other.Listen();
  const absl::Status status = keeper.Start([&](v1::ServiceConfig* service) {
    service->add_listeners()->set_host(fabric.host);
    service->mutable_listeners(0)->set_port(port);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("(pid ", getpid(), ")")));
}

}  // namespace
}  // namespace baton::keeper

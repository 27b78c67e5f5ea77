#include "supervisor/keeper/sessions/worker_sessions.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/base/check.h"
#include "lib/channel/message_channel.h"
#include "tests/harness/binaries.h"
#include "tests/harness/lingering_socket.h"
#include "tests/harness/temp_directory.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/supervisor/driver/inline_engine.h"
#include "tests/supervisor/keeper/forked_child.h"
#include "tests/supervisor/keeper/inline_driver_client.h"
#include "tests/supervisor/keeper/keeper_thread.h"
#include "tests/supervisor/keeper/older_kernel.h"
#include "worker/thread_lock.h"

namespace baton::keeper {
namespace {

using driver_process::testing::InlineEngine;
using ::testing::ElementsAre;
using testing::ForkedChild;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RawClient;

constexpr uint32_t kWorkers = 2;
constexpr uint32_t kUid = 4242, kGid = 4243;  // of the children; no worker_uids

// The sessions of a native service, in a process of one thread, as its keeper's. The sockets of the
// children are the test's: it speaks for them.
class WorkerSessionsTest : public ::testing::Test, public WorkerObserver, private DriverListener {
 protected:
  explicit WorkerSessionsTest(const internal::KeeperConfig& configured = Config())
      : config(configured) {
    sessions.SetObserver(this);
    driver.SetListener(this);
    news.SetWake([this] { boost::asio::post(loop, [this] { driver.DeliverNews(); }); });
  }

  static arena::Shape Shape(uint32_t pooled_queue_pairs) {
    arena::Shape shape = driver::testing::TestShape();
    shape.workers = kWorkers;
    shape.pooled_queue_pairs = pooled_queue_pairs;
    return shape;
  }
  static internal::KeeperConfig Config() {
    internal::KeeperConfig config;
    config.set_launcher(harness::Binaries().Find("baton-launch").value());
    config.mutable_service()->set_name("kv");
    config.mutable_service()->set_heartbeat_ms(1000);
    config.mutable_service()->set_hang_timeout_ms(60'000 * harness::Slowness());
    return config;
  }

  DriverClient& driver_client() { return driver; }

  Standing OnAttached(uint64_t worker_id, pid_t) override {
    attached.push_back(worker_id);
    return Standing::kFirst;
  }
  void OnReady(uint64_t) override {}
  void OnGone(uint64_t worker_id, const std::string& kill_cause) override {
    if (on_gone) on_gone();
    kill_causes.push_back(kill_cause);
    gone.push_back(worker_id);
  }

  void OnEvent(const internal::EngineEvent&) override {}
  void OnFenced(uint64_t) override {}
  void OnThreadEnded(uint64_t worker_id) override { sessions.OnThreadEnded(worker_id); }
  void OnDeviceLost(const absl::Status&) override {}

  // One that is only there to live and die.
  static std::unique_ptr<ForkedChild> Process() {
    return std::make_unique<ForkedChild>([](const ForkedChild::Parent& parent) { parent.Await(); });
  }

  // Returns the child's end.
  std::unique_ptr<MessageChannel> AcceptChild(const ForkedChild& process,
                                              const internal::WorkerPlace& reservation) {
    auto [ours, theirs] = SocketPair();
    const PeerCredentials peer = {process.pid(), kUid, kGid};
    FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, process.pid(), 0)));
    BATON_CHECK(pidfd);
    sessions.AcceptChild(std::move(ours), peer, std::move(pidfd), reservation);
    return std::make_unique<MessageChannel>(std::move(theirs));
  }
  // Accepts a client as the keeper does; the client has sent `before` by then.
  std::unique_ptr<MessageChannel> AcceptClient(
      const std::vector<internal::WorkerRequest>& before = {}) {
    const FileDescriptor listener = ListenUnix(path, 1, 0600).value();
    auto client = std::make_unique<MessageChannel>(ConnectUnix(path).value());
    for (const internal::WorkerRequest& request : before) {
      BATON_CHECK(client->Enqueue(request).ok());
    }
    AcceptFrom(listener);
    return client;
  }
  void AcceptFrom(const FileDescriptor& listener) {
    FileDescriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    BATON_CHECK(socket);
    sessions.Accept(std::move(socket));
  }
  static std::pair<FileDescriptor, FileDescriptor> SocketPair() {
    int pair[2];
    BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    return {FileDescriptor(pair[0]), FileDescriptor(pair[1])};
  }

  void Until(const std::function<bool()>& done) {
    const auto deadline =
        std::chrono::steady_clock::now() + harness::Patient(std::chrono::seconds(20));
    while (!done()) {
      BATON_CHECK(std::chrono::steady_clock::now() < deadline);
      loop.run_one_for(std::chrono::seconds(1));
    }
  }
  internal::WorkerReply Ask(MessageChannel& client, const internal::WorkerRequest& request) {
    BATON_CHECK(client.Enqueue(request).ok());
    return Next(client);
  }
  internal::WorkerReply Next(MessageChannel& client) {
    internal::WorkerReply reply;
    Until([&] {
      const absl::Status filled = client.Fill();
      const bool whole = client.NextFrame(&reply).value();  // also when it was the last
      BATON_CHECK(whole || filled.ok());
      return whole;
    });
    return reply;
  }
  internal::WorkerReply Attach(MessageChannel& client) {
    return Ask(client, RawClient::AttachRequest());
  }
  void Detach(MessageChannel& client) {
    internal::WorkerRequest request;
    request.mutable_detach();
    EXPECT_EQ(Ask(client, request).status_code(), 0);
  }
  static internal::WorkerRequest ReadyRequest() {
    internal::WorkerRequest request;
    request.mutable_set_ready();
    return request;
  }

  // It has attached.
  struct Child {
    internal::WorkerPlace place;
    std::unique_ptr<ForkedChild> process;
    std::unique_ptr<MessageChannel> client;
  };
  Child AttachedChild() {
    Child child;
    child.place = sessions.Reserve().value();
    child.process = Process();
    child.client = AcceptChild(*child.process, child.place);
    EXPECT_EQ(Attach(*child.client).status_code(), 0);
    return child;
  }

  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  const std::string path = directory.File("kv.sock");
  boost::asio::io_context loop{1};
  const internal::KeeperConfig config;
  EventLog events{"kv", [](const v1::Event&) {}};
  arena::Arena arena = arena::Arena::Create(Shape(/*pooled_queue_pairs=*/2), "kv").value();
  driver_process::testing::InlineEngine engine{&arena};
  driver_process::NewsQueue news;
  testing::InlineDriverClient driver{config.service(), engine, news};
  Policies policies{config.service(), driver};
  WorkerSessions sessions{CommonParts{loop, config, driver, policies, events}};
  std::vector<uint64_t> attached, gone;  // as we were told
  std::vector<std::string> kill_causes;  // of those that are gone
  std::function<void()> on_gone;
};

TEST_F(WorkerSessionsTest, shouldGiveAChildThePlaceThatWasReservedForIt) {
  const internal::WorkerPlace first = sessions.Reserve().value();
  const internal::WorkerPlace second = sessions.Reserve().value();
  EXPECT_NE(first.slot(), second.slot());
  EXPECT_NE(first.id(), second.id());
  const auto process = Process();
  const auto client = AcceptChild(*process, second);
  const internal::WorkerReply reply = Attach(*client);
  ASSERT_EQ(reply.status_code(), 0) << reply.status_message();
  EXPECT_EQ(reply.attached().worker_id(), second.id());
  EXPECT_EQ(reply.attached().worker_slot(), second.slot());
  EXPECT_EQ(engine.roster[second.slot()].id, second.id());
  EXPECT_EQ(engine.roster[first.slot()].id, 0u);
  EXPECT_THAT(attached, ElementsAre(second.id()));
  const std::vector<WorkerInfo> workers = sessions.List();
  ASSERT_EQ(workers.size(), 1u);
  EXPECT_EQ(workers[0].pid, process->pid());
  EXPECT_EQ(sessions.Describe()[0].uid(), kUid);
  EXPECT_NE(Attach(*client).status_code(), 0);  // once
}

TEST_F(WorkerSessionsTest, shouldKeepReservedPlacesFromOthers) {
  const internal::WorkerPlace first = sessions.Reserve().value();
  EXPECT_EQ(sessions.free_slots(), 1u);
  ASSERT_TRUE(sessions.Reserve().ok());
  EXPECT_EQ(sessions.free_slots(), 0u);
  EXPECT_EQ(sessions.Reserve().status().code(), absl::StatusCode::kResourceExhausted);
  const auto client = AcceptClient();
  EXPECT_EQ(Attach(*client).status_code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  sessions.FreePlace(first);
  EXPECT_EQ(sessions.free_slots(), 1u);
  const internal::WorkerReply reply = Attach(*client);
  ASSERT_EQ(reply.status_code(), 0) << reply.status_message();
  EXPECT_EQ(reply.attached().worker_slot(), first.slot());
  EXPECT_GT(reply.attached().worker_id(), first.id());
  // It is this process: were its socket closed, it would be killed.
  Detach(*client);
}

// It is this process, too, which would be killed if it were not believed.
TEST_F(WorkerSessionsTest, shouldKeepAWorkerThatHasToAskAgainToDetach) {
  driver_process::testing::BusyDrivers drivers;
  const auto client = AcceptClient();
  const uint64_t id = Attach(*client).attached().worker_id();
  engine.succession().SetDrivers(&drivers);
  drivers.looks_left = 1;
  internal::WorkerRequest detach;
  detach.mutable_detach();
  EXPECT_EQ(Ask(*client, detach).status_code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(sessions.IsAttached(id));
  Detach(*client);
  EXPECT_FALSE(sessions.IsAttached(id));
  EXPECT_THAT(kill_causes, ElementsAre(IsEmpty()));
  engine.succession().SetDrivers(nullptr);
}

TEST_F(WorkerSessionsTest, shouldEndTheReservationOfAChildThatDiesBeforeItAttaches) {
  const internal::WorkerPlace reservation = sessions.Reserve().value();
  const auto process = Process();
  const auto client = AcceptChild(*process, reservation);
  process->Go();
  Until([&] { return !gone.empty(); });
  EXPECT_THAT(gone, ElementsAre(reservation.id()));
  EXPECT_EQ(sessions.free_slots(), kWorkers);
  EXPECT_TRUE(engine.dead.empty());  // it never knew it
  EXPECT_EQ(events.events().back().kind(), "worker_dead");
  EXPECT_THAT(events.events().back().message(), HasSubstr("had not attached"));
}

TEST_F(WorkerSessionsTest, shouldKillAChildThatClosesItsSocketBeforeItAttaches) {
  const auto process = Process();
  AcceptChild(*process, sessions.Reserve().value()).reset();
  Until([&] { return !gone.empty(); });
  const int status = process->Wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_EQ(sessions.free_slots(), kWorkers);
  EXPECT_THAT(kill_causes, ElementsAre("the other side closed the connection"));
}

// Its socket is closed before it is dead.
TEST_F(WorkerSessionsTest, shouldNotSayThatItKilledAWorkerThatWasDying) {
  const FileDescriptor listener = ListenUnix(path, 1, 0600).value();
  ForkedChild child([&](const ForkedChild::Parent& parent) {
    MessageChannel connected(ConnectUnix(path).value());
    internal::WorkerReply reply;
    BATON_CHECK(connected.Send(RawClient::AttachRequest()).ok());
    parent.Tell("sent");
    BATON_CHECK(connected.Receive(&reply, 10'000).ok());
    parent.Await();
    raise(SIGKILL);
  });
  ASSERT_EQ(child.Hear(), "sent");
  AcceptFrom(listener);
  Until([&] { return !attached.empty(); });
  child.Go();
  Until([&] { return !gone.empty(); });
  EXPECT_THAT(kill_causes, ElementsAre(IsEmpty()));
}

TEST_F(WorkerSessionsTest, shouldTellTheEngineThatAnAttachedChildIsDead) {
  const Child child = AttachedChild();
  child.process->Go();
  Until([&] { return !gone.empty(); });
  EXPECT_THAT(gone, ElementsAre(child.place.id()));
  EXPECT_THAT(engine.dead, ElementsAre(child.place.id()));
  EXPECT_EQ(sessions.free_slots(), kWorkers);
  EXPECT_NE(sessions.Reserve().value().id(), child.place.id());
}

TEST_F(WorkerSessionsTest, shouldKillAChildWhoseLockIsMarked) {
  const Child child = AttachedChild();
  uint32_t& lock = arena.worker(child.place.slot()).thread_locks[0].futex;
  lock = static_cast<uint32_t>(child.process->pid());
  const auto look = [&] {
    driver.LookAtLocks();
    driver.DeliverNews();
  };
  look();
  EXPECT_NE(events.events().back().kind(), "worker_thread_ended");
  lock = FUTEX_OWNER_DIED;
  look();
  EXPECT_EQ(events.events().back().kind(), "worker_thread_ended");
  Until([&] { return !gone.empty(); });
  EXPECT_EQ(WTERMSIG(child.process->Wait()), SIGKILL);
  EXPECT_THAT(kill_causes, ElementsAre("the thread that attached has ended"));
}

// An object that goes to the background: the process that has attached is not the one that was
// forked.
TEST_F(WorkerSessionsTest, shouldEndWhoHoldsTheLockOfADeadChildBeforeAnybodyFollows) {
  const Child child = AttachedChild();
  ForkedChild daemon([&](const ForkedChild::Parent& parent) {
    ThreadLock lock(&arena.worker(child.place.slot()).thread_locks[0]);
    BATON_CHECK(lock.Acquire().ok());
    parent.Tell("locked");
    parent.Await();
  });
  ASSERT_EQ(daemon.Hear(), "locked");
  const FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, daemon.pid(), 0)));
  bool proven = false;
  on_gone = [&] {
    pollfd process_of_it = {pidfd.get(), POLLIN, 0};
    proven = poll(&process_of_it, 1, 0) == 1;
  };
  child.process->Go();
  Until([&] { return !gone.empty(); });
  EXPECT_TRUE(proven);
  EXPECT_EQ(WTERMSIG(daemon.Wait()), SIGKILL);
  EXPECT_THAT(engine.dead, ElementsAre(child.place.id()));
}

// A baton-launch that is not there, or that first waits for a line from a fifo.
struct LateLauncher {
  LateLauncher() { BATON_CHECK(mkfifo(fifo.c_str(), 0600) == 0); }
  void Install(const std::string& before) const {
    const std::string written = program + ".new";
    std::ofstream(written) << "#!/bin/sh\n"
                           << before << "exec " << harness::Binaries().Find("baton-launch").value()
                           << " \"$@\"\n";
    std::filesystem::permissions(written, std::filesystem::perms::all);
    std::filesystem::rename(written, program);
  }

  const harness::TempDirectory places = harness::TempDirectory::Create().value();
  const std::string fifo = places.File("fifo"), program = places.File("launcher");
};

class LateLauncherTest : public LateLauncher, public WorkerSessionsTest {
 protected:
  LateLauncherTest() : WorkerSessionsTest(With(program)) {}

  static internal::KeeperConfig With(const std::string& launcher) {
    internal::KeeperConfig config = Config();
    config.set_launcher(launcher);
    return config;
  }
  // Kills an attached child whose lock names holder_, a process that maps the arena.
  uint64_t KillNaming() {
    const Child child = AttachedChild();
    arena.worker(child.place.slot()).thread_locks[0].futex = static_cast<uint32_t>(holder_->pid());
    child.process->Go();
    child.process->Wait();
    return child.place.id();
  }
  void ExpectFound(uint64_t worker_id) {
    Until([&] { return !gone.empty(); });
    EXPECT_THAT(gone, ElementsAre(worker_id));
    EXPECT_EQ(WTERMSIG(holder_->Wait()), SIGKILL);
  }

  const std::unique_ptr<ForkedChild> holder_ = Process();
};

TEST_F(LateLauncherTest, shouldServeOthersWhileItLooksForTheHolderOfALock) {
  Install("read line <" + fifo + "\n");
  const uint64_t dead = KillNaming();
  const Child other = AttachedChild();
  EXPECT_THAT(gone, IsEmpty());
  FileDescriptor line;
  Until([&] {
    line.Reset(open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));  // once it is read
    loop.poll();
    return static_cast<bool>(line);
  });
  Install("");  // for the next look
  ASSERT_EQ(write(line.get(), "\n", 1), 1);
  ExpectFound(dead);
}

// The dead worker's place is no other's before it is known who holds its lock.
TEST_F(LateLauncherTest, shouldLookAgainWhenItCouldNot) {
  const uint64_t dead = KillNaming();
  const Child other = AttachedChild();
  const auto begun = std::chrono::steady_clock::now();
  Until([&] { return std::chrono::steady_clock::now() - begun > 3 * LockHolders::kPause; });
  EXPECT_THAT(gone, IsEmpty());
  EXPECT_EQ(sessions.free_slots(), 0u);
  Install("");
  ExpectFound(dead);
}

// It is the worker's word.
TEST_F(WorkerSessionsTest, shouldKillNobodyWhomOnlyADeadChildsLockNames) {
  char program[] = "/bin/sleep", time[] = "600";
  char* const arguments[] = {program, time, nullptr};
  pid_t bystander = 0;
  ASSERT_EQ(posix_spawn(&bystander, program, nullptr, nullptr, arguments, environ), 0);
  for (const pid_t named : {bystander, getpid()}) {
    const Child child = AttachedChild();
    arena.worker(child.place.slot()).thread_locks[0].futex = static_cast<uint32_t>(named);
    gone.clear();
    child.process->Go();
    Until([&] { return !gone.empty(); });
    EXPECT_EQ(waitpid(bystander, nullptr, WNOHANG), 0);
  }
  kill(bystander, SIGKILL);
  waitpid(bystander, nullptr, 0);
}

class HeldDescriptorsTest : public WorkerSessionsTest {
 protected:
  static internal::WorkerRequest HoldRequest(uint64_t number, uint64_t tag = 0) {
    internal::WorkerRequest request;
    request.mutable_hold_descriptor()->set_tag(tag);
    request.set_number(number);
    return request;
  }
  static internal::WorkerRequest ListRequest(uint64_t tag = 0) {
    internal::WorkerRequest request;
    request.mutable_list_descriptors()->set_tag(tag);
    return request;
  }
  internal::WorkerReply AskWith(MessageChannel& client, const internal::WorkerRequest& request,
                                const std::vector<int>& descriptors) {
    BATON_CHECK(client.Enqueue(request, descriptors).ok());
    return Next(client);
  }
  // The keeper closes the session, and kills the worker.
  void ExpectKilled(const Child& child) {
    Until([&] { return !gone.empty(); });
    EXPECT_EQ(WTERMSIG(child.process->Wait()), SIGKILL);
    EXPECT_EQ(Held(), 0u);
  }
  uint32_t Held() { return driver_client().Account({}).accounts().descriptors(); }

  const FileDescriptor memory{memfd_create("held", MFD_CLOEXEC)};
};

TEST_F(HeldDescriptorsTest, shouldBeHeldAndTakenByAnotherWorker) {
  const Child child = AttachedChild(), other = AttachedChild();
  const internal::WorkerReply held = AskWith(*child.client, HoldRequest(1, 7), {memory.get()});
  ASSERT_EQ(held.status_code(), 0) << held.status_message();
  EXPECT_NE(held.held().number(), 0u);
  EXPECT_THAT(Ask(*other.client, ListRequest(7)).all_held().numbers(),
              ElementsAre(held.held().number()));
  EXPECT_THAT(Ask(*other.client, ListRequest(8)).all_held().numbers(), IsEmpty());
  child.process->Go();
  Until([&] { return !gone.empty(); });

  internal::WorkerRequest take;
  take.mutable_take_descriptor()->set_number(held.held().number());
  BATON_CHECK(other.client->Enqueue(take).ok());
  internal::WorkerReply reply;
  std::vector<FileDescriptor> descriptors;
  Until([&] {
    return other.client->Fill().ok() && other.client->NextFrame(&reply, &descriptors).value();
  });
  ASSERT_EQ(reply.status_code(), 0) << reply.status_message();
  ASSERT_EQ(descriptors.size(), 1u);
  struct stat ours = {}, theirs = {};
  ASSERT_EQ(fstat(memory.get(), &ours), 0);
  ASSERT_EQ(fstat(descriptors[0].get(), &theirs), 0);
  EXPECT_EQ(theirs.st_ino, ours.st_ino);

  internal::WorkerRequest drop;
  drop.mutable_drop_descriptor()->set_number(held.held().number());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Ask(*other.client, drop).status_code(), 0);
  EXPECT_EQ(Held(), 0u);
  EXPECT_EQ(Ask(*other.client, take).status_code(), static_cast<int>(absl::StatusCode::kNotFound));
}

TEST_F(HeldDescriptorsTest, shouldBeTakenFromAnAttachedWorkerAlone) {
  const internal::WorkerPlace reservation = sessions.Reserve().value();
  const auto process = Process();
  const auto client = AcceptChild(*process, reservation);
  EXPECT_FALSE(Ask(*client, ListRequest()).takes_descriptors());
  const internal::WorkerReply attached_as = Attach(*client);
  ASSERT_EQ(attached_as.status_code(), 0);
  EXPECT_TRUE(attached_as.takes_descriptors());
  EXPECT_EQ(AskWith(*client, HoldRequest(1), {memory.get()}).status_code(), 0);
}

TEST_F(HeldDescriptorsTest, shouldEndAClientThatPassesThemBeforeItHasAttached) {
  Child child;
  child.place = sessions.Reserve().value();
  child.process = Process();
  child.client = AcceptChild(*child.process, child.place);
  ASSERT_TRUE(child.client->Enqueue(RawClient::AttachRequest(), {memory.get()}).ok());
  ExpectKilled(child);
}

TEST_F(HeldDescriptorsTest, shouldEndAWorkerThatPassesOneWithAnotherRequest) {
  const Child child = AttachedChild();
  ASSERT_TRUE(child.client->Enqueue(ReadyRequest(), {memory.get()}).ok());
  ExpectKilled(child);
}

TEST_F(HeldDescriptorsTest, shouldEndAWorkerThatPassesSeveral) {
  const Child child = AttachedChild();
  ASSERT_TRUE(child.client->Enqueue(HoldRequest(1), {memory.get(), memory.get()}).ok());
  ExpectKilled(child);
}

TEST_F(HeldDescriptorsTest, shouldRefuseWhatIsNoFileAndGoOn) {
  const Child child = AttachedChild();
  const auto refused = [&](const std::vector<int>& descriptors) {
    return AskWith(*child.client, HoldRequest(1), descriptors).status_code() ==
           static_cast<int>(absl::StatusCode::kInvalidArgument);
  };
  EXPECT_TRUE(refused({child.client->fd()}));
  EXPECT_TRUE(refused({}));
  EXPECT_EQ(Held(), 0u);
  EXPECT_EQ(AskWith(*child.client, HoldRequest(2), {memory.get()}).status_code(), 0);
}

// The last close of the socket waits for half a minute.
TEST_F(HeldDescriptorsTest, shouldBeRefusedWithoutAWaitForTheirClose) {
  const Child child = AttachedChild();
  harness::LingeringSocket socket;
  ASSERT_TRUE(child.client->Enqueue(HoldRequest(1), {socket.lingers.get()}).ok());
  socket.lingers.Reset();
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(Next(*child.client).status_code(),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(Ask(*child.client, ListRequest()).status_code(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - before, harness::Patient(std::chrono::seconds(2)));
}

// The thread that closes what is refused waits.
TEST_F(HeldDescriptorsTest, shouldBeClosedThoughWhatWasRefusedIsNot) {
  const Child child = AttachedChild();
  harness::LingeringSocket socket;
  ASSERT_TRUE(child.client->Enqueue(HoldRequest(1), {socket.lingers.get()}).ok());
  socket.lingers.Reset();
  EXPECT_NE(Next(*child.client).status_code(), 0);

  // The lock lasts as long as anybody has a duplicate.
  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  const std::string path = directory.File("file");
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(file.get(), LOCK_EX), 0);
  const internal::WorkerReply held = AskWith(*child.client, HoldRequest(2), {file.get()});
  ASSERT_EQ(held.status_code(), 0) << held.status_message();
  file.Reset();
  internal::WorkerRequest drop;
  drop.mutable_drop_descriptor()->set_number(held.held().number());
  EXPECT_EQ(Ask(*child.client, drop).status_code(), 0);
  const FileDescriptor other(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Until([&] { return flock(other.get(), LOCK_EX | LOCK_NB) == 0; });
}

// Memory is registered and deregistered for as long as the test wants.
class WorkerSessionsGrantTest : public WorkerSessionsTest {
 protected:
  static internal::WorkerRequest GrantRequest() {
    internal::WorkerRequest request;
    request.mutable_grant()->set_length(64);
    return request;
  }
  static internal::WorkerRequest RevokeRequest(uint32_t grant) {
    internal::WorkerRequest request;
    request.mutable_revoke()->set_grant(grant);
    return request;
  }
  static internal::WorkerRequest TokenRequest() {
    internal::WorkerRequest request;
    request.mutable_new_token();
    return request;
  }
  // Without waiting for its answer.
  static void Send(MessageChannel& client, const internal::WorkerRequest& request) {
    BATON_CHECK(client.Enqueue(request).ok());
  }
  static bool IsAnswered(MessageChannel& client, internal::WorkerReply* reply) {
    BATON_CHECK(client.Fill().ok());
    return client.NextFrame(reply).value();
  }
  internal::WorkerReply Reply(MessageChannel& client) {
    internal::WorkerReply reply;
    Until([&] { return IsAnswered(client, &reply); });
    return reply;
  }

  const std::unique_ptr<ForkedChild> process = Process(), other_process = Process();
};

TEST_F(WorkerSessionsGrantTest, shouldAnswerOthersWhileMemoryIsRegisteredOrDeregistered) {
  const auto client = AcceptChild(*process, sessions.Reserve().value());
  const auto other = AcceptChild(*other_process, sessions.Reserve().value());
  ASSERT_EQ(Attach(*client).status_code(), 0);
  ASSERT_EQ(Attach(*other).status_code(), 0);
  internal::WorkerReply reply;
  Send(*client, GrantRequest());
  Send(*client, TokenRequest());  // answered in its turn
  Until([&] { return !engine.registering.empty(); });
  EXPECT_FALSE(Ask(*other, TokenRequest()).token().token().empty());
  EXPECT_FALSE(IsAnswered(*client, &reply));
  engine.registering[0](absl::OkStatus());
  EXPECT_TRUE(Reply(*client).has_granted());
  EXPECT_FALSE(Reply(*client).token().token().empty());

  Send(*client, RevokeRequest(0));
  Send(*client, TokenRequest());
  Until([&] { return !engine.revoking.empty(); });
  EXPECT_FALSE(Ask(*other, TokenRequest()).token().token().empty());
  EXPECT_FALSE(IsAnswered(*client, &reply));
  engine.revoking[0](absl::OkStatus());
  EXPECT_EQ(Reply(*client).status_code(), 0);
  EXPECT_FALSE(Reply(*client).token().token().empty());
}

TEST_F(WorkerSessionsGrantTest, shouldCountAGrantFromItsReservationToTheEndOfItsRevocation) {
  const auto client = AcceptChild(*process, sessions.Reserve().value());
  ASSERT_EQ(Attach(*client).status_code(), 0);
  const auto granted = [this] { return driver_client().Account({}).accounts().granted_bytes(); };
  Send(*client, GrantRequest());
  Until([&] { return engine.registering.size() == 1; });
  EXPECT_EQ(granted(), 64u);
  engine.registering[0](absl::ResourceExhaustedError("no memory can be pinned"));
  EXPECT_EQ(Reply(*client).status_message(), "no memory can be pinned");
  EXPECT_EQ(granted(), 0u);

  Send(*client, GrantRequest());
  Until([&] { return engine.registering.size() == 2; });
  engine.registering[1](absl::OkStatus());
  const uint32_t grant = Reply(*client).granted().grant();
  Send(*client, RevokeRequest(grant));
  Until([&] { return engine.revoking.size() == 1; });
  EXPECT_EQ(granted(), 64u);
  engine.revoking[0](absl::OkStatus());
  EXPECT_EQ(Reply(*client).status_code(), 0);
  EXPECT_EQ(granted(), 0u);
}

TEST_F(WorkerSessionsGrantTest, shouldRevokeAGrantWhoseWorkerIsGoneBeforeItIsTold) {
  const auto client = AcceptChild(*process, sessions.Reserve().value());
  ASSERT_EQ(Attach(*client).status_code(), 0);
  Send(*client, GrantRequest());
  Until([&] { return !engine.registering.empty(); });
  process->Go();
  Until([&] { return !gone.empty(); });
  EXPECT_THAT(engine.revoked, IsEmpty());
  engine.registering[0](absl::OkStatus());
  Until([&] { return !engine.revoked.empty(); });
  EXPECT_THAT(engine.revoked, ElementsAre(0u));
  engine.revoking[0](absl::OkStatus());
  EXPECT_EQ(driver_client().Account({}).accounts().grants(), 0u);
}

// Workers that show no sign of life are noticed soon.
class SilentWorkerTest : public WorkerSessionsTest {
 protected:
  SilentWorkerTest() : WorkerSessionsTest(ImpatientConfig()) {}
  static internal::KeeperConfig ImpatientConfig() {
    internal::KeeperConfig config = Config();
    config.mutable_service()->set_heartbeat_ms(1);
    config.mutable_service()->set_hang_timeout_ms(5);
    return config;
  }
};

// An heir may hang as soon as it has claimed a shard, and was silent before.
TEST_F(SilentWorkerTest, shouldKillWhoComesToAShardWhenItIsSilentAlready) {
  const Child child = AttachedChild();
  Ask(*child.client, ReadyRequest());
  Until([&] { return engine.roster[child.place.slot()].silent; });
  EXPECT_THAT(engine.explained, IsEmpty());  // it owns nothing
  engine.shard_owner.slot = child.place.slot();
  engine.shard_owner.worker_id = child.place.id();
  Until([&] { return !gone.empty(); });
  EXPECT_THAT(gone, ElementsAre(child.place.id()));
  EXPECT_THAT(engine.explained, ElementsAre("hang"));
  EXPECT_EQ(WTERMSIG(child.process->Wait()), SIGKILL);
}

// The policy says what becomes of a worker that hangs.
class ReportedHangTest : public SilentWorkerTest {
 protected:
  int Reports() {
    int count = 0;
    for (const v1::Event& event : events.events()) count += event.kind() == "worker_hangs";
    return count;
  }
  void SetOnHang(v1::OnHang on_hang) {
    v1::Policy policy;
    policy.set_on_hang(on_hang);
    ASSERT_TRUE(policies.Replace(policy, /*validate_only=*/false).ok());
  }
};

TEST_F(ReportedHangTest, shouldTellOnceOfAHangAndKillNobodyUntilItIsToldTo) {
  SetOnHang(v1::ON_HANG_REPORT);
  const Child child = AttachedChild();
  Ask(*child.client, ReadyRequest());
  engine.shard_owner.slot = child.place.slot();
  engine.shard_owner.worker_id = child.place.id();
  Until([&] { return Reports() == 1; });
  // It shows that it lives, and hangs again: only then there is another.
  arena.worker(child.place.slot()).heartbeat = 1;
  Until([&] { return !engine.roster[child.place.slot()].silent; });
  Until([&] { return Reports() == 2; });
  for (int i = 0; i < 100; ++i) loop.run_one_for(std::chrono::seconds(1));
  EXPECT_EQ(Reports(), 2);
  EXPECT_TRUE(gone.empty());
  EXPECT_THAT(engine.explained, IsEmpty());
  SetOnHang(v1::ON_HANG_KILL);
  Until([&] { return !gone.empty(); });
  EXPECT_THAT(engine.explained, ElementsAre("hang"));
  EXPECT_EQ(WTERMSIG(child.process->Wait()), SIGKILL);
}

// A driver that has a second thread forks nobody.
TEST_F(WorkerSessionsTest, shouldStartNoThreadOfItsOwn) {
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const auto before = threads();
  const testing::InlineDriverClient native(config.service(), engine, news);
  arena::Arena shared = arena::Arena::Create(Shape(0), "kv").value();
  driver_process::testing::InlineEngine broker(&shared);
  const testing::InlineDriverClient brokered(config.service(), broker, news);
  EXPECT_EQ(threads(), before);
}

// There the kernel names the process that connected by its number alone.
class OlderKernelTest : public WorkerSessionsTest {
 protected:
  static constexpr int kRefused = static_cast<int>(absl::StatusCode::kFailedPrecondition);
  const testing::OlderKernel older_kernel;
};

// Another one speaks for it, by a descriptor that it has passed on.
TEST_F(OlderKernelTest, shouldKillNobodyWhoGotTheNumberBeforeTheConnectionWasAccepted) {
  const FileDescriptor listener = ListenUnix(path, 1, 0600).value();
  auto [ours, theirs] = SocketPair();
  ForkedChild child([&, to_us = theirs.get()](const ForkedChild::Parent&) {
    const FileDescriptor connected = ConnectUnix(path).value();
    MessageChannel channel{FileDescriptor(dup(to_us))};
    BATON_CHECK(channel.Send(internal::WorkerReply(), {connected.get()}).ok());
  });
  child.Wait();
  const testing::Namesake namesake(child.pid());
  if (!namesake.exists()) GTEST_SKIP() << "no right to choose a process's number";
  AcceptFrom(listener);
  // Not before there is the namesake, which would have it, too.
  internal::WorkerReply nothing;
  std::vector<FileDescriptor> descriptors;
  MessageChannel from_child(std::move(ours));
  ASSERT_EQ(from_child.Receive(&nothing, 10'000, &descriptors), absl::OkStatus());
  auto client = std::make_unique<MessageChannel>(std::move(descriptors.at(0)));
  ASSERT_EQ(Attach(*client).status_code(), 0);
  const internal::WorkerReply refused = Ask(*client, ReadyRequest());
  EXPECT_EQ(refused.status_code(), kRefused);
  EXPECT_THAT(refused.status_message(), HasSubstr("attach anew"));
  EXPECT_FALSE(sessions.List().at(0).ready);
  client.reset();
  Until([&] { return !gone.empty(); });
  EXPECT_EQ(events.events().back().kind(), "worker_dropped");
  EXPECT_EQ(sessions.free_slots(), kWorkers);
  EXPECT_TRUE(namesake.alive());
}

TEST_F(OlderKernelTest, shouldKillNobodyForAnOperatorWhoMayBeAnother) {
  const auto client = AcceptClient({RawClient::AttachRequest()});
  const internal::WorkerReply attached_as = Next(*client);
  ASSERT_EQ(attached_as.status_code(), 0);
  EXPECT_EQ(sessions.KillForOperator(attached_as.attached().worker_id()), absl::OkStatus());
  EXPECT_THAT(gone, ElementsAre(attached_as.attached().worker_id()));  // and this process lives
  EXPECT_EQ(events.events().back().kind(), "worker_dropped");
}

TEST_F(OlderKernelTest, shouldNotBelieveWhatWasSentBeforeTheProcessWasTaken) {
  const auto client = AcceptClient({RawClient::AttachRequest(), ReadyRequest()});
  EXPECT_EQ(Next(*client).status_code(), 0);
  EXPECT_EQ(Next(*client).status_code(), kRefused);
  EXPECT_EQ(Ask(*client, ReadyRequest()).status_code(), 0);
  EXPECT_TRUE(sessions.List().at(0).ready);
  Detach(*client);
}

TEST_F(OlderKernelTest, shouldNeedNoMoreThanTheFirstRequestThatIsSentAfterwards) {
  const auto client = AcceptClient();
  ASSERT_TRUE(client->Enqueue(RawClient::AttachRequest()).ok());
  EXPECT_EQ(Ask(*client, ReadyRequest()).status_code(), 0);
  EXPECT_EQ(Next(*client).status_code(), 0);
  EXPECT_TRUE(sessions.List().at(0).ready);
  Detach(*client);
}

TEST_F(OlderKernelTest, shouldKillAWorkerThatHasSentSomethingItself) {
  const FileDescriptor listener = ListenUnix(path, 1, 0600).value();
  ForkedChild child([&](const ForkedChild::Parent& parent) {
    auto connected = std::make_unique<MessageChannel>(ConnectUnix(path).value());
    internal::WorkerReply reply;
    BATON_CHECK(connected->Send(RawClient::AttachRequest()).ok());
    parent.Tell("sent");
    BATON_CHECK(connected->Receive(&reply, 10'000).ok());
    BATON_CHECK(connected->Send(ReadyRequest()).ok());
    parent.Await();
    connected.reset();
    parent.Await();
  });
  ASSERT_EQ(child.Hear(), "sent");
  AcceptFrom(listener);
  Until([&] { return !sessions.List().empty() && sessions.List()[0].ready; });
  child.Go();
  Until([&] { return !gone.empty(); });
  EXPECT_EQ(WTERMSIG(child.Wait()), SIGKILL);
}

// The service of some cases names uid 0; that of the others does not.
class ContainedRootTest : public WorkerSessionsTest, public ::testing::WithParamInterface<bool> {
 protected:
  ContainedRootTest() : WorkerSessionsTest(Distrusting()) {}
  static internal::KeeperConfig Distrusting() {
    internal::KeeperConfig config = Config();
    config.set_distrust_contained_root(true);
    if (GetParam()) config.mutable_service()->add_worker_uids(geteuid());
    return config;
  }
};

INSTANTIATE_TEST_SUITE_P(Named, ContainedRootTest, ::testing::Bool());

TEST_P(ContainedRootTest, shouldAttachOnlyWhereItIsNamed) {
  const FileDescriptor listener = ListenUnix(path, 1, 0600).value();
  const ForkedChild child = ForkedChild::InPidNamespace([&](const ForkedChild::Parent& parent) {
    MessageChannel connected(ConnectUnix(path).value());
    parent.Tell("connected");
    internal::WorkerReply reply;
    BATON_CHECK(connected.Send(RawClient::AttachRequest()).ok());
    BATON_CHECK(connected.Receive(&reply, 10'000).ok());
    parent.Tell(std::to_string(reply.status_code()));
    parent.Await();
  });
  const std::string told = child.Hear();
  if (told == "no right") GTEST_SKIP() << "no right to make a pid namespace";
  ASSERT_EQ(told, "connected");
  AcceptFrom(listener);
  std::atomic<bool> answered{false};
  std::string code;
  std::thread hearing([&] {
    code = child.Hear();
    answered = true;
  });
  Until([&] {
    loop.poll();
    return answered.load();
  });
  hearing.join();
  EXPECT_EQ(code, std::to_string(static_cast<int>(
                      GetParam() ? absl::StatusCode::kOk : absl::StatusCode::kPermissionDenied)));
}

TEST_P(ContainedRootTest, shouldBeItselfOutsideOfAContainer) {
  const auto client = AcceptClient();
  EXPECT_EQ(Attach(*client).status_code(), 0);
  Detach(*client);
}

// Each finds the program that has the number by then.
class NumberedPrograms final : public WorkerPrograms {
 public:
  explicit NumberedPrograms(std::function<void()> meanwhile) : meanwhile_(std::move(meanwhile)) {}
  absl::Status Check(const std::string&) const override { return absl::OkStatus(); }
  void Read(pid_t, uint32_t, uint32_t, ProgramDone done) override {
    meanwhile_();
    internal::Program program;
    program.set_path("/opt/kv");
    done(std::move(program));
  }
  absl::StatusOr<StartedProgram> Start(const internal::Program&) override {
    return absl::UnimplementedError("no");
  }
  FileDescriptor PidfdOf(pid_t) const override { return {}; }
  std::string Reap(pid_t, int) override { return ""; }
  void OnServing(const internal::Program&) override {}

 private:
  const std::function<void()> meanwhile_;
};

TEST_F(WorkerSessionsTest, shouldNotTakeAProgramFromTheNumberOfAProcessThatEnds) {
  const auto process = Process();
  const internal::WorkerPlace reservation = sessions.Reserve().value();
  const auto client = AcceptChild(*process, reservation);
  ASSERT_EQ(Attach(*client).status_code(), 0);
  const uint64_t id = reservation.id();
  absl::StatusOr<internal::Program> program;
  const auto take = [&](absl::StatusOr<internal::Program> read) { program = std::move(read); };
  NumberedPrograms programs([] {});
  sessions.ReadProgram(id, programs, take);
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(program->path(), "/opt/kv");
  bool ended = false;
  NumberedPrograms meanwhile_ending([&] {
    if (std::exchange(ended, true)) return;
    process->Go();
    process->Wait();
  });
  sessions.ReadProgram(id, meanwhile_ending, take);
  EXPECT_EQ(program.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(program.status().message()),
              HasSubstr("ended while its program was read"));
}

}  // namespace
}  // namespace baton::keeper

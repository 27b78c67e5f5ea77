// What a keeper makes of the arena of one that died: which connections it keeps, what it tells
// their drivers, what it does for them, and who follows an owner. That the kernel's connections can
// be taken over is the machine's to show.
#include "supervisor/driver/native/adoption.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lib/native/mailbox.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "supervisor/driver/native/adopted_shards.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::driver_process {
namespace {

using arena::ConnectionState;
using arena::MailEntry;
using arena::NoticeKind;
using arena::OrderKind;
using native::Mailbox;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using verbs::CompletionStatus;
using verbs::rdma::AdoptedEvent;
using verbs::rdma::AdoptedId;
using verbs::rdma::AdoptedIds;

constexpr uint64_t kSecond = 1'000'000'000;

// The kernel's side.
struct Kernel {
  std::vector<uint32_t> connected, disconnected, destroyed;
  std::deque<AdoptedIds::Event> events;
  bool silent = false;
};

class FakeIds final : public AdoptedIds {
 public:
  explicit FakeIds(Kernel* kernel) : kernel_(kernel), file_(open("/dev/null", O_RDONLY)) {}
  int fd() const override { return file_.get(); }
  absl::StatusOr<std::vector<AdoptedId>> TakeFrom(int) override {
    return absl::UnimplementedError("the test has taken them");
  }
  std::optional<Event> NextEvent() override {
    if (kernel_->events.empty()) return std::nullopt;
    const Event event = kernel_->events.front();
    kernel_->events.pop_front();
    return event;
  }
  std::optional<bool> IsConnected(uint32_t number) const override {
    if (kernel_->silent) return std::nullopt;
    return std::count(kernel_->connected.begin(), kernel_->connected.end(), number) != 0;
  }
  void Disconnect(uint32_t number) override { kernel_->disconnected.push_back(number); }
  void Destroy(uint32_t number) override { kernel_->destroyed.push_back(number); }

 private:
  Kernel* const kernel_;
  const FileDescriptor file_;
};

FileDescriptor Copy(int fd) { return FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

class AdoptionTest : public ::testing::Test {
 protected:
  void SetUp() override { Make(driver::testing::TestShape(1)); }
  void Make(arena::Shape shape) {
    shape.pooled_queue_pairs = 4;
    shape.workers = 4;
    arena_.emplace(arena::Arena::Create(shape, "kv").value());
    service_.set_hang_timeout_ms(5000);
    SetOwner(0);
  }

  // ---- What the former keeper and its drivers have left.

  void SetOwner(uint32_t slot) { arena_->shard(0).owner.ownership = arena::PackOwnership(1, slot); }
  uint32_t& Lock(uint32_t slot) { return arena_->worker(slot).thread_locks[0].futex; }
  // With `peer_port`, and an id of that number.
  void Connect(uint32_t index, uint16_t peer_port) {
    arena::ConnectionRecord& record = arena_->connection(index);
    record.generation = 7;
    record.shard = 0;
    record.state = static_cast<uint32_t>(ConnectionState::kEstablished);
    record.was_established = 1;
    std::strcpy(record.local_address, "10.0.0.1:7471");
    std::strcpy(record.peer_address, absl::StrCat("10.0.0.2:", peer_port).c_str());
    arena_->native_connection(index).handled_generation = 7;
    kernel_.connected.push_back(peer_port);
    ids_.push_back({peer_port, {"10.0.0.1", 7471}, {"10.0.0.2", peer_port}});
  }
  static MailEntry Entry(uint8_t kind, uint32_t index) {
    MailEntry entry = {};
    entry.kind = kind;
    entry.connection = index;
    entry.generation = 7;
    return entry;
  }
  void Notice(NoticeKind kind, uint32_t index) {
    Mailbox::Notices(*arena_, 0).Put(Entry(static_cast<uint8_t>(kind), index));
  }
  void Order(OrderKind kind, uint32_t index, uint32_t shard = 0) {
    Mailbox::Orders(*arena_, shard).Put(Entry(static_cast<uint8_t>(kind), index));
  }

  // ---- Its successor.

  Adoption& Adopt() {
    AdoptedFiles files;
    files.arena = std::make_unique<arena::Arena>(
        arena::Arena::AttachKeeper(Copy(arena_->worker_log_fd()), Copy(arena_->driver_log_fd()),
                                   Copy(arena_->buffers_fd()), Copy(arena_->recovery_fd()))
            .value());
    files.driver_wake.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair), 0);
    files.news.Reset(pair[0]);
    workers_news_.Reset(pair[1]);
    EXPECT_EQ(pipe2(pair, O_CLOEXEC), 0);
    files.proof.Reset(pair[0]);
    presence_.Reset(pair[1]);
    for (uint32_t i = 0; i < 4; ++i) {
      files.wakes.emplace_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      wakes_.push_back(Copy(files.wakes.back().get()));
    }
    adoption_ = std::make_unique<Adoption>(std::move(files), std::make_unique<FakeIds>(&kernel_),
                                           ids_, service_);
    return *adoption_;
  }
  // What the drivers are told, and do not pass.
  std::vector<MailEntry> Told(uint32_t shard = 0) {
    Mailbox notices = Mailbox::Notices(*arena_, shard);
    std::vector<MailEntry> told;
    for (; !notices.empty(); notices.Pass()) told.push_back(notices.Next());
    return told;
  }
  bool WasWoken(uint32_t slot) {
    eventfd_t count;
    return eventfd_read(wakes_[slot].get(), &count) == 0;
  }

  uint64_t now_ = 0;
  std::optional<arena::Arena> arena_;
  v1::ServiceConfig service_;
  Kernel kernel_;
  std::vector<AdoptedId> ids_;
  FileDescriptor presence_, workers_news_;
  std::vector<FileDescriptor> wakes_;
  std::unique_ptr<Adoption> adoption_;
};

MATCHER_P2(IsEnd, connection, status, "") {
  return NoticeKind(arg.kind) == NoticeKind::kEnded &&
         arg.connection == static_cast<uint32_t>(connection) && arg.generation == 7 &&
         CompletionStatus(arg.status) == status;
}

// ---------------------------------------------------------------- what is kept

TEST_F(AdoptionTest, shouldKeepWhatIsConnected) {
  Connect(0, 100);
  Connect(2, 102);
  Adoption& adoption = Adopt();
  adoption.Turn(++now_);
  EXPECT_EQ(adoption.connection_count(), 2u);
  EXPECT_THAT(Told(), IsEmpty());
  EXPECT_THAT(kernel_.destroyed, IsEmpty());
  EXPECT_EQ(adoption.WhyOver(), "");
}

TEST_F(AdoptionTest, shouldBeOverWithoutConnections) {
  EXPECT_EQ(Adopt().WhyOver(), "no connection is left");
}

TEST_F(AdoptionTest, shouldBeOverWhenNoWorkerIsLeft) {
  Connect(0, 100);
  Adoption& adoption = Adopt();
  EXPECT_EQ(adoption.WhyOver(), "");
  presence_.Reset();
  EXPECT_EQ(adoption.WhyOver(), "no worker is left");
}

TEST_F(AdoptionTest, shouldTellOfAnEndThatNobodySaw) {
  Connect(0, 100);
  kernel_.connected.clear();
  EXPECT_EQ(Adopt().connection_count(), 1u);
  EXPECT_THAT(Told(), ElementsAre(IsEnd(0, CompletionStatus::kSuccess)));
  EXPECT_THAT(kernel_.disconnected, ElementsAre(100));  // the peer is answered
  EXPECT_TRUE(WasWoken(0));
}

TEST_F(AdoptionTest, shouldFailAConnectionThatTheKernelSaysNothingOf) {
  Connect(0, 100);
  kernel_.silent = true;
  Adopt();
  EXPECT_THAT(Told(), ElementsAre(IsEnd(0, CompletionStatus::kFatalError)));
  EXPECT_THAT(arena_->native_connection(0).end_reason, HasSubstr("did not say"));
}

TEST_F(AdoptionTest, shouldFailAConnectionThatWasBeingMade) {
  Connect(1, 101);
  arena_->connection(1).state = static_cast<uint32_t>(ConnectionState::kRequested);
  arena_->connection(1).was_established = 0;
  EXPECT_EQ(Adopt().connection_count(), 1u);
  EXPECT_THAT(Told(), ElementsAre(IsEnd(1, CompletionStatus::kFatalError)));
  EXPECT_THAT(arena_->native_connection(1).end_reason, HasSubstr("driver died while"));
  EXPECT_THAT(kernel_.destroyed, ElementsAre(101));
}

// Its driver accepts it into another shard meanwhile, where it is to hear of it.
TEST_F(AdoptionTest, shouldFollowAConnectionIntoAnotherShard) {
  Make(driver::testing::TestShape(2));
  Connect(1, 101);
  arena_->connection(1).state = static_cast<uint32_t>(ConnectionState::kRequested);
  arena_->connection(1).was_established = 0;
  Adoption& adoption = Adopt();
  EXPECT_THAT(Told(0), ElementsAre(IsEnd(1, CompletionStatus::kFatalError)));
  Order(OrderKind::kAccept, 1, 1);
  adoption.Turn(++now_);
  EXPECT_THAT(Told(1), IsEmpty());  // it has not moved
  arena_->connection(1).shard = 1;
  Order(OrderKind::kAccept, 1, 1);
  adoption.Turn(++now_);
  EXPECT_THAT(Told(1), ElementsAre(IsEnd(1, CompletionStatus::kFatalError)));
  Order(OrderKind::kFree, 1, 1);
  adoption.Turn(++now_);
  EXPECT_EQ(adoption.connection_count(), 0u);
}

TEST_F(AdoptionTest, shouldKeepWhatItsDriverHasNotReadToBeEstablished) {
  Connect(1, 101);
  arena_->connection(1).state = static_cast<uint32_t>(ConnectionState::kRequested);
  arena_->connection(1).was_established = 0;
  Notice(NoticeKind::kEstablished, 1);
  EXPECT_EQ(Adopt().connection_count(), 1u);
  EXPECT_EQ(Told().size(), 1u);  // that one
  EXPECT_THAT(kernel_.destroyed, IsEmpty());
}

TEST_F(AdoptionTest, shouldFreeTheSlotOfAConnectionThatNobodyWasToldOf) {
  Connect(1, 101);
  arena_->native_connection(1).handled_generation = 6;
  EXPECT_EQ(Adopt().connection_count(), 0u);
  EXPECT_EQ(arena_->native_connection(1).freed_generation, 7u);
  EXPECT_THAT(Told(), IsEmpty());
  EXPECT_THAT(kernel_.destroyed, ElementsAre(101));
}

// To a peer: its own address is not known before it is connected, so no id is found for it.
TEST_F(AdoptionTest, shouldFailAConnectionThatTheFormerKeeperWasMaking) {
  Connect(1, 101);
  arena_->connection(1).state = static_cast<uint32_t>(ConnectionState::kFree);
  arena_->connection(1).was_established = 0;
  arena_->connection(1).local_address[0] = '\0';
  arena_->native_connection(1).handled_generation = 6;
  Notice(NoticeKind::kConnecting, 1);
  EXPECT_EQ(Adopt().connection_count(), 1u);
  const std::vector<MailEntry> told = Told();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_THAT(told[1], IsEnd(1, CompletionStatus::kFatalError));
  EXPECT_THAT(arena_->native_connection(1).end_reason, HasSubstr("driver died while"));
  EXPECT_THAT(kernel_.destroyed, ElementsAre(101));
}

TEST_F(AdoptionTest, shouldFailConnectionsThatItCannotTellApart) {
  Connect(0, 100);
  Connect(1, 100);
  Connect(2, 102);
  EXPECT_EQ(Adopt().connection_count(), 3u);
  EXPECT_THAT(Told(), ElementsAre(IsEnd(0, CompletionStatus::kFatalError),
                                  IsEnd(1, CompletionStatus::kFatalError)));
  EXPECT_THAT(kernel_.destroyed, ElementsAre(100, 100));
}

// Whose the one is that is left, nobody knows.
TEST_F(AdoptionTest, shouldFailTwoConnectionsWithOneId) {
  Connect(0, 100);
  Connect(1, 100);
  ids_.pop_back();
  Adopt();
  EXPECT_THAT(Told(), ElementsAre(IsEnd(0, CompletionStatus::kFatalError),
                                  IsEnd(1, CompletionStatus::kFatalError)));
  EXPECT_THAT(kernel_.destroyed, ElementsAre(100));
}

TEST_F(AdoptionTest, shouldFailAConnectionWithTwoIds) {
  Connect(0, 100);
  ids_.push_back({55, {"10.0.0.1", 7471}, {"10.0.0.2", 100}});
  Adopt();
  EXPECT_THAT(Told(), ElementsAre(IsEnd(0, CompletionStatus::kFatalError)));
  EXPECT_THAT(kernel_.destroyed, ElementsAre(100, 55));
}

TEST_F(AdoptionTest, shouldDestroyTheIdOfAConnectionThatIsNotInTheArena) {
  Connect(0, 100);
  ids_.push_back({55, {"10.0.0.1", 7471}, {"10.0.0.2", 55}});
  Adopt();
  EXPECT_THAT(kernel_.destroyed, ElementsAre(55));
}

// ---------------------------------------------------------------- what is done for them

TEST_F(AdoptionTest, shouldTellOfADisconnectOnceAndAnswerIt) {
  Connect(0, 100);
  Connect(1, 101);
  Adoption& adoption = Adopt();
  adoption.Turn(++now_);
  EXPECT_TRUE(WasWoken(0));
  EXPECT_FALSE(WasWoken(0));
  kernel_.events.push_back({101, AdoptedEvent::kDisconnected});
  kernel_.events.push_back({101, AdoptedEvent::kDisconnected});
  adoption.Turn(++now_);
  EXPECT_THAT(Told(), ElementsAre(IsEnd(1, CompletionStatus::kSuccess)));
  EXPECT_THAT(kernel_.disconnected, ElementsAre(101));
  EXPECT_TRUE(WasWoken(0));
}

TEST_F(AdoptionTest, shouldCarryOutOrdersUntilNoConnectionIsLeft) {
  Connect(0, 100);
  Connect(1, 101);
  Adoption& adoption = Adopt();
  Order(OrderKind::kAccept, 0);  // given again by a successor
  Order(OrderKind::kDisconnect, 0);
  Order(OrderKind::kFree, 0);
  adoption.Turn(++now_);
  EXPECT_THAT(kernel_.disconnected, ElementsAre(100));
  EXPECT_THAT(kernel_.destroyed, ElementsAre(100));
  EXPECT_EQ(arena_->native_connection(0).freed_generation, 7u);
  EXPECT_EQ(adoption.connection_count(), 1u);
  EXPECT_EQ(adoption.WhyOver(), "");
  Order(OrderKind::kFree, 1);
  adoption.Turn(++now_);
  EXPECT_THAT(kernel_.destroyed, ElementsAre(100, 101));
  EXPECT_EQ(adoption.WhyOver(), "no connection is left");
  EXPECT_TRUE(Mailbox::Orders(*arena_, 0).empty());
}

// A worker has written both.
TEST_F(AdoptionTest, shouldForgetAConnectionThatIsInNoShard) {
  Connect(0, 100);
  Connect(1, 101);
  arena_->connection(1).shard = 0x1000'0000;
  EXPECT_EQ(Adopt().connection_count(), 1u);
  EXPECT_THAT(kernel_.destroyed, ElementsAre(101));  // its peer hears of it
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(AdoptionTest, shouldBeOverWhenARingIsBroken) {
  Connect(0, 100);
  kernel_.connected.clear();
  arena_->notices(0).tail = ~uint64_t{0} / 2;  // no room, and no end of what is in it
  EXPECT_THAT(Adopt().WhyOver(), HasSubstr("shard 0"));
  arena_->notices(0).tail = arena_->notices(0).head;
  EXPECT_EQ(adoption_->WhyOver(), "");
  arena_->orders(0).head = 1;
  EXPECT_THAT(adoption_->WhyOver(), HasSubstr("shard 0"));
  adoption_->Turn(++now_);
  EXPECT_EQ(arena_->orders(0).head, 1u);
}

TEST_F(AdoptionTest, shouldIgnoreOrdersForAnotherGeneration) {
  Connect(0, 100);
  Adoption& adoption = Adopt();
  MailEntry stale = Entry(static_cast<uint8_t>(OrderKind::kDisconnect), 0);
  stale.generation = 6;
  Mailbox::Orders(*arena_, 0).Put(stale);
  stale.connection = ~0u;
  Mailbox::Orders(*arena_, 0).Put(stale);
  adoption.Turn(++now_);
  EXPECT_THAT(kernel_.disconnected, IsEmpty());
  EXPECT_TRUE(Mailbox::Orders(*arena_, 0).empty());
}

TEST_F(AdoptionTest, shouldBeOverWhenTheDeviceIsRemoved) {
  Connect(0, 100);
  Adoption& adoption = Adopt();
  kernel_.events.push_back({100, AdoptedEvent::kDeviceRemoved});
  adoption.Turn(++now_);
  EXPECT_THAT(Told(), ElementsAre(IsEnd(0, CompletionStatus::kSuccess)));
  EXPECT_THAT(adoption.WhyOver(), HasSubstr("device"));
}

TEST_F(AdoptionTest, shouldKeepNoticesThatTheRingHasNoRoomFor) {
  Connect(0, 100);
  Adoption& adoption = Adopt();
  for (uint32_t i = 0; i < arena::kNotices; ++i) Notice(NoticeKind::kReceiveDrained, 3);
  kernel_.events.push_back({100, AdoptedEvent::kDisconnected});
  adoption.Turn(++now_);
  EXPECT_EQ(Told().size(), arena::kNotices);
  adoption.Turn(++now_);
  EXPECT_THAT(Told(), ElementsAre(IsEnd(0, CompletionStatus::kSuccess)));
}

// ---------------------------------------------------------------- who follows an owner

TEST_F(AdoptionTest, shouldNameAWorkerThatLivesInThePlaceOfADeadHeir) {
  Connect(0, 100);
  for (const uint32_t slot : {0, 1, 3}) Lock(slot) = 1000 + slot;
  arena_->native_shard(0).heir = 1 + 1;
  Adoption& adoption = Adopt();
  adoption.Turn(++now_);
  EXPECT_EQ(arena_->native_shard(0).heir, 1u + 1);
  // All of them: what the former keeper had to say may have died with it.
  for (uint32_t slot = 0; slot < 4; ++slot) EXPECT_TRUE(WasWoken(slot)) << slot;
  Lock(1) = FUTEX_OWNER_DIED;
  adoption.Turn(++now_);
  EXPECT_EQ(arena_->native_shard(0).heir, 3u + 1);
  EXPECT_TRUE(WasWoken(3));
  EXPECT_FALSE(WasWoken(2));
}

TEST_F(AdoptionTest, shouldNameAnotherHeirWhenTheFormerOneOwns) {
  Connect(0, 100);
  for (const uint32_t slot : {1, 2}) Lock(slot) = 1000 + slot;
  arena_->native_shard(0).heir = 1 + 1;
  SetOwner(1);
  Adopt().Turn(++now_);
  EXPECT_EQ(arena_->native_shard(0).heir, 2u + 1);
}

TEST_F(AdoptionTest, shouldBeOverWhenAnOwnerWithOutsideEffectsIsDead) {
  service_.set_outside_effects(true);
  Connect(0, 100);
  Lock(0) = 1000;
  Adoption& adoption = Adopt();
  EXPECT_EQ(adoption.WhyOver(), "");
  Lock(0) = FUTEX_OWNER_DIED;
  EXPECT_THAT(adoption.WhyOver(), HasSubstr("outside effects"));
}

// A worker's process, which does nothing.
class Sleeper {
 public:
  Sleeper() : pid_(fork()) {
    if (pid_ == 0) {
      for (;;) pause();
    }
  }
  ~Sleeper() {
    kill(pid_, SIGKILL);
    if (!reaped_) waitpid(pid_, nullptr, 0);
  }
  uint32_t pid() const { return static_cast<uint32_t>(pid_); }
  bool WasKilled() {
    int status = 0;
    reaped_ = waitpid(pid_, &status, 0) == pid_;
    return reaped_ && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }
  bool Lives() const { return waitpid(pid_, nullptr, WNOHANG) == 0; }

 private:
  const pid_t pid_;
  bool reaped_ = false;
};

class AdoptedShardsTest : public AdoptionTest {
 protected:
  AdoptedShards& Shards() {
    if (!shards_) {
      std::vector<FileDescriptor> wakes(4);
      processes_.resize(4);
      shards_.emplace(&*arena_, std::move(wakes), std::move(processes_), service_);
    }
    return *shards_;
  }
  // As long as it takes, less one, to hold somebody who is silent to hang.
  void LookWhileSilent() {
    for (int i = 0; i < 25; ++i) Look();
  }
  void Look(uint64_t later_ns = AdoptedShards::kLookNs) {
    Shards().Turn(now_ += later_ns, [this](uint32_t) { return used_; });
  }
  static FileDescriptor ProcessOf(const Sleeper& sleeper) {
    return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, sleeper.pid(), 0)));
  }

  bool used_ = true;
  std::vector<FileDescriptor> processes_;
  std::optional<AdoptedShards> shards_;
};

// As the keeper's log has it.
class ToldPoisoningsTest : public AdoptedShardsTest {
 protected:
  void SetUp() override {
    AdoptedShardsTest::SetUp();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_st>(log_)));
  }
  void TearDown() override { spdlog::set_default_logger(before_); }

  void EndEpochs(uint64_t last) {
    for (uint64_t epoch = 1; epoch <= last; ++epoch) {
      arena::NativeReport& report = arena_->native_report(0, epoch);
      report.version += 2;
      report.epoch = epoch;
      report.poison_deaths = epoch % 2 == 0 ? 3 : 0;
      report.poisoned_connection = static_cast<uint32_t>(epoch);
    }
    arena_->shard(0).owner.ownership = arena::PackOwnership(last + 1, 0);
  }
  // Since it was asked last: the connections, in order.
  std::vector<std::string> Poisoned() {
    std::istringstream lines(std::exchange(log_, std::ostringstream()).str());
    std::vector<std::string> poisoned;
    const std::string kind = "connection_poisoned: connection ";
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find(kind);
      if (at == std::string::npos) continue;
      const size_t number = at + kind.size();
      poisoned.push_back(line.substr(number, line.find(' ', number) - number));
    }
    return poisoned;
  }

 private:
  std::ostringstream log_;
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

TEST_F(ToldPoisoningsTest, shouldTellThoseThatTheFormerKeeperHasNot) {
  EndEpochs(4);
  arena_->native_shard(0).told_epoch = 2;
  Look();
  EXPECT_THAT(Poisoned(), ElementsAre("4"));
  EndEpochs(6);
  Look();
  EXPECT_THAT(Poisoned(), ElementsAre("6"));
  shards_.reset();  // and is followed by another
  Look();
  EXPECT_THAT(Poisoned(), IsEmpty());
}

TEST_F(ToldPoisoningsTest, shouldTellWhatIsStillThere) {
  EndEpochs(9);
  Look();
  EXPECT_THAT(Poisoned(), ElementsAre("6", "8"));
}

TEST_F(ToldPoisoningsTest, shouldWaitForAReportThatIsBeingWritten) {
  EndEpochs(2);
  ++arena_->native_report(0, 2).version;
  Look();
  EXPECT_THAT(Poisoned(), IsEmpty());
  ++arena_->native_report(0, 2).version;
  Look();
  EXPECT_THAT(Poisoned(), ElementsAre("2"));
}

TEST_F(ToldPoisoningsTest, shouldNotMindWhatAWorkerHasWrittenThere) {
  EndEpochs(4);
  arena_->native_shard(0).told_epoch = ~uint64_t{0} - 1;
  Look();
  EXPECT_THAT(Poisoned(), IsEmpty());
}

// Whatever number the worker has written in its lock.
TEST_F(AdoptedShardsTest, shouldKillTheProcessOfAnOwnerThatShowsNoSignOfLife) {
  Sleeper owner, bystander;
  processes_.resize(4);
  processes_[0] = ProcessOf(owner);
  Lock(0) = bystander.pid();
  LookWhileSilent();
  arena_->worker(0).heartbeat = 1;
  LookWhileSilent();
  EXPECT_TRUE(owner.Lives());
  Look();
  EXPECT_TRUE(owner.WasKilled());
  EXPECT_TRUE(bystander.Lives());
  EXPECT_EQ(shards_->WhyStuck(), "");
}

// Its heir goes on with what the other threads of the process still write.
TEST_F(AdoptedShardsTest, shouldKillTheProcessOfAThreadThatHasEnded) {
  Sleeper owner, bystander;
  processes_.resize(4);
  processes_[0] = ProcessOf(owner);
  processes_[1] = ProcessOf(bystander);
  Lock(0) = Lock(1) = 1000;
  Look();
  EXPECT_TRUE(owner.Lives());
  Lock(0) = FUTEX_OWNER_DIED;
  Look();
  EXPECT_TRUE(owner.WasKilled());
  EXPECT_TRUE(bystander.Lives());
}

TEST_F(AdoptedShardsTest, shouldLeaveAnOwnerThatHangsWhereThePolicySaysSo) {
  service_.mutable_policy()->set_on_hang(v1::ON_HANG_REPORT);
  Sleeper owner;
  processes_.resize(4);
  processes_[0] = ProcessOf(owner);
  Lock(0) = 1000;
  for (int i = 0; i < 4; ++i) LookWhileSilent();
  EXPECT_TRUE(owner.Lives());
  EXPECT_EQ(shards_->WhyStuck(), "");
}

TEST_F(AdoptedShardsTest, shouldKillNobodyAfterTheMachineStoodStill) {
  Sleeper owner;
  processes_.resize(4);
  processes_[0] = ProcessOf(owner);
  Lock(0) = 1000;
  Look();
  Look(1000 * kSecond);
  Look(1);  // no look at all
  EXPECT_TRUE(owner.Lives());
}

TEST_F(AdoptedShardsTest, shouldSayThatAnOwnerThatHangsCannotBeEnded) {
  Lock(0) = 1000;
  LookWhileSilent();
  Look();
  EXPECT_EQ(Shards().WhyStuck(), "");
  LookWhileSilent();
  EXPECT_THAT(Shards().WhyStuck(), HasSubstr("shard 0"));
}

TEST_F(AdoptedShardsTest, shouldNameAnotherHeirInThePlaceOfASilentOne) {
  for (const uint32_t slot : {0, 1, 2}) Lock(slot) = 1000 + slot;
  arena_->native_shard(0).heir = 1 + 1;
  for (int i = 0; i < 26; ++i) {
    EXPECT_EQ(arena_->native_shard(0).heir, 1u + 1) << i;
    ++arena_->worker(0).heartbeat;
    ++arena_->worker(2).heartbeat;
    Look();
  }
  EXPECT_EQ(arena_->native_shard(0).heir, 2u + 1);
}

TEST_F(AdoptedShardsTest, shouldKeepASilentHeirWhenThereIsNoOther) {
  for (const uint32_t slot : {0, 1}) Lock(slot) = 1000 + slot;
  arena_->native_shard(0).heir = 1 + 1;
  for (int i = 0; i < 30; ++i) {
    ++arena_->worker(0).heartbeat;
    Look();
  }
  EXPECT_EQ(arena_->native_shard(0).heir, 1u + 1);
}

// As after the clean end of a claimant: its lock was given back, so that it never counts as dead.
TEST_F(AdoptedShardsTest, shouldSayThatNobodyServesAShardThatHasConnections) {
  LookWhileSilent();
  EXPECT_THAT(Shards().WhyStuck(), HasSubstr("shard 0"));
  Lock(0) = 1000;
  Look();
  EXPECT_EQ(Shards().WhyStuck(), "");
}

TEST_F(AdoptedShardsTest, shouldNotMindAShardWithoutConnectionsThatNobodyServes) {
  used_ = false;
  LookWhileSilent();
  LookWhileSilent();
  EXPECT_EQ(Shards().WhyStuck(), "");
}

// Workers write both.
TEST_F(AdoptedShardsTest, shouldTakeNoNumberOfTheArenaForASlotThatIsNone) {
  service_.set_outside_effects(true);
  Lock(3) = 1000;
  for (const uint32_t number : {4u, 64u, 0x7ffeu, 0xfffeu}) {
    SetOwner(number);
    arena_->native_shard(0).heir = ~uint64_t{number};
    Look();
    EXPECT_EQ(arena_->native_shard(0).heir, 3u + 1);
    EXPECT_THAT(Shards().WhyStuck(), HasSubstr("shard 0"));
  }
}

}  // namespace
}  // namespace baton::driver_process

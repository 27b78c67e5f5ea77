// What the worker library asks of the host of a native worker, when, and what it makes of errors.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "lib/driver/ownership.h"
#include "lib/native/host.h"
#include "proto/baton/internal/keeper.pb.h"
#include "tests/harness/temp_directory.h"
#include "tests/lib/driver/commit_writer.h"
#include "worker/heap.h"
#include "worker/worker.h"

namespace {

BatonNativeHost* g_host = nullptr;

}  // namespace

extern "C" BatonNativeHost* baton_native_host() { return g_host; }

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kWorkerId = 7;
constexpr uint32_t kSlot = 1;

using Calls = std::vector<std::string>;

class RecordingService : public Service {
 public:
  explicit RecordingService(Calls* calls) : calls_(calls) {}
  absl::Status OnAdopt(Shard& adopted) override {
    shard = &adopted;
    calls_->push_back("OnAdopt");
    return absl::OkStatus();
  }
  void OnCompletion(Shard&, const Completion&) override {}
  void OnRelease(Shard&) override { calls_->push_back("OnRelease"); }

  Shard* shard = nullptr;

 private:
  Calls* calls_;
};

// A host that only writes down what it is asked, and a keeper whose replies were sent before.
class NativeHostTest : public ::testing::Test {
 public:
  void SetUp() override {
    auto created = arena::Arena::Create(driver::testing::TestShape(), "kv");
    ASSERT_TRUE(created.ok()) << created.status();
    arena_.emplace(*std::move(created));
    std::array<int, 2> session;
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, session.data()), 0);
    keeper_.emplace(FileDescriptor(session[0]));
    ready_.Reset(eventfd(0, EFD_CLOEXEC));
    host_ = {
        BATON_NATIVE_VERSION,
        sizeof(host_),
        "9.8.7",
        this,
        session[1],
        ready_.get(),
        [](void* self) {
          if (Of(self).on_attend_) Of(self).on_attend_();
          return Of(self).Note("attend");
        },
        [](void* self, uint32_t shard, uint64_t epoch) {
          return Of(self).Note(absl::StrCat("adopt ", shard, " of ", epoch));
        },
        [](void* self, uint32_t shard) { return Of(self).Note(absl::StrCat("apply ", shard)); },
        [](void* self, uint32_t shard) {
          if (Of(self).on_poll_) Of(self).on_poll_();
          return Of(self).Note(absl::StrCat("poll ", shard));
        },
        [](void* self, uint32_t shard) {
          return Of(self).Note(absl::StrCat("request_notification ", shard));
        },
        [](void* self, uint32_t shard, uint64_t epoch) {
          return Of(self).Note(absl::StrCat("release ", shard, " of ", epoch));
        },
        [](void*) { return "the completion queue is overrun"; }};
    g_host = &host_;
  }
  void TearDown() override { g_host = nullptr; }

  static NativeHostTest& Of(void* self) { return *static_cast<NativeHostTest*>(self); }
  int Note(const std::string& call) {
    calls_.push_back(call);
    return call.rfind(failing_, 0) == 0 ? -EIO : 0;
  }

  void ReplyToAttach() {
    std::array<int, 2> wake;
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, wake.data()), 0);
    wake_.Reset(wake[0]);
    const FileDescriptor theirs(wake[1]);
    internal::WorkerReply reply;
    reply.mutable_attached()->set_worker_id(kWorkerId);
    reply.mutable_attached()->set_worker_slot(kSlot);
    reply.mutable_attached()->set_heartbeat_ms(1000);
    if (!next_keeper_.empty()) {
      reply.mutable_attached()->set_session_key("key");
      reply.mutable_attached()->set_worker_socket(next_keeper_);
    }
    ASSERT_EQ(keeper_->Send(reply, {arena_->worker_log_fd(), arena_->driver_log_fd(),
                                    arena_->buffers_fd(), theirs.get()}),
              absl::OkStatus());
  }
  absl::StatusOr<std::unique_ptr<Worker>> Attach() {
    WorkerOptions options;
    options.socket = "/nobody/looks/here";
    options.control_stream = false;
    return Worker::Attach(options, &service_);
  }
  void AttachWorker() {
    ReplyToAttach();
    auto attached = Attach();
    ASSERT_TRUE(attached.ok()) << attached.status();
    worker_ = *std::move(attached);
  }
  void GiveShard() {
    ownership_.emplace(&*arena_, 0);
    ownership_->GiveTo(kSlot, kWorkerId);
  }
  // Attached, and given the shard, which it has not seen yet.
  void AttachOwner() {
    ASSERT_NO_FATAL_FAILURE(AttachWorker());
    GiveShard();
  }
  // Attached, and the owner of the shard.
  void Serve() {
    ASSERT_NO_FATAL_FAILURE(AttachOwner());
    ASSERT_TRUE(worker_->Poll().ok());
  }
  // Its last request has an answer.
  void Detach() {
    ASSERT_EQ(keeper_->Send(internal::WorkerReply()), absl::OkStatus());
    worker_.reset();
  }
  Calls TakeCalls() { return std::exchange(calls_, {}); }
  // Returns the calls of one turn.
  Calls CallsOfPoll() {
    TakeCalls();
    EXPECT_TRUE(worker_->Poll().ok());
    return TakeCalls();
  }

  std::optional<arena::Arena> arena_;
  std::optional<MessageChannel> keeper_;
  FileDescriptor wake_, ready_;
  BatonNativeHost host_ = {};
  Calls calls_;
  std::string failing_ = "nothing";
  std::string next_keeper_;  // its socket; empty: no keeper follows
  std::function<void()> on_attend_, on_poll_;
  RecordingService service_{&calls_};
  std::optional<driver::Ownership> ownership_;
  std::unique_ptr<Worker> worker_;
};

TEST_F(NativeHostTest, shouldRefuseAKeeperOfAnotherVersionAndNameBoth) {
  host_.version = 99;
  const absl::Status status = Attach().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("release 9.8.7"), HasSubstr("version 99"),
                    HasSubstr(absl::StrCat("version ", BATON_NATIVE_VERSION))));
  EXPECT_THAT(calls_, IsEmpty());
}

TEST_F(NativeHostTest, shouldRefuseAKeeperThatHasLessThanItNeeds) {
  host_.bytes -= 8;
  EXPECT_EQ(Attach().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(NativeHostTest, shouldTakeAKeeperThatHasMore) {
  host_.bytes += 8;
  Serve();
  Detach();
}

TEST_F(NativeHostTest, shouldAttachOnce) {
  Serve();
  const absl::Status status = Attach().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("attaches once"));
  Detach();
}

TEST_F(NativeHostTest, shouldAdoptBeforeItReadsTheShardAndDriveAfterEachCommit) {
  Serve();
  EXPECT_THAT(TakeCalls(), ElementsAre("attend", "adopt 0 of 1", "OnAdopt", "apply 0"));
  EXPECT_THAT(CallsOfPoll(), ElementsAre("attend", "poll 0"));
  Detach();
}

TEST_F(NativeHostTest, shouldReleaseOnceAndNotDriveWhatItGaveAway) {
  Serve();
  ownership_->AskRelease(ownership_->epoch());
  EXPECT_THAT(CallsOfPoll(), ElementsAre("attend", "poll 0", "OnRelease", "release 0 of 1"));
  EXPECT_THAT(CallsOfPoll(), ElementsAre("attend"));
  Detach();
  EXPECT_THAT(TakeCalls(), IsEmpty());
}

// Later the bank may be another owner's.
TEST_F(NativeHostTest, shouldSayHowItsHeapIsUsedBeforeItReleases) {
  arena::Shape shape = driver::testing::TestShape();
  shape.heap_pages = 4;
  arena_.emplace(arena::Arena::Create(shape, "kv").value());
  host_.release = [](void* self, uint32_t shard, uint64_t epoch) {
    const arena::BankHeader& bank = Of(self).arena_->bank(shard, epoch);
    return Of(self).Note(absl::StrCat("release: ", arena::LoadRelaxed(bank.heap_kept), " kept"));
  };
  Serve();
  ASSERT_TRUE(service_.shard->heap().Allocate(arena::kPageBytes).ok());
  ownership_->AskRelease(ownership_->epoch());
  EXPECT_THAT(CallsOfPoll(), ElementsAre("attend", "poll 0", "OnRelease", "release: 4096 kept"));
  Detach();
}

TEST_F(NativeHostTest, shouldReleaseWhatWasTakenAway) {
  Serve();
  ownership_->End(false);
  EXPECT_THAT(CallsOfPoll(), ElementsAre("attend", "poll 0", "release 0 of 1"));
  Detach();
}

TEST_F(NativeHostTest, shouldReleaseWhenItEnds) {
  Serve();
  TakeCalls();
  Detach();
  EXPECT_THAT(TakeCalls(), ElementsAre("OnRelease", "release 0 of 1"));
}

// Nobody follows it: it does not die.
TEST_F(NativeHostTest, shouldGiveBackWhatBecameItsOwnWhenItWasToldToStop) {
  ASSERT_NO_FATAL_FAILURE(AttachOwner());
  worker_->Stop();
  ASSERT_EQ(keeper_->Send(internal::WorkerReply()), absl::OkStatus());  // that it is ready
  TakeCalls();
  ASSERT_TRUE(worker_->Run().ok());
  EXPECT_THAT(TakeCalls(), ElementsAre("attend", "adopt 0 of 1", "OnAdopt", "apply 0", "OnRelease",
                                       "release 0 of 1"));
  Detach();
}

TEST_F(NativeHostTest, shouldGiveBackWhatBecameItsOwnWhenItIsDestroyed) {
  ASSERT_NO_FATAL_FAILURE(AttachOwner());
  Detach();
  EXPECT_THAT(TakeCalls(), ElementsAre("attend", "adopt 0 of 1", "OnAdopt", "apply 0", "OnRelease",
                                       "release 0 of 1"));
}

// Its driver has claimed the shard, and takes one after the other.
TEST_F(NativeHostTest, shouldGiveBackWhatItsDriverHasNotComeToWhenItWasToldToStop) {
  ASSERT_NO_FATAL_FAILURE(AttachWorker());
  uint64_t& word = arena_->shard(0).owner.ownership;
  word = arena::PackOwnership(0, arena::kClaim | kSlot);
  int attended = 0;
  on_attend_ = [&] {
    if (++attended != 2) return;
    word = arena::PackOwnership(0, arena::kNobody);
    GiveShard();
  };
  worker_->Stop();
  ASSERT_EQ(keeper_->Send(internal::WorkerReply()), absl::OkStatus());  // that it is ready
  ASSERT_TRUE(worker_->Run().ok());
  EXPECT_THAT(TakeCalls(), ElementsAre("attend", "attend", "adopt 0 of 1", "OnAdopt", "apply 0",
                                       "OnRelease", "release 0 of 1"));
  Detach();
}

TEST_F(NativeHostTest, shouldLookOnceMoreAfterItHasAskedForNotification) {
  Serve();
  TakeCalls();
  EXPECT_TRUE(worker_->ArmEvent());
  EXPECT_THAT(TakeCalls(), ElementsAre("request_notification 0", "attend", "poll 0"));
  EXPECT_EQ(arena_->worker(kSlot).sleeping, 1u);  // the keeper may still have something to tell
  Detach();
}

TEST_F(NativeHostTest, shouldWakeForTheHostsEvent) {
  Serve();
  ASSERT_TRUE(worker_->ArmEvent());
  pollfd entry = {worker_->event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 0);
  eventfd_write(ready_.get(), 1);
  EXPECT_EQ(poll(&entry, 1, 0), 1);
  Detach();
}

TEST_F(NativeHostTest, shouldGoOnAndSleepWithoutItsKeeper) {
  Serve();
  ASSERT_TRUE(worker_->ArmEvent());
  keeper_.reset();
  wake_.Reset();
  pollfd entry = {worker_->event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 1);
  ASSERT_TRUE(worker_->Poll().ok());
  ASSERT_TRUE(worker_->ArmEvent());
  EXPECT_EQ(poll(&entry, 1, 0), 0);
  EXPECT_THAT(CallsOfPoll(), ElementsAre("attend", "poll 0"));
  EXPECT_EQ(worker_->Listen("127.0.0.1", 0).status().code(), absl::StatusCode::kUnavailable);
  const absl::Status connect = worker_->Connect(*service_.shard, "127.0.0.1", 7471, "", 1).status();
  EXPECT_EQ(connect.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(connect.message()), HasSubstr("keeper of service"));
  worker_.reset();
  EXPECT_THAT(TakeCalls(), ElementsAre("OnRelease", "release 0 of 1"));
}

// It has asked the next keeper over another socket, and the application has a descriptor with the
// number of the former one.
TEST_F(NativeHostTest, shouldWatchOnAndSleepWhenTheNextKeeperIsGoneToo) {
  const auto directory = harness::TempDirectory::Create().value();
  next_keeper_ = directory.File("next.sock");
  auto listening = ListenUnix(next_keeper_, 8, 0600);
  ASSERT_TRUE(listening.ok()) << listening.status();
  const FileDescriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const int session = host_.socket;
  Serve();
  keeper_.reset();
  EXPECT_FALSE(worker_->ArmEvent());
  ASSERT_TRUE(worker_->Poll().ok());
  ASSERT_EQ(fcntl(session, F_GETFD), -1);
  const FileDescriptor same_number(dup2(event.get(), session));
  int calls = 0;
  ASSERT_TRUE(worker_
                  ->Watch(same_number.get(),
                          [&] {
                            ++calls;
                            eventfd_t value = 0;
                            eventfd_read(event.get(), &value);
                          })
                  .ok());
  wake_.Reset();
  EXPECT_FALSE(worker_->ArmEvent());
  ASSERT_TRUE(worker_->Poll().ok());
  eventfd_write(event.get(), 1);
  EXPECT_FALSE(worker_->ArmEvent());
  ASSERT_TRUE(worker_->Poll().ok());
  EXPECT_EQ(calls, 1);
  listening->Reset();
  EXPECT_TRUE(worker_->ArmEvent());
  worker_->Unwatch(same_number.get());
  worker_.reset();
}

// The keeper answers nothing before the queue was driven, and driven again for the host's event.
TEST_F(NativeHostTest, shouldDriveItsQueuesUntilItsKeeperAnswers) {
  Serve();
  const std::vector<std::pair<const char*, std::function<absl::Status()>>> all = {
      {"Ready", [&] { return worker_->Ready(); }},
      {"Listen", [&] { return worker_->Listen("127.0.0.1", 0).status(); }},
      {"Connect", [&] { return worker_->Connect(*service_.shard, "::1", 1, "", 1).status(); }},
      {"Grant", [&] { return worker_->GrantRemoteAccess(0, 64, verbs::kRemoteRead).status(); }},
      {"Revoke", [&] { return worker_->RevokeGrant(0); }}};
  for (const auto& [name, ask] : all) {
    SCOPED_TRACE(name);
    internal::WorkerReply refusal;
    refusal.set_status_code(static_cast<int>(absl::StatusCode::kDataLoss));
    int polls = 0;
    on_poll_ = [&] {
      if (++polls == 2) eventfd_write(ready_.get(), 1);
      if (polls == 3) {
        EXPECT_TRUE(keeper_->Send(refusal).ok());
      }
    };
    TakeCalls();
    const uint64_t heartbeat = arena_->worker(kSlot).heartbeat;
    EXPECT_EQ(ask().code(), absl::StatusCode::kDataLoss);
    EXPECT_GE(polls, 3);
    EXPECT_GT(arena_->worker(kSlot).heartbeat, heartbeat);  // it does not hang
    const Calls calls = TakeCalls();
    EXPECT_EQ(Calls(calls.begin(), calls.begin() + 6),
              (Calls{"attend", "poll 0", "request_notification 0", "attend", "poll 0", "attend"}));
    eventfd_t value;
    eventfd_read(ready_.get(), &value);
  }
  on_poll_ = nullptr;
  Detach();
}

// Its lock is given back: what it would claim now nobody could follow it in.
TEST_F(NativeHostTest, shouldNotDriveWhileItSaysFarewell) {
  Serve();
  TakeCalls();
  std::thread keeper([&] {
    internal::WorkerRequest request;
    EXPECT_EQ(keeper_->Receive(&request, -1), absl::OkStatus());
    EXPECT_EQ(keeper_->Send(internal::WorkerReply()), absl::OkStatus());
  });
  worker_.reset();
  keeper.join();
  EXPECT_THAT(TakeCalls(), ElementsAre("OnRelease", "release 0 of 1"));
}

TEST_F(NativeHostTest, shouldAwaitTheKeeperOfADriverThatHasFailed) {
  Serve();
  failing_ = "poll";
  EXPECT_FALSE(worker_->Poll().ok());
  eventfd_write(ready_.get(), 1);  // which nobody takes any more
  TakeCalls();
  ASSERT_EQ(keeper_->Send(internal::WorkerReply()), absl::OkStatus());
  EXPECT_EQ(worker_->Ready(), absl::OkStatus());
  EXPECT_THAT(TakeCalls(), IsEmpty());
  worker_.reset();
}

TEST_F(NativeHostTest, shouldEndWithTheErrorOfItsDriver) {
  Serve();
  failing_ = "poll";
  TakeCalls();
  const absl::Status status = worker_->Poll().status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("(poll)"), HasSubstr("the completion queue is overrun"),
                    HasSubstr("errno 5")));
  EXPECT_FALSE(worker_->ArmEvent());
  EXPECT_EQ(worker_->Poll().status(), status);
  worker_.reset();
  EXPECT_THAT(TakeCalls(), ElementsAre("attend", "poll 0"));
}

TEST_F(NativeHostTest, shouldNotServeAShardThatItsDriverCannotAdopt) {
  failing_ = "adopt";
  ASSERT_NO_FATAL_FAILURE(AttachOwner());
  EXPECT_FALSE(worker_->Poll().ok());
  EXPECT_THAT(TakeCalls(), ElementsAre("attend", "adopt 0 of 1"));
  worker_.reset();
}

// What it owned is moved when it is dead, and not a moment before: by its lock that is known.
TEST_F(NativeHostTest, shouldHoldItsLockUntilItsThreadEndsWhenTheDriverHasFailed) {
  const uint32_t* const lock =
      reinterpret_cast<const uint32_t*>(&arena_->worker(kSlot).thread_locks[0]);
  uint32_t held = 0, holder = 0;
  std::thread thread([&] {
    Serve();
    failing_ = "poll";
    holder = arena::LoadRelaxed(*lock) & FUTEX_TID_MASK;
    EXPECT_FALSE(worker_->Poll().ok());
    worker_.reset();
    held = arena::LoadRelaxed(*lock) & FUTEX_TID_MASK;
  });
  thread.join();
  EXPECT_NE(holder, 0u);
  EXPECT_EQ(held, holder);
  EXPECT_NE(arena::LoadAcquire(*lock) & FUTEX_OWNER_DIED, 0u);
}

// A program that goes to the background, or starts another without exec, ends with its objects.
TEST_F(NativeHostTest, shouldHaveNoPartInAProcessThatItsOwnHasForked) {
  Serve();
  internal::WorkerRequest attach;
  ASSERT_EQ(keeper_->Receive(&attach, 0), absl::OkStatus());
  calls_.clear();
  const pid_t child = fork();
  if (child == 0) {
    const absl::Status asked = worker_->Ready();
    worker_.reset();
    _exit(absl::IsFailedPrecondition(asked) && calls_.empty() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  pollfd said = {keeper_->fd(), POLLIN, 0};
  EXPECT_EQ(poll(&said, 1, 0), 0);
  Detach();
}

}  // namespace
}  // namespace baton

// A worker in a loop of the application's: each way to wait for its descriptor, and descriptors of
// the application in the worker's wait.
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "tests/harness/stopped_clock.h"
#include "tests/worker/worker_fixture.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using testing::kDeadlineMs;
using testing::RawPeer;
using testing::ScriptedService;
using testing::WorkerFixture;
using Kind = Completion::Kind;

// Longer than any test: nothing but what the test does ends a wait.
constexpr uint32_t kNoHeartbeatMs = 60'000;

// An io_uring with one entry, by system calls.
class IoUring {
 public:
  IoUring() {
    io_uring_params params = {};
    ring_.Reset(static_cast<int>(syscall(SYS_io_uring_setup, 1, &params)));
    if (!ring_) {
      why_ = std::strerror(errno);
      return;
    }
    const auto* sq = Map(params.sq_off.array + params.sq_entries * 4, IORING_OFF_SQ_RING);
    const auto* cq =
        Map(params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING);
    auto* entries = Map(params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
    if (!ring_) return;
    sq_tail_ = At(sq, params.sq_off.tail);
    sq_array_ = At(sq, params.sq_off.array);
    cq_head_ = At(cq, params.cq_off.head);
    cq_tail_ = At(cq, params.cq_off.tail);
    entry_ = reinterpret_cast<io_uring_sqe*>(entries);
  }

  // Why the kernel gives no io_uring; empty if it does.
  const std::string& why() const { return why_; }

  // Returns whether `fd` was readable before the deadline.
  bool Await(int fd) {
    std::memset(entry_, 0, sizeof(*entry_));
    entry_->opcode = IORING_OP_POLL_ADD;
    entry_->fd = fd;
    entry_->poll32_events = POLLIN;
    *sq_array_ = 0;
    std::atomic_ref<uint32_t>(*sq_tail_).fetch_add(1, std::memory_order_release);
    if (syscall(SYS_io_uring_enter, ring_.get(), 1, 0, 0, nullptr, 0) != 1) return false;
    pollfd completed = {ring_.get(), POLLIN, 0};
    if (poll(&completed, 1, kDeadlineMs) != 1) return false;
    std::atomic_ref<uint32_t> head(*cq_head_);
    head.store(std::atomic_ref<uint32_t>(*cq_tail_).load(std::memory_order_acquire));
    return true;
  }

 private:
  uint8_t* Map(size_t length, uint64_t offset) {
    void* const mapped = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                              ring_.get(), static_cast<off_t>(offset));
    if (mapped == MAP_FAILED) {
      why_ = std::strerror(errno);
      ring_.Reset();
    }
    return static_cast<uint8_t*>(mapped);
  }
  static uint32_t* At(const uint8_t* ring, uint32_t offset) {
    return reinterpret_cast<uint32_t*>(const_cast<uint8_t*>(ring) + offset);
  }

  FileDescriptor ring_;
  std::string why_;
  uint32_t *sq_tail_ = nullptr, *sq_array_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
  io_uring_sqe* entry_ = nullptr;
};

// Waits with an epoll set. `events`: EPOLLIN, and EPOLLET for edges.
class Epoll {
 public:
  Epoll(int fd, uint32_t events) : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    epoll_event event = {events, {}};
    EXPECT_EQ(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), 0);
  }
  bool Await() {
    epoll_event event;
    return epoll_wait(epoll_.get(), &event, 1, kDeadlineMs) == 1;
  }

 private:
  const FileDescriptor epoll_;
};

class EventLoopTest : public WorkerFixture {
 protected:
  // Waits until the worker's descriptor is readable. Returns false at the deadline.
  using Sleep = std::function<bool()>;

  void Prepare(uint32_t heartbeat_ms = kNoHeartbeatMs) {
    Start([&](v1::ServiceConfig* config) { config->set_heartbeat_ms(heartbeat_ms); });
    EchoWith(service);
    worker = Add(&service);
    ASSERT_TRUE(Until([&] { return service.shards.size() == 1; }));
  }
  void Establish() {
    WorkerFixture::Establish(peer, *worker);
    ASSERT_TRUE(Until([&] { return service.Count(Kind::kEstablished) == 1; }));
  }
  // Nothing to do any more, and armed.
  void Arm() {
    ASSERT_TRUE(Until([&] {
      EXPECT_TRUE(worker->Poll().ok());
      return worker->ArmEvent();
    }));
  }

  void ExpectWakesForMessages(const Sleep& sleep) {
    for (size_t i = 1; i <= 20; ++i) {
      SCOPED_TRACE(i);
      peer.Receive();
      ASSERT_NO_FATAL_FAILURE(Arm());
      const size_t before = service.completions.size();
      peer.Send("wake up");
      ASSERT_TRUE(sleep());
      ASSERT_TRUE(Until([&] { return service.completions.size() > before; }));
      ASSERT_TRUE(Until([&] { return peer.received.size() == i; }));
    }
  }
  void ExpectWakesForDescriptors(const Sleep& sleep) {
    const FileDescriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    uint64_t taken = 0;
    ASSERT_EQ(worker->Watch(event.get(),
                            [&] {
                              eventfd_t value = 0;
                              if (eventfd_read(event.get(), &value) == 0) taken += value;
                            }),
              absl::OkStatus());
    for (uint64_t i = 1; i <= 5; ++i) {
      ASSERT_NO_FATAL_FAILURE(Arm());
      eventfd_write(event.get(), 1);
      ASSERT_TRUE(sleep());
      ASSERT_TRUE(worker->Poll().ok());
      EXPECT_EQ(taken, i);
    }
    worker->Unwatch(event.get());
  }
  void ExpectWakesForHandoff(const Sleep& sleep) {
    ScriptedService& other_service = NewService();
    Worker* const other = Add(&other_service);
    ASSERT_NO_FATAL_FAILURE(Arm());
    auto moved = std::async(std::launch::async, [&] { return keeper.Handoff(other->id()); });
    EXPECT_TRUE(sleep());
    EXPECT_TRUE(Until(
        [&] { return moved.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
    EXPECT_EQ(other_service.shards.size(), 1u);
  }
  void ExpectWakesFor(const Sleep& sleep) {
    ASSERT_NO_FATAL_FAILURE(ExpectWakesForMessages(sleep));
    ASSERT_NO_FATAL_FAILURE(ExpectWakesForDescriptors(sleep));
    ASSERT_NO_FATAL_FAILURE(Arm());
    std::thread([&] { worker->Wake(); }).join();
    ASSERT_TRUE(sleep());
    ASSERT_NO_FATAL_FAILURE(ExpectWakesForHandoff(sleep));
    ASSERT_NO_FATAL_FAILURE(Arm());  // it owns nothing now
    std::thread([&] { worker->Stop(); }).join();
    EXPECT_TRUE(sleep());
    EXPECT_FALSE(worker->ArmEvent());
  }

  ScriptedService& service = NewService();
  Worker* worker = nullptr;
  RawPeer peer;
};

TEST_F(EventLoopTest, shouldWakePoll) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  ASSERT_NO_FATAL_FAILURE(Establish());
  ExpectWakesFor([&] {
    pollfd entry = {worker->event_fd(), POLLIN, 0};
    return poll(&entry, 1, kDeadlineMs) == 1;
  });
}

TEST_F(EventLoopTest, shouldWakeEpoll) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  ASSERT_NO_FATAL_FAILURE(Establish());
  Epoll epoll(worker->event_fd(), EPOLLIN);
  ExpectWakesFor([&] { return epoll.Await(); });
}

TEST_F(EventLoopTest, shouldWakeEdgeTriggeredEpoll) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  ASSERT_NO_FATAL_FAILURE(Establish());
  Epoll epoll(worker->event_fd(), EPOLLIN | EPOLLET);
  ExpectWakesFor([&] { return epoll.Await(); });
}

TEST_F(EventLoopTest, shouldWakeIoUring) {
  IoUring ring;
  if (!ring.why().empty()) GTEST_SKIP() << "the kernel gives no io_uring: " << ring.why();
  ASSERT_NO_FATAL_FAILURE(Prepare());
  ASSERT_NO_FATAL_FAILURE(Establish());
  ExpectWakesFor([&] { return ring.Await(worker->event_fd()); });
}

TEST_F(EventLoopTest, shouldWakeAsio) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  ASSERT_NO_FATAL_FAILURE(Establish());
  boost::asio::io_context context;
  boost::asio::posix::stream_descriptor event(context, CopyOf(worker->event_fd()).Release());
  bool readable = false;
  ExpectWakesFor([&] {
    readable = false;
    event.async_wait(event.wait_read,
                     [&](const boost::system::error_code& error) { readable = !error; });
    context.restart();
    context.run_for(std::chrono::milliseconds(kDeadlineMs));
    return readable;
  });
}

// Bytes that are left in the descriptor give no second edge.
TEST_F(EventLoopTest, shouldNotArmWhileItsDescriptorIsReadable) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  ASSERT_NO_FATAL_FAILURE(Arm());
  worker->Wake();
  EXPECT_FALSE(worker->ArmEvent());
  ASSERT_TRUE(worker->Poll().ok());
  ASSERT_NO_FATAL_FAILURE(Arm());
}

TEST_F(EventLoopTest, shouldWakeInTimeForASignOfLife) {
  ASSERT_NO_FATAL_FAILURE(Prepare(/*heartbeat_ms=*/20));
  Epoll epoll(worker->event_fd(), EPOLLIN | EPOLLET);
  for (int i = 0; i < 5; ++i) {
    ASSERT_NO_FATAL_FAILURE(Arm());
    ASSERT_TRUE(epoll.Await());
  }
}

TEST_F(EventLoopTest, shouldEndAWaitForASignOfLife) {
  ASSERT_NO_FATAL_FAILURE(Prepare(/*heartbeat_ms=*/20));
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(worker->Wait(-1), absl::OkStatus());
    ASSERT_TRUE(worker->Poll().ok());
  }
}

// ---- Descriptors of the application.

TEST_F(EventLoopTest, shouldRunWithATimerAndASignal) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  sigset_t signals, former;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &signals, &former), 0);
  const FileDescriptor signal(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  const FileDescriptor timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  constexpr itimerspec kSoon = {{0, 0}, {0, 1'000'000}};
  ASSERT_EQ(timerfd_settime(timer.get(), 0, &kSoon, nullptr), 0);
  std::vector<std::string> calls;
  ASSERT_TRUE(worker
                  ->Watch(timer.get(),
                          [&] {
                            uint64_t expirations = 0;
                            EXPECT_EQ(read(timer.get(), &expirations, sizeof(expirations)), 8);
                            calls.emplace_back("timer");
                            pthread_kill(pthread_self(), SIGUSR1);
                          })
                  .ok());
  ASSERT_TRUE(worker
                  ->Watch(signal.get(),
                          [&] {
                            signalfd_siginfo info = {};
                            EXPECT_EQ(read(signal.get(), &info, sizeof(info)), 128);
                            calls.emplace_back("signal");
                            worker->Stop();
                          })
                  .ok());
  EXPECT_EQ(worker->Run(), absl::OkStatus());
  EXPECT_THAT(calls, ::testing::ElementsAre("timer", "signal"));
  worker->Unwatch(timer.get());
  worker->Unwatch(signal.get());
  pthread_sigmask(SIG_SETMASK, &former, nullptr);
}

TEST_F(EventLoopTest, shouldCommitWhatACallbackStages) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  ASSERT_NO_FATAL_FAILURE(Establish());
  peer.Receive();
  const FileDescriptor event(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  Connection& connection = *service.Find(Kind::kEstablished)->connection;
  ASSERT_TRUE(worker
                  ->Watch(event.get(),
                          [&] {
                            worker->Unwatch(event.get());  // its own watch
                            EXPECT_EQ(SendText(connection.shard(), connection, "from outside"),
                                      absl::OkStatus());
                          })
                  .ok());
  ASSERT_TRUE(Until([&] {
    EXPECT_EQ(worker->Wait(0), absl::OkStatus());
    return peer.received.size() == 1;
  }));
  EXPECT_EQ(peer.received[0], "from outside");
}

// Two callbacks of one Poll, each of which counts in the connection's state, and tells its peer.
class TwoCallbacksTest : public EventLoopTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Prepare());
    ASSERT_NO_FATAL_FAILURE(Establish());
    for (int i = 0; i < 2; ++i) peer.Receive();
    connection = service.Find(Kind::kEstablished)->connection;
  }
  void TearDown() override {
    for (const FileDescriptor& event : events) worker->Unwatch(event.get());
    EventLoopTest::TearDown();
  }

  void Watch(int index, std::function<void()> more) {
    const int fd = events[index].get();
    ASSERT_TRUE(worker
                    ->Watch(fd,
                            [fd, more = std::move(more)] {
                              eventfd_t value = 0;
                              EXPECT_EQ(eventfd_read(fd, &value), 0);
                              more();
                            })
                    .ok());
  }
  void Count() {
    Shard& shard = connection->shard();
    uint8_t total = connection->state().empty() ? 0 : connection->state()[0];
    ++total;
    EXPECT_EQ(shard.SetState(*connection, {&total, 1}, 1), absl::OkStatus());
    EXPECT_EQ(SendText(shard, *connection, std::to_string(total)), absl::OkStatus());
  }
  void CallBoth() {
    ASSERT_NO_FATAL_FAILURE(Arm());
    for (const FileDescriptor& event : events) eventfd_write(event.get(), 1);
    EXPECT_FALSE(worker->ArmEvent());  // both are seen by one Poll
    ASSERT_TRUE(worker->Poll().ok());
  }

  const FileDescriptor events[2] = {FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
                                    FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))};
  Connection* connection = nullptr;
};

TEST_F(TwoCallbacksTest, shouldHaveATransactionEach) {
  for (int i = 0; i < 2; ++i) Watch(i, [this] { Count(); });
  ASSERT_NO_FATAL_FAILURE(CallBoth());
  ASSERT_TRUE(Until([&] { return peer.received.size() == 2; }));
  EXPECT_THAT(peer.received, ::testing::ElementsAre("1", "2"));
}

TEST_F(TwoCallbacksTest, shouldNotAbandonWhatTheOtherHasStaged) {
  Watch(0, [this] { Count(); });
  Watch(1, [&] { connection->shard().Abandon(); });
  ASSERT_NO_FATAL_FAILURE(CallBoth());
  ASSERT_TRUE(Until([&] { return peer.received.size() == 1; }));
  EXPECT_EQ(connection->state().size(), 1u);
}

TEST_F(EventLoopTest, shouldCommitWhatItsLoopStagesBeforeItSleeps) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  ASSERT_NO_FATAL_FAILURE(Establish());
  peer.Receive();
  ASSERT_NO_FATAL_FAILURE(Arm());
  Connection& connection = *service.Find(Kind::kEstablished)->connection;
  ASSERT_EQ(SendText(connection.shard(), connection, "from the loop"), absl::OkStatus());
  (void)worker->ArmEvent();  // a quick device has completed it by then
  ASSERT_TRUE(UntilWithoutWorkers([&] { return peer.received.size() == 1; }));
}

TEST_F(EventLoopTest, shouldCommitWhatAHandlerStagesInAnotherShard) {
  Start([](v1::ServiceConfig* config) { config->set_shards(2); });
  RawPeer other;
  Connection* far = nullptr;
  service.on_completion = [&](Shard& shard, const Completion& completion) {
    AcceptWith(shard, completion, 8);
    if (completion.kind == Kind::kEstablished && far == nullptr) far = completion.connection;
    if (completion.kind != Kind::kReceive) return;
    ASSERT_NE(&far->shard(), &shard);
    EXPECT_EQ(SendText(far->shard(), *far, "to another shard"), absl::OkStatus());
  };
  worker = Add(&service);
  ASSERT_TRUE(Until([&] { return service.shards.size() == 2; }));
  ASSERT_NO_FATAL_FAILURE(WorkerFixture::Establish(other, *worker));
  ASSERT_TRUE(Until([&] { return far != nullptr; }));
  ASSERT_NO_FATAL_FAILURE(WorkerFixture::Establish(peer, *worker));
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kEstablished) == 2; }));
  other.Receive();
  ASSERT_NO_FATAL_FAILURE(Arm());  // nothing is left to be acknowledged
  peer.Send("tell the other");
  ASSERT_TRUE(Until([&] { return other.received.size() == 1; }));
}

TEST_F(EventLoopTest, shouldLookAtDescriptorsThoughItNeverSleeps) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const FileDescriptor event(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  int calls = 0;
  ASSERT_TRUE(worker->Watch(event.get(), [&] { ++calls; }).ok());
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(worker->Poll().ok());
  EXPECT_EQ(calls, 1);
  worker->Unwatch(event.get());
}

// While the clock stands still, a wait that yields does so for ever: it never comes to its sleep.
TEST_F(EventLoopTest, shouldSeeADescriptorBeforeItSleeps) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const FileDescriptor event(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  int calls = 0;
  ASSERT_TRUE(worker->Watch(event.get(), [&] { ++calls; }).ok());
  {
    const harness::StoppedClock stopped;
    ASSERT_EQ(worker->Wait(-1), absl::OkStatus());
  }
  ASSERT_TRUE(worker->Poll().ok());
  EXPECT_EQ(calls, 1);
  worker->Unwatch(event.get());
}

TEST_F(EventLoopTest, shouldHearBesideADescriptorThatIsAlwaysReadableThatTheKeeperIsGone) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const FileDescriptor event(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  ASSERT_EQ(worker->Watch(event.get(), [] {}), absl::OkStatus());
  keeper.Stop();
  EXPECT_TRUE(Until([&] {
    EXPECT_FALSE(worker->ArmEvent());
    return !poll_status.ok();
  }));
  EXPECT_EQ(poll_status.code(), absl::StatusCode::kUnavailable) << poll_status;
  worker->Unwatch(event.get());
}

TEST_F(EventLoopTest, shouldCallACallbackThatHasThrownOnlyWhenItsDescriptorIsReadable) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const FileDescriptor event(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  int calls = 0;
  ASSERT_TRUE(worker
                  ->Watch(event.get(),
                          [&] {
                            eventfd_t value = 0;
                            EXPECT_EQ(eventfd_read(event.get(), &value), 0);
                            ++calls;
                            throw std::runtime_error("unlucky");
                          })
                  .ok());
  EXPECT_FALSE(worker->ArmEvent());
  EXPECT_THROW((void)worker->Poll(), std::runtime_error);
  EXPECT_TRUE(worker->Poll().ok());
  EXPECT_EQ(calls, 1);
  worker->Unwatch(event.get());
}

TEST_F(EventLoopTest, shouldSayWhyADescriptorCannotBeWatched) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const auto ignore = [] {};
  const FileDescriptor file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const absl::Status regular = worker->Watch(file.get(), ignore);
  EXPECT_EQ(regular.code(), absl::StatusCode::kPermissionDenied) << regular;
  EXPECT_THAT(std::string(regular.message()), HasSubstr("io_uring"));
  EXPECT_THAT(std::string(worker->Watch(-1, ignore).message()),
              HasSubstr("is the descriptor open"));
  const FileDescriptor event(eventfd(0, EFD_CLOEXEC));
  EXPECT_EQ(worker->Watch(event.get(), nullptr).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(worker->Watch(event.get(), ignore), absl::OkStatus());
  EXPECT_EQ(worker->Watch(event.get(), ignore).code(), absl::StatusCode::kAlreadyExists);
  worker->Unwatch(event.get());
  worker->Unwatch(event.get());
  EXPECT_EQ(worker->Watch(event.get(), ignore), absl::OkStatus());
}

TEST_F(EventLoopTest, shouldWatchABoundedNumber) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const FileDescriptor event(eventfd(0, EFD_CLOEXEC));
  std::vector<FileDescriptor> copies;
  absl::Status status;
  for (int i = 0; i < 257 && status.ok(); ++i) {
    copies.push_back(CopyOf(event.get()));
    ASSERT_TRUE(copies.back());
    status = worker->Watch(copies.back().get(), [] {});
  }
  EXPECT_EQ(copies.size(), 257u);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (const FileDescriptor& copy : copies) worker->Unwatch(copy.get());
}

}  // namespace
}  // namespace baton

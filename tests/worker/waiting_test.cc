// Attaching, waiting for work, and the keeper's end.
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "tests/worker/worker_fixture.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kDeadlineMs;
using testing::RawPeer;
using testing::ScriptedService;
using testing::WorkerFixture;
using Kind = Completion::Kind;

class WaitingTest : public WorkerFixture {
 protected:
  void Prepare() {
    Start();
    EchoWith(service);
    worker = Add(&service);
    ASSERT_TRUE(Until([&] { return service.shards.size() == 1; }));
  }
  // And a connection with `peer`, of which the service has heard.
  void PrepareWithPeer() {
    ASSERT_NO_FATAL_FAILURE(Prepare());
    Establish(peer, *worker);
    ASSERT_TRUE(Until([&] { return service.Count(Kind::kEstablished) == 1; }));
  }
  bool Readable(int timeout_ms) {
    pollfd entry = {worker->event_fd(), POLLIN, 0};
    return ::poll(&entry, 1, timeout_ms) == 1;
  }
  // Nothing to do any more, and armed.
  void Arm() {
    ASSERT_TRUE(Until([&] {
      EXPECT_TRUE(worker->Poll().ok());
      return worker->ArmEvent();
    }));
  }

  ScriptedService& service = NewService();
  Worker* worker = nullptr;
  RawPeer peer;
};

TEST_F(WaitingTest, shouldSayWhatIsMissingWhenNobodyListens) {
  const auto attached = Worker::Attach(Options(CommitMode::kManual), &service);
  EXPECT_EQ(attached.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(attached.status().message()), HasSubstr("is batond running"));
}

TEST_F(WaitingTest, shouldSayThatTheSocketIsOfAnotherService) {
  Start();
  WorkerOptions options = Options(CommitMode::kManual);
  options.service = "mail";
  const auto attached = Worker::Attach(options, &service);
  EXPECT_EQ(attached.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(attached.status().message()), HasSubstr("serves mail"));
}

TEST_F(WaitingTest, shouldTellTheCapacityOfItsService) {
  Start([](v1::ServiceConfig* config) { config->set_receive_queue_depth(16); });
  const auto attached = Worker::Attach(Options(CommitMode::kManual), &service);
  ASSERT_TRUE(attached.ok()) << attached.status();
  const Capacity& capacity = (*attached)->capacity();
  EXPECT_EQ(capacity.connections, 8u);
  EXPECT_EQ(capacity.send_queue_depth, 8u);
  EXPECT_EQ(capacity.receive_queue_depth, 16u);
  EXPECT_EQ(capacity.connection_state_bytes, 64u);
  EXPECT_EQ(capacity.shard_state_bytes, 128u);
  (*attached)->ReportHealth(false, "without a stream nobody hears it");
}

TEST_F(WaitingTest, shouldBeGivenNothingBeforeItIsReady) {
  Start();
  auto attached = Worker::Attach(Options(CommitMode::kManual), &service);
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ((*attached)->Poll().value(), 0);
  EXPECT_EQ(keeper.Describe().shards(0).owner_worker_id(), 0u);
  EXPECT_EQ((*attached)->buffers().size(), size_t{1} << 18);
  ASSERT_EQ((*attached)->Ready(), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return (*attached)->Poll().value() > 0; }));
  EXPECT_THAT(service.calls, ElementsAre("adopt"));
}

TEST_F(WaitingTest, shouldWakeAnEventLoopForACompletion) {
  Prepare();
  Establish(peer, *worker);
  for (int i = 0; i < 50; ++i) {
    peer.Receive();
    Arm();
    const size_t before = service.completions.size();
    peer.Send("wake up");
    ASSERT_TRUE(Readable(kDeadlineMs)) << i;
    ASSERT_TRUE(Until([&] { return service.completions.size() > before; }));
    ASSERT_TRUE(Until([&] { return peer.received.size() == static_cast<size_t>(i) + 1; }));
  }
}

TEST_F(WaitingTest, shouldWakeAnEventLoopForAShard) {
  Start();
  worker = Add(&service);
  Arm();
  ScriptedService& other_service = NewService();
  Worker* other = Add(&other_service);
  auto moved = std::async(std::launch::async, [&] { return keeper.Handoff(other->id()); });
  ASSERT_TRUE(Readable(kDeadlineMs));
  ASSERT_TRUE(Until([&] { return other_service.shards.size() == 1; }));
  ASSERT_TRUE(
      Until([&] { return moved.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
}

TEST_F(WaitingTest, shouldWakeAnEventLoopForTheKeepersAnswer) {
  Start([](v1::ServiceConfig* config) { config->set_heartbeat_ms(kDeadlineMs); });
  worker = Add(&service);
  const FileDescriptor file(memfd_create("held", MFD_CLOEXEC));
  ASSERT_TRUE(worker->HeldDescriptors().ok());  // from now on the keeper takes descriptors
  absl::StatusOr<uint64_t> number = 0;
  ASSERT_EQ(worker->BeginHoldDescriptor(
                file.get(), 0, [&](absl::StatusOr<uint64_t> held) { number = std::move(held); }),
            absl::OkStatus());
  while (number.ok() && *number == 0) {
    ASSERT_TRUE(Readable(kDeadlineMs / 2));
    ASSERT_TRUE(worker->Poll().ok());
    (void)worker->ArmEvent();
  }
  EXPECT_THAT(worker->HeldDescriptors().value(), ElementsAre(number.value()));
}

TEST_F(WaitingTest, shouldNotArmWhenThereIsWorkAlready) {
  ASSERT_NO_FATAL_FAILURE(PrepareWithPeer());
  Arm();
  ASSERT_TRUE(worker->Poll().ok());
  const uint64_t before = CompletionsInLog();
  peer.Send("already there");
  ASSERT_TRUE(UntilWithoutWorkers([&] { return CompletionsInLog() > before; }));
  EXPECT_FALSE(worker->ArmEvent());
}

TEST_F(WaitingTest, shouldRunUntilItIsStopped) {
  Start();
  EchoWith(service);
  auto attached = Worker::Attach(Options(CommitMode::kAfterEachBatch), &service);
  ASSERT_TRUE(attached.ok());
  const uint16_t port = (*attached)->Listen(fabric.host, 0).value();
  workers.push_back(*std::move(attached));
  worker = workers[0].get();
  absl::Status ran = absl::UnknownError("not yet");
  // The peer lives in a thread of its own: a worker belongs to the thread that attached it.
  std::thread outside([&] {
    RawPeer pinger;
    pinger.Connect(port);
    const auto until = [&](const std::function<bool()>& done) {
      return driver::testing::Pump([&] { pinger.Turn(); }, done);
    };
    EXPECT_TRUE(until([&] { return pinger.established; }));
    for (size_t i = 1; i <= 100 && !HasFailure(); ++i) {
      pinger.Receive();
      pinger.Send("ping");
      EXPECT_TRUE(until([&] { return pinger.received.size() == i; }));
    }
    worker->Stop();
  });
  ran = worker->Run();
  outside.join();
  EXPECT_EQ(ran, absl::OkStatus());
  EXPECT_THAT(service.calls, ElementsAre("adopt", "release"));
}

TEST_F(WaitingTest, shouldReturnFromAWaitWhenItIsStopped) {
  Prepare();
  std::atomic<bool> stopping{false};
  std::thread stopper([&] {
    stopping.store(true);
    worker->Stop();
  });
  while (!stopping.load()) {
    ASSERT_EQ(worker->Wait(kDeadlineMs), absl::OkStatus());
  }
  stopper.join();
  EXPECT_EQ(worker->Wait(-1), absl::OkStatus());  // at once, from now on
}

TEST_F(WaitingTest, shouldYieldNoLongerThanTheServiceAllows) {
  Start([](v1::ServiceConfig* config) { config->set_yield_microseconds(1); });
  WorkerOptions options = Options(CommitMode::kManual);
  options.yield_microseconds = 10'000'000;
  auto attached = Worker::Attach(options, &service);
  ASSERT_TRUE(attached.ok()) << attached.status();
  rusage before = {};
  rusage after = {};
  ASSERT_EQ(getrusage(RUSAGE_THREAD, &before), 0);
  ASSERT_EQ((*attached)->Wait(300), absl::OkStatus());
  ASSERT_EQ(getrusage(RUSAGE_THREAD, &after), 0);
  // A thread that yields stays runnable: it does not sleep until its time is over.
  EXPECT_GT(after.ru_nvcsw, before.ru_nvcsw);
}

TEST_F(WaitingTest, shouldReturnFromAWaitAtItsTimeout) {
  Prepare();
  EXPECT_EQ(worker->Wait(0), absl::OkStatus());
  EXPECT_EQ(worker->Wait(1), absl::OkStatus());
}

TEST_F(WaitingTest, shouldHearThatTheKeeperIsGone) {
  Prepare();
  Establish(peer, *worker);
  Arm();
  keeper.Stop();
  // What it had said before comes first.
  absl::StatusOr<int> polled = 0;
  while (polled.ok()) {
    ASSERT_TRUE(Readable(kDeadlineMs));
    polled = worker->Poll();
  }
  EXPECT_EQ(polled.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(polled.status().message()), HasSubstr("service kv is gone"));
  EXPECT_EQ(worker->Listen(fabric.host, 0).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Until([&] { return peer.disconnected; }));
}

// The device is lost while the worker is elsewhere: it hears of its connections' ends first.
TEST_F(WaitingTest, shouldHearHowConnectionsEndedThoughTheKeeperIsGone) {
  ASSERT_NO_FATAL_FAILURE(PrepareWithPeer());
  Arm();
  keeper.engine().Run([&] { keeper.engine().driver().EndAll("it was pulled out"); });
  ASSERT_TRUE(UntilWithoutWorkers([&] {
    bool ended = false;
    keeper.engine().Run([&] { ended = keeper.engine().driver().AllEnded(); });
    return ended;
  }));
  keeper.Stop();
  absl::StatusOr<int> polled = worker->Poll();
  while (polled.ok()) polled = worker->Poll();
  EXPECT_EQ(polled.status().code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(service.Count(Kind::kDisconnected), 1);
  EXPECT_EQ(service.completions.back().kind, Kind::kDisconnected);
  EXPECT_EQ(service.completions.back().status, verbs::CompletionStatus::kFatalError);
}

TEST_F(WaitingTest, shouldEndItsRunWhenTheKeeperIsGone) {
  Prepare();
  std::thread stopper([&] { keeper.Stop(); });
  EXPECT_EQ(worker->Run().code(), absl::StatusCode::kUnavailable);
  stopper.join();
}

TEST_F(WaitingTest, shouldAttachToTheNextKeeper) {
  Prepare();
  keeper.Stop();
  ASSERT_TRUE(Until([&] { return !worker->Poll().ok() || !worker->ArmEvent(); }));
  workers.clear();
  service.shards.clear();
  Prepare();
  Establish(peer, *worker);
}

}  // namespace
}  // namespace baton

// What a process can do with the device of the one that it was forked from, and what it cannot:
// with the rdma device where there is one, in the virtual machine, and else with a soft device
// whose NIC is a process.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/verbs/connected_test.h"
#include "tests/native/message.h"
#include "tests/native/native_environment.h"

namespace baton::native {
namespace {

using verbs::Completion;
using verbs::CompletionStatus;
using verbs::Opcode;
using verbs::QueuePairState;
using verbs::testing::Buffer;
using verbs::testing::kAllAccess;
using verbs::testing::PostReceive;
using verbs::testing::PostSend;
using verbs::testing::Request;
using verbs::testing::Side;

// For what a forked process does: a function that returns what is wrong.
#define NEED(condition)                                                   \
  do {                                                                    \
    if (!(condition)) return absl::StrCat(__LINE__, " not: " #condition); \
  } while (false)

struct Outcome {
  char wrong[512] = {};
  std::atomic<bool> ended = false;
};

// Which objects a forked process uses: those that it has of the opener, or others that it makes of
// what those describe, as code of another release does.
enum class Objects { kOfTheOpener, kOfItsOwn };

// The server's side is used by forked processes, the client's by this one.
class ForkedDevice : public ::testing::TestWithParam<Objects> {
 protected:
  static constexpr size_t kBytes = 1 << 16;

  void Join() { verbs::testing::Connect(client, server, {.host = HostUnderTest()}); }
  static std::unique_ptr<verbs::Device> Open() {
    return (IsSoftUnderTest() ? verbs::testing::OpenWithNicProcess()
                              : verbs::rdma::CreateRdmaDevice({}))
        .value();
  }

  // In a forked process: replaces all objects of the server's side but `id`.
  absl::Status MakeObjects() {
    BatonInheritedDevice device;
    BATON_RETURN_IF_ERROR(server.device->Describe(&device));
    BATON_ASSIGN_OR_RETURN(auto made, device.kind == BATON_SOFT_DEVICE
                                          ? verbs::soft::InheritSoftDevice(device)
                                          : verbs::rdma::InheritRdmaDevice(device));
    for (auto* const one : {&server.queue, &queue}) {
      if (*one) BATON_RETURN_IF_ERROR(MakeAnew<BatonInheritedCompletionQueue>(*made, one));
    }
    if (shared) BATON_RETURN_IF_ERROR(MakeAnew<BatonInheritedSharedReceiveQueue>(*made, &shared));
    if (server.queue_pair) {
      BATON_RETURN_IF_ERROR(MakeAnew<BatonInheritedQueuePair>(
          *made, &server.queue_pair, queue ? queue.get() : server.queue.get(), shared.get()));
    }
    (void)server.device.release();
    server.device = std::move(made);
    return absl::OkStatus();
  }
  template <typename Described, typename Object, typename... Queues>
  static absl::Status MakeAnew(verbs::Device& device, std::unique_ptr<Object>* object,
                               Queues... queues) {
    Described described;
    (*object)->Describe(&described);
    (void)object->release();  // the opener's objects stay
    BATON_ASSIGN_OR_RETURN(*object, device.Inherit(described, queues...));
    return absl::OkStatus();
  }

  // A forked process, which has called AfterFork and does `work`.
  pid_t Fork(const SharedPage<Outcome>& outcome, const std::function<std::string()>& work) {
    const pid_t child = fork();
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    absl::Status status = server.device->AfterFork();
    if (status.ok() && GetParam() == Objects::kOfItsOwn) status = MakeObjects();
    if (status.ok()) server.queue->TakeOver();
    const std::string wrong = status.ok() ? work() : status.ToString();
    std::snprintf(outcome->wrong, sizeof(outcome->wrong), "%s", wrong.c_str());
    outcome->ended = true;
    _exit(0);
  }
  // `child` ends by itself, and nothing was wrong.
  static void ExpectDone(pid_t child, const SharedPage<Outcome>& outcome) {
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_TRUE(outcome->ended);
    EXPECT_STREQ(outcome->wrong, "");
  }

  // A forked process does `work`, which finds nothing wrong, while the client's side goes on.
  void ExpectInChild(const std::function<std::string()>& work) {
    SharedPage<Outcome> outcome;
    const pid_t child = Fork(outcome, work);
    const uint64_t deadline =
        MonotonicNanoseconds() +
        harness::Patient(std::chrono::nanoseconds(std::chrono::seconds(10))).count();
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
      client.Turn();
      if (MonotonicNanoseconds() > deadline) kill(child, SIGKILL);
    }
    server.queue->TakeOver();
    EXPECT_TRUE(outcome->ended) << "it has ended with status " << status;
    EXPECT_STREQ(outcome->wrong, "");
  }

  // Waits until `done` is true, and turns only `side` meanwhile. While a forked process waits, its
  // parent turns the other side.
  static bool Until(Side& side, const std::function<bool()>& done) {
    const uint64_t deadline =
        MonotonicNanoseconds() +
        harness::Patient(std::chrono::nanoseconds(std::chrono::seconds(5))).count();
    while (!done()) {
      if (MonotonicNanoseconds() > deadline) return false;
      side.Turn();
    }
    return true;
  }
  Completion Next(Side& side) {
    if (!Until(side, [&] { return !side.completions.empty(); })) return {.wr_id = ~uint64_t{0}};
    const Completion next = side.completions.front();
    side.completions.pop_front();
    return next;
  }
  std::string Completes(Side& side, uint64_t wr_id, CompletionStatus status) {
    const Completion completion = Next(side);
    if (completion.wr_id == wr_id && completion.status == status) return "";
    return absl::StrCat("wr_id ", completion.wr_id, " with ",
                        std::string(verbs::CompletionStatusName(completion.status)), " instead of ",
                        wr_id, " with ", std::string(verbs::CompletionStatusName(status)));
  }
  // The server's queue pair is another one, with `shared`.
  void ShareReceives() {
    shared = server.device->CreateSharedReceiveQueue(16, 1).value();
    verbs::QueuePairOptions options;
    options.send_queue = options.receive_queue = server.queue.get();
    options.max_send_requests = 16;
    options.shared_receive_queue = shared.get();
    server.queue_pair = server.device->CreateQueuePair(options).value();
  }
  // A message from each side arrives.
  std::string Talks() {
    for (uint64_t i = 0; i < 3; ++i) {
      NEED(PostReceive(*server.queue_pair, 100 + i, {theirs.Sge(0, 64)}).ok());
      NEED(PostSend(*server.queue_pair, Request(Opcode::kSend, 200 + i), {theirs.Sge(64, 8)}).ok());
      NEED(Completes(server, 200 + i, CompletionStatus::kSuccess).empty());
    }
    return "";
  }
  void AwaitTalk() {
    for (uint64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(Completes(client, 300 + i, CompletionStatus::kSuccess), "");
    }
  }
  void ExpectTalk() {
    for (uint64_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(PostReceive(*client.queue_pair, 300 + i, {ours.Sge(0, 64)}).ok());
    }
  }

  Side client{Open()};
  Side server{Open()};
  Buffer ours{client.device.get(), kBytes, kAllAccess};
  Buffer theirs{server.device.get(), kBytes, kAllAccess};
  // The queues of the server's queue pair, if it has others than Side makes.
  std::unique_ptr<verbs::CompletionQueue> queue;
  std::unique_ptr<verbs::SharedReceiveQueue> shared;
};

INSTANTIATE_TEST_SUITE_P(With, ForkedDevice,
                         ::testing::Values(Objects::kOfTheOpener, Objects::kOfItsOwn),
                         [](const auto& info) {
                           return info.param == Objects::kOfItsOwn ? "OwnObjects"
                                                                   : "TheOpenersObjects";
                         });

TEST_P(ForkedDevice, shouldTellThatItCanBeUsedSo) {
  EXPECT_TRUE(server.device->CheckForkable().ok()) << server.device->CheckForkable();
}

TEST_P(ForkedDevice, shouldPostAndPoll) {
  Join();
  for (int generation = 0; generation < 3; ++generation) {
    ExpectTalk();
    ExpectInChild([&] { return Talks(); });
    AwaitTalk();
  }
}

TEST_P(ForkedDevice, shouldReceiveWhatWasPostedBeforeTheFork) {
  Join();
  ASSERT_TRUE(PostReceive(*server.queue_pair, 1, {theirs.Sge(0, 64)}).ok());
  ours.Fill(0, "hello");
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 2), {ours.Sge(0, 5)}).ok());
  ExpectInChild([&]() -> std::string {
    const std::string wrong = Completes(server, 1, CompletionStatus::kSuccess);
    NEED(wrong.empty());
    NEED(theirs.Text(0, 5) == "hello");
    return "";
  });
}

TEST_P(ForkedDevice, shouldWakeForACompletion) {
  Join();
  ASSERT_TRUE(PostReceive(*server.queue_pair, 1, {theirs.Sge(0, 64)}).ok());
  SharedPage<std::atomic<bool>> asked;
  const pid_t sender = fork();  // after the child has gone to sleep, as far as one can tell
  if (sender == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!client.device->AfterFork().ok()) _exit(1);
    client.queue->TakeOver();
    while (!asked->load()) usleep(1000);
    usleep(100'000);
    _exit(PostSend(*client.queue_pair, Request(Opcode::kSend, 2), {ours.Sge(0, 5)}).ok() ? 0 : 1);
  }
  ExpectInChild([&]() -> std::string {
    pollfd readable = {server.device->event_fd(), POLLIN, 0};
    NEED(poll(&readable, 1, 0) == 0);
    NEED(server.queue->RequestNotification().ok());
    server.Turn();
    NEED(server.completions.empty());
    asked->store(true);
    NEED(poll(&readable, 1, 10'000 * harness::Slowness()) == 1);
    NEED(Completes(server, 1, CompletionStatus::kSuccess).empty());
    NEED(Until(server, [&] { return poll(&readable, 1, 0) == 0; }));
    return "";
  });
  int status = 1;
  ASSERT_EQ(waitpid(sender, &status, 0), sender);
  EXPECT_EQ(status, 0);
  // The process that made it had no part in that notification, and is not held up by it.
  pollfd readable = {server.device->event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&readable, 1, 0), 0);
}

// The one before was killed while it slept, and what wakes it comes before the next one begins.
TEST_P(ForkedDevice, shouldNotGoOnWakingForAnEventOfItsPredecessor) {
  Join();
  ASSERT_TRUE(PostReceive(*server.queue_pair, 1, {theirs.Sge(0, 64)}).ok());
  ExpectInChild([&]() -> std::string {
    NEED(server.queue->RequestNotification().ok());
    return "";
  });
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 2), {ours.Sge(0, 5)}).ok());
  ASSERT_EQ(Completes(client, 2, CompletionStatus::kSuccess), "");
  ExpectInChild([&]() -> std::string {
    NEED(Completes(server, 1, CompletionStatus::kSuccess).empty());
    NEED(server.queue->RequestNotification().ok());
    pollfd readable = {server.device->event_fd(), POLLIN, 0};
    NEED(Until(server, [&] { return poll(&readable, 1, 0) == 0; }));
    return "";
  });
}

TEST_P(ForkedDevice, shouldSetQueuePairsToTheErrorStateAndFlush) {
  Join();
  ASSERT_TRUE(PostReceive(*server.queue_pair, 1, {theirs.Sge(0, 64)}).ok());
  ExpectInChild([&]() -> std::string {
    NEED(server.queue_pair->state() == QueuePairState::kReadyToSend);
    NEED(server.queue_pair->SetError().ok());
    NEED(server.queue_pair->state() == QueuePairState::kError);
    NEED(Completes(server, 1, CompletionStatus::kFlushError).empty());
    NEED(PostSend(*server.queue_pair, Request(Opcode::kSend, 2), {theirs.Sge(0, 5)}).ok());
    NEED(Completes(server, 2, CompletionStatus::kFlushError).empty());
    return "";
  });
  EXPECT_EQ(server.queue_pair->state(), QueuePairState::kError);
}

// The queue pair was never connected, and the opener has heard nothing of its error state.
TEST_P(ForkedDevice, shouldTellTheOpenerOfAnErrorStateThatAnotherHasSet) {
  EXPECT_EQ(server.queue_pair->state(), QueuePairState::kInit);
  ExpectInChild([&]() -> std::string {
    NEED(server.queue_pair->SetError().ok());
    return "";
  });
  EXPECT_EQ(server.queue_pair->state(), QueuePairState::kError);
  ASSERT_EQ(server.queue_pair->SetReset(), absl::OkStatus());
  ASSERT_EQ(server.queue_pair->SetInit(), absl::OkStatus());
  EXPECT_EQ(server.queue_pair->state(), QueuePairState::kInit);
}

// The process that posts the receive does not know of the error state yet.
TEST_P(ForkedDevice, shouldFlushAReceivePostedAfterAnotherProcessHasPutItInError) {
  Join();
  const pid_t other = fork();
  if (other == 0) {
    _exit(server.device->AfterFork().ok() && server.queue_pair->SetError().ok() ? 0 : 1);
  }
  int status = 1;
  ASSERT_TRUE(waitpid(other, &status, 0) == other && status == 0);
  ExpectInChild([&]() -> std::string {
    NEED(PostReceive(*server.queue_pair, 1, {theirs.Sge(0, 64)}).ok());
    NEED(server.queue_pair->state() == QueuePairState::kError);
    NEED(server.queue_pair->SetError().ok());
    NEED(Completes(server, 1, CompletionStatus::kFlushError).empty());
    return "";
  });
}

TEST_P(ForkedDevice, shouldTellAFullQueue) {
  Join();
  ExpectInChild([&]() -> std::string {
    // The client has no receives: nothing of it completes.
    absl::Status status;
    int taken = 0;
    for (; status.ok() && taken < 10'000; ++taken) {
      status = PostSend(*server.queue_pair, Request(Opcode::kSend, 2), {theirs.Sge(0, 5)});
    }
    NEED(status.code() == absl::StatusCode::kResourceExhausted);
    NEED(taken > 64);
    return "";
  });
}

// The pool's: what the opener has made of it since is asked for.
TEST_P(ForkedDevice, shouldUseAQueuePairThatWasConnectedAfterTheFork) {
  SharedPage<std::atomic<bool>> tried, joined;
  SharedPage<Outcome> outcome;
  const pid_t child = Fork(outcome, [&]() -> std::string {
    const bool refused =
        !PostSend(*server.queue_pair, Request(Opcode::kSend, 1), {theirs.Sge(0, 5)}).ok();
    tried->store(true);
    NEED(refused);
    while (!joined->load()) usleep(1000);
    return Talks();
  });
  while (!tried->load() && waitpid(child, nullptr, WNOHANG) == 0) usleep(1000);
  Join();
  ExpectTalk();
  joined->store(true);
  AwaitTalk();
  ExpectDone(child, outcome);
}

// Likewise: a provider refuses what it has last seen reset, and asking is what tells it.
TEST_P(ForkedDevice, shouldUseAQueuePairAgainThatItHasReset) {
  enum Step { kBegun, kReset, kNew, kAsked, kJoined };
  SharedPage<std::atomic<int>> step;
  SharedPage<Outcome> outcome;
  const auto await = [&](Step wanted) {
    while (step->load() < wanted && !outcome->ended) usleep(1000);
  };
  const pid_t child = Fork(outcome, [&]() -> std::string {
    NEED(server.queue_pair->SetReset().ok());
    step->store(kReset);
    await(kNew);
    NEED(server.queue_pair->state() == QueuePairState::kInit);
    NEED(PostReceive(*server.queue_pair, 99, {theirs.Sge(0, 64)}).ok());
    step->store(kAsked);
    await(kJoined);
    NEED(server.queue_pair->state() == QueuePairState::kReadyToSend);
    return Talks();
  });
  await(kReset);
  ASSERT_TRUE(server.queue_pair->SetReset().ok() && server.queue_pair->SetInit().ok());
  step->store(kNew);
  await(kAsked);
  if (!outcome->ended) {
    Join();
    ExpectTalk();
    step->store(kJoined);
    AwaitTalk();
  }
  ExpectDone(child, outcome);
}

// Somebody who died has not read it.
TEST_P(ForkedDevice, shouldNotPutAQueuePairInErrorForACompletionOfItsFormerLife) {
  queue = server.device->CreateCompletionQueue(64).value();
  verbs::QueuePairOptions options;
  options.send_queue = options.receive_queue = queue.get();
  options.max_send_requests = options.max_receive_requests = 16;
  server.queue_pair = server.device->CreateQueuePair(options).value();
  ASSERT_TRUE(queue->RequestNotification().ok());
  ASSERT_TRUE(PostReceive(*server.queue_pair, 1, {theirs.Sge(0, 64)}).ok());
  ASSERT_TRUE(server.queue_pair->SetError().ok());
  pollfd readable = {server.device->event_fd(), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, 10'000 * harness::Slowness()), 1);  // flushed
  ASSERT_TRUE(server.queue_pair->SetReset().ok() && server.queue_pair->SetInit().ok());
  Join();
  ASSERT_TRUE(PostReceive(*client.queue_pair, 2, {ours.Sge(0, 64)}).ok());
  ExpectInChild([&]() -> std::string {
    Completion read;
    const auto completes = [&] { return queue->Poll({&read, 1}).value() == 1; };
    queue->TakeOver();
    if (!IsSoftUnderTest()) {  // the soft device drops it
      NEED(Until(server, completes));
      NEED(read.wr_id == 1 && read.status == CompletionStatus::kFlushError);
    }
    NEED(server.queue_pair->state() == QueuePairState::kReadyToSend);
    NEED(PostSend(*server.queue_pair, Request(Opcode::kSend, 3), {theirs.Sge(0, 8)}).ok());
    NEED(Until(server, completes));
    NEED(read.wr_id == 3 && read.status == CompletionStatus::kSuccess);
    // The device believes what is of this life.
    NEED(PostReceive(*server.queue_pair, 4, {theirs.Sge(0, 64)}).ok());
    NEED(server.queue_pair->SetError().ok());
    NEED(Until(server, completes));
    NEED(read.wr_id == 4 && read.status == CompletionStatus::kFlushError);
    NEED(server.queue_pair->state() == QueuePairState::kError);
    return "";
  });
  server.id.reset();
  server.queue_pair.reset();
}

TEST_P(ForkedDevice, shouldPostAndArmSharedReceives) {
  ShareReceives();
  Join();
  SharedPage<std::atomic<bool>> posted;
  ExpectInChild([&]() -> std::string {
    for (uint64_t i = 0; i < 3; ++i) {
      const verbs::ScatterGather sge = theirs.Sge(0, 64);
      const verbs::ReceiveRequest request = {10 + i, {&sge, 1}};
      size_t taken = 0;
      NEED(shared->PostReceive({&request, 1}, &taken).ok());
    }
    NEED(shared->ArmLimit(3).ok());
    return "";
  });
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 2), {ours.Sge(0, 5)}).ok());
  ExpectInChild([&]() -> std::string {
    NEED(Completes(server, 10, CompletionStatus::kSuccess).empty());
    NEED(server.queue_pair->SetError().ok());
    NEED(Until(server, [&] { return server.queue_pair->holds_no_receive(); }));
    // The device's events are the opener's.
    NEED(server.device_events.empty() ||
         server.device_events[0].type == verbs::DeviceEventType::kLastWorkRequestReached);
    return "";
  });
  EXPECT_TRUE(Until(server, [&] {
    for (const verbs::DeviceEvent& event : server.device_events) {
      if (event.type == verbs::DeviceEventType::kSharedReceiveQueueLow) return true;
    }
    return false;
  }));
  server.id.reset();
  server.queue_pair.reset();
}

// Each process begins a wait of its own, and begins a new one after each reset of the queue pair.
TEST_P(ForkedDevice, shouldAwaitEachLastReceiveAnew) {
  ShareReceives();
  const auto holds_none = [&] {
    return Until(server, [&] { return server.queue_pair->holds_no_receive(); });
  };
  const bool at_once =
      IsSoftUnderTest();  // the NIC has completed them before it says that it is in error
  // The opener waits already when the other begins.
  ASSERT_TRUE(server.queue_pair->SetError().ok());
  ExpectInChild([&]() -> std::string {
    NEED(server.queue_pair->state() == QueuePairState::kError);
    NEED(at_once || !server.queue_pair->holds_no_receive());
    NEED(holds_none());
    NEED(server.queue_pair->SetReset().ok() && server.queue_pair->SetInit().ok());
    NEED(!server.queue_pair->holds_no_receive());
    NEED(server.queue_pair->SetError().ok());
    NEED(at_once || !server.queue_pair->holds_no_receive());
    NEED(holds_none());
    server.queue->ForgetNotification();
    NEED(at_once || !server.queue_pair->holds_no_receive());
    NEED(holds_none());
    return "";
  });
  EXPECT_TRUE(holds_none());
  server.queue_pair.reset();
}

TEST_P(ForkedDevice, shouldLeaveMakingAndConnectingToTheOpener) {
  Join();
  ExpectInChild([&]() -> std::string {
    const auto refused = [](const absl::Status& status) {
      return status.code() == absl::StatusCode::kFailedPrecondition;
    };
    verbs::Device& device = *server.device;
    NEED(refused(device.Listen({HostUnderTest(), 0}, 1).status()));
    NEED(refused(device.Connect({HostUnderTest(), 1}, server.queue_pair.get(), {}).status()));
    NEED(refused(device.CreateCompletionQueue(1).status()));
    NEED(refused(device.CreateSharedReceiveQueue(1, 1).status()));
    NEED(refused(device.RegisterMemory(theirs.data(), 64, verbs::kLocalWrite).status()));
    verbs::QueuePairOptions options;
    options.send_queue = options.receive_queue = server.queue.get();
    NEED(refused(device.CreateQueuePair(options).status()));
    NEED(refused(server.id->Disconnect()));
    return "";
  });
}

// A forked process that ends in an orderly way destroys its copies.
TEST_P(ForkedDevice, shouldTakeNothingDownWithItsObjects) {
  Join();
  ExpectInChild([&]() -> std::string {
    server.Turn();  // it has polled
    server.id.reset();
    server.queue_pair.reset();
    theirs.region.reset();
    server.queue.reset();
    server.device.reset();
    return "";
  });
  ExpectTalk();
  ExpectInChild([&] { return Talks(); });
  AwaitTalk();
}

// A forked process has taken a notification of the opener's completion queue: ibv_destroy_cq would
// wait for ever.
TEST_P(ForkedDevice, shouldNotHoldItsOpenerUp) {
  Join();
  ASSERT_TRUE(PostReceive(*client.queue_pair, 300, {ours.Sge(0, 64)}).ok());
  ExpectInChild([&]() -> std::string {
    NEED(server.queue->RequestNotification().ok());
    NEED(PostSend(*server.queue_pair, Request(Opcode::kSend, 1), {theirs.Sge(0, 5)}).ok());
    pollfd readable = {server.device->event_fd(), POLLIN, 0};
    NEED(poll(&readable, 1, 10'000 * harness::Slowness()) == 1);
    NEED(Completes(server, 1, CompletionStatus::kSuccess).empty());
    NEED(Until(server, [&] { return poll(&readable, 1, 0) == 0; }));
    return "";
  });
  // The end of the test destroys all.
}

}  // namespace
}  // namespace baton::native

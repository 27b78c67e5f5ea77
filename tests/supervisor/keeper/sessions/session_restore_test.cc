// A keeper may die between any two of its orders to the driver. The keeper that follows knows every
// worker that the driver knows.

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "lib/base/check.h"
#include "lib/channel/message_channel.h"
#include "supervisor/driver/engine/order_executor.h"
#include "supervisor/keeper/sessions/worker_sessions.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/supervisor/driver/inline_engine.h"
#include "tests/supervisor/keeper/keeper_thread.h"
#include "tests/supervisor/keeper/mortal_driver_client.h"

namespace baton::keeper {
namespace {

using driver_process::testing::InlineEngine;
using testing::MortalDriverClient;
using testing::RawClient;

// The driver, as it is in the process of its own.
struct TheDriver {
  arena::Arena arena = arena::Arena::Create(driver::testing::TestShape(), "kv").value();
  InlineEngine engine{&arena};
  driver_process::NewsQueue news;
  v1::ServiceConfig service;
  driver_process::OrderExecutor executor{service, engine, news};
  testing::LastingDriver lasting{executor, news};
};

struct TheKeeper {
  // It dies with the order after so many.
  TheKeeper(TheDriver& driver, int orders)
      : left(orders), driver(driver.lasting, [this](const internal::DriverOrder& order) {
          if (order.has_add_worker() && loses_descriptors) {
            return MortalDriverClient::Fate::kLosesDescriptors;
          }
          if (order.has_hold_descriptor()) return fate_of_hold;
          return left-- == 0 ? MortalDriverClient::Fate::kDies : MortalDriverClient::Fate::kLives;
        }) {}

  // Attaches this process, which lives on when the keeper is gone: the loop runs no more then.
  // Returns the worker's number; 0: the keeper died.
  uint64_t AttachOne(const std::string& attempt = "") {
    const internal::WorkerReply reply = Attach(attempt);
    BATON_CHECK(reply.has_attached() || reply.status_code() == 0);
    return reply.attached().worker_id();
  }
  // Returns the answer; an empty one: the keeper died.
  internal::WorkerReply Attach(const std::string& attempt = "", const std::string& name = "") {
    MessageChannel& client = Connect();
    internal::WorkerRequest request = RawClient::AttachRequest();
    request.mutable_attach()->set_attempt(attempt);
    if (!name.empty()) request.mutable_attach()->set_name(name);
    return Ask(client, request);
  }
  MessageChannel& Connect() {
    int ends[2];
    BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    // Stays open: this process would be killed.
    MessageChannel& client = clients.emplace_back((FileDescriptor(ends[0])));
    sessions.Accept(FileDescriptor(ends[1]));
    return client;
  }
  internal::WorkerReply Ask(MessageChannel& client, const internal::WorkerRequest& request,
                            const std::vector<int>& descriptors = {}) {
    BATON_CHECK(client.Send(request, descriptors).ok());
    internal::WorkerReply reply;
    try {
      while (absl::IsDeadlineExceeded(client.Receive(&reply, 0))) {
        BATON_CHECK(loop.run_one_for(std::chrono::seconds(60)) != 0);
      }
    } catch (const testing::KeeperDeath&) {
    }
    return reply;
  }

  static internal::KeeperConfig Config() {
    internal::KeeperConfig config;
    config.mutable_service()->set_name("kv");
    config.mutable_service()->set_heartbeat_ms(600'000);
    return config;
  }

  boost::asio::io_context loop{1};
  const internal::KeeperConfig config = Config();
  EventLog events{"kv", [](const v1::Event&) {}};
  int left;
  bool loses_descriptors = false;  // of workers
  MortalDriverClient::Fate fate_of_hold = MortalDriverClient::Fate::kLives;
  MortalDriverClient driver;
  Policies policies{config.service(), driver};
  WorkerSessions sessions{CommonParts{loop, config, driver, policies, events}};
  std::deque<MessageChannel> clients;
};

constexpr int kForEver = 1'000'000;

// Its keeper may die before it has begun.
void AttachOneWith(TheDriver& driver, int orders, const std::string& attempt = "") {
  try {
    TheKeeper(driver, orders).AttachOne(attempt);
  } catch (const testing::KeeperDeath&) {
  }
}

TEST(SessionRestoreTest, shouldKnowEveryWorkerThatTheDriverKnowsWhereverAKeeperDied) {
  int orders = 0;  // that a keeper gives until one worker has attached
  {
    TheDriver driver;
    TheKeeper keeper(driver, kForEver);
    keeper.AttachOne();
    orders = kForEver - keeper.left;
  }
  ASSERT_GT(orders, 2);
  bool known = false;
  for (int n = 0; n <= orders; ++n) {
    SCOPED_TRACE(n);
    TheDriver driver;
    AttachOneWith(driver, n);
    TheKeeper next(driver, kForEver);
    DriverClient::HeldByKey held = next.driver.TakeHeld().value();
    next.sessions.Restore(held);
    uint64_t last_id = 0;
    for (uint32_t slot = 0; slot < driver.arena.shape().workers; ++slot) {
      const uint64_t id = driver.engine.roster[slot].id;
      if (id == 0) continue;
      known = true;
      last_id = std::max(last_id, id);
      EXPECT_TRUE(next.sessions.IsAttached(id));
    }
    // No number is used twice, and no slot of a worker that lives.
    const auto reserved = next.sessions.Reserve();
    ASSERT_TRUE(reserved.ok());
    EXPECT_GT(reserved->id(), last_id);
    EXPECT_EQ(driver.engine.roster[reserved->slot()].id, 0u);
  }
  EXPECT_TRUE(known);
}

// The keeper died before its answer had left, and so the worker asks the next one.
TEST(SessionRestoreTest, shouldAnswerAWorkerAsTheOneThatTheKeeperBeforeHadHeld) {
  bool held_before = false, added_before = false;
  for (int orders = 0; orders < 10; ++orders) {
    SCOPED_TRACE(orders);
    TheDriver driver;
    AttachOneWith(driver, orders, "attempt");
    TheKeeper next(driver, kForEver);
    DriverClient::HeldByKey held = next.driver.TakeHeld().value();
    next.sessions.Restore(held);
    const std::vector<v1::Worker> unanswered = next.sessions.Describe();
    held_before = held_before || !unanswered.empty();
    added_before = added_before || driver.engine.roster[0].id != 0;

    const uint64_t id = next.AttachOne("attempt");
    if (!unanswered.empty()) EXPECT_EQ(id, unanswered[0].id());
    EXPECT_EQ(next.sessions.Describe().size(), 1u);
    EXPECT_EQ(driver.engine.roster[0].id, id);
    EXPECT_EQ(driver.engine.roster[1].id, 0u);
    // Another worker of this process is another one.
    EXPECT_NE(next.AttachOne("another"), id);
  }
  EXPECT_TRUE(held_before);
  EXPECT_TRUE(added_before);
}

// Looks what is held when an upgrade comes to know of a worker.
class HoldingObserver final : public WorkerObserver {
 public:
  explicit HoldingObserver(TheDriver& driver) : driver_(driver) {}
  Standing OnAttached(uint64_t worker_id, pid_t) override {
    attached = worker_id;
    internal::Hold entry;
    std::vector<int> descriptors;
    held = driver_.lasting.held.Next("lasting/worker/", &entry, &descriptors) &&
           entry.key() == "lasting/worker/0";
    return Standing::kLast;
  }
  void OnReady(uint64_t) override {}
  void OnGone(uint64_t worker_id, const std::string&) override { gone = worker_id; }
  uint64_t attached = 0, gone = 0;
  bool held = false;

 private:
  TheDriver& driver_;
};

// Else the next keeper would miss a worker of its upgrade that only attaches again.
TEST(SessionRestoreTest, shouldHoldASessionBeforeAnUpgradeKnowsOfIt) {
  TheDriver driver;
  HoldingObserver observer(driver);
  TheKeeper keeper(driver, kForEver);
  keeper.sessions.SetObserver(&observer);
  EXPECT_EQ(keeper.AttachOne(), observer.attached);
  EXPECT_TRUE(observer.held);
}

TEST(SessionRestoreTest, shouldAttachNoWorkerThatTheDriverRefuses) {
  TheDriver driver;
  HoldingObserver observer(driver);
  TheKeeper keeper(driver, kForEver);
  keeper.sessions.SetObserver(&observer);
  keeper.loses_descriptors = true;
  const internal::WorkerReply refused = keeper.Attach();
  EXPECT_EQ(static_cast<absl::StatusCode>(refused.status_code()),
            absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status_message().find("RLIMIT_NOFILE"), std::string::npos);
  EXPECT_NE(observer.attached, 0u);
  EXPECT_EQ(observer.gone, observer.attached);
  // Its place is free, for the next keeper, too.
  EXPECT_TRUE(keeper.sessions.Describe().empty());
  EXPECT_EQ(keeper.driver.TakeHeld()->count("lasting/worker/0"), 0u);
  keeper.loses_descriptors = false;
  EXPECT_NE(keeper.AttachOne(), 0u);
  EXPECT_NE(driver.engine.roster[0].id, 0u);
}

// The worker sends its request, with the descriptor, to the next keeper again.
TEST(SessionRestoreTest, shouldHoldADescriptorOnceWhereverAKeeperDied) {
  using Fate = MortalDriverClient::Fate;
  const FileDescriptor memory(memfd_create("held", MFD_CLOEXEC));
  internal::WorkerRequest hold;
  hold.mutable_hold_descriptor();
  hold.set_number(9);
  for (const Fate fate : {Fate::kDies, Fate::kDiesUnanswered}) {
    TheDriver driver;
    internal::WorkerRequest resume;
    {
      TheKeeper keeper(driver, kForEver);
      keeper.fate_of_hold = fate;
      const internal::WorkerReply attached = keeper.Attach();
      ASSERT_TRUE(attached.has_attached());
      resume.mutable_resume()->set_worker_id(attached.attached().worker_id());
      resume.mutable_resume()->set_session_key(attached.attached().session_key());
      EXPECT_FALSE(keeper.Ask(keeper.clients.back(), hold, {memory.get()}).has_held());
    }
    TheKeeper next(driver, kForEver);
    DriverClient::HeldByKey held = next.driver.TakeHeld().value();
    next.sessions.Restore(held);
    MessageChannel& client = next.Connect();
    const internal::WorkerReply resumed = next.Ask(client, resume);
    ASSERT_EQ(resumed.status_code(), 0) << resumed.status_message();
    EXPECT_TRUE(resumed.takes_descriptors());
    const internal::WorkerReply again = next.Ask(client, hold, {memory.get()});
    ASSERT_EQ(again.status_code(), 0) << again.status_message();
    EXPECT_NE(again.held().number(), 0u);
    EXPECT_EQ(next.driver.ListDescriptors(0)->numbers_size(), 1);
  }
}

// The driver goes on holding everything, and the next keeper tries again.
TEST(SessionRestoreTest, shouldForgetNoWorkerWhoseDescriptorDoesNotArrive) {
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "UndefinedBehaviorSanitizer looks at memory through a pipe: it needs descriptors";
#endif
  TheDriver driver;
  AttachOneWith(driver, kForEver);
  TheKeeper next(driver, kForEver);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {3, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status taken = next.driver.TakeHeld().status();
  const bool holds = next.driver.Hold("key", "value", {0});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(taken.code(), absl::StatusCode::kResourceExhausted) << taken;
  EXPECT_FALSE(holds);
  const DriverClient::HeldByKey held = next.driver.TakeHeld().value();
  EXPECT_EQ(held.count("lasting/worker/0"), 1u);
  EXPECT_EQ(held.count("key"), 0u);
}

// The upgrade says what a worker stands for with the next keeper, too.
TEST(SessionRestoreTest, shouldAskForTheStandingOfAWorkerThatIsAnsweredLate) {
  TheDriver driver;
  AttachOneWith(driver, 4, "attempt");
  HoldingObserver observer(driver);
  TheKeeper next(driver, kForEver);
  DriverClient::HeldByKey held = next.driver.TakeHeld().value();
  next.sessions.Restore(held);
  next.sessions.SetObserver(&observer);
  const uint64_t id = next.AttachOne("attempt");
  EXPECT_EQ(observer.attached, id);
  EXPECT_EQ(driver.engine.roster[0].standing, Standing::kLast);
}

// The keeper before had found it silent, and the next one counts anew.
TEST(SessionRestoreTest, shouldNotLeaveAWorkerSilentThatThisKeeperHasNotFoundSo) {
  TheDriver driver;
  AttachOneWith(driver, kForEver);
  driver.engine.roster[0].silent = true;
  TheKeeper next(driver, kForEver);
  DriverClient::HeldByKey held = next.driver.TakeHeld().value();
  next.sessions.Restore(held);
  EXPECT_FALSE(driver.engine.roster[0].silent);
}

// Keepers die in the middle of attaching a program, and the driver counts them.
TEST(SessionRestoreTest, shouldRefuseAProgramThatThreeKeepersHaveDiedOf) {
  TheDriver driver;
  for (int i = 0; i < 3; ++i) {
    AttachOneWith(driver, 2);  // the order after DealWith
    const auto death = driver.lasting.dealings.NoteDeath("died");
    ASSERT_TRUE(death.has_value());
    EXPECT_EQ(death->deaths, static_cast<uint32_t>(i + 1));
  }
  TheKeeper next(driver, kForEver);
  const internal::WorkerReply refused = next.Attach();
  EXPECT_EQ(static_cast<absl::StatusCode>(refused.status_code()),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.status_message().find("keepers in a row"), std::string::npos);
  // Another program is another thing.
  EXPECT_TRUE(next.Attach("", "another").has_attached());
}

// A child becomes a worker, so that its keeper may kill it.
TEST(SessionRestoreTest, shouldEndAWorkerWhoseSessionKeepersDieOfAndGoOnWithTheOthers) {
  TheDriver driver;
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  AttachOneWith(driver, kForEver);
  internal::HeldWorker worker;
  worker.mutable_place()->set_slot(1);
  worker.mutable_place()->set_id(2);
  worker.set_pid(child);
  worker.set_process_certain(true);
  internal::Hold entry;
  entry.set_key("lasting/worker/1");
  entry.set_value(worker.SerializeAsString());
  std::vector<FileDescriptor> pidfd;
  pidfd.emplace_back(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  ASSERT_TRUE(driver.lasting.held.Hold(entry, std::move(pidfd)).ok());
  EXPECT_NE(driver.lasting.held.SetAside("lasting/worker/1", "keepers died"), "");

  TheKeeper next(driver, kForEver);
  DriverClient::HeldByKey set_aside;
  DriverClient::HeldByKey held = next.driver.TakeHeld(&set_aside).value();
  EXPECT_EQ(held.count("lasting/worker/1"), 0u);
  EXPECT_EQ(held.count("lasting/worker/0"), 1u);
  next.sessions.Restore(held);
  next.sessions.EndSetAside(set_aside);
  EXPECT_TRUE(next.sessions.IsAttached(1));
  siginfo_t end = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &end, WEXITED), 0);
  EXPECT_EQ(end.si_status, SIGKILL);
  while (next.sessions.IsAttached(2)) {
    ASSERT_NE(next.loop.run_one_for(std::chrono::seconds(60)), 0u);
  }
  // Its slot is free again.
  EXPECT_TRUE(next.driver.TakeHeld(&set_aside)->count("lasting/worker/1") == 0);
  EXPECT_EQ(next.sessions.Reserve()->slot(), 1u);
}

}  // namespace
}  // namespace baton::keeper

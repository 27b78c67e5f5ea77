#include "worker/keeper_session.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/channel/message_channel.h"
#include "tests/harness/temp_directory.h"

namespace baton {
namespace {

class KeeperSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> pair;
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
    keeper.emplace(FileDescriptor(pair[0]));
    session.emplace(FileDescriptor(pair[1]));
  }

  internal::WorkerRequest Next() {
    internal::WorkerRequest request;
    EXPECT_EQ(keeper->Receive(&request, -1), absl::OkStatus());
    return request;
  }
  void ReplyWithToken() {
    internal::WorkerReply reply;
    reply.mutable_token()->set_token("a token");
    EXPECT_EQ(keeper->Send(reply), absl::OkStatus());
  }
  void ReplyWithPort() {
    internal::WorkerReply reply;
    reply.mutable_listening()->set_port(7471);
    EXPECT_EQ(keeper->Send(reply), absl::OkStatus());
  }

  std::optional<MessageChannel> keeper;
  std::optional<KeeperSession> session;
};

TEST_F(KeeperSessionTest, shouldWaitAsItWasTold) {
  std::vector<int> waited;
  session->WaitWith([&](pollfd socket, int timeout_ms) {
    EXPECT_GT(timeout_ms, 0);
    waited.push_back(socket.fd);
    if (waited.size() == 2) ReplyWithPort();
  });
  EXPECT_EQ(session->Listen("127.0.0.1", 0).value(), 7471);
  EXPECT_EQ(waited, std::vector<int>(2, session->fd()));
}

TEST_F(KeeperSessionTest, shouldSayWhatToDoAboutAKeeperThatKnowsNoTakeOvers) {
  session->WaitWith([&](pollfd, int) {
    const internal::WorkerRequest request = Next();
    EXPECT_EQ(request.take_over().shards_size(), 2);
    internal::WorkerReply reply;
    reply.set_status_code(static_cast<int>(absl::StatusCode::kUnimplemented));
    reply.set_status_message("a request this keeper does not know");
    EXPECT_EQ(keeper->Send(reply), absl::OkStatus());
  });
  const absl::Status begun = session->TakeOver({1, 2});
  EXPECT_EQ(begun.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(begun.message().find("baton upgrade"), absl::string_view::npos) << begun;
}

class HeldDescriptorsTest : public KeeperSessionTest {
 protected:
  // Answers the next request, with the descriptors that `with` names.
  internal::WorkerRequest Answer(const internal::WorkerReply& reply,
                                 const std::vector<int>& with = {}) {
    internal::WorkerRequest request;
    EXPECT_EQ(keeper->Receive(&request, -1, &passed), absl::OkStatus());
    EXPECT_EQ(keeper->Send(reply, with), absl::OkStatus());
    return request;
  }
  static internal::WorkerReply Taking() {
    internal::WorkerReply reply;
    reply.set_takes_descriptors(true);
    return reply;
  }

  const FileDescriptor file{memfd_create("held", MFD_CLOEXEC)};
  std::vector<FileDescriptor> passed;  // with the last request
};

// A keeper of an earlier release would close the session.
TEST_F(HeldDescriptorsTest, shouldNotBePassedToAKeeperThatTakesNone) {
  bool asked = false;
  session->WaitWith([&](pollfd, int) {
    internal::WorkerReply unknown;
    unknown.set_status_code(static_cast<int>(absl::StatusCode::kUnimplemented));
    unknown.set_status_message("a request this keeper does not know");
    EXPECT_TRUE(Answer(unknown).has_list_descriptors());
    EXPECT_TRUE(passed.empty());
    EXPECT_FALSE(std::exchange(asked, true));
  });
  const absl::Status held = session->HoldDescriptor(file.get(), 0).status();
  EXPECT_EQ(held.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(held.message().find("baton upgrade --baton"), absl::string_view::npos) << held;
}

TEST_F(HeldDescriptorsTest, shouldBePassedOnceAKeeperTakesThem) {
  std::vector<internal::WorkerRequest> requests;
  session->WaitWith([&](pollfd, int) {
    internal::WorkerReply reply = Taking();
    reply.mutable_held()->set_number(5);
    requests.push_back(Answer(reply));
  });
  EXPECT_EQ(session->HoldDescriptor(file.get(), 3).value(), 5u);
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_TRUE(requests[0].has_list_descriptors());
  EXPECT_EQ(requests[1].hold_descriptor().tag(), 3u);
  EXPECT_EQ(passed.size(), 1u);
  // Now it knows.
  EXPECT_EQ(session->HoldDescriptor(file.get(), 3).value(), 5u);
  EXPECT_EQ(requests.size(), 3u);
  // The session passes no descriptor that the keeper would refuse.
  EXPECT_EQ(session->HoldDescriptor(-1, 3).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session->HoldDescriptor(session->fd(), 3).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(requests.size(), 3u);
}

TEST_F(HeldDescriptorsTest, shouldBeTakenAndSaidToBeLost) {
  std::vector<int> with = {file.get()};
  session->WaitWith(
      [&](pollfd, int) { EXPECT_EQ(Answer(Taking(), with).take_descriptor().number(), 5u); });
  const absl::StatusOr<int> taken = session->TakeDescriptor(5);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_TRUE(FileDescriptor(*taken));
  with.clear();
  EXPECT_EQ(session->TakeDescriptor(5).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(HeldDescriptorsTest, shouldBeDroppedWhereNobodyWaitsForThemAnyMore) {
  session->WaitWith([this](pollfd, int) { Answer(Taking()); });
  ASSERT_TRUE(session->HeldDescriptors(7).ok());
  session->WaitWith([](pollfd, int) {});
  session->SetReplyTimeout(1);
  EXPECT_EQ(session->HoldDescriptor(file.get(), 7).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  internal::WorkerReply held = Taking();
  held.mutable_held()->set_number(5);
  EXPECT_TRUE(Answer(held).has_hold_descriptor());
  session->Settle();
  EXPECT_EQ(Answer(Taking()).drop_descriptor().number(), 5u);
  session->Settle();
  internal::WorkerRequest none;
  EXPECT_EQ(keeper->Receive(&none, 0).code(), absl::StatusCode::kDeadlineExceeded);
}

// Requests are begun, and nobody waits for them.
class BegunTest : public HeldDescriptorsTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(HeldDescriptorsTest::SetUp());
    session->WaitWith([this](pollfd, int) { (void)Answer(Taking()); });
    ASSERT_EQ(session->HeldDescriptors(0).status(), absl::OkStatus());
    session->WaitWith([](pollfd, int) { ADD_FAILURE() << "it waits"; });
  }
  absl::Status BeginToHold() {
    return session->BeginHoldDescriptor(
        file.get(), 3, [this](const absl::StatusOr<uint64_t>& number) { held.push_back(number); });
  }
  absl::Status BeginToDrop() {
    return session->BeginDropDescriptor(
        5, [this](absl::Status status) { dropped.push_back(std::move(status)); });
  }
  static internal::WorkerReply Held() {
    internal::WorkerReply reply = Taking();
    reply.mutable_held()->set_number(5);
    return reply;
  }

  std::vector<absl::StatusOr<uint64_t>> held;
  std::vector<absl::Status> dropped;
};

TEST_F(BegunTest, shouldBeToldOnceItIsAnswered) {
  ASSERT_EQ(BeginToHold(), absl::OkStatus());
  session->Settle();
  EXPECT_TRUE(held.empty());
  EXPECT_EQ(Answer(Held()).hold_descriptor().tag(), 3u);
  EXPECT_EQ(passed.size(), 1u);
  session->Settle();
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].value(), 5u);
  ASSERT_EQ(BeginToDrop(), absl::OkStatus());
  internal::WorkerReply refusal = Taking();
  refusal.set_status_code(static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_EQ(Answer(refusal).drop_descriptor().number(), 5u);
  session->Settle();
  session->Settle();
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(held.size(), 1u);
}

// The driver knows the last request of a worker alone.
TEST_F(BegunTest, shouldBeRefusedBesideAnother) {
  ASSERT_EQ(BeginToHold(), absl::OkStatus());
  EXPECT_EQ(BeginToDrop().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(BeginToHold().code(), absl::StatusCode::kUnavailable);
  (void)Answer(Held());
  session->Settle();
  EXPECT_EQ(BeginToDrop(), absl::OkStatus());
  EXPECT_EQ(held.size(), 1u);
}

TEST_F(BegunTest, shouldBeAnsweredBeforeWhatIsWaitedFor) {
  ASSERT_EQ(BeginToHold(), absl::OkStatus());
  bool is_first = true;
  session->WaitWith([&](pollfd, int) {
    if (std::exchange(is_first, false)) {
      EXPECT_TRUE(Answer(Held()).has_hold_descriptor());
    } else {
      EXPECT_TRUE(Next().has_listen());
      ReplyWithPort();
    }
  });
  EXPECT_EQ(session->Listen("127.0.0.1", 0).value(), 7471);
  session->Settle();
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].value(), 5u);
}

TEST_F(BegunTest, shouldEndWithTheKeeper) {
  ASSERT_EQ(BeginToHold(), absl::OkStatus());
  keeper.reset();
  session->Settle();
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(BeginToHold().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(held.size(), 1u);
}

TEST_F(BegunTest, shouldEndWhenTheKeeperIsSilent) {
  session->SetReplyTimeout(0);
  ASSERT_EQ(BeginToDrop(), absl::OkStatus());
  session->Settle();
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].code(), absl::StatusCode::kDeadlineExceeded);
  // Nobody waits for it a second time, and its answer is for nobody.
  EXPECT_EQ(session->RevokeRegion(1).code(), absl::StatusCode::kUnavailable);
  (void)Answer(Taking());
  session->SetReplyTimeout(60'000);
  ASSERT_EQ(BeginToHold(), absl::OkStatus());
  (void)Answer(Held());
  session->Settle();
  EXPECT_EQ(dropped.size(), 1u);
  EXPECT_EQ(held.size(), 1u);
}

TEST_F(KeeperSessionTest, shouldWaitAsItWasToldWhileAnotherThreadAwaitsItsReply) {
  std::thread control([&] { EXPECT_EQ(session->NewToken().value(), "a token"); });
  EXPECT_TRUE(Next().has_new_token());
  std::vector<int> waited;
  session->WaitWith([&](pollfd socket, int) {
    if (waited.empty()) ReplyWithToken();
    waited.push_back(socket.fd);
    if (socket.fd < 0) return;
    EXPECT_TRUE(Next().has_listen());
    ReplyWithPort();
  });
  EXPECT_EQ(session->Listen("127.0.0.1", 0).value(), 7471);
  EXPECT_EQ(waited.front(), -1);
  EXPECT_EQ(waited.back(), session->fd());
  control.join();
}

TEST_F(KeeperSessionTest, shouldNotWaitForAKeeperThatIsGone) {
  keeper.reset();
  session->WaitWith([](pollfd, int) {});
  EXPECT_EQ(session->Listen("127.0.0.1", 0).status().code(), absl::StatusCode::kUnavailable);
}

// A keeper that does not answer in time, and one that follows it.
class SilentKeeperTest : public KeeperSessionTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(KeeperSessionTest::SetUp());
    session->SetReplyTimeout(1);
    session->WaitWith([this](pollfd, int) { ++waits; });
  }
  absl::Status Grant() { return session->Grant(4096, 64, verbs::kRemoteWrite).status(); }
  void ReplyWithGrant(uint32_t grant) {
    internal::WorkerReply reply;
    reply.mutable_granted()->set_grant(grant);
    EXPECT_EQ(keeper->Send(reply), absl::OkStatus());
  }
  void ExpectRevocation(uint32_t grant) {
    const internal::WorkerRequest request = Next();
    EXPECT_TRUE(request.has_revoke());
    EXPECT_EQ(request.revoke().grant(), grant);
    EXPECT_EQ(keeper->Send(internal::WorkerReply()), absl::OkStatus());
  }
  // The keeper has nothing to do.
  void ExpectNoRequest() {
    internal::WorkerRequest request;
    EXPECT_EQ(keeper->Receive(&request, 0).code(), absl::StatusCode::kDeadlineExceeded);
  }
  void ExpectToListen() {
    session->WaitWith([this](pollfd, int) {
      EXPECT_TRUE(Next().has_listen());
      ReplyWithPort();
    });
    session->SetReplyTimeout(60'000);
    EXPECT_EQ(session->Listen("127.0.0.1", 0).value(), 7471);
  }

  int waits = 0;
};

TEST_F(SilentKeeperTest, shouldLeaveNothingGrantedThatIsGrantedTooLate) {
  EXPECT_EQ(Grant().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(session->in_doubt().offset(), 4096u);
  EXPECT_EQ(session->in_doubt().length(), 64u);
  EXPECT_TRUE(Next().has_grant());
  session->Settle();
  EXPECT_EQ(session->in_doubt().length(), 64u);
  ReplyWithGrant(9);
  session->Settle();
  EXPECT_EQ(session->in_doubt().length(), 0u);
  ExpectRevocation(9);
  session->Settle();
  ExpectNoRequest();
  ExpectToListen();
}

TEST_F(SilentKeeperTest, shouldLeaveNoRegionRegisteredThatIsRegisteredTooLate) {
  const absl::Status status = session->Grant(0, 4096, 0, /*descriptor=*/5).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Next().has_grant());
  internal::WorkerReply reply;
  reply.mutable_granted()->set_region(3);
  EXPECT_EQ(keeper->Send(reply), absl::OkStatus());
  session->Settle();
  const internal::WorkerRequest request = Next();
  EXPECT_EQ(request.revoke().region(), 3u);
  EXPECT_EQ(request.revoke().grant(), 0u);
  EXPECT_EQ(keeper->Send(internal::WorkerReply()), absl::OkStatus());
  session->Settle();
  ExpectNoRequest();
  ExpectToListen();
}

TEST_F(SilentKeeperTest, shouldDoubtNoGrantThatIsRefusedTooLate) {
  EXPECT_EQ(Grant().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Next().has_grant());
  internal::WorkerReply refusal;
  refusal.set_status_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(keeper->Send(refusal), absl::OkStatus());
  session->Settle();
  EXPECT_EQ(session->in_doubt().length(), 0u);
  ExpectNoRequest();
}

// Many leases of one peer that are revoked together do not stall their worker for minutes.
TEST_F(SilentKeeperTest, shouldBeWaitedForOnce) {
  EXPECT_EQ(session->Revoke(1).code(), absl::StatusCode::kDeadlineExceeded);
  waits = 0;
  for (const uint32_t grant : {2u, 3u, 2u}) {
    EXPECT_EQ(session->Revoke(grant).code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(Grant().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(session->RevokeRegion(1).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(session->in_doubt().length(), 0u);
  EXPECT_EQ(waits, 0);
  session->Settle();
  ExpectRevocation(1);
  ExpectNoRequest();
  session->Settle();
  ExpectRevocation(2);
  ExpectRevocation(3);
  session->Settle();
  ExpectNoRequest();
  ExpectToListen();
}

TEST_F(SilentKeeperTest, shouldBeToldOfTheEnd) {
  EXPECT_EQ(session->Revoke(1).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(session->Detach().ok());
  EXPECT_TRUE(Next().has_revoke());
  EXPECT_TRUE(Next().has_detach());
}

// The broker has not let go of the worker in time.
TEST_F(SilentKeeperTest, shouldBeToldOfTheEndAgain) {
  internal::WorkerReply later;
  later.set_status_code(static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(keeper->Send(later), absl::OkStatus());
  EXPECT_EQ(keeper->Send(internal::WorkerReply()), absl::OkStatus());
  EXPECT_EQ(session->Detach(), absl::OkStatus());
  EXPECT_TRUE(Next().has_detach());
  EXPECT_TRUE(Next().has_detach());
  ExpectNoRequest();
}

// The driver executes a request once, so the next keeper says what has become of it.
TEST_F(SilentKeeperTest, shouldBeFollowedByOneThatIsAskedAgain) {
  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  const std::string path = directory.File("socket");
  const FileDescriptor listening = ListenUnix(path, 8, 0600).value();
  internal::Attached attached;
  attached.set_session_key("key");
  session->KeepResumable(path, attached);
  EXPECT_EQ(Grant().code(), absl::StatusCode::kDeadlineExceeded);
  const uint64_t number = Next().number();
  keeper.reset();
  EXPECT_FALSE(session->Resume().value());
  keeper.emplace(FileDescriptor(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  EXPECT_TRUE(Next().has_resume());
  EXPECT_EQ(keeper->Send(internal::WorkerReply()), absl::OkStatus());
  EXPECT_TRUE(session->Resume().value());
  EXPECT_EQ(session->in_doubt().length(), 64u);
  const internal::WorkerRequest again = Next();
  EXPECT_TRUE(again.has_grant());
  EXPECT_EQ(again.number(), number);
  ReplyWithGrant(9);
  session->Settle();
  EXPECT_EQ(session->in_doubt().length(), 0u);
  ExpectRevocation(9);
}

// A keeper that does not follow is waited for once, too.
TEST_F(SilentKeeperTest, shouldNotBeWaitedForAgainWhenNoneFollows) {
  internal::Attached attached;
  attached.set_session_key("key");
  session->KeepResumable("/nobody/listens/here", attached);
  keeper.reset();
  EXPECT_EQ(session->Revoke(1).code(), absl::StatusCode::kUnavailable);
  waits = 0;
  EXPECT_EQ(session->Revoke(2).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(waits, 0);
}

// The data path needs no keeper, so it must not wait for one that is there again and again.
TEST_F(SilentKeeperTest, shouldNotBeFollowedWithoutEnd) {
  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  const std::string path = directory.File("socket");
  const FileDescriptor listening = ListenUnix(path, 8, 0600).value();
  internal::Attached attached;
  attached.set_session_key("key");
  session->KeepResumable(path, attached);
  keeper.reset();
  int deaths = 0;
  session->WaitWith([&](pollfd socket, int) {
    if (socket.fd < 0) {
      keeper.emplace(FileDescriptor(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC)));
      EXPECT_TRUE(Next().has_resume());
      EXPECT_EQ(keeper->Send(internal::WorkerReply()), absl::OkStatus());
      return;
    }
    EXPECT_TRUE(Next().has_listen());
    constexpr int kMostDeaths = 20'000;  // take longer than the caller waits
    ++deaths < kMostDeaths ? keeper.reset() : ReplyWithPort();
  });
  session->SetReplyTimeout(5);
  EXPECT_FALSE(session->Listen("127.0.0.1", 0).ok());
}

// Keepers that die of what asks to attach, one after the other, at one socket.
class DyingKeepers {
 public:
  // The last one answers if there are fewer than `deaths`.
  explicit DyingKeepers(int deaths) {
    socket_.emplace(ListenUnix(path(), 8, 0600).value());
    keepers_ = std::thread([this, deaths] {
      for (int i = 0; i < deaths; ++i) (void)Serve();
      MessageChannel last = Serve();
      internal::WorkerReply reply;
      reply.mutable_attached()->set_worker_id(7);
      (void)last.Send(reply);
    });
  }
  ~DyingKeepers() {
    if (keepers_.joinable()) (void)Attempts();
  }
  std::string path() const { return directory_.File("socket"); }
  // Ends them.
  std::set<std::string> Attempts() {
    (void)ConnectUnix(path());  // ends the wait of one that nobody has asked
    keepers_.join();
    return attempts_;
  }

 private:
  MessageChannel Serve() {
    pollfd waiting = {socket_->get(), POLLIN, 0};
    EXPECT_EQ(poll(&waiting, 1, 60'000), 1);
    MessageChannel channel(FileDescriptor(accept4(socket_->get(), nullptr, nullptr, SOCK_CLOEXEC)));
    internal::WorkerRequest request;
    if (channel.Receive(&request, 60'000).ok()) attempts_.insert(request.attach().attempt());
    return channel;
  }

  const harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
  std::optional<FileDescriptor> socket_;
  std::set<std::string> attempts_;
  std::thread keepers_;
};

TEST(AttachTest, shouldAskTheKeeperThatFollowsOneThatDiedUnanswered) {
  DyingKeepers keepers(2);
  KeeperSession session(ConnectUnix(keepers.path()).value());
  std::vector<FileDescriptor> none;
  const auto attached = session.Attach(WorkerOptions(), 1, keepers.path(), &none);
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(attached->worker_id(), 7u);
  const std::set<std::string> attempts = keepers.Attempts();
  ASSERT_EQ(attempts.size(), 1u);
  EXPECT_FALSE(attempts.begin()->empty());
}

TEST(AttachTest, shouldNotKillOneKeeperAfterTheOther) {
  DyingKeepers keepers(3);
  KeeperSession session(ConnectUnix(keepers.path()).value());
  std::vector<FileDescriptor> none;
  const auto attached = session.Attach(WorkerOptions(), 1, keepers.path(), &none);
  EXPECT_EQ(attached.status().code(), absl::StatusCode::kUnavailable);
}

// A native worker's session is a socket of its own, and no keeper follows at it.
TEST(AttachTest, shouldFailAtOnceWhereNoKeeperFollows) {
  DyingKeepers keepers(1);
  KeeperSession session(ConnectUnix(keepers.path()).value());
  std::vector<FileDescriptor> none;
  const auto attached = session.Attach(WorkerOptions(), 1, "", &none);
  EXPECT_EQ(attached.status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton

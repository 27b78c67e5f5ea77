// `baton-driver` dies at each step of what its connection manager does, and another process follows
// it. Here that process is this one: what it has in its heap counts for nothing, as if it had been
// forked long before.
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/base/crash_point.h"
#include "tests/lib/native/manager_fixture.h"
#include "tests/lib/verbs/nic_process.h"

namespace baton::native {
namespace {

using arena::CompletionKind;
using arena::ConnectionState;
using driver::testing::RawPeer;

struct Death {
  std::string point;
};
// Steps until the manager dies; < 0: it lives.
int steps_left = -1;
std::string last_point;
verbs::Device* followed_device = nullptr;

// A dead process calls no destructors. Here ids are destroyed on the way to who follows it, which
// has to leave the connections alone: they are no ids any more once the device has a follower.
void PassStep(const char* name) {
  if (std::strncmp(name, "manager-", 8) != 0 || steps_left < 0 || --steps_left >= 0) return;
  last_point = name;
  EXPECT_TRUE(followed_device->BeginTakeOver().ok() && followed_device->TakeOver().ok());
  throw Death{name};
}

class ConnectionRecoveryTest : public testing::ManagerFixture {
 protected:
  void SetUp() override {
    device = verbs::testing::OpenWithNicProcess().value();
    followed_device = device.get();
    ManagerFixture::SetUp();
    SetCrashPointHandler(PassStep);
  }
  void TearDown() override {
    SetCrashPointHandler(nullptr);
    ManagerFixture::TearDown();
  }

  // Whatever the manager does: after its death another one goes on.
  template <typename Work>
  void Outlive(const Work& work) {
    try {
      work();
    } catch (const Death&) {
      ++deaths;
      steps_left = --more_deaths >= 0 ? 0 : -1;
      TakeOver();
    }
  }
  void TakeOver() {
    for (bool done = false; !done;) {
      try {
        if (deaths == 0) ASSERT_TRUE(device->BeginTakeOver().ok() && device->TakeOver().ok());
        const absl::Status taken = manager->TakeOver();
        ASSERT_TRUE(taken.ok()) << taken;
        done = true;
      } catch (const Death&) {
        ++deaths;
        steps_left = --more_deaths >= 0 ? 0 : -1;
      }
    }
  }
  void TurnKeeper() override {
    Outlive([this] { manager->Turn(); });
    for (RawPeer* peer : peers) peer->Turn();
  }

  // Calls `round` with a manager that dies at its first step, then with one that dies at its second
  // step, and so on, until one gets through. Followers die `more` times, each at its next step.
  void DieAtEachStep(int more, const std::function<void()>& round) {
    for (int step = 0;; ++step) {
      SCOPED_TRACE(absl::StrCat("step ", step, ", after it ", more));
      const int before = deaths;
      steps_left = step;
      more_deaths = more;
      round();
      if (HasFailure()) FAIL() << "died last at " << last_point;
      peers.clear();
      steps_left = -1;
      ASSERT_TRUE(Until([&] { return manager->connection_count() == 0 && AllAreFree(); }))
          << last_point;
      if (deaths == before) break;
      ASSERT_LT(step, 200);
    }
    EXPECT_GT(deaths, 4);
  }
  bool AllAreFree() const {
    for (uint32_t place = 0; place < testing::kPool; ++place) {
      if (arena->pooled(0, place).state != static_cast<uint32_t>(arena::PooledState::kFree)) {
        return false;
      }
    }
    return true;
  }

  int deaths = 0;
  int more_deaths = 0;
  uint64_t requests = 0;
};

class ManyDeaths : public ConnectionRecoveryTest, public ::testing::WithParamInterface<int> {};

TEST_P(ManyDeaths, shouldServeAPeerThatComesAndGoes) {
  DieAtEachStep(GetParam(), [&] {
    RawPeer peer;
    const uint32_t connection = Established(peer);
    ExchangeAMessage(connection, peer);
    peer.Disconnect();
    NextOfKind(CompletionKind::kReceive);  // flushed
    EXPECT_EQ(NextOfKind(CompletionKind::kDisconnected).connection, connection);
    AcknowledgeAll();
    EXPECT_TRUE(Until([&] { return peer.disconnected; }));
  });
}

TEST_P(ManyDeaths, shouldRejectOnce) {
  DieAtEachStep(GetParam(), [&] {
    RawPeer peer;
    const uint32_t connection = Requested(peer);
    writer->Reject(connection, "full up");
    AcknowledgeAll();
    EXPECT_TRUE(Until([&] { return peer.rejected; }));
    EXPECT_EQ(peer.private_data.substr(0, 7), "full up");
    NextOfKind(CompletionKind::kConnectFailed);
    AcknowledgeAll();
  });
}

TEST_P(ManyDeaths, shouldDisconnectInTheNameOfTheOwner) {
  DieAtEachStep(GetParam(), [&] {
    RawPeer peer;
    const uint32_t connection = Established(peer);
    writer->Disconnect(connection);
    AcknowledgeAll();
    EXPECT_TRUE(Until([&] { return peer.disconnected; }));
    NextOfKind(CompletionKind::kReceive);
    NextOfKind(CompletionKind::kDisconnected);
    AcknowledgeAll();
  });
}

// The keeper orders it again until it has an answer.
TEST_P(ManyDeaths, shouldEndAllForADrain) {
  DieAtEachStep(GetParam(), [&] {
    RawPeer peer;
    Established(peer);
    for (bool is_done = false; !is_done;) {
      Outlive([&] {
        manager->DisconnectAll("drained");
        is_done = true;
      });
    }
    NextOfKind(CompletionKind::kReceive);
    NextOfKind(CompletionKind::kDisconnected);
    AcknowledgeAll();
    EXPECT_TRUE(Until([&] { return peer.disconnected; }));
  });
}

TEST_P(ManyDeaths, shouldConnectToAPeer) {
  DieAtEachStep(GetParam(), [&] {
    // The keeper gives the order again if it has no answer. The peer may have seen the first
    // request, which was withdrawn, so it is another peer each time.
    std::deque<RawPeer> asked;
    const Asker asker = {1, ++requests};
    for (bool is_answered = false; asked.size() < 9 && !is_answered;) {
      Outlive([&] {
        is_answered = manager->BeginFor(asker).has_value();
        if (is_answered) return;
        const uint16_t theirs = asked.emplace_back().Listen();
        EXPECT_TRUE(manager->Connect(0, {fabric.host, theirs}, "", 7).ok());
        is_answered = true;
      });
      TurnKeeper();
    }
    RawPeer& peer = asked.back();
    peers.push_back(&peer);
    EXPECT_EQ(manager->connection_count(), 1u);
    NextOfKind(CompletionKind::kEstablished);
    for (uint32_t i = 0; i < arena->shape().connections; ++i) {
      if (state(i) == ConnectionState::kEstablished) writer->Disconnect(i);
    }
    AcknowledgeAll();
    NextOfKind(CompletionKind::kDisconnected);
    AcknowledgeAll();
    EXPECT_TRUE(Until([&] { return peer.disconnected; }));
  });
}

INSTANTIATE_TEST_SUITE_P(InARow, ManyDeaths, ::testing::Values(0, 1, 3));

// The peer gives up while nobody serves.
TEST_F(ConnectionRecoveryTest, shouldEndARequestThatWasGivenUpMeanwhile) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer->Receive(connection, 0, 1024);
  writer->Accept(connection, 0, "welcome");
  AcknowledgeAll();
  peer.Vanish();
  peers.clear();
  TakeOver();
  NextOfKind(CompletionKind::kReceive);
  NextOfKind(CompletionKind::kConnectFailed);
  AcknowledgeAll();
  EXPECT_TRUE(Until([&] { return manager->connection_count() == 0; }));
}

TEST_F(ConnectionRecoveryTest, shouldKeepWhatIsEstablishedThroughManyTakeovers) {
  RawPeer peers_of_test[2];
  uint32_t connections[2];
  for (int i = 0; i < 2; ++i) connections[i] = Established(peers_of_test[i]);
  for (int i = 0; i < 30; ++i) {
    TakeOver();
    ExchangeAMessage(connections[i % 2], peers_of_test[i % 2]);
    EXPECT_EQ(manager->connection_count(), 2u);
    EXPECT_EQ(manager->connections_of(0), 2u);
    EXPECT_NE(manager->established_ns(connections[0]), 0u);
  }
}

}  // namespace
}  // namespace baton::native

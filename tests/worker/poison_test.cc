// Workers that die in their handlers again and again: what their successors are given.
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "lib/arena/atomic_access.h"
#include "tests/worker/worker_fixture.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using testing::RawPeer;
using testing::ScriptedService;
using testing::WorkerFixture;
using verbs::CompletionStatus;
using Kind = Completion::Kind;

// Their deaths are told to the engine and are none: the library of a "dead" worker goes on, sees
// that its shard was taken away, and nothing of what it did counts.
class PoisonTest : public WorkerFixture, public ::testing::WithParamInterface<CommitMode> {
 protected:
  // A worker that echoes, and dies of what `kills` says. The first one is the first owner.
  Worker* AddMortal(const std::function<bool(const Completion&)>& kills) {
    ScriptedService& service = NewService();
    services.push_back(&service);
    Worker* worker = Add(&service, GetParam());
    service.on_completion = [this, worker, kills, &service](Shard& shard,
                                                            const Completion& completion) {
      if (dead.contains(&service)) return;
      if (kills(completion)) {
        dead.insert(&service);
        return Die(shard, *worker);
      }
      Echo(shard, completion);
      if (GetParam() == CommitMode::kManual) {
        EXPECT_EQ(shard.Commit(), absl::OkStatus());
      }
    };
    return worker;
  }
  void Die(const Shard& shard, const Worker& worker) {
    driver_process::Engine& engine = keeper.engine();
    engine.Run([&] {
      engine.succession().WorkerEnded(engine.succession().ownership(shard.index()).owner_slot(),
                                      worker.id(), "crash");
    });
    ++deaths;
  }
  // Returns the service that has the shard now and lives. The dead learn late that it was
  // taken away.
  ScriptedService& owner() {
    ScriptedService* owner = nullptr;
    EXPECT_TRUE(Until([&] {
      for (ScriptedService* service : services) {
        if (!dead.contains(service) && !service->shards.empty()) owner = service;
      }
      return owner != nullptr;
    }));
    return owner ? *owner : *services[0];
  }
  bool IsPoison(const Completion& completion) const {
    return completion.kind == Kind::kReceive && completion.status == CompletionStatus::kSuccess &&
           TextOf(completion) == "poison";
  }
  const arena::BankHeader& bank() {
    const driver_process::Engine& engine = keeper.engine();
    return engine.arena().bank(0, engine.succession().ownership(0).epoch());
  }
  uint64_t Poisoned() { return keeper.Describe().shards(0).poisoned_connections(); }
  void ConnectTwo(RawPeer& bad, RawPeer& good) {
    for (RawPeer* peer : {&bad, &good}) {
      for (int i = 0; i < 8; ++i) peer->Receive();
      Establish(*peer, *workers[0]);
    }
    ASSERT_TRUE(Until([&] { return services[0]->Count(Kind::kEstablished) == 2; }));
  }

  std::vector<ScriptedService*> services;
  std::set<const ScriptedService*> dead;
  int deaths = 0;
};

TEST_P(PoisonTest, shouldTellWhichCompletionItIsDealingWith) {
  Start();
  ScriptedService& service = NewService();
  std::vector<uint64_t> handling;
  service.on_completion = [&](Shard& shard, const Completion& completion) {
    handling.push_back(arena::LoadRelaxed(bank().handling));
    EXPECT_EQ(arena::LoadRelaxed(bank().read_cursor), handling.back());
    AcceptWith(shard, completion, 1);
    if (GetParam() == CommitMode::kManual) {
      EXPECT_EQ(shard.Commit(), absl::OkStatus());
    }
  };
  service.on_adopt = [&](Shard&) {
    EXPECT_EQ(arena::LoadRelaxed(bank().handling), 0u);
    return absl::OkStatus();
  };
  Worker* worker = Add(&service, GetParam());
  RawPeer peer;
  Establish(peer, *worker);
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kEstablished) == 1; }));
  EXPECT_THAT(handling, ElementsAre(1, 2));
  EXPECT_EQ(arena::LoadRelaxed(bank().handling), 0u);
  EXPECT_EQ(arena::LoadRelaxed(bank().read_cursor), 2u);
}

TEST_P(PoisonTest, shouldEndAPoisonedConnectionLikeOneThatFailed) {
  Start();
  for (int i = 0; i < 4; ++i) {
    AddMortal([this](const Completion& completion) { return IsPoison(completion); });
  }
  RawPeer bad, good;
  ASSERT_NO_FATAL_FAILURE(ConnectTwo(bad, good));
  const uint32_t poisoned = services[0]->Find(Kind::kEstablished)->connection->index();
  const uint64_t before = CompletionsInLog();
  // All in one batch of the first owner's.
  for (const char* text : {"first", "poison", "later"}) bad.Send(text);
  for (const char* text : {"one", "two"}) good.Send(text);
  ASSERT_TRUE(UntilWithoutWorkers([&] { return CompletionsInLog() == before + 5; }));
  ASSERT_TRUE(Until([&] { return bad.disconnected && good.received.size() == 2; }));
  EXPECT_EQ(deaths, 3);
  EXPECT_EQ(Poisoned(), 1u);
  EXPECT_THAT(good.received, ElementsAre("one", "two"));
  EXPECT_FALSE(good.disconnected);
  // What the last one was given of the poisoned connection: each request's completion, in order.
  const ScriptedService& last = owner();
  ASSERT_TRUE(Until([&] { return last.Count(Kind::kDisconnected) == 1; }));
  uint64_t receives = last.completions.front().sequence;
  for (const Completion& completion : last.completions) {
    if (completion.connection->index() != poisoned || completion.kind != Kind::kReceive) continue;
    EXPECT_EQ(completion.sequence, receives++);
    if (completion.sequence == 0) continue;  // "first", of which nobody dies
    EXPECT_EQ(completion.status, CompletionStatus::kFlushError);
    EXPECT_EQ(completion.byte_len, 0u);
  }
  EXPECT_GE(receives, 8u);
  // The service goes on.
  good.Send("three");
  EXPECT_TRUE(Until([&] { return good.received.size() == 3; }));
  EXPECT_EQ(Until([&] { return keeper.Describe().service().connection_count() == 1; }), true);
}

TEST_P(PoisonTest, shouldRejectAConnectionWhoseRequestKillsItsOwners) {
  Start();
  for (int i = 0; i < 4; ++i) {
    AddMortal([](const Completion& completion) {
      return completion.kind == Kind::kConnectRequest &&
             completion.connection->private_data().starts_with("poison");
    });
    services.back()->on_adopt = [this](Shard& shard) {
      if (deaths == 3) {
        EXPECT_TRUE(shard.connections().empty());
      }
      return absl::OkStatus();
    };
  }
  RawPeer bad;
  Connect(bad, *workers[0], "poison");
  ASSERT_TRUE(Until([&] { return bad.rejected; }));
  EXPECT_EQ(deaths, 3);
  ASSERT_TRUE(Until([&] { return keeper.Describe().service().connection_count() == 0; }));
  EXPECT_TRUE(owner().completions.empty());
  RawPeer good;
  good.Receive();
  Establish(good, *workers[0]);
  good.Send("hello");
  EXPECT_TRUE(Until([&] { return good.received.size() == 1; }));
}

TEST_P(PoisonTest, shouldForgetAConnectionWhoseEndKillsItsOwners) {
  Start();
  for (int i = 0; i < 4; ++i) {
    AddMortal([](const Completion& completion) { return completion.kind == Kind::kDisconnected; });
  }
  RawPeer bad, good;
  ASSERT_NO_FATAL_FAILURE(ConnectTwo(bad, good));
  bad.Disconnect();
  ASSERT_TRUE(Until([&] { return keeper.Describe().service().connection_count() == 1; }));
  EXPECT_EQ(deaths, 3);
  EXPECT_EQ(owner().Count(Kind::kDisconnected), 0);
  good.Send("hello");
  EXPECT_TRUE(Until([&] { return good.received.size() == 1; }));
}

// An application that dies of the poison, and of the flush errors that a failure brings.
TEST_P(PoisonTest, shouldSpareOwnersTheFlushErrorsOfWhichTheyDieToo) {
  Start([](v1::ServiceConfig* service) { service->set_poison_deaths(1); });
  for (int i = 0; i < 4; ++i) {
    AddMortal([this](const Completion& completion) {
      return IsPoison(completion) || completion.status == CompletionStatus::kFlushError;
    });
  }
  RawPeer bad, good;
  ASSERT_NO_FATAL_FAILURE(ConnectTwo(bad, good));
  bad.Send("poison");
  ASSERT_TRUE(Until([&] { return keeper.Describe().service().connection_count() == 1; }));
  EXPECT_EQ(deaths, 2);
  EXPECT_EQ(owner().Count(Kind::kDisconnected), 1);
  good.Send("hello");
  EXPECT_TRUE(Until([&] { return good.received.size() == 1; }));
}

INSTANTIATE_TEST_SUITE_P(Modes, PoisonTest,
                         ::testing::Values(CommitMode::kAfterEachBatch,
                                           CommitMode::kAfterEachCompletion, CommitMode::kManual));

}  // namespace
}  // namespace baton

// The life of connections as a worker sees it, what travels over them, and remote access.
#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "lib/arena/layout.h"
#include "tests/worker/worker_fixture.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RawPeer;
using testing::ReceiveSlot;
using testing::ScriptedService;
using testing::SendSlot;
using testing::WorkerFixture;
using verbs::CompletionStatus;
using verbs::Opcode;
using Kind = Completion::Kind;

class ConnectionTest : public WorkerFixture {
 protected:
  // One worker that accepts everybody.
  void Prepare(int receives = 4, const keeper::testing::KeeperThread::Change& change = nullptr) {
    Start(change);
    service.on_completion = [this, receives](Shard& shard, const Completion& completion) {
      AcceptWith(shard, completion, receives);
      if (also) also(shard, completion);
    };
    worker = Add(&service);
  }
  Connection* Established(RawPeer& peer, std::string_view private_data = {}) {
    const int before = service.Count(Kind::kEstablished);
    Connect(peer, *worker, private_data);
    EXPECT_TRUE(
        Until([&] { return peer.established && service.Count(Kind::kEstablished) > before; }));
    return service.completions.back().connection;
  }
  Shard& shard(uint32_t index = 0) { return *service.shards.at(index); }
  // The service receives what `peer` sends.
  bool Hears(RawPeer& peer) {
    const auto count = [&] {
      return std::count_if(service.completions.begin(), service.completions.end(),
                           [](const Completion& completion) {
                             return completion.kind == Kind::kReceive &&
                                    completion.status == CompletionStatus::kSuccess;
                           });
    };
    const auto before = count();
    peer.Send("hello");
    return Until([&] { return count() > before; });
  }
  // One work request, committed, and its completion.
  Completion Do(Connection& connection, const SendWork& work) {
    const int before = service.Count(Kind::kSend);
    EXPECT_EQ(shard().Send(connection, work), absl::OkStatus());
    EXPECT_EQ(shard().Commit(), absl::OkStatus());
    EXPECT_TRUE(Until([&] { return service.Count(Kind::kSend) > before; }));
    for (auto it = service.completions.rbegin(); it != service.completions.rend(); ++it) {
      if (it->kind == Kind::kSend) return *it;
    }
    return {};
  }

  ScriptedService& service = NewService();
  std::function<void(Shard&, const Completion&)> also;
  Worker* worker = nullptr;
};

TEST_F(ConnectionTest, shouldKnowItsPeer) {
  Prepare();
  std::string private_data;
  also = [&](Shard&, const Completion& completion) {
    if (completion.kind == Kind::kConnectRequest) {
      private_data = completion.connection->private_data();
      EXPECT_FALSE(completion.connection->established());
    }
  };
  RawPeer peer;
  const Connection& connection = *Established(peer, "who I am");
  EXPECT_EQ(private_data.substr(0, 8), "who I am");
  EXPECT_TRUE(connection.established());
  EXPECT_THAT(std::string(connection.peer_address()), ::testing::StartsWith(fabric.host + ":"));
  EXPECT_EQ(connection.generation(), 1u);
  EXPECT_EQ(&connection.shard(), &shard());
}

TEST_F(ConnectionTest, shouldNotBeLedOutOfARecordThatSomebodyHasWrittenOver) {
  Prepare();
  RawPeer peer;
  const Connection& connection = *Established(peer, "who I am");
  arena::ConnectionRecord& record = keeper.engine().arena().connection(connection.index());
  keeper.engine().Run([&] {  // whose thread wrote it
    record.private_data_length = ~0u;
    std::memset(record.peer_address, 'a', sizeof(record.peer_address));
  });
  EXPECT_EQ(connection.private_data().size(), arena::kPrivateDataBytes);
  EXPECT_EQ(connection.peer_address(), std::string(arena::kAddressBytes, 'a'));
}

TEST_F(ConnectionTest, shouldRefuseToReadFromAPeerThatAnswersNothing) {
  Prepare();
  RawPeer peer;
  peer.parameters.responder_resources = 0;
  peer.parameters.initiator_depth = 3;
  Connection& connection = *Established(peer);
  const Buffer word = SendSlot(connection, 0, 8);
  SendWork work;
  work.buffers = {&word, 1};
  for (const Opcode opcode : {Opcode::kRead, Opcode::kCompareAndSwap, Opcode::kFetchAndAdd}) {
    work.opcode = opcode;
    const absl::Status status = shard().Send(connection, work);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr("answers no READs"));
  }
  EXPECT_TRUE(connection.established());

  internal::ManagementRequest list;
  list.mutable_list_connections()->set_shard(-1);
  list.mutable_list_connections()->set_limit(1);
  const auto reply = keeper.Ask(list);
  ASSERT_TRUE(reply.ok()) << reply.status();
  const v1::Connection& described = reply->connections().connections(0);
  EXPECT_TRUE(described.has_initiator_depth());
  EXPECT_EQ(described.initiator_depth(), 0u);
  EXPECT_EQ(described.responder_resources(), 3u);
}

TEST_F(ConnectionTest, shouldCarryEveryOpcode) {
  Prepare();
  RawPeer peer;
  Connection& connection = *Established(peer);
  for (int i = 0; i < 4; ++i) peer.Receive();
  uint8_t* const buffers = worker->buffers().data();
  std::copy_n("payload!", 8, buffers);
  const Buffer payload = {0, 8};
  const Buffer result = {64, 8};
  SendWork work;
  work.buffers = {&payload, 1};
  work.tag = 77;
  Completion done = Do(connection, work);
  EXPECT_EQ(done.status, CompletionStatus::kSuccess);
  EXPECT_EQ(done.opcode, verbs::CompletionOpcode::kSend);
  EXPECT_EQ(done.tag, 77u);
  EXPECT_EQ(done.connection, &connection);

  work.opcode = Opcode::kSendWithImmediate;
  work.immediate = 0xabcd1234;
  EXPECT_EQ(Do(connection, work).status, CompletionStatus::kSuccess);

  work.rkey = peer.rkey();
  uint8_t* const target = peer.send_slot(10);
  work.remote_address = reinterpret_cast<uint64_t>(target);
  work.opcode = Opcode::kWrite;
  done = Do(connection, work);
  EXPECT_EQ(done.status, CompletionStatus::kSuccess);
  EXPECT_EQ(done.opcode, verbs::CompletionOpcode::kWrite);
  EXPECT_EQ(std::memcmp(target, "payload!", 8), 0);

  work.opcode = Opcode::kWriteWithImmediate;
  work.immediate = 99;
  EXPECT_EQ(Do(connection, work).status, CompletionStatus::kSuccess);

  std::copy_n("from you", 8, target);
  work.opcode = Opcode::kRead;
  work.buffers = {&result, 1};
  done = Do(connection, work);
  EXPECT_EQ(done.status, CompletionStatus::kSuccess);
  EXPECT_EQ(done.opcode, verbs::CompletionOpcode::kRead);
  EXPECT_EQ(std::memcmp(buffers + 64, "from you", 8), 0);

  uint64_t word = 41;
  std::memcpy(target, &word, 8);
  work.opcode = Opcode::kFetchAndAdd;
  work.compare_add = 1;
  EXPECT_EQ(Do(connection, work).status, CompletionStatus::kSuccess);
  std::memcpy(&word, buffers + 64, 8);
  EXPECT_EQ(word, 41u);
  std::memcpy(&word, target, 8);
  EXPECT_EQ(word, 42u);

  work.opcode = Opcode::kCompareAndSwap;
  work.compare_add = 42;
  work.swap = 4242;
  work.fence = true;
  EXPECT_EQ(Do(connection, work).status, CompletionStatus::kSuccess);
  std::memcpy(&word, target, 8);
  EXPECT_EQ(word, 4242u);

  ASSERT_TRUE(Until([&] { return peer.received.size() == 3; }));
  EXPECT_THAT(peer.received, ElementsAre("payload!", "payload!", ""));
  EXPECT_THAT(peer.immediates, ElementsAre(0xabcd1234, 99));
}

TEST_F(ConnectionTest, shouldFailAnInvalidationOfWhatThePeerDidNotOffer) {
  Prepare();
  RawPeer peer;
  Connection& connection = *Established(peer);
  peer.Receive();
  const Buffer payload = {0, 8};
  SendWork work;
  work.opcode = Opcode::kSendWithInvalidate;
  work.buffers = {&payload, 1};
  work.invalidate_rkey = peer.rkey();
  const CompletionStatus status = Do(connection, work).status;
  ASSERT_TRUE(Until([&] { return peer.flushed_receives == 1; }));
  // A peer may acknowledge the message before it looks at the key (tests/lib/verbs/errors_test.cc).
  if (status == CompletionStatus::kSuccess) return;
  // Soft-RoCE completes the receive before it answers: when that has ended the queue pair already,
  // there is no answer, and the message is tried in vain.
  EXPECT_THAT(status,
              AnyOf(CompletionStatus::kRemoteOperationError, CompletionStatus::kRetryExceeded));
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kDisconnected) == 1; }));
}

TEST_F(ConnectionTest, shouldTellWhatWasReceived) {
  Prepare();
  RawPeer peer;
  Connection& connection = *Established(peer);
  peer.Send("plain");
  verbs::SendRequest request;
  request.opcode = Opcode::kSendWithImmediate;
  request.immediate = 31;
  peer.Post(request, 10);
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kReceive) == 2; }));
  const Completion& last = service.completions.back();
  EXPECT_EQ(last.connection, &connection);
  EXPECT_EQ(last.sequence, 1u);
  EXPECT_EQ(last.byte_len, 10u);
  EXPECT_TRUE(last.has_immediate);
  EXPECT_EQ(last.immediate, 31u);
  EXPECT_FALSE(service.Find(Kind::kReceive)->has_immediate);
}

TEST_F(ConnectionTest, shouldRejectWithPrivateData) {
  Start();
  service.on_completion = [](Shard& shard, const Completion& completion) {
    if (completion.kind != Kind::kConnectRequest) return;
    EXPECT_EQ(shard.Reject(*completion.connection, "come back later"), absl::OkStatus());
  };
  worker = Add(&service);
  RawPeer peer;
  Connect(peer, *worker);
  ASSERT_TRUE(Until([&] { return peer.rejected && service.Count(Kind::kConnectFailed) == 1; }));
  EXPECT_EQ(peer.private_data.substr(0, 15), "come back later");
  EXPECT_TRUE(Until([&] { return keeper.Describe().service().connection_count() == 0; }));
}

// More than the device's messages have room for, and no more than the worker's library lets
// through.
TEST_F(ConnectionTest, shouldFailOnlyTheConnectionThatIsAnsweredWithTooMuchPrivateData) {
  Prepare();
  const std::string longest(arena::kPrivateDataBytes, 'x');
  RawPeer good, accepted, rejected;
  Established(good);
  service.on_completion = [&](Shard& shard, const Completion& completion) {
    if (completion.kind != Kind::kConnectRequest) return Echo(shard, completion);
    Connection& connection = *completion.connection;
    EXPECT_EQ(connection.private_data().substr(0, 1) == "a" ? shard.Accept(connection, longest)
                                                            : shard.Reject(connection, longest),
              absl::OkStatus());
  };
  Connect(accepted, *worker, "a");
  ASSERT_TRUE(Until([&] {
    return service.Count(Kind::kConnectFailed) == 1 && (accepted.rejected || accepted.unreachable);
  }));
  Connect(rejected, *worker, "r");
  ASSERT_TRUE(Until([&] {
    return service.Count(Kind::kConnectFailed) == 2 && (rejected.rejected || rejected.unreachable);
  }));
  EXPECT_EQ(service.Find(Kind::kConnectFailed)->status, verbs::CompletionStatus::kGeneralError);
  EXPECT_TRUE(Hears(good));
}

TEST_F(ConnectionTest, shouldRefuseToConnectWithTooMuchPrivateData) {
  Prepare();
  ASSERT_TRUE(Until([&] { return service.shards.size() == 1; }));
  RawPeer good, peer;
  Established(good);
  const auto connection = worker->Connect(shard(), fabric.host, peer.Listen(),
                                          std::string(arena::kPrivateDataBytes, 'x'), 558);
  EXPECT_EQ(connection.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(connection.status().message()),
              AllOf(HasSubstr("private"), HasSubstr("256"), HasSubstr("56")));
  EXPECT_TRUE(Hears(good));
}

TEST_F(ConnectionTest, shouldAcceptLater) {
  Start();
  worker = Add(&service);
  RawPeer peer;
  Connect(peer, *worker);
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kConnectRequest) == 1; }));
  for (int i = 0; i < 20; ++i) Turn();
  EXPECT_FALSE(peer.established);
  ASSERT_EQ(shard().Accept(*service.completions[0].connection, "at last"), absl::OkStatus());
  ASSERT_EQ(shard().Commit(), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return peer.established; }));
  EXPECT_EQ(peer.private_data.substr(0, 7), "at last");
}

TEST_F(ConnectionTest, shouldDisconnect) {
  Prepare();
  RawPeer peer;
  Connection& connection = *Established(peer);
  ASSERT_EQ(shard().Disconnect(connection), absl::OkStatus());
  ASSERT_EQ(shard().Commit(), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return peer.disconnected && service.Count(Kind::kDisconnected) == 1; }));
  EXPECT_EQ(service.Count(Kind::kReceive), 4);  // flushed, before the end
  EXPECT_EQ(service.completions.back().kind, Kind::kDisconnected);
  // It is history now.
  const Buffer slot = {0, 8};
  EXPECT_EQ(shard().Receive(connection, {&slot, 1}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(shard().Disconnect(connection).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(shard().connections().empty());
}

TEST_F(ConnectionTest, shouldSurviveWorkThatIsStagedInTheBatchOfTheEnd) {
  Prepare();
  also = [&](Shard& shard, const Completion& completion) {
    if (completion.kind == Kind::kReceive) {
      // An answer, whatever became of the connection.
      EXPECT_EQ(SendText(shard, *completion.connection, "answer"), absl::OkStatus());
    }
    if (completion.kind == Kind::kDisconnected) {
      EXPECT_EQ(SendText(shard, *completion.connection, "farewell"), absl::OkStatus());
    }
  };
  RawPeer peer;
  Established(peer);
  const uint64_t before = CompletionsInLog();
  peer.Send("one");
  ASSERT_TRUE(UntilWithoutWorkers([&] { return CompletionsInLog() == before + 1; }));
  peer.Disconnect();
  // One received, three flushed, and the end: all in one batch.
  ASSERT_TRUE(UntilWithoutWorkers([&] { return CompletionsInLog() == before + 5; }));
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kDisconnected) == 1; }));
  ASSERT_TRUE(Until([&] { return keeper.Describe().service().connection_count() == 0; }));
  peers.clear();
  also = nullptr;
  RawPeer next;
  Established(next);
  EXPECT_EQ(poll_status, absl::OkStatus());
}

TEST_F(ConnectionTest, shouldNotFindAConnectionAgainThatHasEnded) {
  Prepare();
  size_t found = 99;
  also = [&](Shard& shard, const Completion& completion) {
    if (completion.kind == Kind::kDisconnected) return;
    if (completion.kind == Kind::kConnectRequest && found == 99) return;
    found = shard.connections().size();
  };
  RawPeer peer;
  Established(peer);
  EXPECT_EQ(found, 1u);
  peer.Disconnect();
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kDisconnected) == 1; }));
  EXPECT_TRUE(shard().connections().empty());
}

TEST_F(ConnectionTest, shouldUseSlotsAgainWithoutEnd) {
  Prepare(2, [](v1::ServiceConfig* config) { config->set_max_connections(1); });
  const uint32_t last = harness::Slowness() > 1 ? 40 : 150;
  for (uint32_t generation = 1; generation <= last; ++generation) {
    RawPeer peer;
    Established(peer);
    peer.Send("x");
    const int before = service.Count(Kind::kDisconnected);
    peer.Disconnect();
    ASSERT_TRUE(Until([&] { return service.Count(Kind::kDisconnected) > before; }));
    EXPECT_EQ(service.completions.back().connection->generation(), generation);
    ASSERT_TRUE(Until([&] { return keeper.Describe().service().connection_count() == 0; }));
    peers.clear();
  }
}

TEST_F(ConnectionTest, shouldAcceptIntoAnotherOfItsShards) {
  Start([](v1::ServiceConfig* config) { config->set_shards(2); });
  service.on_completion = [&](Shard& from, const Completion& completion) {
    if (completion.kind == Kind::kConnectRequest) {
      Connection& connection = *completion.connection;
      const Buffer slot = ReceiveSlot(connection, 0);
      EXPECT_EQ(from.Receive(connection, {&slot, 1}), absl::OkStatus());
      EXPECT_EQ(from.Accept(connection, *service.shards.at(1 - from.index())), absl::OkStatus());
    }
  };
  worker = Add(&service);
  ASSERT_TRUE(Until([&] { return service.shards.size() == 2; }));
  RawPeer peer;
  Connection& connection = *Established(peer);
  EXPECT_EQ(connection.shard().index(), 1u);
  peer.Send("there");
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kReceive) == 1; }));
  EXPECT_EQ(service.completions.back().connection, &connection);
  peer.Receive();
  const Buffer slot = {0, 4};
  SendWork work;
  work.buffers = {&slot, 1};
  EXPECT_EQ(shard(0).Send(connection, work).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(shard(1).Send(connection, work), absl::OkStatus());
  EXPECT_EQ(shard(1).Commit(), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return peer.received.size() == 1; }));
  EXPECT_TRUE(shard(0).connections().empty());
  EXPECT_EQ(shard(1).connections().size(), 1u);
}

// ---- Connecting out.

TEST_F(ConnectionTest, shouldConnectOut) {
  Prepare();
  ASSERT_TRUE(Until([&] { return service.shards.size() == 1; }));
  RawPeer peer;
  peers.push_back(&peer);
  peer.AnswerWith("enter");
  for (int i = 0; i < 4; ++i) peer.Receive();
  auto connection = worker->Connect(shard(), fabric.host, peer.Listen(), "knock", 555);
  ASSERT_TRUE(connection.ok()) << connection.status();
  // Committed before anything stands, sent as soon as it does.
  ASSERT_EQ(SendText(shard(), **connection, "early"), absl::OkStatus());
  ASSERT_EQ(shard().Commit(), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return peer.received.size() == 1; }));
  EXPECT_EQ(peer.received[0], "early");
  EXPECT_EQ(peer.private_data.substr(0, 5), "knock");
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kEstablished) == 1; }));
  const Completion& established = *service.Find(Kind::kEstablished);
  EXPECT_EQ(established.tag, 555u);
  EXPECT_EQ(established.connection, *connection);
  EXPECT_EQ((*connection)->private_data().substr(0, 5), "enter");
}

TEST_F(ConnectionTest, shouldTellThatItWasRefused) {
  Prepare();
  ASSERT_TRUE(Until([&] { return service.shards.size() == 1; }));
  RawPeer peer;
  peers.push_back(&peer);
  peer.Refuse("no");
  const auto connection = worker->Connect(shard(), fabric.host, peer.Listen(), "", 556);
  ASSERT_TRUE(connection.ok()) << connection.status();
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kConnectFailed) == 1; }));
  EXPECT_EQ(service.completions.back().tag, 556u);
  EXPECT_EQ(service.completions.back().connection, *connection);
}

TEST_F(ConnectionTest, shouldTellThatNobodyListens) {
  Prepare();
  ASSERT_TRUE(Until([&] { return service.shards.size() == 1; }));
  uint16_t unused;
  { unused = RawPeer().Listen(); }
  const auto connection = worker->Connect(shard(), fabric.host, unused, "", 557);
  if (connection.ok()) {
    ASSERT_TRUE(Until([&] { return service.Count(Kind::kConnectFailed) == 1; }));
  }
}

// ---- Remote access.

TEST_F(ConnectionTest, shouldFailOnlyTheConnectionWhosePeerRefusesAccess) {
  Prepare();
  RawPeer good, strict;
  Established(good);
  Connection& connection = *Established(strict);
  const Buffer slot = SendSlot(connection, connection.next_send(), 64);
  SendWork work;
  work.opcode = Opcode::kWrite;
  work.buffers = {&slot, 1};
  work.remote_address = strict.address();
  work.rkey = strict.rkey() + 1;
  ASSERT_EQ(shard().Send(connection, work), absl::OkStatus());
  ASSERT_EQ(shard().Commit(), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kDisconnected) == 1; }));
  ASSERT_NE(service.Find(Kind::kSend), nullptr);
  EXPECT_EQ(service.Find(Kind::kSend)->status, verbs::CompletionStatus::kRemoteAccessError);
  EXPECT_EQ(service.completions.back().connection, &connection);
  EXPECT_EQ(service.completions.back().status, verbs::CompletionStatus::kRemoteAccessError);
  EXPECT_TRUE(Until([&] { return strict.disconnected; }));
  EXPECT_TRUE(Hears(good));
}

TEST_F(ConnectionTest, shouldOpenARangeToPeersUntilItIsRevoked) {
  Prepare();
  RawPeer peer;
  Established(peer);
  const auto grant = worker->GrantRemoteAccess(8192, 16, verbs::kRemoteRead | verbs::kRemoteWrite);
  ASSERT_TRUE(grant.ok()) << grant.status();
  uint8_t* const granted = worker->buffers().data() + 8192;
  verbs::SendRequest request;
  request.opcode = Opcode::kWrite;
  request.rkey = grant->rkey;
  request.remote_address = grant->remote_address;
  std::memcpy(peer.send_slot(0), "written!", 8);
  peer.Post(request, 8);
  ASSERT_TRUE(Until([&] { return peer.sent.size() == 1; }));
  EXPECT_EQ(peer.sent[0].status, CompletionStatus::kSuccess);
  EXPECT_EQ(std::memcmp(granted, "written!", 8), 0);
  std::copy_n("read me!", 8, granted + 8);
  request.opcode = Opcode::kRead;
  request.remote_address = grant->remote_address + 8;
  peer.Post(request, 8);
  ASSERT_TRUE(Until([&] { return peer.sent.size() == 2; }));
  EXPECT_EQ(std::memcmp(peer.send_slot(1), "read me!", 8), 0);
  EXPECT_EQ(worker->RevokeGrant(grant->id), absl::OkStatus());
  EXPECT_EQ(worker->RevokeGrant(grant->id).code(), absl::StatusCode::kNotFound);
  peer.Post(request, 8);
  ASSERT_TRUE(Until([&] { return peer.sent.size() == 3; }));
  EXPECT_EQ(peer.sent[2].status, CompletionStatus::kRemoteAccessError);
}

TEST_F(ConnectionTest, shouldExposeNothingBeyondAGrant) {
  Prepare();
  const auto grant = worker->GrantRemoteAccess(8192, 16, verbs::kRemoteWrite);
  ASSERT_TRUE(grant.ok());
  const struct {
    Opcode opcode;
    int64_t offset;
    uint32_t length;
  } kAttempts[] = {{Opcode::kWrite, 9, 8}, {Opcode::kWrite, -1, 8}, {Opcode::kRead, 0, 8}};
  for (const auto& attempt : kAttempts) {
    RawPeer peer;
    Established(peer);
    verbs::SendRequest request;
    request.opcode = attempt.opcode;
    request.rkey = grant->rkey;
    request.remote_address = grant->remote_address + static_cast<uint64_t>(attempt.offset);
    peer.Post(request, attempt.length);
    ASSERT_TRUE(Until([&] { return peer.sent.size() == 1; }));
    EXPECT_EQ(peer.sent[0].status, CompletionStatus::kRemoteAccessError);
    peers.clear();
  }
}

}  // namespace
}  // namespace baton

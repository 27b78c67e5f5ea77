#include <poll.h>

#include "tests/lib/verbs/connected_test.h"

namespace baton::verbs::testing {
namespace {

class ConnectionManager : public ConnectedTest {
 protected:
  std::unique_ptr<Listener> Listen() {
    return server.device->Listen({GetParam().host, 0}, 8).value();
  }
  void Request(const Listener& listener, const ConnectionParameters& parameters = {}) {
    client.id = client.device
                    ->Connect({GetParam().host, listener.address().port}, client.queue_pair.get(),
                              parameters)
                    .value();
  }
  // The server's event is the request of the client.
  bool Ask(const Listener& listener, CmEvent* event, const ConnectionParameters& parameters = {}) {
    Request(listener, parameters);
    return AwaitEvent(server, client, CmEventType::kConnectRequest, event);
  }
  // The client may not know the answer yet.
  void AskAndAccept(const Listener& listener) {
    CmEvent event;
    ASSERT_TRUE(Ask(listener, &event));
    server.id = std::move(event.new_id);
    ASSERT_TRUE(server.id->Accept(server.queue_pair.get(), {}).ok());
  }
  // A private data may arrive padded with zeros (InfiniBand carries a fixed size).
  static void ExpectPrivateData(const CmEvent& event, std::string_view wanted) {
    ASSERT_GE(event.private_data.size(), wanted.size());
    EXPECT_EQ(event.private_data.substr(0, wanted.size()), wanted);
    EXPECT_EQ(event.private_data.find_first_not_of('\0', wanted.size()), std::string::npos);
  }
};

TEST_P(ConnectionManager, shouldCarryPrivateDataBothWays) {
  const auto listener = Listen();
  int context = 0;
  listener->context = &context;
  ConnectionParameters parameters;
  parameters.private_data = std::string(56, 'q');
  CmEvent event;
  ASSERT_TRUE(Ask(*listener, &event, parameters));
  ExpectPrivateData(event, parameters.private_data);
  EXPECT_EQ(event.listener, listener.get());
  EXPECT_EQ(event.new_id->local_address().port, listener->address().port);
  EXPECT_EQ(event.new_id->peer_address().port, client.id->local_address().port);
  server.id = std::move(event.new_id);
  parameters.private_data = std::string(196, 'r');
  ASSERT_TRUE(server.id->Accept(server.queue_pair.get(), parameters).ok());
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kEstablished, &event));
  ExpectPrivateData(event, parameters.private_data);
  EXPECT_EQ(event.id, client.id.get());
  ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kEstablished, &event));
  EXPECT_EQ(event.id, server.id.get());
}

TEST_P(ConnectionManager, shouldReportRejectionWithPrivateData) {
  const auto listener = Listen();
  CmEvent event;
  ASSERT_TRUE(Ask(*listener, &event));
  server.id = std::move(event.new_id);
  ASSERT_TRUE(server.id->Reject(std::string(148, 'n')).ok());
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kRejected, &event));
  ExpectPrivateData(event, std::string(148, 'n'));
  EXPECT_FALSE(event.status.ok());
}

TEST_P(ConnectionManager, shouldNameLimitAndValueOfTooLongPrivateData) {
  const auto listener = Listen();
  ConnectionParameters parameters;
  parameters.private_data = std::string(57, 'q');
  const absl::Status status = client.device
                                  ->Connect({GetParam().host, listener->address().port},
                                            client.queue_pair.get(), parameters)
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("57"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("56"), absl::string_view::npos) << status;
  CmEvent event;
  ASSERT_TRUE(Ask(*listener, &event));
  parameters.private_data = std::string(197, 'q');
  EXPECT_EQ(event.new_id->Accept(server.queue_pair.get(), parameters).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(event.new_id->Reject(std::string(149, 'q')).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(ConnectionManager, shouldReportMissingListenerAsUnreachable) {
  const uint16_t port = Listen()->address().port;  // and gone again
  client.id = client.device->Connect({GetParam().host, port}, client.queue_pair.get(), {}).value();
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kUnreachable, &event));
  EXPECT_FALSE(event.status.ok());
  EXPECT_EQ(event.id, client.id.get());
  EXPECT_EQ(client.queue_pair->state(), QueuePairState::kInit);
}

// Soft-RoCE has neither partitions nor service levels, nor has the soft device.
TEST_P(ConnectionManager, shouldKnowTheRouteBeforeThePeerIsAsked) {
  const auto listener = Listen();
  Route ours;
  ConnectionParameters parameters;
  parameters.check_route = [&ours](const Route& route) {
    ours = route;
    return absl::OkStatus();
  };
  CmEvent event;
  ASSERT_TRUE(Ask(*listener, &event, parameters));
  for (const Route& route : {ours, event.new_id->route()}) {
    EXPECT_EQ(route.gid, GetParam().host);
    EXPECT_EQ(route.p_key, 0xffff);
    EXPECT_EQ(route.service_level, 0);
  }
}

TEST_P(ConnectionManager, shouldAskNoPeerByARouteThatIsRefused) {
  const auto listener = Listen();
  ConnectionParameters parameters;
  parameters.check_route = [](const Route&) { return absl::PermissionDeniedError("not this way"); };
  Request(*listener, parameters);
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kUnreachable, &event));
  EXPECT_EQ(event.status.code(), absl::StatusCode::kPermissionDenied) << event.status;
  EXPECT_EQ(client.queue_pair->state(), QueuePairState::kInit);
  client.id.reset();
  // The first request that comes is the next.
  parameters = {};
  parameters.private_data = "the second";
  Request(*listener, parameters);
  ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kConnectRequest, &event));
  ExpectPrivateData(event, "the second");
}

TEST_P(ConnectionManager, shouldReportBadAddressAsUnreachable) {
  client.id = client.device->Connect({"not-an-address", 1}, client.queue_pair.get(), {}).value();
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kUnreachable, &event));
  EXPECT_FALSE(event.status.ok());
}

TEST_P(ConnectionManager, shouldConnectAgainAfterBeingUnreachable) {
  const uint16_t port = Listen()->address().port;
  client.id = client.device->Connect({GetParam().host, port}, client.queue_pair.get(), {}).value();
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kUnreachable, &event));
  client.id.reset();
  Join();
}

TEST_P(ConnectionManager, shouldRefuseAPortThatIsTaken) {
  const auto listener = Listen();
  const Address taken = {GetParam().host, listener->address().port};
  const absl::Status status = client.device->Listen(taken, 8).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_NE(status.message().find(std::to_string(taken.port)), absl::string_view::npos) << status;
}

TEST_P(ConnectionManager, shouldListenAgainAtOnceWithConnectionsOfTheFormerListenerAlive) {
  auto listener = Listen();
  const Address address = {GetParam().host, listener->address().port};
  ASSERT_NO_FATAL_FAILURE(AskAndAccept(*listener));
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kEstablished, &event));
  listener.reset();
  EXPECT_TRUE(server.device->Listen(address, 8).ok());
  server.id.reset();
  EXPECT_TRUE(server.device->Listen(address, 8).ok());
}

TEST_P(ConnectionManager, shouldRejectRequestsThatAGoneListenerDidNotReport) {
  auto listener = Listen();
  Request(*listener);
  // The request is there once the server's device has something to do, and does it.
  pollfd fd = {server.device->event_fd(), POLLIN, 0};
  ASSERT_TRUE(Pump(client, client, [&] { return poll(&fd, 1, 0) == 1; }));
  for (int i = 0; i < 100; ++i) {
    client.Turn();
    server.device->Progress();
  }
  listener.reset();
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kRejected, &event));
  EXPECT_FALSE(server.device->NextEvent(&event));
}

TEST_P(ConnectionManager, shouldRejectARequestWhoseIdIsDropped) {
  const auto listener = Listen();
  CmEvent event;
  ASSERT_TRUE(Ask(*listener, &event));
  event.new_id.reset();
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kRejected, &event));
}

TEST_P(ConnectionManager, shouldReportDisconnectAtBothSidesAndFlush) {
  Join();
  ASSERT_TRUE(PostReceive(*client.queue_pair, 1, {ours.Sge(0, 8)}).ok());
  ASSERT_TRUE(PostReceive(*server.queue_pair, 2, {theirs.Sge(0, 8)}).ok());
  ASSERT_TRUE(client.id->Disconnect().ok());
  EXPECT_EQ(client.queue_pair->state(), QueuePairState::kError);
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kDisconnected, &event));
  EXPECT_EQ(server.queue_pair->state(), QueuePairState::kError);
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kDisconnected, &event));
  ExpectClient(1, CompletionStatus::kFlushError);
  ExpectServer(2, CompletionStatus::kFlushError);
  EXPECT_FALSE(client.id->Disconnect().ok());
}

TEST_P(ConnectionManager, shouldDeliverWhatWasAcknowledgedBeforeTheDisconnect) {
  Join();
  ASSERT_TRUE(PostReceive(*server.queue_pair, 2, {theirs.Sge(0, 8)}).ok());
  ASSERT_TRUE(
      PostSend(*client.queue_pair, testing::Request(Opcode::kSend, 1), {ours.Sge(0, 8)}).ok());
  ExpectServer(2, CompletionStatus::kSuccess);
  ASSERT_TRUE(server.id->Disconnect().ok());
  ExpectClient(1, CompletionStatus::kSuccess);
}

TEST_P(ConnectionManager, shouldReportDisconnectWhenThePeersIdIsDestroyed) {
  Join();
  client.id.reset();
  EXPECT_EQ(client.queue_pair->state(), QueuePairState::kError);
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kDisconnected, &event));
  EXPECT_EQ(event.id, server.id.get());
}

TEST_P(ConnectionManager, shouldSurviveBothSidesDisconnectingAtOnce) {
  Join();
  ASSERT_TRUE(client.id->Disconnect().ok());
  ASSERT_TRUE(server.id->Disconnect().ok());
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kDisconnected, &event));
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kDisconnected, &event));
}

// The peer, which has not answered the accept yet, believes itself connected, or will.
TEST_P(ConnectionManager, shouldReportADisconnectRightAfterTheAccept) {
  const auto listener = Listen();
  ASSERT_NO_FATAL_FAILURE(AskAndAccept(*listener));
  ASSERT_TRUE(server.id->Disconnect().ok());
  const auto ended = [](const Side& side) {
    return !side.events.empty() && side.events.back().type != CmEventType::kEstablished;
  };
  ASSERT_TRUE(Pump(client, server, [&] { return ended(client) && ended(server); }));
  EXPECT_EQ(server.events.back().type, CmEventType::kDisconnected);
  EXPECT_EQ(client.events.back().type, CmEventType::kDisconnected);
}

TEST_P(ConnectionManager, shouldReportThatThePeersIdWasDestroyedRightAfterTheAccept) {
  const auto listener = Listen();
  ASSERT_NO_FATAL_FAILURE(AskAndAccept(*listener));
  server.id.reset();
  // Whether it was connected before depends on who was faster.
  ASSERT_TRUE(Pump(client, server, [&] {
    return !client.events.empty() && client.events.back().type != CmEventType::kEstablished;
  }));
  EXPECT_NE(client.queue_pair->state(), QueuePairState::kReadyToSend);
}

TEST_P(ConnectionManager, shouldForgetEventsOfADestroyedId) {
  Join();
  ASSERT_TRUE(client.id->Disconnect().ok());
  for (int i = 0; i < 100; ++i) {
    client.device->Progress();
    server.Turn();
  }
  client.id.reset();
  CmEvent event;
  EXPECT_FALSE(client.device->NextEvent(&event));
}

TEST_P(ConnectionManager, shouldFailToAcceptAPeerThatGaveUp) {
  const auto listener = Listen();
  CmEvent event;
  ASSERT_TRUE(Ask(*listener, &event));
  client.id.reset();
  for (int i = 0; i < 100; ++i) server.Turn();
  // The connection manager may find out at once or later; it never becomes established.
  server.id = std::move(event.new_id);
  if (server.id->Accept(server.queue_pair.get(), {}).ok()) {
    ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kUnreachable, &event));
  }
}

TEST_P(ConnectionManager, shouldUseAQueuePairForOneConnectionOnly) {
  Join();
  const auto listener = Listen();
  EXPECT_EQ(client.device
                ->Connect({GetParam().host, listener->address().port}, client.queue_pair.get(), {})
                .status()
                .code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_P(ConnectionManager, shouldAcceptExactlyOnce) {
  Join();
  EXPECT_EQ(server.id->Accept(server.queue_pair.get(), {}).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(server.id->Reject("").code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(ConnectionManager, shouldCarryDataSentRightAfterAccept) {
  const auto listener = Listen();
  ASSERT_TRUE(PostReceive(*client.queue_pair, 1, {ours.Sge(0, 8)}).ok());
  theirs.Fill(0, "early");
  ASSERT_NO_FATAL_FAILURE(AskAndAccept(*listener));
  ASSERT_TRUE(
      PostSend(*server.queue_pair, testing::Request(Opcode::kSend, 2), {theirs.Sge(0, 5)}).ok());
  ExpectClient(1, CompletionStatus::kSuccess);
  EXPECT_EQ(ours.Text(0, 5), "early");
  ExpectServer(2, CompletionStatus::kSuccess);
}

TEST_P(ConnectionManager, shouldHoldManyConnections) {
  constexpr int kCount = 200;
  const auto listener = server.device->Listen({GetParam().host, 0}, kCount).value();
  std::vector<std::unique_ptr<QueuePair>> pairs;
  std::vector<std::unique_ptr<ConnectionId>> ids;
  const auto accept = [&] {
    for (; !server.events.empty(); server.events.pop_front()) {
      CmEvent& event = server.events.front();
      if (event.type != CmEventType::kConnectRequest) continue;
      pairs.push_back(server.MakeQueuePair());
      ASSERT_TRUE(event.new_id->Accept(pairs.back().get(), {}).ok());
      ids.push_back(std::move(event.new_id));
    }
  };
  for (int i = 0; i < kCount; ++i) {
    pairs.push_back(client.MakeQueuePair());
    ids.push_back(
        client.device->Connect({GetParam().host, listener->address().port}, pairs.back().get(), {})
            .value());
  }
  int established = 0;
  EXPECT_TRUE(Pump(client, server, [&] {
    accept();
    for (; !client.events.empty(); client.events.pop_front()) {
      EXPECT_EQ(client.events.front().type, CmEventType::kEstablished);
      ++established;
    }
    return established == kCount;
  }));
  ids.clear();
}

INSTANTIATE_TEST_SUITE_P(Devices, ConnectionManager, ::testing::ValuesIn(AllDevices()), DeviceName);

}  // namespace
}  // namespace baton::verbs::testing

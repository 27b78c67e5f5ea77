// What a policy does to the workers and the peers of a whole keeper.
#include "supervisor/keeper/policy/policies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/supervisor/keeper/keeper_thread.h"

namespace baton::keeper {
namespace {

using driver::testing::RawPeer;
using harness::WaitUntil;
using internal::WorkerRequest;
using ::testing::HasSubstr;
using testing::KeeperThread;
using testing::RawClient;

constexpr int kReplyTimeoutMs = 20'000;

class PoliciesTest : public ::testing::Test {
 protected:
  static v1::Policy Policy(const std::string& text) {
    v1::Policy policy;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &policy));
    return policy;
  }
  void Start(const std::string& policy) {
    ASSERT_EQ(keeper.Start([&](v1::ServiceConfig* service) {
      *service->mutable_policy() = Policy(policy);
      service->set_max_listeners(8);
    }),
              absl::OkStatus());
  }
  absl::Status Set(const std::string& policy, bool validate_only = false) {
    internal::ManagementRequest request;
    *request.mutable_set_policy()->mutable_policy() = Policy(policy);
    request.mutable_set_policy()->set_validate_only(validate_only);
    return keeper.Ask(request).status();
  }
  std::unique_ptr<RawClient> Ready() {
    auto client = std::make_unique<RawClient>(keeper.socket());
    EXPECT_EQ(client->Attach(), absl::OkStatus());
    WorkerRequest request;
    request.mutable_set_ready();
    EXPECT_EQ(client->Ask(request).status(), absl::OkStatus());
    return client;
  }
  absl::Status Listen(RawClient& client, const std::string& host, uint16_t port = 0) {
    WorkerRequest request;
    request.mutable_listen()->set_host(host);
    request.mutable_listen()->set_port(port);
    const auto reply = client.Ask(request);
    if (reply.ok()) port_ = static_cast<uint16_t>(reply->listening().port());
    return reply.status();
  }
  absl::Status Connect(RawClient& client, uint16_t port) {
    WorkerRequest request;
    request.mutable_connect()->set_host(fabric.host);
    request.mutable_connect()->set_port(port);
    return client.Ask(request).status();
  }
  absl::Status Grant(RawClient& client, uint64_t bytes) {
    WorkerRequest request;
    request.mutable_grant()->set_length(bytes);
    request.mutable_grant()->set_remote_read(true);
    return client.Ask(request).status();
  }
  // Whether an event has it in its message.
  bool WasTold(const std::string& words) {
    MessageChannel channel(ConnectUnix(keeper.management_socket()).value());
    internal::ManagementRequest request;
    request.set_id(1);
    request.mutable_subscribe();
    EXPECT_EQ(channel.Send(request), absl::OkStatus());
    request.mutable_describe();  // answered after all events that there are
    request.set_id(2);
    EXPECT_EQ(channel.Send(request), absl::OkStatus());
    bool told = false;
    internal::ManagementReply reply;
    do {
      if (!channel.Receive(&reply, kReplyTimeoutMs).ok()) return false;
      told |= reply.event().message().find(words) != std::string::npos;
    } while (reply.id() != 2);
    return told;
  }
  static void ExpectRefused(const absl::Status& status, absl::StatusCode code,
                            const std::string& field) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field + ":"));
  }

  const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
  KeeperThread keeper;
  uint16_t port_ = 0;  // of the last listener
};

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kDenied = absl::StatusCode::kPermissionDenied;

TEST_F(PoliciesTest, shouldRefuseListenersAndGrantTheOnesThatAreThere) {
  Start("service { listeners: 2 } worker { listeners: 1 }");
  const auto one = Ready();
  const auto two = Ready();
  ASSERT_EQ(Listen(*one, fabric.host), absl::OkStatus());
  ExpectRefused(Listen(*one, "::1"), kExhausted, "policy.worker.listeners");
  EXPECT_EQ(Listen(*two, fabric.host, port_), absl::OkStatus());  // which is there already
  EXPECT_EQ(Listen(*two, "::1"), absl::OkStatus());
  ASSERT_EQ(Set("service { listeners: 2 }"), absl::OkStatus());
  ExpectRefused(Listen(*one, "0.0.0.0"), kExhausted, "policy.service.listeners");
  ASSERT_EQ(Set(""), absl::OkStatus());
  EXPECT_EQ(Listen(*one, "0.0.0.0"), absl::OkStatus());
}

TEST_F(PoliciesTest, shouldListenAndConnectOnlyWhereItMay) {
  Start("listen_ports { first: 1 last: 1 } connect_ports { first: 2 last: 2 } gids: \"10.9.9.9\"");
  const auto client = Ready();
  ExpectRefused(Listen(*client, "10.9.9.9", 7), kDenied, "policy.listen_ports");
  ExpectRefused(Listen(*client, fabric.host, 1), kDenied, "policy.gids");
  ExpectRefused(Connect(*client, 3), kDenied, "policy.connect_ports");
}

TEST_F(PoliciesTest, shouldConnectOnlySoOften) {
  Start("worker { connections: 1 }");
  const auto client = Ready();
  RawPeer peer;
  const uint16_t port = peer.Listen();
  ASSERT_EQ(Connect(*client, port), absl::OkStatus());
  ExpectRefused(Connect(*client, port), kExhausted, "policy.worker.connections");
  ASSERT_EQ(Set("service { connections: 2 }"), absl::OkStatus());
  ASSERT_EQ(Connect(*client, port), absl::OkStatus());
  ExpectRefused(Connect(*client, port), kExhausted, "policy.service.connections");
  ASSERT_EQ(Set("service { connections: 1 }"), absl::OkStatus());
  EXPECT_EQ(keeper.Describe().service().connection_count(), 2u);
  ExpectRefused(Connect(*client, port), kExhausted, "policy.service.connections");
}

// A connection that has ended keeps its queue pair until its owner has acknowledged the end.
TEST_F(PoliciesTest, shouldHaveOnlySoManyQueuePairs) {
  Start("service { queue_pairs: 1 }");
  const auto client = Ready();
  auto peer = std::make_unique<RawPeer>();
  const uint16_t port = peer->Listen();
  ASSERT_EQ(Connect(*client, port), absl::OkStatus());
  ExpectRefused(Connect(*client, port), kExhausted, "policy.service.queue_pairs");
  const v1::Accounts accounts = keeper.Describe().service().accounts();
  EXPECT_EQ(accounts.queue_pairs(), 1u);
  ASSERT_EQ(accounts.warnings_size(), 1);
  EXPECT_EQ(accounts.warnings(0), "policy.service.queue_pairs: 1 of 1 in use");
  internal::ManagementRequest drain;
  drain.mutable_drain_service()->set_deadline_ms(1);
  drain.mutable_drain_service()->set_disconnect(true);
  ASSERT_EQ(keeper.Ask(drain).status(), absl::OkStatus());
  ASSERT_EQ(WaitUntil("the end", [&] { return WasTold("are disconnected"); }), absl::OkStatus());
  internal::ManagementRequest end;
  end.mutable_end_drain();
  ASSERT_EQ(keeper.Ask(end).status(), absl::OkStatus());
  ExpectRefused(Connect(*client, port), kExhausted, "policy.service.queue_pairs");
  ASSERT_EQ(Set("service { queue_pairs: 2 }"), absl::OkStatus());
  EXPECT_EQ(Connect(*client, port), absl::OkStatus());
}

TEST_F(PoliciesTest, shouldRegisterOnlySoMuchAndNoLessThanTheServiceHas) {
  Start("");
  const auto client = Ready();
  const uint64_t bytes = keeper.Describe().service().accounts().registered_bytes();
  const absl::Status less =
      Set(absl::StrCat("service { completion_queues: 1 registered_bytes: ", bytes - 1, " }"));
  EXPECT_EQ(less.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(less.message()), HasSubstr("policy.service.registered_bytes: "));
  ASSERT_EQ(Set(absl::StrCat("service { registered_bytes: ", bytes + 8192, " }")),
            absl::OkStatus());
  ASSERT_EQ(Grant(*client, 8192), absl::OkStatus());
  ExpectRefused(Grant(*client, 1), kExhausted, "policy.service.registered_bytes");
}

TEST_F(PoliciesTest, shouldGrantOnlySoMuch) {
  Start("worker { grants: 2 granted_bytes: 8192 }");
  const auto client = Ready();
  ExpectRefused(Grant(*client, 8193), kExhausted, "policy.worker.granted_bytes");
  ASSERT_EQ(Grant(*client, 4096), absl::OkStatus());
  ASSERT_EQ(Grant(*client, 4096), absl::OkStatus());
  ExpectRefused(Grant(*client, 1), kExhausted, "policy.worker.grants");
  WorkerRequest revoke;
  revoke.mutable_revoke()->set_grant(1);
  ASSERT_EQ(client->Ask(revoke).status(), absl::OkStatus());
  EXPECT_EQ(Grant(*client, 4096), absl::OkStatus());
}

// The peers' requests, which no worker is asked about.
TEST_F(PoliciesTest, shouldRejectPeersThatAreTooManyOrComeAnotherWay) {
  Start("service { connections: 1 }");
  const auto client = Ready();
  ASSERT_EQ(Listen(*client, fabric.host), absl::OkStatus());
  const auto attempt = [&] {
    auto peer = std::make_unique<RawPeer>();
    peer->Connect(port_);
    return peer;
  };
  const auto first = attempt();
  const auto is_there = [&] {
    first->Turn();
    return keeper.Describe().service().connection_count() == 1;
  };
  ASSERT_EQ(WaitUntil("the request", is_there), absl::OkStatus());
  const auto rejected = [&](const std::string& field) {
    const auto peer = attempt();
    return WaitUntil("the refusal", [&] {
      peer->Turn();
      return WasTold(field);
    });
  };
  EXPECT_EQ(rejected("policy.service.connections: "), absl::OkStatus());
  ASSERT_EQ(Set("gids: \"10.9.9.9\""), absl::OkStatus());
  EXPECT_EQ(rejected("policy.gids: "), absl::OkStatus());
  ASSERT_EQ(Set("p_keys: 1"), absl::OkStatus());
  EXPECT_EQ(rejected("policy.p_keys: "), absl::OkStatus());
  EXPECT_EQ(keeper.Describe().service().connection_count(), 1u);
  ASSERT_EQ(Set("p_keys: 65535 service_levels: 0"), absl::OkStatus());
  const auto second = attempt();
  EXPECT_EQ(WaitUntil("the request",
                      [&] {
                        second->Turn();
                        return keeper.Describe().service().connection_count() == 2;
                      }),
            absl::OkStatus());
}

// It is known only when the device has resolved it.
TEST_F(PoliciesTest, shouldNotConnectByAnotherRoute) {
  Start("p_keys: 1");
  const auto client = Ready();
  RawPeer peer;
  ASSERT_EQ(Connect(*client, peer.Listen()), absl::OkStatus());
  EXPECT_EQ(WaitUntil("the end",
                      [&] {
                        peer.Turn();
                        return WasTold("policy.p_keys: ");
                      }),
            absl::OkStatus());
}

TEST_F(PoliciesTest, shouldChangeNothingWhenItIsWrongOrOnlyToBeValidated) {
  Start("service { connections: 3 }");
  const absl::Status wrong = Set("service { connections: 9 listeners: 9 }");
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("policy.service.connections: 9 is more"));
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("policy.service.listeners: 9 is more"));
  EXPECT_EQ(Set("service { connections: 4 }", /*validate_only=*/true), absl::OkStatus());
  EXPECT_EQ(keeper.Describe().service().policy().service().connections(), 3u);
  EXPECT_EQ(Set("service { connections: 4 }"), absl::OkStatus());
  EXPECT_EQ(keeper.Describe().service().policy().service().connections(), 4u);
}

TEST_F(PoliciesTest, shouldTellWhatTheServiceHasAndWhatIsNear) {
  Start("worker { grants: 1 }");
  const auto client = Ready();
  ASSERT_EQ(Listen(*client, fabric.host), absl::OkStatus());
  v1::Accounts before = keeper.Describe().service().accounts();
  EXPECT_EQ(before.warnings_size(), 0);
  EXPECT_EQ(before.listeners(), 1u);
  EXPECT_EQ(before.completion_queues(), 1u);
  EXPECT_EQ(before.memory_regions(), 2u);
  EXPECT_GE(before.registered_bytes(), uint64_t{1} << 18);
  ASSERT_EQ(Grant(*client, 4096), absl::OkStatus());
  v1::Accounts after = keeper.Describe().service().accounts();
  EXPECT_EQ(after.grants(), 1u);
  EXPECT_EQ(after.granted_bytes(), 4096u);
  EXPECT_EQ(after.memory_regions(), 3u);
  EXPECT_EQ(after.registered_bytes(), before.registered_bytes() + 4096);
  ASSERT_EQ(after.warnings_size(), 1);
  EXPECT_EQ(after.warnings(0), "policy.worker.grants: 1 of 1 in use by worker 1");
  ASSERT_EQ(client->Detach(), absl::OkStatus());  // the grant stays, and is nobody's
  EXPECT_EQ(keeper.Describe().service().accounts().grants(), 1u);
  EXPECT_EQ(keeper.Describe().service().accounts().warnings_size(), 0);
}

// Ready ones, beside those that own shards.
TEST_F(PoliciesTest, shouldWarnUntilAsManyStandByAsAreWanted) {
  Start("hot_standbys: 1");
  const auto warnings = [&] { return keeper.Describe().service().accounts().warnings_size(); };
  const auto owner = Ready();
  EXPECT_EQ(warnings(), 1);
  RawClient attached(keeper.socket());
  ASSERT_EQ(attached.Attach(), absl::OkStatus());
  EXPECT_EQ(warnings(), 1);
  const auto standby = Ready();
  EXPECT_EQ(warnings(), 0);
  EXPECT_TRUE(WasTold("policy.hot_standbys: 0 of 1 "));
}

TEST_F(PoliciesTest, shouldShowTheReleaseOfAWorkersLibraryForWhatItIs) {
  Start("");
  RawClient client(keeper.socket());
  WorkerRequest attach = RawClient::AttachRequest();
  attach.mutable_attach()->set_library_release("0.1\n" + std::string(1000, 'x'));
  ASSERT_TRUE(client.Ask(attach).ok());
  const internal::Description described = keeper.Describe();
  ASSERT_EQ(described.workers_size(), 1);
  EXPECT_EQ(described.workers(0).library_release(), "0.1?" + std::string(28, 'x'));
  WorkerRequest detach;
  detach.mutable_detach();
  EXPECT_TRUE(client.Ask(detach).ok());
}

}  // namespace
}  // namespace baton::keeper

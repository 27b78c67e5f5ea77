#include "supervisor/driver/engine/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "google/protobuf/text_format.h"
#include "tests/lib/verbs/fake_device.h"

namespace baton::driver_process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The connection that a peer asks for.
class Requested : public verbs::testing::FakeConnectionId {
 public:
  explicit Requested(verbs::Route route) : route_(std::move(route)) {}
  verbs::Address local_address() const override { return {route_.gid, 0}; }
  verbs::Route route() const override { return route_; }

 private:
  verbs::Route route_;
};

class AdmissionTest : public ::testing::Test {
 protected:
  void Set(const std::string& text) {
    v1::Policy policy;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &policy));
    admission.SetPolicy(policy);
  }
  static void ExpectRefused(const absl::Status& status, absl::StatusCode code,
                            const std::string& field) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(field + ":"), HasSubstr("baton service policy")));
  }

  Admission admission;
};

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kDenied = absl::StatusCode::kPermissionDenied;

// Whatever the policy says, and until it is opened again.
TEST_F(AdmissionTest, shouldAddNoConnectionWhileItIsClosed) {
  admission.Close("drained");
  EXPECT_EQ(admission.CheckConnect(1, 0, 0), absl::UnavailableError("drained"));
  EXPECT_EQ(admission.CheckRequest(0, Requested({})), absl::UnavailableError("drained"));
  Set("service { connections: 5 }");
  EXPECT_EQ(admission.CheckRequest(0, Requested({})), absl::UnavailableError("drained"));
  EXPECT_EQ(admission.refused_while_closed(), 3u);
  EXPECT_TRUE(admission.CheckRoute({}).ok());  // of a connection that was begun before
  EXPECT_TRUE(admission.CheckListen(1, {"0.0.0.0", 0}, 0, false).ok());
  admission.Open();
  EXPECT_TRUE(admission.CheckConnect(1, 0, 0).ok());
  EXPECT_TRUE(admission.CheckRequest(0, Requested({})).ok());
  EXPECT_EQ(admission.refused_while_closed(), 3u);
  admission.Close("again");
  EXPECT_EQ(admission.refused_while_closed(), 0u);
}

TEST_F(AdmissionTest, shouldLetEverythingPassWithoutAPolicy) {
  EXPECT_TRUE(admission.CheckListen(1, {"0.0.0.0", 0}, 1000, false).ok());
  EXPECT_TRUE(admission.CheckConnect(1, 100'000, 100'000).ok());
  EXPECT_TRUE(admission.CheckGrant(1, ~uint64_t{0}).ok());
  EXPECT_TRUE(admission.CheckRequest(100'000, Requested({})).ok());
  EXPECT_TRUE(admission.CheckRoute({}).ok());
}

TEST_F(AdmissionTest, shouldCountListeners) {
  Set("service { listeners: 3 } worker { listeners: 1 }");
  EXPECT_TRUE(admission.CheckListen(1, {"10.0.0.1", 7}, 0, false).ok());
  admission.NoteListener(1, {"10.0.0.1", 7});
  ExpectRefused(admission.CheckListen(1, {"10.0.0.1", 8}, 1, false), kExhausted,
                "policy.worker.listeners");
  EXPECT_TRUE(admission.CheckListen(2, {"10.0.0.1", 8}, 1, false).ok());
  ExpectRefused(admission.CheckListen(2, {"10.0.0.1", 8}, 3, false), kExhausted,
                "policy.service.listeners");
}

TEST_F(AdmissionTest, shouldCountListenersUntilTheyAreStopped) {
  Set("worker { listeners: 2 }");
  admission.NoteListener(1, {"10.0.0.1", 7});
  admission.NoteListener(1, {"10.0.0.1", 8});
  admission.NoteListener(2, {"10.0.0.2", 7});
  ExpectRefused(admission.CheckListen(1, {"10.0.0.1", 9}, 3, false), kExhausted,
                "policy.worker.listeners");
  admission.KeepListeners({{"10.0.0.1", 8}, {"10.0.0.2", 7}});
  EXPECT_EQ(admission.OfWorker(1).listeners, 1u);
  EXPECT_EQ(admission.OfWorker(2).listeners, 1u);
  EXPECT_TRUE(admission.CheckListen(1, {"10.0.0.1", 9}, 2, false).ok());
}

TEST_F(AdmissionTest, shouldListenOnlyAtThesePortsAndAddresses) {
  Set("listen_ports { first: 7000 last: 7009 } listen_ports { first: 80 last: 80 } "
      "gids: \"10.0.0.1\" gids: \"::ffff:10.0.0.2\" gids: \"fe80::1\"");
  for (const char* const host : {"10.0.0.1", "10.0.0.2", "fe80:0::1"}) {
    EXPECT_TRUE(admission.CheckListen(1, {host, 7009}, 0, false).ok()) << host;
  }
  EXPECT_TRUE(admission.CheckListen(1, {"10.0.0.1", 80}, 0, false).ok());
  for (const uint16_t port : {0, 79, 81, 6999, 7010}) {
    ExpectRefused(admission.CheckListen(1, {"10.0.0.1", port}, 0, false), kDenied,
                  "policy.listen_ports");
  }
  for (const char* const host : {"10.0.0.3", "0.0.0.0", "::", "nowhere"}) {
    ExpectRefused(admission.CheckListen(1, {host, 80}, 0, false), kDenied, "policy.gids");
  }
  // The device is at one address only, and each request that comes there is looked at.
  EXPECT_TRUE(admission.CheckListen(1, {"0.0.0.0", 80}, 0, true).ok());
}

TEST_F(AdmissionTest, shouldConnectOnlyToThesePortsAndSoOften) {
  Set("connect_ports { first: 80 last: 81 } service { connections: 5 } worker { connections: 2 }");
  EXPECT_TRUE(admission.CheckConnect(81, 4, 1).ok());
  ExpectRefused(admission.CheckConnect(82, 0, 0), kDenied, "policy.connect_ports");
  ExpectRefused(admission.CheckConnect(80, 5, 0), kExhausted, "policy.service.connections");
  ExpectRefused(admission.CheckConnect(80, 3, 2), kExhausted, "policy.worker.connections");
  EXPECT_TRUE(admission.CheckRequest(4, Requested({})).ok());
  ExpectRefused(admission.CheckRequest(5, Requested({})), kExhausted, "policy.service.connections");
}

TEST_F(AdmissionTest, shouldCountAQueuePairForEachConnection) {
  Set("service { connections: 9 queue_pairs: 5 }");
  EXPECT_TRUE(admission.CheckConnect(80, 4, 4).ok());
  EXPECT_TRUE(admission.CheckRequest(4, Requested({})).ok());
  ExpectRefused(admission.CheckConnect(80, 5, 0), kExhausted, "policy.service.queue_pairs");
  ExpectRefused(admission.CheckRequest(5, Requested({})), kExhausted, "policy.service.queue_pairs");
}

TEST(AdmissionOfMemoryTest, shouldCountWhatIsRegisteredBeforeAnyGrant) {
  Admission admission(1000);
  v1::Policy policy;
  policy.mutable_service()->set_registered_bytes(1100);
  admission.SetPolicy(policy);
  EXPECT_TRUE(admission.CheckGrant(1, 100).ok());
  const absl::Status refused = admission.CheckGrant(1, 101);
  EXPECT_EQ(refused.code(), kExhausted);
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr("policy.service.registered_bytes: the service has 1000 of at most 1100, and "
                "wants 101 more"));
  admission.NoteGrant(3, 1, 100);
  EXPECT_EQ(admission.CheckGrant(2, 1).code(), kExhausted);
  admission.NoteRevoked(3);
  EXPECT_TRUE(admission.CheckGrant(2, 1).ok());
}

TEST_F(AdmissionTest, shouldRefuseMoreDescriptorsThanAQuotaAllows) {
  EXPECT_TRUE(admission.CheckDescriptor(255, 255).ok());
  Set("service { descriptors: 3 } worker { descriptors: 2 }");
  EXPECT_TRUE(admission.CheckDescriptor(2, 1).ok());
  ExpectRefused(admission.CheckDescriptor(2, 2), kExhausted, "policy.worker.descriptors");
  ExpectRefused(admission.CheckDescriptor(3, 0), kExhausted, "policy.service.descriptors");
}

TEST_F(AdmissionTest, shouldCountGrantsUntilTheyAreRevoked) {
  Set("service { grants: 3 granted_bytes: 100 } worker { grants: 2 granted_bytes: 60 }");
  EXPECT_TRUE(admission.CheckGrant(1, 60).ok());
  ExpectRefused(admission.CheckGrant(1, 61), kExhausted, "policy.worker.granted_bytes");
  admission.NoteGrant(7, 1, 40);
  admission.NoteGrant(8, 1, 10);
  ExpectRefused(admission.CheckGrant(1, 1), kExhausted, "policy.worker.grants");
  ExpectRefused(admission.CheckGrant(2, 51), kExhausted, "policy.service.granted_bytes");
  admission.NoteGrant(9, 2, 50);
  ExpectRefused(admission.CheckGrant(2, 1), kExhausted, "policy.service.grants");
  admission.NoteRevoked(8);
  admission.NoteRevoked(8);
  admission.NoteRevoked(~0u);
  EXPECT_EQ(admission.OfService().grants, 2u);
  EXPECT_EQ(admission.OfService().granted_bytes, 90u);
  EXPECT_TRUE(admission.CheckGrant(1, 10).ok());
}

TEST_F(AdmissionTest, shouldLeaveTheServiceWhatAGoneWorkerHadAskedFor) {
  Set("service { grants: 2 } worker { grants: 1 listeners: 1 }");
  admission.NoteGrant(0, 1, 40);
  admission.NoteListener(1, {"10.0.0.1", 7});
  admission.Forget(1);
  EXPECT_EQ(admission.OfWorker(1).grants, 0u);
  EXPECT_EQ(admission.OfWorker(1).listeners, 0u);
  EXPECT_EQ(admission.OfService().granted_bytes, 40u);
  admission.NoteGrant(1, 2, 10);
  ExpectRefused(admission.CheckGrant(3, 1), kExhausted, "policy.service.grants");
  admission.NoteRevoked(0);  // by whoever
  EXPECT_EQ(admission.OfWorker(2).granted_bytes, 10u);
  EXPECT_TRUE(admission.CheckGrant(3, 1).ok());
}

TEST_F(AdmissionTest, shouldTakeOnlyTheseRoutes) {
  Set("gids: \"10.0.0.1\" p_keys: 32769 service_levels: 0 service_levels: 3");
  EXPECT_TRUE(admission.CheckRoute({"10.0.0.1", 0x8001, 3}).ok());
  EXPECT_TRUE(admission.CheckRoute({"::ffff:10.0.0.1", 0x0001, 0}).ok());  // a limited member
  ExpectRefused(admission.CheckRoute({"10.0.0.2", 0x8001, 3}), kDenied, "policy.gids");
  ExpectRefused(admission.CheckRoute({"", 0x8001, 3}), kDenied, "policy.gids");
  ExpectRefused(admission.CheckRoute({"10.0.0.1", 0xffff, 3}), kDenied, "policy.p_keys");
  ExpectRefused(admission.CheckRoute({"10.0.0.1", 0x8001, 1}), kDenied, "policy.service_levels");
  ExpectRefused(admission.CheckRequest(0, Requested({"10.0.0.1", 0x8001, 1})), kDenied,
                "policy.service_levels");
}

TEST_F(AdmissionTest, shouldKeepWhatIsTooMuchAndAddNothing) {
  admission.NoteGrant(0, 1, 40);
  admission.NoteGrant(1, 1, 40);
  Set("service { granted_bytes: 50 grants: 1 }");
  EXPECT_EQ(admission.OfService().grants, 2u);
  ExpectRefused(admission.CheckGrant(1, 1), kExhausted, "policy.service.grants");
  admission.NoteRevoked(0);
  ExpectRefused(admission.CheckGrant(1, 1), kExhausted, "policy.service.grants");
  Set("");
  EXPECT_TRUE(admission.CheckGrant(1, 1).ok());
}

}  // namespace
}  // namespace baton::driver_process

#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/operator.pb.h"
#include "supervisor/control/callers.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr char kHandoff[] = "/baton.v1.OperatorService/Handoff";

// By the names of the methods, so that one which is new is judged, too.
TEST(Roles, shouldLetAViewerCallWhatReadsAndNothingElse) {
  const google::protobuf::ServiceDescriptor* service =
      v1::GetStatusRequest::descriptor()->file()->FindServiceByName("OperatorService");
  ASSERT_NE(service, nullptr);
  int changes = 0;
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string name = service->method(i)->name();
    const std::string method = "/" + service->full_name() + "/" + name;
    const bool reads = name.starts_with("Get") || name.starts_with("List") || name == "WatchEvents";
    EXPECT_EQ(MayCall(Role::kViewer, method), reads) << method;
    EXPECT_TRUE(MayCall(Role::kOperator, method)) << method;
    EXPECT_FALSE(MayCall(Role::kNone, method)) << method;
    changes += reads ? 0 : 1;
  }
  EXPECT_GT(changes, 5);
  EXPECT_FALSE(MayCall(Role::kViewer, "/baton.v1.OperatorService/Unheard"));
  EXPECT_FALSE(MayCall(Role::kViewer, "/baton.v1.WorkerService/Attach"));
  EXPECT_FALSE(MayCall(Role::kViewer, ""));
}

TEST(Roles, shouldGoByUidAndAnyGroup) {
  internal::ControlConfig config;
  config.add_operator_uids(4001);
  config.add_operator_gids(5001);
  config.add_viewer_uids(4002);
  config.add_viewer_uids(4001);  // who is both is an operator
  config.add_viewer_gids(5002);
  EXPECT_EQ(RoleOf(config, {1, 0, {0}}), Role::kOperator);
  EXPECT_EQ(RoleOf(config, {1, geteuid(), {}}), Role::kOperator);
  EXPECT_EQ(RoleOf(config, {1, 4001, {1}}), Role::kOperator);
  EXPECT_EQ(RoleOf(config, {1, 4009, {1, 5002, 5001}}), Role::kOperator);
  EXPECT_EQ(RoleOf(config, {1, 4002, {1}}), Role::kViewer);
  EXPECT_EQ(RoleOf(config, {1, 4009, {1, 5002}}), Role::kViewer);
  EXPECT_EQ(RoleOf(config, {1, 5001, {4001}}), Role::kNone);
}

TEST(Roles, shouldNotGoByTheUidOfRootAloneInAContainerThatIsDistrusted) {
  internal::ControlConfig config;
  config.set_batond_uid(4000);
  for (const uint32_t uid : {0u, 4000u}) {
    const Peer outside{1, uid, {7}, /*contained=*/false}, contained{1, uid, {7}, true};
    config.set_distrust_contained_root(false);
    EXPECT_EQ(RoleOf(config, contained), Role::kOperator);
    config.set_distrust_contained_root(true);
    EXPECT_EQ(RoleOf(config, contained), Role::kNone);
    EXPECT_EQ(RoleOf(config, outside), Role::kOperator);
    config.add_viewer_gids(7);
    EXPECT_EQ(RoleOf(config, contained), Role::kViewer);
    config.add_operator_uids(uid);
    EXPECT_EQ(RoleOf(config, contained), Role::kOperator);
    config.clear_viewer_gids();
    config.clear_operator_uids();
  }
}

TEST(Roles, shouldTakeNamesWhole) {
  v1::OperatorEndpoint endpoint;
  endpoint.add_operators("alice");
  endpoint.add_viewers("spiffe://example/view");
  EXPECT_EQ(RoleOfNames(endpoint, {"alice"}).role, Role::kOperator);
  EXPECT_EQ(RoleOfNames(endpoint, {"spiffe://example/view", "alice"}).role, Role::kOperator);
  EXPECT_EQ(RoleOfNames(endpoint, {"x", "spiffe://example/view"}).name, "spiffe://example/view");
  for (const std::string& name : {std::string("Alice"), std::string("alice2"), std::string("lice"),
                                  std::string("alice\0.evil", 11), std::string()}) {
    EXPECT_EQ(RoleOfNames(endpoint, {name}).role, Role::kNone) << name;
  }
  EXPECT_EQ(RoleOfNames(endpoint, {}).role, Role::kNone);
}

TEST(Roles, shouldSayWhoIsRefusedAndTheCure) {
  const Peer peer{1, 4002, {}};
  EXPECT_EQ(RefusalOfPeer(Role::kViewer, peer, kHandoff),
            "uid 4002 may look and change nothing, and Handoff is for operators: add it to "
            "operator_uids, or one of its groups to operator_gids, in batond's configuration");
  EXPECT_THAT(RefusalOfPeer(Role::kNone, peer, kHandoff), HasSubstr("viewer_uids"));
  EXPECT_THAT(RefusalOfName(Role::kNone, "certificate \"bob\"", kHandoff),
              HasSubstr("certificate \"bob\" may not operate Baton: add that name to operators"));
  EXPECT_THAT(RefusalOfName(Role::kViewer, "certificate \"bob\"", "/x/Evil\n\x1b[2J"),
              HasSubstr("Evil??[2J is for operators"));
}

// Control may be somebody else than batond.
TEST(Roles, shouldTakeBatondsUserForAnOperatorAndNotControls) {
  constexpr uint32_t kBatond = 4321;
  internal::ControlConfig config;
  config.set_batond_uid(kBatond);
  EXPECT_EQ(RoleOf(config, Peer{1, kBatond, {}}), Role::kOperator);
  EXPECT_EQ(RoleOf(config, Peer{1, 0, {}}), Role::kOperator);
  if (geteuid() != 0) {
    EXPECT_EQ(RoleOf(config, Peer{1, geteuid(), {}}), Role::kNone);
  }
}

}  // namespace
}  // namespace baton

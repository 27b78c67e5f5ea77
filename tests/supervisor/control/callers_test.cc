#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
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

struct Pair {
  Pair() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    a.Reset(fds[0]);
    b.Reset(fds[1]);
  }
  FileDescriptor a, b;
};

std::string Name(int fd) { return "fd:" + std::to_string(fd); }

TEST(PeerRegistry, FindsAPeerByItsDescriptor) {
  Pair pair;
  PeerRegistry registry;
  ASSERT_TRUE(registry.Add(pair.a.get(), Peer{12, 1000, {1000}}));
  EXPECT_EQ(registry.Find(Name(pair.a.get()))->uid, 1000u);
  EXPECT_EQ(registry.Describe(Name(pair.a.get())), "uid 1000 pid 12");
  EXPECT_FALSE(registry.Find("fd:9999"));
  EXPECT_FALSE(registry.Find("ipv4:10.0.0.1:5"));
}

TEST(PeerRegistry, BoundsTheOpenConnectionsOfOneUid) {
  PeerRegistry registry(/*connections_per_uid=*/2);
  Pair one, two, three;
  EXPECT_TRUE(registry.Add(one.a.get(), Peer{1, 7, {}}));
  EXPECT_TRUE(registry.Add(two.a.get(), Peer{1, 7, {}}));
  EXPECT_FALSE(registry.Add(three.a.get(), Peer{1, 7, {}}));
  EXPECT_TRUE(registry.Add(three.a.get(), Peer{1, 8, {}}));  // another uid has room of its own
  one.a.Reset();
  Pair four;
  EXPECT_TRUE(registry.Add(four.b.get(), Peer{1, 7, {}}));
}

TEST(IdentifyPeer, TellsThisProcess) {
  Pair pair;
  const auto peer = IdentifyPeer(pair.a.get());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, geteuid());
  EXPECT_EQ(peer->gids.at(0), getegid());
}

TEST(PeerRegistry, EndsTheConnectionsOfThoseItIsTold) {
  PeerRegistry registry;
  using enum PeerRegistry::Served;
  Pair of_7, worker_of_7, of_8, closed;
  ASSERT_TRUE(registry.Add(of_7.a.get(), Peer{1, 7, {}}, kByRole));
  ASSERT_TRUE(registry.Add(worker_of_7.a.get(), Peer{1, 7, {}}, kAlike));
  ASSERT_TRUE(registry.Add(of_8.a.get(), Peer{1, 8, {}}, kByRole));
  ASSERT_TRUE(registry.Add(closed.a.get(), Peer{1, 7, {}}, kByRole));
  // Its number is another socket's by then, which is not to be hit.
  Pair other;
  const int number = closed.a.get();
  ASSERT_EQ(dup2(other.a.get(), number), number);
  registry.End([](const Peer& peer) { return peer.uid == 7; });
  char byte = 0;
  EXPECT_EQ(recv(of_7.b.get(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(recv(worker_of_7.b.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(recv(of_8.b.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(recv(other.b.get(), &byte, 1, MSG_DONTWAIT), -1);
}

}  // namespace

}  // namespace baton

#include "supervisor/control/peers.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"

namespace baton {
namespace {

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

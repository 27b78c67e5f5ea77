#include "lib/nic/control_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <utility>

#include "lib/base/file_descriptor.h"

namespace baton::nic {
namespace {

// The next recvmsg(2) calls this between its look for a message, which finds none, and its look for
// the end: the other side acts then.
std::function<void()> between_looks;

}  // namespace

// This program's recvmsg(2). The C library's header declares the function with attributes of its
// own, so that C++ has another name for it.
extern "C" ssize_t RecvmsgCalled(int socket, msghdr* header, int flags) __asm__("recvmsg");
extern "C" ssize_t RecvmsgCalled(int socket, msghdr* header, int flags) {
  if (!between_looks) return syscall(SYS_recvmsg, socket, header, flags);
  std::exchange(between_looks, nullptr)();
  header->msg_controllen = 0;
  return 0;
}

namespace {

// The NIC replies to ADD_SOCKET on such a socket, and then closes it.
TEST(ControlSocketTest, shouldFindAMessageThatCameJustBeforeTheEnd) {
  SocketPair pair = MakeSocketPair(SOCK_SEQPACKET).value();
  between_looks = [&] {
    ASSERT_TRUE(SendMessage(pair.theirs.get(), control::Query(), STDERR_FILENO));
    pair.theirs.Reset();
  };
  ControlMessage message;
  EXPECT_EQ(Receive(pair.ours.get(), &message), Received::kMessage);
  EXPECT_EQ(message.size, sizeof(control::Query));
  EXPECT_TRUE(message.passed);
  EXPECT_EQ(Receive(pair.ours.get(), &message), Received::kEnded);
}

TEST(ControlSocketTest, shouldEndWithTheOtherSide) {
  SocketPair pair = MakeSocketPair(SOCK_SEQPACKET).value();
  ControlMessage message;
  EXPECT_EQ(Receive(pair.ours.get(), &message), Received::kNothing);
  between_looks = [&] { pair.theirs.Reset(); };
  EXPECT_EQ(Receive(pair.ours.get(), &message), Received::kEnded);
}

}  // namespace
}  // namespace baton::nic

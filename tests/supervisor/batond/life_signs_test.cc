#include "supervisor/batond/life_signs.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "lib/base/check.h"
#include "lib/base/file_descriptor.h"

namespace baton {
namespace {

constexpr time_t kLimitMs = 600'000, kNever = INT32_MAX;

// This process is the one that listens, and the one that shows life.
class LifeSignsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    signal(SIGIO, SIG_IGN);
    unsetenv("NOTIFY_SOCKET");
    setenv("WATCHDOG_USEC", std::to_string(kLimitMs * 1000).c_str(), 1);
    signs_.Listen();
    signs_.SetEnvironment();
  }

  // Also sends `descriptor`, unless it is -1.
  static void Say(std::string text, int descriptor = -1) {
    const std::string name = getenv("NOTIFY_SOCKET");
    ASSERT_EQ(name[0], '@');
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data() + 1, name.size() - 1);
    iovec part = {text.data(), text.size()};
    msghdr message = {};
    message.msg_name = &address;
    message.msg_namelen = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
    }
    const FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(sendmsg(socket.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }

  LifeSigns signs_;
};

TEST_F(LifeSignsTest, shouldCountSilenceFromTheFirstSignOn) {
  signs_.Expect();
  EXPECT_EQ(signs_.MillisecondsLeft(), kNever);
  EXPECT_FALSE(signs_.HaveStopped());
  Say("STATUS=running\nWATCHDOG=1");
  signs_.Take(getpid());
  EXPECT_LE(signs_.MillisecondsLeft(), kLimitMs);
  EXPECT_FALSE(signs_.HaveStopped());
}

TEST_F(LifeSignsTest, shouldHeedTheChildAlone) {
  Say("WATCHDOG=1");
  signs_.Take(getpid() + 1);
  EXPECT_EQ(signs_.MillisecondsLeft(), kNever);
}

TEST_F(LifeSignsTest, shouldHeedNothingElse) {
  Say("READY=1\nSTATUS=running");
  signs_.Take(getpid());
  EXPECT_EQ(signs_.MillisecondsLeft(), kNever);
}

TEST_F(LifeSignsTest, shouldKeepNoDescriptor) {
  int ends[2];
  BATON_CHECK(pipe(ends) == 0);
  const FileDescriptor reading(ends[0]);
  Say("FDSTORE=1", ends[1]);
  close(ends[1]);
  signs_.Take(getpid());
  char byte;
  EXPECT_EQ(read(reading.get(), &byte, 1), 0);  // nobody has the other end
}

}  // namespace
}  // namespace baton

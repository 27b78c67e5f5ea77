#include "lib/base/holdable.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <thread>

#include "lib/base/file_descriptor.h"
#include "tests/harness/temp_directory.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

class HoldableTest : public ::testing::Test {
 protected:
  static absl::Status Check(int fd) { return CheckHoldable(fd, getpid()); }
  static absl::Status Check(const std::string& path, int flags) {
    const FileDescriptor file(open(path.c_str(), flags | O_CLOEXEC, 0600));
    EXPECT_TRUE(file) << path;
    return Check(file.get());
  }
  static void ExpectRefused(const absl::Status& status, const std::string& why) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }

  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  const std::string path = directory.File("file");
};

TEST_F(HoldableTest, shouldTakeRegularFilesAlsoWhenTheyAreDeleted) {
  EXPECT_EQ(Check(path, O_RDWR | O_CREAT), absl::OkStatus());
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_EQ(Check(file.get()), absl::OkStatus());
}

TEST_F(HoldableTest, shouldTakeMemfds) {
  const FileDescriptor memory(memfd_create("held", MFD_CLOEXEC));
  ASSERT_TRUE(memory);
  EXPECT_EQ(Check(memory.get()), absl::OkStatus());
}

TEST_F(HoldableTest, shouldTakeNothingThatIsNoRegularFile) {
  ExpectRefused(Check(directory.path(), O_RDONLY | O_DIRECTORY), "no regular file");
  const SocketPair sockets = MakeSocketPair(SOCK_STREAM).value();
  ExpectRefused(Check(sockets.ours.get()), "a socket or a pipe");
  const Pipe pipe = MakePipe().value();
  ExpectRefused(Check(pipe.reading.get()), "a socket or a pipe");
  EXPECT_FALSE(Check("/dev/null", O_RDONLY).ok());
  EXPECT_FALSE(Check(-1).ok());
}

// A fault of epoll_wait(2) lasts as long as its process wants, and the set is locked meanwhile. The
// kernel takes the lock to say what is in the set.
TEST_F(HoldableTest, shouldNotWaitForAnEpollSetThatItsProcessKeepsLocked) {
  const FileDescriptor faults(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
  if (!faults) GTEST_SKIP() << "this process may not have its faults wait";
  uffdio_api api = {UFFD_API, 0, 0};
  ASSERT_EQ(ioctl(faults.get(), UFFDIO_API, &api), 0);
  const auto bytes = static_cast<size_t>(getpagesize());
  void* const page =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const uffdio_range range = {reinterpret_cast<uint64_t>(page), bytes};
  uffdio_register watched = {range, UFFDIO_REGISTER_MODE_MISSING, 0};
  ASSERT_EQ(ioctl(faults.get(), UFFDIO_REGISTER, &watched), 0);
  const FileDescriptor set(epoll_create1(EPOLL_CLOEXEC));
  const FileDescriptor ready(eventfd(1, EFD_CLOEXEC));
  ASSERT_TRUE(AddToEpoll(set.get(), ready.get(), {EPOLLIN, {}}).ok());

  std::thread waits([&] { epoll_wait(set.get(), static_cast<epoll_event*>(page), 1, -1); });
  pollfd fault = {faults.get(), POLLIN, 0};
  EXPECT_EQ(poll(&fault, 1, -1), 1);
  ExpectRefused(Check(set.get()), "no path");
  uffdio_zeropage page_comes = {range, 0, 0};
  EXPECT_EQ(ioctl(faults.get(), UFFDIO_ZEROPAGE, &page_comes), 0);
  waits.join();
  munmap(page, bytes);
}

TEST_F(HoldableTest, shouldTakeNothingThatCannotBeRead) {
  ASSERT_EQ(Check(path, O_RDWR | O_CREAT), absl::OkStatus());
  ExpectRefused(Check(path, O_PATH), "O_PATH");
}

TEST_F(HoldableTest, shouldTakeNoFilesThatTheKernelMakesUp) {
  ExpectRefused(Check("/proc/self/status", O_RDONLY), "file system is proc");
}

TEST(FindMountTest, shouldReadTheTypeBehindOptionalFields) {
  const std::string mounts =
      "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext4 /dev/root rw,errors=continue\n"
      "37 35 0:52 / /home/a\\040-\\040b rw - fuse.sshfs a@b: rw,user_id=1000\n"
      "136 35 0:53 / /x rw - xfs /dev/sda rw\n";
  const auto type = [&](int mount) {
    std::istringstream text(mounts);
    return FindMount(text, mount).value_or(MountedAt()).type;
  };
  EXPECT_EQ(type(36), "ext4");
  EXPECT_EQ(type(37), "fuse.sshfs");
  EXPECT_EQ(type(136), "xfs");
  EXPECT_EQ(type(6), "");
  EXPECT_EQ(type(-1), "");
  std::istringstream text(mounts);
  EXPECT_EQ(FindMount(text, 37)->device, "0:52");
}

// A worker may have any number of mounts in a namespace of its own.
TEST(FindMountTest, shouldNotReadOnForEver) {
  std::ostringstream mounts;
  for (int i = 1000; i < 50'000; ++i) {
    mounts << i << " 35 0:52 / /a/rather/long/name/of/a/mount rw - tmpfs tmpfs rw\n";
  }
  std::istringstream text(mounts.str());
  EXPECT_FALSE(FindMount(text, 49'999));
  std::istringstream again(mounts.str());
  EXPECT_TRUE(FindMount(again, 1001));
}

TEST(FindMountTest, shouldFindNothingInWhatIsCut) {
  for (const char* const line : {"", "36", "36 35 98:0 / / rw", "36 35 98:0 / / rw -", "x y z -"}) {
    std::istringstream text(line);
    EXPECT_FALSE(FindMount(text, 36)) << line;
  }
}

}  // namespace
}  // namespace baton

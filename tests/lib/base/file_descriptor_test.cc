#include "lib/base/file_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <utility>

namespace baton {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

int NewDescriptor() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

TEST(FileDescriptorTest, shouldCloseAtItsEnd) {
  const int fd = NewDescriptor();
  { const FileDescriptor owner(fd); }
  EXPECT_FALSE(IsOpen(fd));
}

TEST(FileDescriptorTest, shouldMoveItsDescriptor) {
  FileDescriptor first(NewDescriptor());
  const int fd = first.get();
  FileDescriptor second(std::move(first));
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): it is empty then
  EXPECT_EQ(second.get(), fd);
  FileDescriptor third(NewDescriptor());
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_EQ(third.get(), fd);
  EXPECT_FALSE(IsOpen(replaced));
  EXPECT_TRUE(IsOpen(fd));
}

TEST(FileDescriptorTest, shouldSurviveMovingToItself) {
  FileDescriptor owner(NewDescriptor());
  FileDescriptor& same = owner;
  owner = std::move(same);
  EXPECT_TRUE(IsOpen(owner.get()));
}

TEST(FileDescriptorTest, shouldNotCloseWhatItReleased) {
  FileDescriptor owner(NewDescriptor());
  const int fd = owner.Release();
  EXPECT_FALSE(owner);
  EXPECT_TRUE(IsOpen(fd));
  close(fd);
}

}  // namespace
}  // namespace baton

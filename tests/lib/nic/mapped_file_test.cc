#include "lib/nic/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/nic/harness.h"

namespace baton::nic {
namespace {

TEST(MappedFileTest, shouldShareTheMemory) {
  const SharedFile file(8192);
  const auto mapped = MappedFile::Map(file.fd());
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ((*mapped)->size(), 8192u);
  file.begin()[5000] = 17;
  EXPECT_EQ(*(*mapped)->At(5000, 1, 1), 17);
  const auto identity = MappedFile::IdentityOf(file.fd());
  ASSERT_TRUE(identity.ok());
  EXPECT_EQ(*identity, (*mapped)->identity());
  const SharedFile other(8192);
  EXPECT_NE(*MappedFile::IdentityOf(other.fd()), *identity);
}

TEST(MappedFileTest, shouldGiveNoPlaceOutsideOfIt) {
  const SharedFile file(8192);
  const auto mapped = MappedFile::Map(file.fd());
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  const MappedFile& whole = **mapped;
  EXPECT_NE(whole.At(0, 8192, 4096), nullptr);
  EXPECT_NE(whole.At(8192, 0, 1), nullptr);
  EXPECT_EQ(whole.At(0, 8193, 1), nullptr);
  EXPECT_EQ(whole.At(1, 8192, 1), nullptr);
  EXPECT_EQ(whole.At(8193, 0, 1), nullptr);
  EXPECT_EQ(whole.At(~uint64_t{0}, 2, 1), nullptr);
  EXPECT_EQ(whole.At(64, ~uint64_t{0} - 32, 1), nullptr);
  EXPECT_EQ(whole.At(32, 8, 64), nullptr);
}

TEST(MappedFileTest, shouldRefuseWhatCanShrink) {
  for (const int seals : {0, F_SEAL_SHRINK, F_SEAL_GROW}) {
    const SharedFile file(4096, seals);
    EXPECT_TRUE(absl::IsInvalidArgument(MappedFile::Map(file.fd()).status())) << seals;
  }
  // The client that passed a sealed file cannot make it shorter.
  const SharedFile file(8192);
  EXPECT_NE(ftruncate(file.fd(), 4096), 0);
}

TEST(MappedFileTest, shouldRefuseWhatIsNoMemoryOrCannotBeWritten) {
  const FileDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(absl::IsInvalidArgument(MappedFile::Map(null.get()).status()));
  EXPECT_FALSE(MappedFile::Map(-1).ok());
  const FileDescriptor empty(memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(fcntl(empty.get(), F_ADD_SEALS, kSealed), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(MappedFile::Map(empty.get()).status()));
  const FileDescriptor sealed(memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(sealed.get(), 4096), 0);
  ASSERT_EQ(fcntl(sealed.get(), F_ADD_SEALS, kSealed | F_SEAL_WRITE), 0);
  EXPECT_FALSE(MappedFile::Map(sealed.get()).ok());
  // Nothing is asked of what is no memfd: its file system may not answer.
  EXPECT_TRUE(absl::IsInvalidArgument(MappedFile::IdentityOf(null.get()).status()));
}

TEST(MappedFileTest, shouldRefuseHugePages) {
  const FileDescriptor huge(memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  ASSERT_TRUE(static_cast<bool>(huge));
  ASSERT_EQ(ftruncate(huge.get(), 2 << 20), 0);
  ASSERT_EQ(fcntl(huge.get(), F_ADD_SEALS, kSealed), 0);
  const absl::Status refused = MappedFile::Map(huge.get()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
}

}  // namespace
}  // namespace baton::nic

// Descriptors that the service's driver holds for the successors of a worker.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "tests/worker/worker_fixture.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ScriptedService;
using testing::WorkerFixture;

class HeldDescriptorsTest : public WorkerFixture {
 protected:
  static FileDescriptor Memory() { return FileDescriptor(memfd_create("held", MFD_CLOEXEC)); }
  static ino_t InodeOf(int fd) {
    struct stat info = {};
    EXPECT_EQ(fstat(fd, &info), 0);
    return info.st_ino;
  }

  ScriptedService& first = NewService();
  ScriptedService& second = NewService();
};

TEST_F(HeldDescriptorsTest, shouldLetASuccessorReadAFileThatWasDeleted) {
  Start();
  Worker* const one = Add(&first);
  const std::string path = keeper.directory().File("sent");
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(write(file.get(), "text", 4), 4);
  const absl::StatusOr<uint64_t> number = one->HoldDescriptor(file.get(), 5);
  ASSERT_TRUE(number.ok()) << number.status();
  const ino_t inode = InodeOf(file.get());
  ASSERT_EQ(unlink(path.c_str()), 0);
  file.Reset();
  Remove(one);

  Worker* const other = Add(&second);
  EXPECT_THAT(other->HeldDescriptors(5).value(), ElementsAre(*number));
  const FileDescriptor taken(other->TakeDescriptor(*number).value());
  EXPECT_EQ(InodeOf(taken.get()), inode);
  EXPECT_EQ(fcntl(taken.get(), F_GETFD), FD_CLOEXEC);
  char text[5] = {};
  EXPECT_EQ(pread(taken.get(), text, 4, 0), 4);
  EXPECT_STREQ(text, "text");
}

TEST_F(HeldDescriptorsTest, shouldBeGoneOnceTheyAreDropped) {
  Start();
  Worker* const one = Add(&first);
  const uint64_t number = one->HoldDescriptor(Memory().get()).value();
  const FileDescriptor taken(one->TakeDescriptor(number).value());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(one->DropDescriptor(number), absl::OkStatus());
  EXPECT_EQ(one->TakeDescriptor(number).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(one->HeldDescriptors().value(), IsEmpty());
  EXPECT_NE(fcntl(taken.get(), F_GETFD), -1) << "a duplicate is the caller's";
  EXPECT_NE(one->HoldDescriptor(Memory().get()).value(), number);
}

TEST_F(HeldDescriptorsTest, shouldBeOfFilesAndMemoryAlone) {
  Start();
  Worker* const one = Add(&first);
  const Pipe pipe = MakePipe().value();
  const FileDescriptor directory(open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const FileDescriptor path(open("/etc/passwd", O_PATH | O_CLOEXEC));
  for (const int fd : {pipe.reading.get(), directory.get(), path.get(), one->event_fd(), -1}) {
    EXPECT_EQ(one->HoldDescriptor(fd).status().code(), absl::StatusCode::kInvalidArgument) << fd;
  }
  EXPECT_FALSE(one->HoldDescriptor(1'000'000).ok());
  EXPECT_THAT(one->HeldDescriptors().value(), IsEmpty());
}

TEST_F(HeldDescriptorsTest, shouldBeAsManyAsThePolicyAllows) {
  Start([](v1::ServiceConfig* service) {
    service->mutable_policy()->mutable_worker()->set_descriptors(2);
  });
  Worker* const one = Add(&first);
  Worker* const other = Add(&second);
  const uint64_t number = one->HoldDescriptor(Memory().get()).value();
  EXPECT_TRUE(one->HoldDescriptor(Memory().get()).ok());
  const absl::Status refused = one->HoldDescriptor(Memory().get()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("policy.worker.descriptors"));
  EXPECT_TRUE(other->HoldDescriptor(Memory().get()).ok());
  EXPECT_EQ(other->DropDescriptor(number), absl::OkStatus());
  EXPECT_TRUE(one->HoldDescriptor(Memory().get()).ok());
  EXPECT_EQ(keeper.Describe().service().accounts().descriptors(), 3u);
}

TEST_F(HeldDescriptorsTest, shouldBeNoMoreThanADriverHolds) {
  Start();
  Worker* const one = Add(&first);
  const FileDescriptor memory = Memory();
  for (int i = 0; i < 256; ++i) ASSERT_TRUE(one->HoldDescriptor(memory.get()).ok()) << i;
  EXPECT_EQ(one->HoldDescriptor(memory.get()).status().code(),
            absl::StatusCode::kResourceExhausted);
  ASSERT_EQ(one->DropDescriptor(one->HeldDescriptors().value().front()), absl::OkStatus());
  EXPECT_TRUE(one->HoldDescriptor(memory.get()).ok());
}

}  // namespace
}  // namespace baton

#include "lib/channel/message_channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "lib/base/clock.h"
#include "proto/baton/internal/keeper.pb.h"
#include "tests/harness/lingering_socket.h"
#include "tests/harness/scripted_sends.h"
#include "tests/harness/temp_directory.h"
#include "tests/harness/wait_until.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr int kTimeoutMs = 10'000;

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

internal::Token Message(const std::string& text) {
  internal::Token message;
  message.set_token(text);
  return message;
}

std::string Frame(const std::string& bytes, size_t claimed) {
  std::string frame;
  for (int i = 0; i < 4; ++i) frame.push_back(static_cast<char>(claimed >> (8 * i)));
  return frame + bytes;
}

class MessageChannelTest : public ::testing::Test {
 protected:
  void SetUp() override { MakePair(); }

  void MakePair() {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    here = std::make_unique<MessageChannel>(FileDescriptor(fds[0]));
    there = std::make_unique<MessageChannel>(FileDescriptor(fds[1]));
  }
  void WriteRaw(std::string_view bytes) {
    ASSERT_EQ(send(there->fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Enqueues until the socket takes no more. Returns how many messages.
  int FillSocket(const std::vector<int>& descriptors = {}) {
    int count = 0;
    while (!here->pending()) {
      EXPECT_TRUE(here->Enqueue(Message(std::string(10'000, 'x')), descriptors).ok());
      ++count;
    }
    return count;
  }

  std::unique_ptr<MessageChannel> here, there;
  internal::Token received;
};

TEST_F(MessageChannelTest, shouldDeliverMessagesInOrder) {
  ASSERT_TRUE(here->Send(Message("one")).ok());
  ASSERT_TRUE(here->Send(Message("")).ok());
  ASSERT_TRUE(here->Send(Message(std::string(50'000, 'x'))).ok());
  for (const size_t size : {size_t{3}, size_t{0}, size_t{50'000}}) {
    ASSERT_TRUE(there->Receive(&received, kTimeoutMs).ok());
    EXPECT_EQ(received.token().size(), size);
  }
}

TEST_F(MessageChannelTest, shouldUnderstandAFrameThatIsSplitAtEveryByte) {
  std::string bytes;
  Message("a frame in two parts").SerializeToString(&bytes);
  const std::string frame = Frame(bytes, bytes.size());
  for (size_t split = 1; split < frame.size(); ++split) {
    MakePair();
    WriteRaw(std::string_view(frame).substr(0, split));
    ASSERT_TRUE(here->Fill().ok());
    const absl::StatusOr<bool> early = here->NextFrame(&received);
    ASSERT_TRUE(early.ok());
    EXPECT_FALSE(*early) << split;
    WriteRaw(std::string_view(frame).substr(split));
    ASSERT_TRUE(here->Fill().ok());
    const absl::StatusOr<bool> whole = here->NextFrame(&received);
    ASSERT_TRUE(whole.ok());
    EXPECT_TRUE(*whole) << split;
    EXPECT_EQ(received.token(), "a frame in two parts");
  }
}

TEST_F(MessageChannelTest, shouldUnderstandManyFramesThatArriveAsOne) {
  std::string bytes, all;
  Message("again").SerializeToString(&bytes);
  for (int i = 0; i < 5000; ++i) all += Frame(bytes, bytes.size());
  WriteRaw(all);
  ASSERT_TRUE(here->Fill().ok());
  int count = 0;
  for (absl::StatusOr<bool> next = here->NextFrame(&received); next.ok() && *next;
       next = here->NextFrame(&received)) {
    EXPECT_EQ(received.token(), "again");
    ++count;
  }
  EXPECT_EQ(count, 5000);
}

TEST_F(MessageChannelTest, shouldRefuseAFrameThatClaimsTooMuch) {
  WriteRaw(Frame("", kMaxFrameBytes + 1));
  ASSERT_TRUE(here->Fill().ok());
  const absl::Status status = here->NextFrame(&received).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("claims 16777217 bytes"));
}

TEST_F(MessageChannelTest, shouldRefuseGarbage) {
  WriteRaw(Frame("\xff\xff\xff\xff\xff\xff", 6));
  ASSERT_TRUE(here->Fill().ok());
  EXPECT_EQ(here->NextFrame(&received).status().code(), absl::StatusCode::kInvalidArgument);
  MakePair();
  WriteRaw("GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(here->Receive(&received, kTimeoutMs).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(MessageChannelTest, shouldPassDescriptors) {
  FileDescriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ASSERT_TRUE(here->Send(Message("with"), {event.get(), event.get()}).ok());
  std::vector<FileDescriptor> descriptors;
  ASSERT_TRUE(there->Receive(&received, kTimeoutMs, &descriptors).ok());
  ASSERT_EQ(descriptors.size(), 2u);
  EXPECT_NE(descriptors[0].get(), event.get());
  EXPECT_NE(fcntl(descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  eventfd_write(descriptors[1].get(), 5);
  eventfd_t value = 0;
  eventfd_read(event.get(), &value);
  EXPECT_EQ(value, 5u);
}

// A process loses its locks (fcntl(2)) on a file when it closes any descriptor of the file.
TEST_F(MessageChannelTest, shouldLeaveTheSenderItsLocks) {
  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  const FileDescriptor file(
      open(directory.File("locked").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  ASSERT_EQ(fcntl(file.get(), F_SETLK, &lock), 0);
  ASSERT_TRUE(here->Send(Message("x"), {file.get()}).ok());
  const pid_t child = fork();
  if (child == 0) {
    struct flock found = {};
    found.l_type = F_WRLCK;
    const bool is_locked = fcntl(file.get(), F_GETLK, &found) == 0 && found.l_type == F_WRLCK;
    _exit(is_locked ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(MessageChannelTest, shouldRefuseMoreDescriptorsThanAFrameTakes) {
  EXPECT_EQ(
      here->Enqueue(Message("x"), std::vector<int>(kMaxFrameDescriptors + 1, here->fd())).code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(here->Send(Message("x"), std::vector<int>(kMaxFrameDescriptors, here->fd())).ok());
}

TEST_F(MessageChannelTest, shouldCloseTheDescriptorsThatNobodyWaitsFor) {
  ASSERT_TRUE(here->Send(Message("x"), {here->fd(), here->fd()}).ok());
  const size_t before = OpenDescriptors();
  ASSERT_TRUE(there->Receive(&received, kTimeoutMs).ok());
  EXPECT_EQ(OpenDescriptors(), before);
}

// ---- Which descriptors are whose.

class DescriptorsTest : public MessageChannelTest {
 protected:
  void SendNumber(int number, size_t descriptors) {
    const std::vector<int> sent(descriptors, events[static_cast<size_t>(number)].get());
    ASSERT_TRUE(here->Send(Message(std::to_string(number)), sent).ok());
  }
  // The next message, with so many descriptors, all of its own event.
  void ExpectNumber(int number, size_t count) {
    std::vector<FileDescriptor> descriptors;
    ASSERT_TRUE(there->Receive(&received, kTimeoutMs, &descriptors).ok());
    EXPECT_EQ(received.token(), std::to_string(number));
    ASSERT_EQ(descriptors.size(), count) << number;
    for (const FileDescriptor& descriptor : descriptors) {
      ASSERT_EQ(eventfd_write(descriptor.get(), 1), 0);
      eventfd_t value = 0;
      EXPECT_EQ(eventfd_read(events[static_cast<size_t>(number)].get(), &value), 0);
      EXPECT_EQ(value, 1u);
    }
  }
  // Sends any bytes. Another program may do so, because it writes frames as it likes.
  void SendRaw(std::string_view bytes, const std::vector<int>& descriptors, int flags = 0) {
    iovec data = {const_cast<char*>(bytes.data()), bytes.size()};
    msghdr header = {};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[1024] = {};
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::copy(descriptors.begin(), descriptors.end(), reinterpret_cast<int*>(CMSG_DATA(item)));
    ASSERT_EQ(sendmsg(here->fd(), &header, MSG_NOSIGNAL | flags),
              static_cast<ssize_t>(bytes.size()));
  }
  static std::string FrameOf(const std::string& text) {
    const std::string bytes = Message(text).SerializeAsString();
    return Frame(bytes, bytes.size());
  }

  std::vector<FileDescriptor> events = [] {
    std::vector<FileDescriptor> all;
    for (int i = 0; i < 8; ++i) all.emplace_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return all;
  }();
};

TEST_F(DescriptorsTest, shouldGoWithTheFrameThatTheyWereSentWith) {
  const size_t counts[] = {1, 0, 2, 0, 0, kMaxFrameDescriptors, 3, 1};
  for (int i = 0; i < 8; ++i) SendNumber(i, counts[i]);
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 8; ++i) ExpectNumber(i, counts[i]);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(DescriptorsTest, shouldGoWithTheirFrameBehindPartOfAnother) {
  const std::string first = FrameOf("0"), second = FrameOf("1");
  for (size_t split = 1; split < first.size(); ++split) {
    ASSERT_EQ(send(here->fd(), first.data(), split, 0), static_cast<ssize_t>(split));
    ASSERT_TRUE(there->Fill().ok());
    ASSERT_EQ(send(here->fd(), first.data() + split, first.size() - split, 0),
              static_cast<ssize_t>(first.size() - split));
    SendRaw(std::string_view(second).substr(0, 1), {events[1].get()});
    ASSERT_EQ(send(here->fd(), second.data() + 1, second.size() - 1, 0),
              static_cast<ssize_t>(second.size() - 1));
    ExpectNumber(0, 0);
    ExpectNumber(1, 1);
  }
}

TEST_F(DescriptorsTest, shouldGoWithAFrameOfManyReads) {
  std::thread sender([&] {
    EXPECT_TRUE(here->Send(Message(std::string(1'000'000, 'x')), {events[1].get()}).ok());
    EXPECT_TRUE(here->Send(Message("1"), {events[1].get(), events[1].get()}).ok());
  });
  std::vector<FileDescriptor> descriptors;
  EXPECT_TRUE(there->Receive(&received, kTimeoutMs, &descriptors).ok());
  EXPECT_EQ(received.token().size(), 1'000'000u);
  EXPECT_EQ(descriptors.size(), 1u);
  ExpectNumber(1, 2);
  sender.join();
}

TEST_F(DescriptorsTest, shouldBeClosedThatComeInTheMiddleOfAFrame) {
  const size_t before = OpenDescriptors();
  const std::string frame = FrameOf("0");
  SendRaw(std::string_view(frame).substr(0, 1), {events[0].get()});
  for (size_t i = 1; i < frame.size(); ++i) {
    SendRaw(std::string_view(frame).substr(i, 1), {events[1].get(), events[2].get()});
  }
  SendNumber(3, 1);
  ExpectNumber(0, 1);
  ExpectNumber(3, 1);
  EXPECT_EQ(OpenDescriptors(), before);
}

// A peer that sends them without end does not take all that the process may have.
TEST_F(DescriptorsTest, shouldNotBeTakenFasterThanTheirFrames) {
  for (int i = 0; i < 100; ++i) SendNumber(i % 8, kMaxFrameDescriptors);
  const size_t before = OpenDescriptors();
  ASSERT_TRUE(there->Fill().ok());
  ASSERT_TRUE(there->Fill().ok());
  EXPECT_LE(OpenDescriptors(), before + 2 * kMaxFrameDescriptors);
  int frames = 0;
  while (frames < 100) {
    ASSERT_TRUE(there->Fill().ok());
    absl::StatusOr<bool> next = there->NextFrame(&received);
    ASSERT_TRUE(next.ok() && *next);
    EXPECT_EQ(received.token(), std::to_string(frames % 8));
    ++frames;
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(DescriptorsTest, shouldBeRefusedWhenThereAreMoreThanAFrameCarries) {
  const size_t before = OpenDescriptors();
  SendRaw(FrameOf("0"), std::vector<int>(kMaxFrameDescriptors + 4, events[0].get()));
  EXPECT_EQ(there->Fill().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(DescriptorsTest, shouldStayInTheSocketOfAChannelThatTakesNone) {
  there->TakeNoDescriptors();
  SendNumber(0, 0);
  ASSERT_TRUE(there->Fill().ok());
  SendNumber(1, 1);
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(there->Fill().code(), absl::StatusCode::kInvalidArgument);
  }
  ExpectNumber(0, 0);  // it was read before
  const absl::Status status = there->Receive(&received, kTimeoutMs);
  EXPECT_THAT(std::string(status.message()), HasSubstr("none are taken here"));
  EXPECT_EQ(OpenDescriptors(), before);
}

// The kernel would drop such a byte, and its descriptors, when the next one is read.
TEST_F(DescriptorsTest, shouldStayThereWithAnUrgentByte) {
  if (send(here->fd(), "", 1, MSG_OOB) != 1) GTEST_SKIP() << "this kernel has no urgent bytes";
  MakePair();
  there->TakeNoDescriptors();
  SendRaw("x", {events[0].get()}, MSG_OOB);
  ASSERT_EQ(send(here->fd(), "y", 1, 0), 1);
  EXPECT_EQ(there->Fill().code(), absl::StatusCode::kInvalidArgument);
}

// At most one comes with a frame.
class OneDescriptorTest : public DescriptorsTest {
 protected:
  void SetUp() override {
    DescriptorsTest::SetUp();
    there->TakeNoDescriptors();
    there->TakeOneDescriptor();
    ASSERT_NO_FATAL_FAILURE(AwaitCloses());
  }
  // Waits until all is closed that was left to the other thread.
  static void AwaitCloses() {
    int ends[2] = {};
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const FileDescriptor reader(ends[0]);
    CloseLater(FileDescriptor(ends[1]));
    char byte = 0;
    ASSERT_EQ(read(reader.get(), &byte, 1), 0);
  }
  void ExpectOne(int number, bool with) {
    PassedDescriptor passed;
    absl::StatusOr<bool> whole = there->NextFrameWithOne(&received, &passed);
    while (whole.ok() && !*whole) {
      ASSERT_EQ(there->Fill(), absl::OkStatus());
      whole = there->NextFrameWithOne(&received, &passed);
    }
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_EQ(received.token(), std::to_string(number));
    ASSERT_EQ(static_cast<bool>(passed), with) << number;
    if (!with) return;
    EXPECT_EQ(fcntl(passed.get(), F_GETFD), FD_CLOEXEC);
    ASSERT_EQ(eventfd_write(passed.get(), 1), 0);
    eventfd_t value = 0;
    EXPECT_EQ(eventfd_read(events[static_cast<size_t>(number)].get(), &value), 0);
  }
  // Another thread closes them.
  static void AwaitOpen(size_t count) {
    const uint64_t deadline = MonotonicNanoseconds() + uint64_t{kTimeoutMs} * 1'000'000;
    while (OpenDescriptors() != count && MonotonicNanoseconds() < deadline) sched_yield();
    EXPECT_EQ(OpenDescriptors(), count);
  }
};

TEST_F(OneDescriptorTest, shouldComeWithItsFrame) {
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 8; ++i) SendNumber(i, static_cast<size_t>(i % 2));
  for (int i = 0; i < 8; ++i) ExpectOne(i, i % 2 != 0);
  AwaitOpen(before);
}

TEST_F(OneDescriptorTest, shouldComeWithTheNameOfItsSender) {
  ASSERT_EQ(there->AwaitSender(getpid()), absl::OkStatus());
  SendNumber(1, 1);
  ExpectOne(1, true);
  EXPECT_TRUE(there->sender_seen());
}

TEST_F(OneDescriptorTest, shouldStayInTheSocketWithOthers) {
  SendNumber(0, 1);
  ExpectOne(0, true);
  SendNumber(1, 2);
  ASSERT_NO_FATAL_FAILURE(AwaitCloses());
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(there->Fill().code(), absl::StatusCode::kInvalidArgument);
  }
  PassedDescriptor passed;
  EXPECT_FALSE(there->NextFrameWithOne(&received, &passed).value());
  EXPECT_FALSE(passed);
  AwaitOpen(before);
}

TEST_F(OneDescriptorTest, shouldStayInTheSocketUntilADescriptorIsFree) {
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "UndefinedBehaviorSanitizer looks at memory through a pipe: it needs descriptors";
#endif
  SendNumber(0, 1);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {3, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status filled = there->Fill();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(filled.code(), absl::StatusCode::kResourceExhausted) << filled;
  ExpectOne(0, true);
}

TEST_F(OneDescriptorTest, shouldBeClosedIfNobodyTakesIt) {
  const size_t before = OpenDescriptors();
  SendNumber(0, 1);
  SendNumber(1, 1);
  ASSERT_EQ(there->Fill(), absl::OkStatus());
  ASSERT_TRUE(there->NextFrame(&received).value());  // without looking
  there.reset();
  AwaitOpen(before - 1);
}

// A close of what is passed waits, and neither the channel's thread nor its end does.
TEST_F(OneDescriptorTest, shouldBeClosedInAnotherThread) {
  const size_t open = OpenDescriptors();
  harness::LingeringSocket socket;
  ASSERT_EQ(here->Send(Message("0"), {socket.lingers.get()}), absl::OkStatus());
  socket.lingers.Reset();
  ASSERT_EQ(there->Fill(), absl::OkStatus());
  const auto before = std::chrono::steady_clock::now();
  ASSERT_TRUE(there->NextFrame(&received).value());
  there.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - before, harness::Patient(std::chrono::seconds(2)));
  // Later tests count descriptors. Nobody is left to linger for.
  socket.listener.Reset();
  EXPECT_EQ(harness::WaitUntil("the close", [&] { return OpenDescriptors() == open - 1; }),
            absl::OkStatus());
}

TEST_F(MessageChannelTest, shouldCloseQueuedDescriptorsAtItsEnd) {
  FillSocket();
  const size_t before = OpenDescriptors();
  ASSERT_TRUE(here->Enqueue(Message("late"), {here->fd(), there->fd()}).ok());
  ASSERT_TRUE(here->pending());
  EXPECT_EQ(OpenDescriptors(), before + 2);
  here.reset();
  EXPECT_EQ(OpenDescriptors(), before - 1);
}

TEST_F(MessageChannelTest, shouldSendNothingWhenOneOfTheDescriptorsIsBad) {
  EXPECT_FALSE(here->Enqueue(Message("x"), {here->fd(), there->fd(), -1}).ok());
  EXPECT_FALSE(here->pending());
  FillSocket();
  const size_t before = OpenDescriptors();
  EXPECT_FALSE(here->Enqueue(Message("x"), {here->fd(), there->fd(), -1}).ok());
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(MessageChannelTest, shouldSayThatTheOtherSideHasClosed) {
  there.reset();
  EXPECT_EQ(here->Receive(&received, kTimeoutMs).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(here->Fill().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(here->Send(Message("x")).code(), absl::StatusCode::kUnavailable);
}

TEST_F(MessageChannelTest, shouldStillDeliverWhatCameBeforeTheEnd) {
  ASSERT_TRUE(here->Send(Message("last")).ok());
  here.reset();
  ASSERT_TRUE(there->Receive(&received, kTimeoutMs).ok());
  EXPECT_EQ(received.token(), "last");
  EXPECT_EQ(there->Receive(&received, kTimeoutMs).code(), absl::StatusCode::kUnavailable);
}

// The kernel tells it otherwise then.
TEST_F(MessageChannelTest, shouldSayThatTheOtherSideHasClosedWithSomethingUnread) {
  ASSERT_TRUE(there->Send(Message("unread")).ok());
  ASSERT_TRUE(here->Send(Message("last")).ok());
  here.reset();
  ASSERT_TRUE(there->Receive(&received, kTimeoutMs).ok());
  EXPECT_EQ(received.token(), "last");
  EXPECT_EQ(there->Receive(&received, kTimeoutMs).code(), absl::StatusCode::kUnavailable);
}

TEST_F(MessageChannelTest, shouldGiveUpWaitingAtTheDeadline) {
  EXPECT_EQ(here->Receive(&received, 0).code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(there->Send(Message("later")).ok());
  EXPECT_TRUE(here->Receive(&received, kTimeoutMs).ok());
}

TEST_F(MessageChannelTest, shouldBoundWhatItQueues) {
  absl::Status status;
  size_t queued = 0;
  while (status.ok() && queued < 4u * kMaxFrameBytes) {
    status = here->Enqueue(Message(std::string(100'000, 'x')));
    if (status.ok()) queued += 100'000;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LE(queued, kMaxFrameBytes + (4u << 20));  // what the socket holds comes on top
}

TEST_F(MessageChannelTest, shouldFlushEverythingOnceTheOtherSideReads) {
  const int count = FillSocket() + 3;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(here->Enqueue(Message("tail")).ok());
  std::thread reader([&] {
    for (int i = 0; i < count; ++i) {
      EXPECT_TRUE(there->Receive(&received, kTimeoutMs).ok());
    }
  });
  // Send waits for what was queued before it, too.
  EXPECT_TRUE(here->Send(Message("end")).ok());
  reader.join();
  EXPECT_FALSE(here->pending());
  EXPECT_EQ(received.token(), "tail");
}

TEST_F(MessageChannelTest, shouldNotWaitForEverForASideThatDoesNotRead) {
  const int count = FillSocket();
  const absl::Status late = here->Send(Message("late"), {}, /*timeout_ms=*/1);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), HasSubstr("does not read"));
  // It goes when the other side reads, with whatever is done next: the answer to it is awaited.
  std::thread reader([&] {
    for (int i = 0; i < count; ++i) EXPECT_TRUE(there->Receive(&received, kTimeoutMs).ok());
    EXPECT_TRUE(there->Receive(&received, kTimeoutMs).ok());
    EXPECT_EQ(received.token(), "late");
    EXPECT_TRUE(there->Send(Message("answer")).ok());
  });
  internal::Token answer;
  EXPECT_EQ(here->Receive(&answer, kTimeoutMs), absl::OkStatus());
  EXPECT_EQ(answer.token(), "answer");
  reader.join();
  EXPECT_FALSE(here->pending());
}

TEST_F(MessageChannelTest, shouldSendTheLargestMessageAndRefuseALargerOne) {
  EXPECT_EQ(here->Send(Message(std::string(kMaxFrameBytes, 'x'))).code(),
            absl::StatusCode::kResourceExhausted);
  internal::Token largest = Message(std::string(kMaxFrameBytes - 5, 'x'));
  ASSERT_EQ(largest.ByteSizeLong(), kMaxFrameBytes);
  std::thread reader([&] { EXPECT_TRUE(there->Receive(&received, kTimeoutMs).ok()); });
  const absl::Status sent = here->Send(largest);
  EXPECT_TRUE(sent.ok()) << sent;
  if (!sent.ok()) here.reset();
  reader.join();
  EXPECT_EQ(received.token().size(), kMaxFrameBytes - 5);
}

// ---- What the kernel refuses in passing.

class RefusedTest : public MessageChannelTest {
 protected:
  using Sends = harness::ScriptedSends;

  void ExpectNext(const std::string& text) {
    ASSERT_TRUE(there->Receive(&received, kTimeoutMs).ok());
    EXPECT_EQ(received.token(), text);
  }
  // Expects that this end is broken, and that the other end has noticed.
  void ExpectBroken() {
    EXPECT_FALSE(here->pending());
    EXPECT_EQ(here->Flush().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(here->Enqueue(Message("more")).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(here->Send(Message("more")).code(), absl::StatusCode::kUnavailable);
    const absl::Status end = here->Receive(&received, kTimeoutMs);
    EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(end.message()), HasSubstr("is given up"));
    EXPECT_EQ(here->Fill(), end);
    EXPECT_EQ(there->Receive(&received, kTimeoutMs).code(), absl::StatusCode::kUnavailable);
  }
};

TEST_F(RefusedTest, shouldNotBeSentLater) {
  for (const int error : {ETOOMANYREFS, ENOBUFS, ENOMEM}) {
    const size_t before = OpenDescriptors();
    const Sends sends(here->fd(), {Sends::Failing(error)});
    EXPECT_EQ(here->Enqueue(Message("refused"), {here->fd()}).code(),
              absl::StatusCode::kResourceExhausted)
        << error;
    EXPECT_FALSE(here->pending());
    EXPECT_EQ(OpenDescriptors(), before);
    ASSERT_TRUE(here->Send(Message("next")).ok());
    ExpectNext("next");
  }
}

TEST_F(RefusedTest, shouldNotBeSentLaterAfterAWait) {
  const Sends sends(here->fd(), {Sends::Failing(EAGAIN), Sends::Failing(ENOBUFS)});
  EXPECT_EQ(here->Send(Message("refused")).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(sends.done());
  ASSERT_TRUE(here->Send(Message("next")).ok());
  ExpectNext("next");
}

TEST_F(RefusedTest, shouldEndTheChannelWhenPartOfItIsSent) {
  const Sends sends(here->fd(), {Sends::Sending(2), Sends::Failing(ENOBUFS)});
  ASSERT_TRUE(there->Send(Message("before")).ok());
  const absl::Status status = here->Send(Message("torn"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("No buffer space"));
  ASSERT_TRUE(here->Receive(&received, kTimeoutMs).ok());  // what had arrived still counts
  EXPECT_EQ(received.token(), "before");
  ExpectBroken();
}

TEST_F(RefusedTest, shouldEndTheChannelWhenItWasSaidToBeSent) {
  const Sends sends(here->fd(), {Sends::Failing(EAGAIN), Sends::Failing(ENOMEM)});
  ASSERT_TRUE(here->Enqueue(Message("promised")).ok());
  EXPECT_EQ(here->Enqueue(Message("refused")).code(), absl::StatusCode::kUnavailable);
  ExpectBroken();
}

TEST_F(RefusedTest, shouldEndTheWaitForItsAnswer) {
  const Sends sends(here->fd(), {Sends::Failing(EAGAIN), Sends::Failing(ETOOMANYREFS)});
  ASSERT_TRUE(here->Enqueue(Message("question"), {here->fd()}).ok());
  EXPECT_EQ(here->Receive(&received, kTimeoutMs).code(), absl::StatusCode::kUnavailable);
  ExpectBroken();
}

// ---- Listening and connecting.

class UnixSocketTest : public ::testing::Test {
 protected:
  harness::TempDirectory directory = harness::TempDirectory::Create().value();
  std::string path = directory.File("s.sock");
};

TEST_F(UnixSocketTest, shouldConnectAndTellThePeersCredentials) {
  const auto listening = ListenUnix(path, 8, 0600);
  ASSERT_TRUE(listening.ok()) << listening.status();
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto client = ConnectUnix(path);
  ASSERT_TRUE(client.ok()) << client.status();
  FileDescriptor server(accept(listening->get(), nullptr, nullptr));
  const auto credentials = GetPeerCredentials(server.get());
  ASSERT_TRUE(credentials.ok());
  EXPECT_EQ(credentials->pid, getpid());
  EXPECT_EQ(credentials->uid, geteuid());
  EXPECT_EQ(credentials->gid, getegid());
}

// The child has another number. What is on its way already was sent too early.
TEST_F(UnixSocketTest, shouldSeeWhatAProcessSendsFromThenOn) {
  const auto listening = ListenUnix(path, 8, 0600);
  ASSERT_TRUE(listening.ok()) << listening.status();
  MessageChannel client(ConnectUnix(path).value());
  MessageChannel server{FileDescriptor(accept(listening->get(), nullptr, nullptr))};
  const internal::SetReady nothing;
  internal::SetReady taken;
  ASSERT_EQ(client.Send(nothing), absl::OkStatus());
  ASSERT_EQ(server.AwaitSender(getpid()), absl::OkStatus());
  ASSERT_EQ(server.Receive(&taken, 10'000), absl::OkStatus());
  EXPECT_FALSE(server.sender_seen());
  ASSERT_EQ(server.Fill(), absl::OkStatus());  // there is no more
  const pid_t child = fork();
  if (child == 0) _exit(client.Send(nothing).ok() ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_EQ(server.Receive(&taken, 10'000), absl::OkStatus());
  EXPECT_FALSE(server.sender_seen());
  // With descriptors, as a frame may be.
  ASSERT_EQ(client.Send(nothing, std::vector<int>(kMaxFrameDescriptors, 0)), absl::OkStatus());
  ASSERT_EQ(server.Receive(&taken, 10'000), absl::OkStatus());
  EXPECT_TRUE(server.sender_seen());
}

TEST_F(UnixSocketTest, shouldSeeAProcessThatMayPassNoDescriptors) {
  const auto listening = ListenUnix(path, 8, 0600);
  ASSERT_TRUE(listening.ok()) << listening.status();
  MessageChannel client(ConnectUnix(path).value());
  MessageChannel server{FileDescriptor(accept(listening->get(), nullptr, nullptr))};
  server.TakeNoDescriptors();
  ASSERT_EQ(server.AwaitSender(getpid()), absl::OkStatus());
  const internal::SetReady nothing;
  internal::SetReady taken;
  ASSERT_EQ(client.Send(nothing), absl::OkStatus());
  ASSERT_EQ(server.Receive(&taken, 10'000), absl::OkStatus());
  EXPECT_TRUE(server.sender_seen());
  ASSERT_EQ(client.Send(nothing, {client.fd()}), absl::OkStatus());
  EXPECT_EQ(server.Fill().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(UnixSocketTest, shouldTellThatAPathIsTooLong) {
  const std::string longest = path + std::string(107 - path.size(), 'x');
  EXPECT_TRUE(ListenUnix(longest, 8, 0600).ok());
  const absl::Status status = ListenUnix(longest + "x", 8, 0600).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 108 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("between 1 and 107"));
  EXPECT_EQ(ConnectUnix(longest + "x").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ConnectUnix("").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(UnixSocketTest, shouldTakeThePlaceOfASocketThatNobodyListensOn) {
  { ASSERT_TRUE(ListenUnix(path, 8, 0600).ok()); }
  EXPECT_EQ(ConnectUnix(path).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(ListenUnix(path, 8, 0600).ok());
}

TEST_F(UnixSocketTest, shouldNotTakeTheSocketOfALiveListener) {
  const auto first = ListenUnix(path, 8, 0600);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(ListenUnix(path, 8, 0600).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(ConnectUnix(path).ok());
}

// With a backlog of 0, Linux lets one connection wait.
TEST_F(UnixSocketTest, shouldNotWaitForEverForAListenerThatHangs) {
  const auto hanging = ListenUnix(path, 0, 0600);
  ASSERT_TRUE(hanging.ok());
  const auto waiting = ConnectUnix(path);
  ASSERT_TRUE(waiting.ok()) << waiting.status();
  const uint64_t before = MonotonicNanoseconds();
  const absl::Status status = ConnectUnix(path, 50).status();
  EXPECT_GE(MonotonicNanoseconds() - before, 40'000'000u);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("takes no connection (waited 50 ms)"));
  // It listens all the same: its socket is not taken away.
  EXPECT_EQ(ListenUnix(path, 8, 0600).status().code(), absl::StatusCode::kAlreadyExists);
}

// A thread that waits gives up its processor of itself, and the kernel counts that.
TEST_F(UnixSocketTest, shouldNotWaitAtAllWhereItIsNotTo) {
  const auto hanging = ListenUnix(path, 0, 0600);
  ASSERT_TRUE(hanging.ok());
  const auto waiting = ConnectUnix(path, 0);
  ASSERT_TRUE(waiting.ok()) << waiting.status();
  EXPECT_EQ(fcntl(waiting->get(), F_GETFL) & O_NONBLOCK, 0);
  rusage before = {}, after = {};
  ASSERT_EQ(getrusage(RUSAGE_THREAD, &before), 0);
  constexpr int kTimes = 100;
  for (int i = 0; i < kTimes; ++i) {
    ASSERT_EQ(ConnectUnix(path, 0).status().code(), absl::StatusCode::kUnavailable);
  }
  ASSERT_EQ(getrusage(RUSAGE_THREAD, &after), 0);
  EXPECT_LT(after.ru_nvcsw - before.ru_nvcsw, kTimes / 2);
}

TEST_F(UnixSocketTest, shouldWaitForAListenerThatIsSlow) {
  const auto slow = ListenUnix(path, 0, 0600);
  ASSERT_TRUE(slow.ok());
  const auto waiting = ConnectUnix(path);
  ASSERT_TRUE(waiting.ok()) << waiting.status();
  std::thread acceptor([&] {
    usleep(50'000);
    const FileDescriptor accepted(accept(slow->get(), nullptr, nullptr));
  });
  const auto second = ConnectUnix(path, 20'000);
  acceptor.join();
  ASSERT_TRUE(second.ok()) << second.status();
  // A socket that had to wait is like any other: it blocks, and without a limit.
  EXPECT_EQ(fcntl(second->get(), F_GETFL) & O_NONBLOCK, 0);
  timeval limit = {1, 1};
  socklen_t length = sizeof(limit);
  ASSERT_EQ(getsockopt(second->get(), SOL_SOCKET, SO_SNDTIMEO, &limit, &length), 0);
  EXPECT_EQ(limit.tv_sec + limit.tv_usec, 0);
}

TEST_F(UnixSocketTest, shouldNotRemoveAFileThatIsNoSocket) {
  { std::ofstream(path) << "precious"; }
  EXPECT_EQ(ListenUnix(path, 8, 0600).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
}

TEST_F(UnixSocketTest, shouldSayWhatIsMissing) {
  const absl::Status status = ConnectUnix(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
}

}  // namespace
}  // namespace baton

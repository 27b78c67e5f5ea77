// Control's side of the way to batond, and to the batond that follows one that died.
#include "supervisor/control/batond_link.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/batond.pb.h"
#include "supervisor/config/state_files.h"
#include "supervisor/control/loop_thread.h"

namespace baton {
namespace {

constexpr int kPatienceMs = 30'000;

class BatondLinkTest : public ::testing::Test {
 protected:
  BatondLinkTest() {
    sigemptyset(&end_);
    sigaddset(&end_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &end_, nullptr);
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    WriteBatondLock(kPaddedLockBytes);
    SocketPair pair = MakeSocketPair(SOCK_STREAM).value();
    former_.emplace(std::move(pair.ours));
    Pipe stay = MakePipe().value();
    stay_ = std::move(stay.writing);
    BatondLink::Rejoin rejoin;
    rejoin.state_dir = directory_;
    rejoin.lock.Reset(
        open(ControlLockPath(directory_).c_str(), O_RDONLY | O_CREAT | O_CLOEXEC, 0600));
    rejoin.stay = std::move(stay.reading);
    rejoin.request.mutable_control()->set_state_dir(directory_);
    link_.emplace(loop_.loop(), std::move(pair.theirs), std::move(rejoin), getppid());
    link_->Start([this](const internal::BatondReply& news) { news_.set_value(news.revision()); });
  }
  ~BatondLinkTest() override {
    loop_.Stop();
    link_->Stop();
    std::filesystem::remove_all(directory_);
  }

  void WriteBatondLock(size_t bytes) {
    std::ofstream(BatondLockPath(directory_)) << std::string(bytes, '\n');
  }
  void KillBatond() { former_.reset(); }

  // Takes control in, as the next batond does. Returns batond's end of the channel.
  std::unique_ptr<MessageChannel> TakeIn() {
    const auto listening = ListenUnix(ControlRejoinSocketPath(directory_), 8, 0600);
    EXPECT_TRUE(listening.ok()) << listening.status();
    pollfd entry = {listening->get(), POLLIN, 0};
    EXPECT_EQ(poll(&entry, 1, kPatienceMs), 1);
    MessageChannel asked(FileDescriptor(accept(listening->get(), nullptr, nullptr)));
    internal::RejoinRequest request;
    std::vector<FileDescriptor> received;
    EXPECT_TRUE(asked.Receive(&request, kPatienceMs, &received).ok());
    EXPECT_EQ(request.control().state_dir(), directory_);
    EXPECT_EQ(received.size(), 1u);
    SocketPair pair = MakeSocketPair(SOCK_STREAM).value();
    Pipe heart = MakePipe(O_NONBLOCK).value();
    heart_ = std::move(heart.reading);
    EXPECT_TRUE(asked.Send(internal::RejoinReply(), {heart.writing.get(), pair.theirs.get()}).ok());
    return std::make_unique<MessageChannel>(std::move(pair.ours));
  }

  absl::Status Ask() {
    internal::BatondRequest request;
    request.mutable_reload();
    return link_->Ask(std::move(request)).status();
  }

  bool IsToldToEnd() const {
    const timespec patience = {kPatienceMs / 1000, 0};
    return sigtimedwait(&end_, nullptr, &patience) == SIGTERM;
  }

  sigset_t end_;
  std::string directory_ = "/tmp/batond-link-XXXXXX";
  std::optional<MessageChannel> former_;  // of the batond that started control
  FileDescriptor stay_, heart_;
  std::promise<uint64_t> news_;
  LoopThread loop_;
  std::optional<BatondLink> link_;
};

TEST_F(BatondLinkTest, shouldGoOnWithTheNextBatond) {
  EXPECT_EQ(link_->batond(), getppid());
  KillBatond();
  EXPECT_FALSE(Ask().ok());
  const std::unique_ptr<MessageChannel> batond = TakeIn();
  internal::BatondReply news;
  news.set_revision(7);
  ASSERT_TRUE(batond->Send(news).ok());
  EXPECT_EQ(news_.get_future().get(), 7u);
  EXPECT_EQ(link_->batond(), getpid());
  EXPECT_EQ(link_->batonds_followed(), 1u);
  std::thread answers([&] {
    internal::BatondRequest request;
    EXPECT_TRUE(batond->Receive(&request, kPatienceMs).ok());
    internal::BatondReply reply;
    reply.set_id(request.id());
    EXPECT_TRUE(batond->Send(reply).ok());
  });
  EXPECT_TRUE(Ask().ok());
  answers.join();
  pollfd sign = {heart_.get(), POLLIN, 0};
  EXPECT_EQ(poll(&sign, 1, kPatienceMs), 1);
}

// The next one may have other ideas of the configuration.
TEST_F(BatondLinkTest, shouldNotRepeatAtTheNextBatondWhatHasFailed) {
  std::future<absl::Status> asked = std::async(std::launch::async, [this] { return Ask(); });
  internal::BatondRequest request;
  ASSERT_TRUE(former_->Receive(&request, kPatienceMs).ok());
  KillBatond();
  EXPECT_EQ(asked.get().code(), absl::StatusCode::kUnavailable);
  const std::unique_ptr<MessageChannel> batond = TakeIn();
  internal::BatondReply news;
  ASSERT_TRUE(batond->Send(news).ok());
  (void)news_.get_future().get();
  EXPECT_EQ(batond->Receive(&request, /*timeout_ms=*/0).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(BatondLinkTest, shouldEndWhenBatondIsStopped) {
  KillBatond();
  stay_.Reset();
  EXPECT_TRUE(IsToldToEnd());
}

TEST_F(BatondLinkTest, shouldEndWhenNoBatondCanFindControl) {
  std::filesystem::remove(ControlLockPath(directory_));
  KillBatond();
  EXPECT_TRUE(IsToldToEnd());
}

// It writes its pid alone.
TEST_F(BatondLinkTest, shouldEndForABatondOfAFormerRelease) {
  WriteBatondLock(8);
  KillBatond();
  EXPECT_TRUE(IsToldToEnd());
}

}  // namespace
}  // namespace baton

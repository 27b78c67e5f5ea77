// What batond is made of, each by itself.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/channel/message_channel.h"
#include "proto/baton/internal/control.pb.h"
#include "proto/baton/internal/store.pb.h"
#include "supervisor/batond/control_requests.h"
#include "supervisor/batond/store_server.h"
#include "tests/harness/scripted_sends.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

std::vector<FileDescriptor> OneDescriptor() {
  std::vector<FileDescriptor> descriptors;
  descriptors.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return descriptors;
}

TEST(DescriptorStoreTest, GivesBackWhatWasPutAndKeepsIt) {
  DescriptorStore store;
  std::vector<FileDescriptor> descriptors = OneDescriptor();
  const int number = descriptors[0].get();
  ASSERT_TRUE(store.Put("arena", std::move(descriptors)).ok());
  EXPECT_EQ(*store.Get("arena"), std::vector<int>{number});
  EXPECT_EQ(*store.Get("arena"), std::vector<int>{number});
  EXPECT_EQ(store.List(), std::vector<std::string>{"arena"});
}

TEST(DescriptorStoreTest, ClosesWhatIsDroppedOrReplaced) {
  DescriptorStore store;
  for (int round = 0; round < 2; ++round) {
    std::vector<FileDescriptor> descriptors = OneDescriptor();
    const int number = descriptors[0].get();
    ASSERT_TRUE(store.Put("a", std::move(descriptors)).ok());
    ASSERT_TRUE(round == 0 ? store.Drop("a").ok() : store.Put("a", OneDescriptor()).ok());
    if (round == 0) {
      EXPECT_EQ(fcntl(number, F_GETFD), -1);
    } else {
      EXPECT_NE(store.Get("a")->at(0), number);
    }
  }
}

TEST(DescriptorStoreTest, RefusesWhatItCannotHold) {
  DescriptorStore store;
  EXPECT_TRUE(absl::IsInvalidArgument(store.Put("", OneDescriptor())));
  EXPECT_TRUE(absl::IsInvalidArgument(store.Put(std::string(65, 'n'), OneDescriptor())));
  EXPECT_TRUE(absl::IsInvalidArgument(store.Put("empty", {})));
  EXPECT_TRUE(absl::IsNotFound(store.Get("nothing").status()));
  EXPECT_TRUE(absl::IsNotFound(store.Drop("nothing")));
  for (size_t i = 0; i < DescriptorStore::kMaxNames; ++i) {
    ASSERT_TRUE(store.Put("n" + std::to_string(i), OneDescriptor()).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(store.Put("one more", OneDescriptor())));
  EXPECT_TRUE(store.Put("n0", OneDescriptor()).ok());
}

// The two ends of a channel between batond and a process that it has started.
struct Ends {
  FileDescriptor batond;
  std::unique_ptr<MessageChannel> child;
};

Ends MakeEnds() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {FileDescriptor(ends[0]), std::make_unique<MessageChannel>(FileDescriptor(ends[1]))};
}

// Runs the loop until `answered` returns `count`. Each turn answers a few requests, so that
// batond's other work has its turn in between.
void ExpectAFewATurn(boost::asio::io_context& io, size_t count,
                     const std::function<size_t()>& answered) {
  size_t turns = 0;
  for (size_t so_far = 0; so_far < count;) {
    ASSERT_EQ(io.run_one(), 1u);
    so_far = answered();
    EXPECT_LE(so_far, 10 * ++turns);
  }
}

// A store server on a thread of its own, and the keeper's end of its channel.
class StoreServerTest : public testing::Test {
 protected:
  StoreServerTest() {
    Ends ends = MakeEnds();
    server_fd_ = ends.batond.get();
    server_ = std::make_unique<StoreServer>(io_, "keeper", std::move(ends.batond), store_);
    keeper_ = std::move(ends.child);
    thread_ = std::thread([this] { io_.run(); });
  }
  // The server has nothing to wait for once its channel is closed.
  ~StoreServerTest() override {
    keeper_.reset();
    thread_.join();
  }

  internal::StoreReply Ask(const internal::StoreRequest& request,
                           const std::vector<int>& descriptors = {}) {
    internal::StoreReply reply;
    EXPECT_TRUE(keeper_->Send(request, descriptors).ok());
    EXPECT_TRUE(keeper_->Receive(&reply, 30'000, &received_).ok());
    return reply;
  }

  DescriptorStore store_;
  boost::asio::io_context io_{1};
  int server_fd_ = -1;
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<MessageChannel> keeper_;
  std::thread thread_;
  std::vector<FileDescriptor> received_;
};

TEST_F(StoreServerTest, PutsListsGetsAndDrops) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  internal::StoreRequest request;
  request.mutable_put()->set_name("pipe");
  EXPECT_EQ(Ask(request, {ends[1]}).status_code(), 0);
  close(ends[1]);

  request.mutable_list();
  EXPECT_EQ(Ask(request).names(0), "pipe");

  request.mutable_get()->set_name("pipe");
  EXPECT_EQ(Ask(request).status_code(), 0);
  ASSERT_EQ(received_.size(), 1u);
  EXPECT_EQ(write(received_[0].get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 1);
  received_.clear();

  request.mutable_drop()->set_name("pipe");
  EXPECT_EQ(Ask(request).status_code(), 0);
  EXPECT_EQ(read(ends[0], &byte, 1), 0);  // nobody holds the other end any more
  EXPECT_EQ(Ask(request).status_code(), static_cast<int>(absl::StatusCode::kNotFound));
  close(ends[0]);
}

// A keeper that asked and was killed.
TEST(StoreServer, ServesWhatWasAskedBeforeItsEnd) {
  boost::asio::io_context io;
  DescriptorStore store;
  {
    Ends ends = MakeEnds();
    const StoreServer server(io, "keeper", std::move(ends.batond), store);
    const std::unique_ptr<MessageChannel> keeper = std::move(ends.child);
    internal::StoreRequest request;
    request.mutable_put()->set_name("workers0.0");
    ASSERT_TRUE(keeper->Send(request, {keeper->fd()}).ok());
  }
  EXPECT_EQ(store.List(), std::vector<std::string>{"workers0.0"});
}

TEST(StoreServer, ServesAFewRequestsOfOneThatAsksWithoutAPause) {
  Ends ends = MakeEnds();
  boost::asio::io_context io;
  DescriptorStore store;
  const StoreServer server(io, "keeper", std::move(ends.batond), store);
  constexpr size_t kRequests = 100;
  internal::StoreRequest request;
  request.mutable_list();
  for (size_t i = 0; i < kRequests; ++i) ASSERT_TRUE(ends.child->Send(request).ok());
  size_t answers = 0;
  ExpectAFewATurn(io, kRequests, [&] {
    internal::StoreReply reply;
    while (ends.child->Receive(&reply, /*timeout_ms=*/0).ok()) ++answers;
    return answers;
  });
}

TEST(ControlRequests, AnswersAFewRequestsOfOneThatAsksWithoutAPause) {
  Ends ends = MakeEnds();
  boost::asio::io_context io;
  size_t reloads = 0;
  const auto reload = [&](const internal::ReloadConfig&, const ControlRequests::ReloadDone& done) {
    ++reloads;
    done(internal::BatondReply());
  };
  const auto open = [](const std::string&) -> absl::StatusOr<FileDescriptor> {
    return absl::NotFoundError("there is no file");
  };
  const auto replace = [](const internal::ReplaceProgram&, const ControlRequests::Done& done) {
    done(absl::UnimplementedError("it is not replaced"));
  };
  const ControlRequests requests(io, std::move(ends.batond), reload, replace, open);
  constexpr size_t kRequests = 100;
  internal::BatondRequest request;
  request.mutable_reload();
  for (size_t i = 0; i < kRequests; ++i) ASSERT_TRUE(ends.child->Send(request).ok());
  ExpectAFewATurn(io, kRequests, [&] { return reloads; });
  for (size_t i = 0; i < kRequests; ++i) {
    internal::BatondReply reply;
    ASSERT_TRUE(ends.child->Receive(&reply, 30'000).ok());
  }
}

TEST_F(StoreServerTest, AnswersARequestOfAnUnknownKindWithAnError) {
  EXPECT_EQ(Ask(internal::StoreRequest()).status_code(),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
}

TEST_F(StoreServerTest, TellsThatTheSystemIsShortOfWhatDescriptorsTake) {
  internal::StoreRequest request;
  request.mutable_put()->set_name("null");
  ASSERT_EQ(Ask(request, {OneDescriptor()[0].get()}).status_code(), 0);
  request.mutable_get()->set_name("null");
  const harness::ScriptedSends sends(server_fd_, {harness::ScriptedSends::Failing(ETOOMANYREFS)});
  EXPECT_EQ(Ask(request).status_code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(received_.empty());
  EXPECT_EQ(Ask(request).status_code(), 0);
  EXPECT_EQ(received_.size(), 1u);
}

TEST_F(StoreServerTest, ClosesAChannelThatItCannotAnswerOn) {
  internal::StoreRequest request;
  request.mutable_list();
  const harness::ScriptedSends sends(server_fd_, {harness::ScriptedSends::Failing(ENOBUFS)});
  ASSERT_TRUE(keeper_->Send(request).ok());
  internal::StoreReply reply;
  EXPECT_TRUE(absl::IsUnavailable(keeper_->Receive(&reply, 30'000)));
}

TEST_F(StoreServerTest, ClosesTheChannelOfAKeeperThatSpeaksNonsense) {
  const std::string nonsense(64, '\xff');
  ASSERT_EQ(write(keeper_->fd(), nonsense.data(), nonsense.size()), 64);
  internal::StoreReply reply;
  EXPECT_TRUE(absl::IsUnavailable(keeper_->Receive(&reply, 30'000)));
  thread_.join();  // it waits for nothing any more
  thread_ = std::thread([] {});
}

}  // namespace
}  // namespace baton

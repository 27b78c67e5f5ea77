// A keeper's side of batond's store, with batond's.
#include "supervisor/driver/held_descriptors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "supervisor/batond/store_server.h"
#include "supervisor/driver/held_logs.h"
#include "supervisor/driver/native/adoption.h"
#include "supervisor/driver/workers/held_workers.h"
#include "tests/harness/patience.h"
#include "tests/harness/scripted_sends.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::driver_process {
namespace {

using ::testing::ElementsAre;

class HeldDescriptorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    server_ = std::make_unique<StoreServer>(io_, "keeper", FileDescriptor(pair[0]), store_);
    held_ = std::make_unique<HeldDescriptors>(FileDescriptor(pair[1]));
    thread_ = std::thread([this] { io_.run(); });
  }
  void TearDown() override {
    held_.reset();  // the server has nothing more to wait for
    thread_.join();
  }

  // Files that say their number.
  std::vector<FileDescriptor> Make(int count) {
    std::vector<FileDescriptor> files;
    for (int i = 0; i < count; ++i) {
      files.emplace_back(memfd_create("file", MFD_CLOEXEC));
      const std::string text = std::to_string(i);
      EXPECT_EQ(write(files.back().get(), text.data(), text.size()),
                static_cast<ssize_t>(text.size()));
    }
    return files;
  }
  absl::Status Put(const std::string& name, const std::vector<FileDescriptor>& files) {
    std::vector<int> numbers;
    for (const FileDescriptor& file : files) numbers.push_back(file.get());
    return held_->Put(name, numbers);
  }
  std::vector<std::string> TextsOf(const std::string& name) {
    std::vector<std::string> texts;
    const absl::StatusOr<std::vector<FileDescriptor>> files = held_->Get(name);
    EXPECT_TRUE(files.ok()) << files.status();
    for (const FileDescriptor& file : *files) {
      char text[8] = {};
      EXPECT_GT(pread(file.get(), text, sizeof(text) - 1, 0), 0);
      texts.emplace_back(text);
    }
    return texts;
  }

  boost::asio::io_context io_{1};
  DescriptorStore store_;
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<HeldDescriptors> held_;
  std::thread thread_;
};

TEST_F(HeldDescriptorsTest, shouldGiveBackMoreThanOneEntryHasInOrder) {
  ASSERT_TRUE(Put("wakes", Make(20)).ok());
  const std::vector<std::string> texts = TextsOf("wakes");
  ASSERT_EQ(texts.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(texts[static_cast<size_t>(i)], std::to_string(i));
  EXPECT_EQ(TextsOf("wakes").size(), 20u);  // and keeps them
}

TEST_F(HeldDescriptorsTest, shouldHaveNothingThatWasNotPut) {
  EXPECT_TRUE(TextsOf("arena").empty());
}

TEST_F(HeldDescriptorsTest, shouldPutInThePlaceOfTheFormer) {
  ASSERT_TRUE(Put("rdma_cm", Make(3)).ok());
  ASSERT_TRUE(Put("rdma_cm", Make(1)).ok());
  EXPECT_EQ(TextsOf("rdma_cm").size(), 1u);
}

TEST_F(HeldDescriptorsTest, shouldDropAll) {
  ASSERT_TRUE(Put("wakes", Make(9)).ok());
  ASSERT_TRUE(Put("arena", Make(4)).ok());
  ASSERT_TRUE(held_->DropAll().ok());
  EXPECT_TRUE(TextsOf("wakes").empty());
  EXPECT_TRUE(TextsOf("arena").empty());
}

TEST_F(HeldDescriptorsTest, shouldKeepWhatIsNotToBeDropped) {
  ASSERT_TRUE(Put("links", Make(9)).ok());
  ASSERT_TRUE(Put("wakes", Make(1)).ok());
  ASSERT_TRUE(held_->DropAll("links").ok());
  EXPECT_EQ(TextsOf("links").size(), 9u);
  EXPECT_TRUE(TextsOf("wakes").empty());
  EXPECT_TRUE(absl::IsNotFound(held_->Drop("wakes")));
}

// Each answer is to what was asked, also after a request that was refused.
TEST_F(HeldDescriptorsTest, shouldNotPutWhatWasRefused) {
  ASSERT_TRUE(Put("arena", Make(3)).ok());
  using Sends = harness::ScriptedSends;
  const Sends sends(held_->fd(), {Sends::Failing(ETOOMANYREFS), Sends::Failing(EAGAIN),
                                  Sends::Failing(ENOBUFS), Sends::Failing(ENOMEM)});
  const std::vector<FileDescriptor> files = Make(1);
  EXPECT_TRUE(absl::IsResourceExhausted(Put("refused", files)));
  EXPECT_TRUE(absl::IsResourceExhausted(Put("refused", files)));
  absl::Status soon;
  held_->PutSoon("refused", {files[0].get()}, [&](const absl::Status& status) { soon = status; });
  EXPECT_TRUE(absl::IsResourceExhausted(soon));
  EXPECT_TRUE(sends.done());
  EXPECT_FALSE(held_->IsReplyDue());
  EXPECT_TRUE(absl::IsNotFound(held_->Drop("refused")));
  EXPECT_EQ(TextsOf("arena").size(), 3u);
}

// ---------------------------------------------------------------- logs of brokered services

TEST_F(HeldDescriptorsTest, shouldHoldTheLogsAndNotTheBuffers) {
  const arena::Arena arena = arena::Arena::Create(driver::testing::TestShape(), "kv").value();
  ASSERT_TRUE(HoldLogs(held_.get(), arena).ok());
  const auto logs = held_->Get("logs");
  ASSERT_TRUE(logs.ok()) << logs.status();
  ASSERT_EQ(logs->size(), 3u);
  const auto is_file = [&](size_t which, int fd) {
    struct stat held = {}, made = {};
    return fstat((*logs)[which].get(), &held) == 0 && fstat(fd, &made) == 0 &&
           held.st_ino == made.st_ino;
  };
  EXPECT_TRUE(is_file(0, arena.worker_log_fd()));
  EXPECT_TRUE(is_file(1, arena.driver_log_fd()));
  EXPECT_TRUE(is_file(2, arena.recovery_fd()));
}

TEST_F(HeldDescriptorsTest, shouldKeepTheLogsOfWhoDiedLast) {
  ASSERT_TRUE(KeepFormerLogs(held_.get()).ok());  // nobody has died
  EXPECT_TRUE(TextsOf("former").empty());
  ASSERT_TRUE(Put("logs", Make(3)).ok());
  ASSERT_TRUE(KeepFormerLogs(held_.get()).ok());
  EXPECT_EQ(TextsOf("former").size(), 3u);
  EXPECT_TRUE(TextsOf("logs").empty());
  // One that dies before it has an arena leaves those before it as they are.
  ASSERT_TRUE(KeepFormerLogs(held_.get()).ok());
  EXPECT_EQ(TextsOf("former").size(), 3u);
  ASSERT_TRUE(Put("logs", Make(2)).ok());
  ASSERT_TRUE(KeepFormerLogs(held_.get()).ok());
  EXPECT_EQ(TextsOf("former").size(), 2u);
}

TEST_F(HeldDescriptorsTest, shouldGiveLargeLogsBack) {
  ASSERT_TRUE(Put("former", Make(1)).ok());
  std::vector<FileDescriptor> large = Make(2);
  ASSERT_EQ(ftruncate(large[1].get(), kMaxFormerLogBytes), 0);
  ASSERT_TRUE(Put("logs", large).ok());
  ASSERT_TRUE(KeepFormerLogs(held_.get()).ok());
  EXPECT_TRUE(TextsOf("former").empty());
  EXPECT_TRUE(TextsOf("logs").empty());
}

TEST_F(HeldDescriptorsTest, shouldHoldWorkersBySlot) {
  const std::vector<FileDescriptor> files = Make(4);
  HeldWorkers workers(held_.get(), files[0].get(), 10);
  int held = 0;
  const auto done = [&held](const absl::Status& status) { held += status.ok(); };
  workers.Put(9, files[1].get(), done);
  workers.Put(2, files[1].get(), done);
  workers.Put(3, files[3].get(), done);
  workers.Put(2, files[2].get(), done);
  const absl::StatusOr<std::vector<FileDescriptor>> got = HeldWorkers::Get(held_.get(), 10);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(held, 4);  // before anything else is asked
  ASSERT_EQ(got->size(), 10u);
  const char* const expected = "0023000001";
  for (size_t slot = 0; slot < 10; ++slot) {
    char text = 0;
    EXPECT_EQ(pread((*got)[slot].get(), &text, 1, 0), 1);
    EXPECT_EQ(text, expected[slot]) << slot;
  }
}

// ---------------------------------------------------------------- what Adoption does with it

TEST_F(HeldDescriptorsTest, shouldNotAdoptWhatSoManyKeepersDiedOf) {
  ASSERT_TRUE(Put("complete", Make(1)).ok());
  const v1::ServiceConfig service;
  for (int again = 0; again < 2; ++again) {
    for (size_t i = 0; i < Adoption::kMostDeaths; ++i) {
      const absl::Status status = Adoption::Begin(held_.get(), service).status();
      EXPECT_TRUE(absl::IsInternal(status)) << status;  // there is no arena
    }
    const absl::Status status = Adoption::Begin(held_.get(), service).status();
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    Adoption::Settle(held_.get());
  }
}

TEST_F(HeldDescriptorsTest, shouldGiveAllBackAtTheEnd) {
  int pair[2];
  ASSERT_EQ(pipe2(pair, O_CLOEXEC), 0);
  const FileDescriptor proof(pair[0]);
  FileDescriptor presence(pair[1]);
  ASSERT_TRUE(held_->Put("links", {proof.get(), proof.get(), proof.get()}).ok());
  ASSERT_TRUE(Put("lifeline", Make(1)).ok());
  presence.Reset();
  const absl::Status status = Adoption::End(held_.get());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(held_->Get("links").value().empty());
  EXPECT_TRUE(held_->Get("lifeline").value().empty());
}

class HoldTest : public HeldDescriptorsTest {
 protected:
  static arena::Arena MakeArena() {
    arena::Shape shape = driver::testing::TestShape();
    shape.pooled_queue_pairs = 2;
    return arena::Arena::Create(shape, "kv").value();
  }
  absl::Status HoldWith(HeldDescriptors* held) {
    NativeFiles files;
    files.arena = &arena_;
    files.connection_manager = files.driver_wake = files.news = file_.get();
    files.device = files.wakes = {file_.get()};
    return Hold(held, files, lifeline_);
  }

  const arena::Arena arena_ = MakeArena();
  const FileDescriptor file_{memfd_create("file", MFD_CLOEXEC)};
  const Lifeline lifeline_ = MakeLifeline().value();
};

// Of two generations together a keeper would make one.
TEST_F(HoldTest, shouldHoldNothingBesideWhatCannotBeDropped) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  std::vector<int> asked;
  std::thread batond([&asked, socket = pair[1]] {
    MessageChannel channel{FileDescriptor(socket)};
    internal::StoreRequest request;
    while (channel.Receive(&request, -1).ok()) {
      asked.push_back(request.request_case());
      internal::StoreReply reply;
      if (request.request_case() == internal::StoreRequest::kList) {
        reply.add_names("complete.0");
      } else {
        reply.set_status_code(static_cast<int>(absl::StatusCode::kInternal));
      }
      EXPECT_TRUE(channel.Send(reply).ok());
    }
  });
  auto held = std::make_unique<HeldDescriptors>(FileDescriptor(pair[0]));
  EXPECT_TRUE(absl::IsInternal(HoldWith(held.get())));
  held.reset();
  batond.join();
  EXPECT_THAT(asked, ElementsAre(internal::StoreRequest::kList, internal::StoreRequest::kDrop));
}

// Whose replies to the first attempt come to the second.
TEST_F(HoldTest, shouldHoldAllOnceBatondAnswersAgain) {
  ASSERT_TRUE(Put("of_another", Make(1)).ok());
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  HeldDescriptors held(FileDescriptor(pair[0]), /*timeout_ms=*/1);
  ASSERT_TRUE(absl::IsDeadlineExceeded(HoldWith(&held)));
  ASSERT_TRUE(absl::IsDeadlineExceeded(held.DropAll()));
  std::optional<StoreServer> server;
  boost::asio::post(io_, [&] { server.emplace(io_, "keeper", FileDescriptor(pair[1]), store_); });
  const auto deadline =
      std::chrono::steady_clock::now() + harness::Patient(std::chrono::seconds(20));
  while (!HoldWith(&held).ok()) ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  EXPECT_EQ(held_->Get("arena")->size(), 4u);
  EXPECT_EQ(held_->Get("links")->size(), 3u);
  EXPECT_EQ(held_->Get("complete")->size(), 1u);
  EXPECT_TRUE(held_->Get("of_another")->empty());
  std::promise<void> gone;
  boost::asio::post(io_, [&] {
    server.reset();
    gone.set_value();
  });
  gone.get_future().wait();
}

// Else the workers of the former one may live beside those of the next.
TEST(LostStore, shouldNotCallItAnEndWhenNothingIsDropped) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  HeldDescriptors held(FileDescriptor(pair[0]), /*timeout_ms=*/1);
  const FileDescriptor batond(pair[1]);  // says nothing
  EXPECT_FALSE(Adoption::End(&held).ok());
}

// A reply that came too late is nobody's.
TEST(LateReply, shouldNotBeTakenForTheNextOne) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  HeldDescriptors held(FileDescriptor(pair[0]), /*timeout_ms=*/1);
  MessageChannel batond{FileDescriptor(pair[1])};
  const FileDescriptor file(memfd_create("file", MFD_CLOEXEC));
  ASSERT_TRUE(absl::IsDeadlineExceeded(held.Get("wakes").status()));
  ASSERT_TRUE(absl::IsDeadlineExceeded(held.DropAll()));  // the first has still no reply
  internal::StoreReply reply;
  ASSERT_TRUE(batond.Send(reply, {file.get()}).ok());
  std::thread answer([&] {
    internal::StoreRequest request;
    EXPECT_TRUE(batond.Receive(&request, -1).ok());
    EXPECT_EQ(request.request_case(), internal::StoreRequest::kGet);
    EXPECT_TRUE(batond.Receive(&request, -1).ok());
    EXPECT_EQ(request.request_case(), internal::StoreRequest::kDrop);
    reply.set_status_code(static_cast<int>(absl::StatusCode::kNotFound));
    EXPECT_TRUE(batond.Send(reply).ok());
  });
  EXPECT_FALSE(held.Drop("wakes").ok());
  answer.join();
}

// Nor is that of a request which batond had not even taken.
TEST(LateReply, shouldBeAwaitedForARequestThatIsStillOnItsWay) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  HeldDescriptors held(FileDescriptor(pair[0]), /*timeout_ms=*/1);
  FileDescriptor batonds(pair[1]);
  char bytes[4096] = {};
  size_t filled = 0;
  for (ssize_t sent = 0; sent >= 0; sent = send(pair[0], bytes, sizeof(bytes), MSG_DONTWAIT)) {
    filled += static_cast<size_t>(sent);
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(held.Drop("a")));
  EXPECT_TRUE(absl::IsDeadlineExceeded(held.Drop("b")));  // which is not asked before that
  while (filled > 0) {
    const ssize_t got = recv(batonds.get(), bytes, std::min(filled, sizeof(bytes)), 0);
    ASSERT_GT(got, 0);
    filled -= static_cast<size_t>(got);
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(held.Drop("c")));
  MessageChannel batond(std::move(batonds));
  internal::StoreRequest request;
  ASSERT_TRUE(batond.Receive(&request, 0).ok());
  EXPECT_EQ(request.drop().name(), "a.0");
  EXPECT_FALSE(batond.Receive(&request, 0).ok());
}

// ---------------------------------------------------------------- a batond that stands still

class SilentBatondTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    held_ = std::make_unique<HeldDescriptors>(FileDescriptor(pair[0]));
    batond_.emplace(FileDescriptor(pair[1]));
  }
  void PutSoon(const std::string& name) {
    held_->PutSoon(name, {file_.get(), file_.get()}, [this, name](const absl::Status& status) {
      told_.push_back(name + " " + absl::StatusCodeToString(status.code()));
    });
  }
  // It goes on for one request.
  void Answer(absl::StatusCode code, const std::string& expected_name) {
    internal::StoreRequest request;
    std::vector<FileDescriptor> descriptors;
    ASSERT_TRUE(batond_->Receive(&request, 0, &descriptors).ok());
    EXPECT_EQ(request.put().name(), expected_name);
    EXPECT_EQ(descriptors.size(), 2u);
    internal::StoreReply reply;
    reply.set_status_code(static_cast<int>(code));
    ASSERT_TRUE(batond_->Send(reply).ok());
  }

  const FileDescriptor file_{memfd_create("file", MFD_CLOEXEC)};
  std::unique_ptr<HeldDescriptors> held_;
  std::optional<MessageChannel> batond_;
  std::vector<std::string> told_;
};

TEST_F(SilentBatondTest, shouldTellLaterWhatBecameOfEach) {
  PutSoon("a");
  PutSoon("b");
  held_->TakeReplies();
  EXPECT_THAT(told_, ElementsAre());
  Answer(absl::StatusCode::kOk, "a.0");
  held_->TakeReplies();
  EXPECT_THAT(told_, ElementsAre("a OK"));
  EXPECT_TRUE(held_->IsReplyDue());
  Answer(absl::StatusCode::kResourceExhausted, "b.0");
  held_->TakeReplies();
  EXPECT_THAT(told_, ElementsAre("a OK", "b RESOURCE_EXHAUSTED"));
  EXPECT_FALSE(held_->IsReplyDue());
}

TEST_F(SilentBatondTest, shouldRefuseMoreThanMayWait) {
  for (size_t i = 0; i <= HeldDescriptors::kMostWaiting; ++i) PutSoon(absl::StrCat("one ", i));
  EXPECT_THAT(told_, ElementsAre());
  PutSoon("another");
  EXPECT_THAT(told_, ElementsAre("another RESOURCE_EXHAUSTED"));
}

TEST_F(SilentBatondTest, shouldAskForTheNewestOfEachName) {
  for (size_t i = 0; i <= HeldDescriptors::kMostWaiting; ++i) PutSoon(absl::StrCat("one ", i));
  held_->PutSoon("one 1", {file_.get(), file_.get()},
                 [this](const absl::Status&) { told_.emplace_back("the newest"); });
  EXPECT_THAT(told_, ElementsAre());
  for (const char* name : {"one 0.0", "one 1.0"}) {
    Answer(absl::StatusCode::kOk, name);
    held_->TakeReplies();
  }
  EXPECT_THAT(told_, ElementsAre("one 0 OK", "one 1 OK", "the newest"));
}

TEST_F(SilentBatondTest, shouldTellAllWhenItIsGone) {
  PutSoon("a");
  PutSoon("b");
  batond_.reset();
  held_->TakeReplies();
  EXPECT_EQ(told_.size(), 2u) << ::testing::PrintToString(told_);
  EXPECT_FALSE(held_->IsReplyDue());
}

TEST_F(HeldDescriptorsTest, shouldSayWhatBatondRefuses) {
  const absl::Status status = Put(std::string(80, 'x'), Make(1));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

}  // namespace
}  // namespace baton::driver_process

#include "lib/nic/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/nic/event_loop.h"

namespace baton::nic {
namespace {

using verbs::soft::EventLoop;
using verbs::soft::MemoryOffer;

constexpr uint64_t kPatienceNs = 20'000'000;

struct Maker final : MemoryMaker {
  absl::StatusOr<FileDescriptor> MakeMemory() override {
    ++calls;
    FileDescriptor fd(memfd_create("test", MFD_CLOEXEC));
    struct stat status = {};
    EXPECT_EQ(fstat(fd.get(), &status), 0);
    inode = status.st_ino;
    return fd;
  }
  int calls = 0;
  ino_t inode = 0;
};

struct User final : MemoryRequest::User {
  void OnMemory(absl::StatusOr<FileDescriptor> passed) override {
    memfd.emplace(std::move(passed));
  }
  std::optional<absl::StatusOr<FileDescriptor>> memfd;
};

class RendezvousTest : public ::testing::Test {
 protected:
  bool Turn(const std::function<bool()>& done) {
    const uint64_t deadline = MonotonicNanoseconds() + 10'000'000'000;
    while (!done()) {
      if (MonotonicNanoseconds() > deadline) return false;
      loop->Progress();
    }
    return true;
  }

  std::unique_ptr<EventLoop> loop = EventLoop::Create().value();
  std::unique_ptr<Rendezvous> rendezvous = Rendezvous::Make(loop.get(), kPatienceNs).value();
  Maker maker;
  User user;
};

TEST_F(RendezvousTest, shouldPassTheMemoryThatWasOffered) {
  const MemoryOffer offer = rendezvous->Offer(&maker).value();
  const auto request = MemoryRequest::Make(loop.get(), offer, &user).value();
  ASSERT_TRUE(Turn([&] { return user.memfd.has_value(); }));
  ASSERT_TRUE(user.memfd->ok()) << user.memfd->status();
  struct stat status = {};
  ASSERT_EQ(fstat((*user.memfd)->get(), &status), 0);
  EXPECT_EQ(status.st_ino, maker.inode);
  EXPECT_EQ(maker.calls, 1);
}

TEST_F(RendezvousTest, shouldPassNothingForATokenOfNoOffer) {
  MemoryOffer offer = rendezvous->Offer(&maker).value();
  offer.token[3] ^= 1;
  const auto request = MemoryRequest::Make(loop.get(), offer, &user).value();
  ASSERT_TRUE(Turn([&] { return user.memfd.has_value(); }));
  EXPECT_FALSE(user.memfd->ok());
  EXPECT_EQ(maker.calls, 0);
}

TEST_F(RendezvousTest, shouldPassNothingTwiceAndNothingThatWasWithdrawn) {
  const MemoryOffer once = rendezvous->Offer(&maker).value();
  const auto first = MemoryRequest::Make(loop.get(), once, &user).value();
  ASSERT_TRUE(Turn([&] { return user.memfd.has_value(); }));
  EXPECT_TRUE(user.memfd->ok());
  const MemoryOffer withdrawn = rendezvous->Offer(&maker).value();
  rendezvous->Withdraw(&maker);
  for (const MemoryOffer& offer : {once, withdrawn}) {
    user.memfd.reset();
    const auto request = MemoryRequest::Make(loop.get(), offer, &user).value();
    ASSERT_TRUE(Turn([&] { return user.memfd.has_value(); }));
    EXPECT_FALSE(user.memfd->ok());
  }
  EXPECT_EQ(maker.calls, 1);
}

// Another machine, or another network namespace, has nobody of that name.
TEST_F(RendezvousTest, shouldFindNobodyOfAnotherName) {
  MemoryOffer offer = rendezvous->Offer(&maker).value();
  offer.name[0] ^= 1;
  EXPECT_FALSE(MemoryRequest::Make(loop.get(), offer, &user).ok());
}

// Runs `act` in a process of another user. 77: this one may not change its user.
int AsAnotherUser(const std::function<bool()>& act) {
  const pid_t child = fork();
  if (child == 0) {
    if (setresuid(65'534, 65'534, 65'534) != 0) _exit(77);
    _exit(act() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(RendezvousTest, shouldNotAskANicOfAnotherUser) {
  const MemoryOffer offer = rendezvous->Offer(&maker).value();
  const int result = AsAnotherUser([&] {
    const auto own = EventLoop::Create().value();
    return MemoryRequest::Make(own.get(), offer, &user).status().code() ==
           absl::StatusCode::kPermissionDenied;
  });
  if (result == 77) GTEST_SKIP() << "needs root, to be two users";
  EXPECT_EQ(result, 0);
}

sockaddr_un AddressOf(const MemoryOffer& offer, socklen_t* size) {
  const std::string name = absl::StrCat(
      "baton-wire-",
      absl::BytesToHexString({reinterpret_cast<const char*>(offer.name), sizeof(offer.name)}));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

FileDescriptor Visit(const MemoryOffer& offer) {
  socklen_t size = 0;
  const sockaddr_un address = AddressOf(offer, &size);
  FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  return fd;
}

bool Ended(int fd) {
  char byte;
  return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

// It knows the token, and gets nothing for it.
TEST_F(RendezvousTest, shouldServeNobodyOfAnotherUser) {
  const MemoryOffer offer = rendezvous->Offer(&maker).value();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setresuid(65'534, 65'534, 65'534) != 0) _exit(77);
    const FileDescriptor fd = Visit(offer);
    if (send(fd.get(), offer.token, sizeof(offer.token), MSG_NOSIGNAL) < 0) _exit(2);
    if (write(ready[1], "x", 1) != 1) _exit(3);
    char answer[64];
    _exit(recv(fd.get(), answer, sizeof(answer), 0) <= 0 ? 0 : 1);
  }
  close(ready[1]);
  char byte;
  const bool asked = read(ready[0], &byte, 1) == 1;
  close(ready[0]);
  int status = 0;
  if (asked) {
    EXPECT_TRUE(Turn([&] { return waitpid(child, &status, WNOHANG) == child; }));
  } else {
    EXPECT_EQ(waitpid(child, &status, 0), child);
  }
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "needs root, to be two users";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(maker.calls, 0);
}

TEST_F(RendezvousTest, shouldDropVisitorsThatSayNothingAndServeThoseBehindThem) {
  const MemoryOffer offer = rendezvous->Offer(&maker).value();
  std::vector<FileDescriptor> silent;
  for (size_t i = 0; i < kMaxMemoryOffers; ++i) {
    silent.push_back(Visit(offer));
    loop->Progress();
  }
  const auto request = MemoryRequest::Make(loop.get(), offer, &user).value();
  ASSERT_TRUE(Turn([&] { return user.memfd.has_value(); }));
  EXPECT_TRUE(user.memfd->ok());
  ASSERT_TRUE(Turn([&] {
    for (const FileDescriptor& fd : silent) {
      if (!Ended(fd.get())) return false;
    }
    return true;
  }));
}

TEST_F(RendezvousTest, shouldBoundItsOffers) {
  std::vector<Maker> makers(kMaxMemoryOffers);
  for (Maker& each : makers) EXPECT_TRUE(rendezvous->Offer(&each).ok());
  EXPECT_EQ(rendezvous->Offer(&maker).status().code(), absl::StatusCode::kResourceExhausted);
  rendezvous->Withdraw(&makers[0]);
  EXPECT_TRUE(rendezvous->Offer(&maker).ok());
}

}  // namespace
}  // namespace baton::nic

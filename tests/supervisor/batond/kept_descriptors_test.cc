#include "supervisor/batond/kept_descriptors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "tests/supervisor/batond/batond_process.h"
#include "tests/supervisor/batond/fake_manager.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

class KeptDescriptorsTest : public testing::Test {
 protected:
  KeptDescriptorsTest() { Use(manager_); }
  ~KeptDescriptorsTest() override { unsetenv("NOTIFY_SOCKET"); }

  static void Use(const FakeManager& manager) {
    setenv("NOTIFY_SOCKET", manager.path().c_str(), 1);
  }
  static std::set<std::string> NamesOf(FakeManager& manager) {
    std::set<std::string> names;
    for (const auto& [name, descriptor] : manager.Kept()) names.insert(name);
    return names;
  }
  // The next batond's.
  KeptDescriptors Next() { return KeptDescriptors(manager_.Kept()); }

  TemporaryDirectory directory_;
  FakeManager manager_{directory_.path() + "/notify"};
};

// Each has a number of its own in it.
FileDescriptor Event(unsigned number) { return FileDescriptor(eventfd(number, EFD_CLOEXEC)); }

std::vector<uint64_t> NumbersIn(const std::vector<FileDescriptor>& events) {
  std::vector<uint64_t> numbers;
  for (const FileDescriptor& event : events) {
    uint64_t number = 0;
    EXPECT_EQ(read(event.get(), &number, sizeof(number)), ssize_t{sizeof(number)});
    EXPECT_EQ(write(event.get(), &number, sizeof(number)), ssize_t{sizeof(number)});
    numbers.push_back(number);
  }
  return numbers;
}

// As in a container whose seccomp profile has no kcmp(2).
[[noreturn]] void CheckUsableWithoutKcmp() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kcmp, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {std::size(filter), filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    _exit(1);
  }
  const absl::Status status = KeptDescriptors::CheckUsable();
  std::cerr << status << std::endl;
  _exit(status.ok() ? 2 : 0);
}

TEST_F(KeptDescriptorsTest, TellsThatItCannotBeUsedWithoutKcmp) {
  EXPECT_TRUE(KeptDescriptors::CheckUsable().ok());
  EXPECT_EXIT(CheckUsableWithoutKcmp(), ::testing::ExitedWithCode(0), "SystemCallFilter=.*errno 1");
}

TEST_F(KeptDescriptorsTest, TellsNothingWhereThereIsNothing) {
  KeptDescriptors kept({});
  kept.KeepOnly({"kv"});
  EXPECT_TRUE(kept.Of("kv").empty());
  EXPECT_TRUE(manager_.Kept().empty());
}

TEST_F(KeptDescriptorsTest, GivesTheNextBatondWhatWasPutInItsOrder) {
  const FileDescriptor one = Event(1), two = Event(2), three = Event(3);
  {
    KeptDescriptors kept({});
    kept.Put("kv", "wakes.0", {three.get(), one.get(), two.get()});
    kept.Put("kv", "wakes.1", {two.get()});
    kept.Put("other", "wakes.0", {one.get()});
  }
  const KeptDescriptors next = Next();
  const KeptDescriptors::Entries entries = next.Of("kv");
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_THAT(NumbersIn(entries.at("wakes.0")), ElementsAre(3, 1, 2));
  EXPECT_THAT(NumbersIn(entries.at("wakes.1")), ElementsAre(2));
  EXPECT_EQ(next.Of("other").size(), 1u);
  EXPECT_TRUE(next.Of("third").empty());
}

// A keeper stores one and the same file under several names, and several times under one.
TEST_F(KeptDescriptorsTest, KeepsAFileForAsLongAsSomeEntryHasIt) {
  const FileDescriptor one = Event(1), copy(dup(one.get()));
  KeptDescriptors kept({});
  kept.Put("kv", "links", {one.get()});
  kept.Put("kv", "begun", {copy.get(), one.get(), copy.get()});
  kept.Put("kv", "links", {});
  EXPECT_EQ(manager_.Kept().size(), 2u);  // with the manifest
  const KeptDescriptors::Entries entries = Next().Of("kv");
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_THAT(NumbersIn(entries.at("begun")), ElementsAre(1, 1, 1));
}

// What workers' lives hang on ends with the last copy of it.
TEST_F(KeptDescriptorsTest, LetsGoOfWhatIsReplacedOrDropped) {
  for (const bool replaced : {true, false}) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const FileDescriptor read_end(ends[0]);
    FileDescriptor hold(ends[1]);
    KeptDescriptors kept({});
    kept.Put("kv", "lifeline", {hold.get()});
    hold.Reset();
    pollfd entry = {read_end.get(), POLLIN, 0};
    (void)manager_.Kept();
    EXPECT_EQ(poll(&entry, 1, 0), 0);
    const FileDescriptor other = Event(1);
    kept.Put("kv", "lifeline", replaced ? std::vector{other.get()} : std::vector<int>());
    (void)manager_.Kept();
    EXPECT_EQ(poll(&entry, 1, 0), 1);
  }
}

TEST_F(KeptDescriptorsTest, LetsGoOfServicesThatAreNotKeptAnyMore) {
  const FileDescriptor one = Event(1), two = Event(2);
  KeptDescriptors former({});
  former.Put("kv", "arena", {one.get()});
  former.Put("gone", "arena", {two.get()});
  KeptDescriptors next = Next();
  next.KeepOnly({"kv"});
  EXPECT_TRUE(next.Of("gone").empty());
  EXPECT_EQ(manager_.Kept().size(), 2u);
  EXPECT_EQ(Next().Of("kv").size(), 1u);
}

TEST_F(KeptDescriptorsTest, GoesOnCountingWhereTheFormerOneStopped) {
  const FileDescriptor one = Event(1), two = Event(2);
  KeptDescriptors({}).Put("kv", "first", {one.get()});
  Next().Put("kv", "second", {two.get()});
  const KeptDescriptors::Entries entries = Next().Of("kv");
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_THAT(NumbersIn(entries.at("first")), ElementsAre(1));
  EXPECT_THAT(NumbersIn(entries.at("second")), ElementsAre(2));
}

TEST_F(KeptDescriptorsTest, UsesNothingOfAServiceOfWhichSomethingIsMissing) {
  const FileDescriptor one = Event(1), two = Event(2), three = Event(3);
  KeptDescriptors former({});
  former.Put("kv", "arena", {one.get(), two.get()});
  former.Put("kv", "lifeline", {two.get()});
  former.Put("whole", "arena", {three.get()});
  std::vector<KeptDescriptors::Named> given = manager_.Kept();
  std::erase_if(given, [](const auto& one) { return one.first == "file.1"; });
  const KeptDescriptors next(std::move(given));
  EXPECT_TRUE(next.Of("kv").empty());
  EXPECT_EQ(next.Of("whole").size(), 1u);
  // Nobody else holds them for it.
  const std::vector<FakeManager::Named> left = manager_.Kept();
  EXPECT_TRUE(std::none_of(left.begin(), left.end(),
                           [](const auto& one) { return one.first == "file.2"; }));
}

TEST_F(KeptDescriptorsTest, UsesNothingWhenTheStoreWasFull) {
  FakeManager small(directory_.path() + "/small", /*most=*/3);
  Use(small);
  std::vector<FileDescriptor> events;
  std::vector<int> numbers;
  for (unsigned i = 0; i < 4; ++i) numbers.push_back(events.emplace_back(Event(i)).get());
  KeptDescriptors({}).Put("kv", "arena", numbers);
  EXPECT_TRUE(KeptDescriptors(small.Kept()).Of("kv").empty());
}

// Wherever the former one was killed: between two messages, there may be two manifests, or files
// that none names.
TEST_F(KeptDescriptorsTest, TakesTheHighestManifestAndClearsTheRestAway) {
  const FileDescriptor one = Event(1), two = Event(2);
  KeptDescriptors former({});
  former.Put("kv", "arena", {one.get()});
  std::vector<KeptDescriptors::Named> given = manager_.Kept();
  former.Put("kv", "arena", {two.get()});
  for (auto& named : manager_.Kept()) given.push_back(std::move(named));
  EXPECT_THAT(NumbersIn(KeptDescriptors(std::move(given)).Of("kv").at("arena")), ElementsAre(2));
  EXPECT_EQ(manager_.Kept().size(), 2u);
}

TEST_F(KeptDescriptorsTest, ClearsAwayWhatNoBatondHasPut) {
  const FileDescriptor one = Event(1);
  std::vector<KeptDescriptors::Named> given;
  given.emplace_back("file.7", dup(one.get()));
  given.emplace_back("stored", dup(one.get()));
  const KeptDescriptors kept(std::move(given));
  EXPECT_TRUE(kept.Of("kv").empty());
  for (const std::string& name : NamesOf(manager_)) EXPECT_THAT(name, StartsWith("manifest."));
}

// A name is a keeper's word.
TEST_F(KeptDescriptorsTest, IsNotMisledByNames) {
  const FileDescriptor one = Event(1);
  const std::string name = "a\tb\n\"kv\t\\";
  KeptDescriptors({}).Put("kv", name, {one.get()});
  EXPECT_EQ(Next().Of("kv").count(name), 1u);
}

}  // namespace
}  // namespace baton

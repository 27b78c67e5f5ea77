#include "supervisor/driver/keeper/held_entries.h"

#include <fcntl.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::driver_process {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

internal::Hold Entry(const std::string& key, const std::string& value) {
  internal::Hold entry;
  entry.set_key(key);
  entry.set_value(value);
  return entry;
}

std::vector<FileDescriptor> OneDescriptor() {
  std::vector<FileDescriptor> descriptors;
  descriptors.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return descriptors;
}

std::vector<std::string> All(const HeldEntries& held) {
  std::vector<std::string> all;
  internal::Hold entry;
  std::vector<int> descriptors;
  while (held.Next(entry.key(), &entry, &descriptors)) {
    all.push_back(absl::StrCat(entry.key(), "=", entry.value(), ":", descriptors.size()));
    descriptors.clear();
  }
  return all;
}

TEST(HeldEntriesTest, shouldGiveEachEntryInTheOrderOfKeys) {
  HeldEntries held;
  EXPECT_THAT(All(held), IsEmpty());
  ASSERT_TRUE(held.Hold(Entry("b", "2"), OneDescriptor()).ok());
  ASSERT_TRUE(held.Hold(Entry("a", "1"), {}).ok());
  ASSERT_TRUE(held.Hold(Entry("c", ""), {}).ok());
  EXPECT_THAT(All(held), ElementsAre("a=1:0", "b=2:1", "c=:0"));
  held.Drop("b");
  held.Drop("b");
  EXPECT_THAT(All(held), ElementsAre("a=1:0", "c=:0"));
}

TEST(HeldEntriesTest, shouldHoldTheLastOfOneKeyAndCloseTheDescriptorsOfTheOneBefore) {
  HeldEntries held;
  std::vector<FileDescriptor> first = OneDescriptor();
  const int number = first[0].get();
  ASSERT_TRUE(held.Hold(Entry("a", "1"), std::move(first)).ok());
  ASSERT_TRUE(held.Hold(Entry("a", "2"), {}).ok());
  EXPECT_THAT(All(held), ElementsAre("a=2:0"));
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
}

TEST(HeldEntriesTest, shouldRefuseMoreThanItMayHoldAndKeepWhatItHas) {
  HeldEntries held;
  for (size_t i = 0; i < HeldEntries::kMostEntries; ++i) {
    ASSERT_TRUE(held.Hold(Entry(absl::StrCat(i), ""), {}).ok());
  }
  EXPECT_EQ(held.Hold(Entry("one more", ""), {}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(All(held).size(), HeldEntries::kMostEntries);
  // In the place of another there is room.
  EXPECT_TRUE(held.Hold(Entry("0", std::string(HeldEntries::kMostBytes, 'x')), {}).ok());
  EXPECT_EQ(held.Hold(Entry("1", "x"), {}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(held.Hold(Entry("0", "x"), {}).ok());
  EXPECT_TRUE(held.Hold(Entry("1", "x"), {}).ok());
}

// A process that is short of descriptors receives none, and the rest of the order.
TEST(HeldEntriesTest, shouldRefuseAnEntryWhoseDescriptorsHaveNotArrived) {
  HeldEntries held;
  internal::Hold entry = Entry("a", "1");
  entry.set_descriptors(1);
  EXPECT_EQ(held.Hold(entry, {}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(All(held), IsEmpty());
  EXPECT_TRUE(held.Hold(entry, OneDescriptor()).ok());
  EXPECT_THAT(All(held), ElementsAre("a=1:1"));
  std::vector<int> given;
  ASSERT_TRUE(held.Next("", &entry, &given));
  EXPECT_EQ(entry.descriptors(), 1u);
}

TEST(HeldEntriesTest, shouldDropAllButThoseWithAPrefix) {
  HeldEntries held;
  ASSERT_TRUE(held.Hold(Entry("lasting/worker/1", ""), {}).ok());
  ASSERT_TRUE(held.Hold(Entry("policy", ""), {}).ok());
  ASSERT_TRUE(held.Hold(Entry("upgrades", ""), {}).ok());
  EXPECT_EQ(held.DropAllBut("lasting/"), 2u);
  EXPECT_EQ(held.DropAllBut("lasting/"), 0u);
  EXPECT_THAT(All(held), ElementsAre("lasting/worker/1=:0"));
}

TEST(HeldEntriesTest, shouldKeepWhatIsSetAsideUntilAnotherTakesItsPlace) {
  HeldEntries held;
  ASSERT_TRUE(held.Hold(Entry("a", "1"), OneDescriptor()).ok());
  ASSERT_TRUE(held.Hold(Entry("b", "2"), {}).ok());
  EXPECT_EQ(held.SetAside("a", "keepers died"), "1");
  EXPECT_EQ(held.SetAside("c", "keepers died"), "");
  EXPECT_THAT(All(held), ElementsAre("a=1:1", "b=2:0"));
  internal::Hold entry;
  std::vector<int> descriptors;
  ASSERT_TRUE(held.Next("", &entry, &descriptors));
  EXPECT_EQ(entry.set_aside(), "keepers died");
  ASSERT_TRUE(held.Next("a", &entry, &descriptors));
  EXPECT_EQ(entry.set_aside(), "");
  ASSERT_TRUE(held.Hold(Entry("a", "3"), {}).ok());
  ASSERT_TRUE(held.Next("", &entry, &descriptors));
  EXPECT_EQ(entry.set_aside(), "");
}

}  // namespace
}  // namespace baton::driver_process

// Targets: what is opened of a configuration, and by what hosts know it again.
#include "worker/examples/nvmed/target.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/examples/nvmed/hex.h"
#include "tests/worker/examples/nvmed/target_fixture.h"

namespace baton::nvmed {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class TargetTest : public TargetFixture {
 protected:
  absl::StatusOr<Target> Open(const std::string& text) {
    const TargetConfig config = ParseConfiguration(text, "config").value();
    Capacity capacity;
    capacity.connections = 2;
    capacity.send_queue_depth = 128;
    capacity.receive_queue_depth = 64;
    const auto plan = BufferPlan::Make(config, capacity, buffers_.size());
    return Target::Open(config, *plan, absl::MakeSpan(buffers_));
  }
  uint64_t HashOf(const std::string& from, const std::string& to) {
    const std::string text = absl::StrReplaceAll(kTargetConfig, {{from, to}});
    EXPECT_NE(text, kTargetConfig) << from;
    return Open(text)->Hash();
  }
};

TEST_F(TargetTest, shouldOpenNamespacesInTheOrderOfTheirIds) {
  Subsystem* const one = target_->Find(kOne);
  ASSERT_NE(one, nullptr);
  ASSERT_EQ(one->namespaces.size(), 2u);
  EXPECT_EQ(one->namespaces[0].id, 3u);
  EXPECT_EQ(one->namespaces[0].block_shift, 12u);
  EXPECT_EQ(one->namespaces[0].blocks, 3u);
  EXPECT_EQ(one->namespaces[0].index, 1u);
  EXPECT_EQ(one->namespaces[1].id, 7u);
  EXPECT_EQ(one->namespaces[1].block_shift, 9u);
  EXPECT_EQ(one->namespaces[1].blocks, 16u);
  EXPECT_EQ(one->namespaces[1].index, 0u);
  EXPECT_EQ(one->Find(7), &one->namespaces[1]);
  for (const uint32_t id : {0u, 1u, 8u, 0xffffffffu}) EXPECT_EQ(one->Find(id), nullptr);
}

TEST_F(TargetTest, shouldKeepNamespacesInMemoryApart) {
  uint8_t* const first = target_->Find(kOne)->Find(7)->backing->memory();
  uint8_t* const second = target_->Find(kOne)->Find(3)->backing->memory();
  uint8_t* const third = target_->Find(kTwo)->Find(1)->backing->memory();
  EXPECT_EQ(first, buffers_.data() + 4096);
  EXPECT_EQ(second, first + 8192);
  EXPECT_EQ(third, second + 12288);
}

TEST_F(TargetTest, shouldFindSubsystemsByTheirWholeName) {
  EXPECT_EQ(target_->Find(kTwo)->serial, "2");
  EXPECT_EQ(target_->Find(""), nullptr);
  EXPECT_EQ(target_->Find(std::string(kOne) + "x"), nullptr);
  EXPECT_EQ(target_->Find(std::string_view(kOne).substr(0, 20)), nullptr);
}

TEST_F(TargetTest, shouldAdmitThoseWhoAreNamedOrAll) {
  EXPECT_TRUE(target_->Find(kOne)->Admits(kOtherHost));
  EXPECT_TRUE(target_->Find(kTwo)->Admits(kHost));
  EXPECT_FALSE(target_->Find(kTwo)->Admits(kOtherHost));
  EXPECT_FALSE(target_->Find(kTwo)->Admits(""));
}

TEST_F(TargetTest, shouldTellEveryNamespaceThatCannotBeOpened) {
  const auto target = Open(absl::StrReplaceAll(
      kTargetConfig, {{"memory { bytes: 8192 }", "file { path: '/nowhere/a' }"},
                      {"memory { bytes: 4096 }", "file { path: '/nowhere/b' }"}}));
  ASSERT_EQ(target.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(target.status().message()),
              AllOf(HasSubstr("subsystems[0].namespaces[0]: open /nowhere/a: No such file"),
                    HasSubstr("; subsystems[1].namespaces[0]: open /nowhere/b"),
                    Not(HasSubstr("namespaces[1]"))));
}

TEST_F(TargetTest, shouldTakeUuidsAsTheyAreWritten) {
  const auto target = Open(absl::StrReplaceAll(
      kTargetConfig, {{"id: 7", "id: 7 uuid: '00112233-4455-6677-8899-AaBbCcDdEeFf'"}}));
  ASSERT_TRUE(target.ok()) << target.status();
  const auto& uuid = target->subsystems()[0].namespaces[1].uuid;
  EXPECT_EQ(std::vector<uint8_t>(uuid.begin(), uuid.end()),
            Hex("00 11 22 33 44 55 66 77 88 99 aa bb cc dd ee ff"));
}

// Hosts name devices by them: they stay what they are in every version of the program.
TEST_F(TargetTest, shouldMakeTheSameUuidsEveryTime) {
  const auto uuid = [&](const char* nqn, uint32_t id) {
    const auto& bytes = target_->Find(nqn)->Find(id)->uuid;
    return std::vector<uint8_t>(bytes.begin(), bytes.end());
  };
  EXPECT_EQ(uuid(kOne, 3), Hex("3f 9e 50 0a b9 eb 8e 62 87 75 3a 97 97 82 fe 54"));
  EXPECT_NE(uuid(kOne, 7), uuid(kOne, 3));
  EXPECT_NE(uuid(kTwo, 1), uuid(kOne, 3));
  for (const auto& one : {uuid(kOne, 3), uuid(kOne, 7), uuid(kTwo, 1)}) {
    EXPECT_EQ(one[6] >> 4, 8);  // its version
    EXPECT_EQ(one[8] >> 6, 2);  // its variant
  }
}

TEST_F(TargetTest, shouldHaveAnotherHashForWhateverHostsSee) {
  const uint64_t hash = target_->Hash();
  EXPECT_EQ(Open(kTargetConfig)->Hash(), hash);
  EXPECT_NE(HashOf("bytes: 8192", "bytes: 16384"), hash);
  EXPECT_NE(HashOf("block_bytes: 4096", "block_bytes: 2048"), hash);
  EXPECT_NE(HashOf("id: 7", "id: 8"), hash);
  EXPECT_NE(HashOf("id: 7", "id: 7 uuid: '00112233-4455-6677-8899-aabbccddeeff'"), hash);
  EXPECT_NE(HashOf("example:two", "example:three"), hash);
}

}  // namespace
}  // namespace baton::nvmed

#include "supervisor/inspect/state_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>

namespace baton::inspect {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::string> Decode(const std::string& script, std::vector<uint8_t> state = {},
                                   std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  v1::StateDecoder decoder;
  decoder.set_program("/bin/sh");
  decoder.add_arguments("-c");
  decoder.add_arguments(script);
  return RunStateDecoder(decoder, "kv", {false, 17, 3, std::move(state)}, timeout);
}

std::string Failure(const std::string& script, std::chrono::milliseconds timeout) {
  const auto text = Decode(script, {}, timeout);
  EXPECT_FALSE(text.ok()) << *text;
  return std::string(text.status().message());
}

constexpr std::chrono::seconds kPatience{20};

TEST(StateDecoderTest, shouldBeGivenTheStateAndWhatItIs) {
  const auto text = Decode("od -An -tx1; env | grep '^BATON_' | sort", {1, 2, 255});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text,
            " 01 02 ff\nBATON_SERVICE=kv\nBATON_STATE_INDEX=17\nBATON_STATE_KIND=connection\n"
            "BATON_STATE_LENGTH=3\nBATON_STATE_VERSION=3\n");
}

TEST(StateDecoderTest, shouldNotHaveToReadItsInput) {
  const auto text = Decode("echo done", std::vector<uint8_t>(1 << 20, 'x'));
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "done\n");
}

TEST(StateDecoderTest, shouldShowNothingThatATerminalWouldTakeForMore) {
  EXPECT_EQ(*Decode("printf 'a\\033[2Jb\\tc\\n\\377'"), "a?[2Jb\tc\n?");
}

TEST(StateDecoderTest, shouldSayHowItFailed) {
  EXPECT_EQ(Failure("echo no account >&2; exit 3", kPatience),
            "/bin/sh has ended with status 3: no account ");
  EXPECT_EQ(Failure("kill -9 $$", kPatience), "/bin/sh was killed by signal 9");
  v1::StateDecoder missing;
  missing.set_program("/no/such/program");
  const auto none = RunStateDecoder(missing, "kv", {true, 0, 1, {}});
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("cannot run /no/such/program: No such file"));
}

TEST(StateDecoderTest, shouldBeBoundedInTimeAndOutput) {
  EXPECT_EQ(Failure("exec sleep 1000", std::chrono::milliseconds(30)),
            "/bin/sh did not end within 30 ms");
  // Also one that has closed its streams, and one whose child holds them.
  EXPECT_EQ(Failure("exec >&- 2>&-; exec sleep 1000", std::chrono::milliseconds(30)),
            "/bin/sh did not end within 30 ms");
  EXPECT_EQ(Failure("sleep 1000 & exit 0", std::chrono::milliseconds(30)),
            "/bin/sh did not end within 30 ms");
  EXPECT_EQ(Failure("yes", kPatience), "/bin/sh prints more than 64 KiB");
  EXPECT_THAT(Failure("yes >&2", std::chrono::milliseconds(200)), HasSubstr("y y y"));
}

TEST(StateDecoderTest, shouldTakeAsMuchAsItMay) {
  const auto text = Decode("head -c 65535 /dev/zero | tr '\\0' x");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size(), 65535u);
}

}  // namespace
}  // namespace baton::inspect

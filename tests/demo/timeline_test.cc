#include "tests/demo/timeline.h"

#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "tests/harness/temp_directory.h"

namespace baton::demo {
namespace {

TEST(TimelineTest, FollowsAFileThatGrows) {
  auto directory = harness::TempDirectory::Create();
  ASSERT_TRUE(directory.ok()) << directory.status();
  const std::string path = directory->File("timeline.csv");
  TimelineReader reader(path);
  EXPECT_TRUE(reader.Read().empty());
  FILE* const file = std::fopen(path.c_str(), "we");
  ASSERT_NE(file, nullptr);
  const auto write = [&](const char* text) {
    std::fputs(text, file);
    std::fflush(file);
  };
  write("monotonic_us,replies,max_silence_us,lost,duplicated\n5000,3,70,1,2,3,4,5,6\n10000,4,");
  std::vector<Bucket> buckets = reader.Read();
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].start_us, 5000u);
  EXPECT_EQ(buckets[0].replies, 3u);
  EXPECT_EQ(buckets[0].silence_us, 70u);
  EXPECT_EQ(buckets[0].counters.lost, 1u);
  EXPECT_EQ(buckets[0].counters.disconnects, 6u);
  write("80,0,0,0,0,0,0\n");
  buckets = reader.Read();
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].silence_us, 80u);
  std::fclose(file);
  EXPECT_EQ(ReadTimeline(path)->size(), 2u);
  EXPECT_FALSE(ReadTimeline(path + ".no").ok());
}

TEST(TimelineTest, ThinningKeepsRepliesAndTheLongestSilence) {
  std::vector<Bucket> buckets;
  for (uint64_t i = 0; i < 10; ++i) {
    buckets.push_back({i * Bucket::kMicroseconds, 1, i == 4 ? 900u : 10u, {.lost = i}});
  }
  uint64_t length = 0;
  const std::vector<Bucket> thin = Thin(buckets, 4, &length);
  EXPECT_EQ(length, 3 * Bucket::kMicroseconds);
  ASSERT_EQ(thin.size(), 3u);  // the tenth bucket alone would show a third of the replies
  EXPECT_EQ(thin[1].start_us, 3 * Bucket::kMicroseconds);
  EXPECT_EQ(thin[1].replies, 3u);
  EXPECT_EQ(thin[1].silence_us, 900u);
  EXPECT_EQ(thin[1].counters.lost, 5u);
  EXPECT_EQ(Thin(buckets, 100, &length).size(), 10u);
}

}  // namespace
}  // namespace baton::demo

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "lib/log/log.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"

namespace baton::log {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// It is the first test, because lines that have become JSON stay so.
TEST(TextLogTest, shouldBeTextUnlessToldOtherwise) {
  std::ostringstream lines;
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(lines)));
  spdlog::set_pattern("%l %v");
  EXPECT_FALSE(IsJson());
  Write(spdlog::level::info, {.service = "kv", .kind = "worker_dead", .worker_id = 7}, "it died");
  Write(spdlog::level::warn, {.trace_parent = "00-12"}, "{} asked");
  EXPECT_EQ(lines.str(),
            "info worker_dead: it died\n"
            "warning {} asked (traceparent 00-12)\n");
}

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint32_t kBurst = LineLimit::kBurst, kPerSecond = LineLimit::kPerSecond;

class LineLimitTest : public ::testing::Test {
 protected:
  // Returns how many of so many lines at the same time were written.
  uint32_t Taken(const std::string& kind, uint32_t lines, uint64_t now_ns) {
    uint32_t taken = 0;
    for (uint32_t i = 0; i < lines; ++i) taken += limit.Take(kind, now_ns);
    return taken;
  }
  std::vector<std::pair<std::string, uint64_t>> LeftOut() {
    std::vector<std::pair<std::string, uint64_t>> all;
    limit.TakeLeftOut(
        [&](std::string_view kind, uint64_t lines) { all.emplace_back(kind, lines); });
    return all;
  }

  LineLimit limit;
};

TEST_F(LineLimitTest, shouldTakeABurstAndThenSoManyInASecond) {
  EXPECT_EQ(Taken("connection", 1000, kSecondNs), kBurst);
  EXPECT_EQ(Taken("connection", 1000, 2 * kSecondNs), kPerSecond);
  EXPECT_EQ(Taken("connection", 1000, 2 * kSecondNs + kSecondNs / 2), kPerSecond / 2);
  EXPECT_EQ(Taken("connection", 1000, 1000 * kSecondNs), kBurst);
}

TEST_F(LineLimitTest, shouldTakeAllOfThoseThatAreNoFlood) {
  for (uint64_t i = 0; i < 1000; ++i) {
    EXPECT_TRUE(limit.Take("connection", kSecondNs + i * kSecondNs / kPerSecond));
  }
  EXPECT_THAT(LeftOut(), IsEmpty());
}

TEST_F(LineLimitTest, shouldCountEachKindForItself) {
  EXPECT_EQ(Taken("connection", 1000, kSecondNs), kBurst);
  EXPECT_EQ(Taken("shard_moved", kBurst, kSecondNs), kBurst);
  EXPECT_EQ(Taken("worker_ended", kBurst + 1, kSecondNs), kBurst);
  EXPECT_THAT(LeftOut(), ElementsAre(Pair("connection", 1000 - kBurst), Pair("worker_ended", 1)));
  EXPECT_THAT(LeftOut(), IsEmpty());
}

TEST_F(LineLimitTest, shouldKnowABoundedNumberOfKinds) {
  for (int i = 0; i < 10'000; ++i) (void)limit.Take(std::to_string(i), kSecondNs);
  // The first ones have their own; the rest are one.
  EXPECT_TRUE(limit.Take("0", kSecondNs));
  EXPECT_FALSE(limit.Take("9999", kSecondNs));
  EXPECT_FALSE(limit.Take("never seen", kSecondNs));
  const uint32_t others = 10'000 - (LineLimit::kMaxKinds - 1);
  EXPECT_THAT(LeftOut(), ElementsAre(Pair("other", others - kBurst + 2)));
}

class LogTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(lines_)));
  }
  void SetUp() override {
    lines_.str("");
    UseJson("keeper", "kv");
  }

  static google::protobuf::Struct Parsed(const std::string& line) {
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    google::protobuf::Struct object;
    const auto status = google::protobuf::util::JsonStringToMessage(line, &object);
    EXPECT_TRUE(status.ok()) << status.ToString() << ": " << line;
    return object;
  }
  google::protobuf::Struct TheLine() const { return Parsed(lines_.str()); }

  static std::ostringstream lines_;
};
std::ostringstream LogTest::lines_;

std::string Text(const google::protobuf::Struct& object, const std::string& field) {
  const auto found = object.fields().find(field);
  return found == object.fields().end() ? "<none>" : found->second.string_value();
}
double Number(const google::protobuf::Struct& object, const std::string& field) {
  const auto found = object.fields().find(field);
  return found == object.fields().end() ? -1 : found->second.number_value();
}

TEST_F(LogTest, shouldWriteFieldsAsMembersOfAnObject) {
  Write(spdlog::level::info,
        {.kind = "shard_moved", .trace_parent = "00-12", .worker_id = 7, .shard = 0},
        "shard 0 moved");
  const auto object = TheLine();
  EXPECT_EQ(Text(object, "level"), "info");
  EXPECT_EQ(Text(object, "process"), "keeper");
  EXPECT_EQ(Text(object, "service"), "kv");
  EXPECT_EQ(Text(object, "kind"), "shard_moved");
  EXPECT_EQ(Text(object, "trace_parent"), "00-12");
  EXPECT_EQ(Text(object, "message"), "shard 0 moved");
  EXPECT_EQ(Number(object, "worker_id"), 7);
  EXPECT_EQ(Number(object, "shard"), 0);
  EXPECT_EQ(object.fields().count("connection"), 0u);
  const std::string time = Text(object, "time");
  ASSERT_EQ(time.size(), 27u) << time;
  EXPECT_EQ(time[10], 'T');
  EXPECT_EQ(time.back(), 'Z');
}

TEST_F(LogTest, shouldWriteOrdinaryLinesAsObjects) {
  UseJson("control", "");
  spdlog::error("{} went wrong", "something");
  const auto object = TheLine();
  EXPECT_EQ(Text(object, "level"), "error");
  EXPECT_EQ(Text(object, "message"), "something went wrong");
  EXPECT_EQ(object.fields().count("service"), 0u);
}

TEST_F(LogTest, shouldStayAnObjectWhateverStandsInIt) {
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every.push_back(static_cast<char>(byte));
  const std::string hostile[] = {every,
                                 "\"}\n{\"level\":\"error\",\"message\":\"forged",
                                 "\\",
                                 "\xe2\x80\xa8 \xed\xa0\x80 \xf4\x90\x80\x80 \xc0\x80",
                                 std::string(100000, '"'),
                                 std::string(100000, '\x01'),
                                 std::string(100000, '\xff')};
  for (const std::string& text : hostile) {
    for (const bool with_fields : {false, true}) {
      lines_.str("");
      if (with_fields) {
        Write(spdlog::level::info, {.service = text, .kind = text, .trace_parent = text}, text);
      } else {
        spdlog::info("{}", text);
      }
      EXPECT_LE(lines_.str().size(), 4096u);
      EXPECT_EQ(Text(TheLine(), "level"), "info");
    }
  }
}

TEST_F(LogTest, shouldCutNoMoreThanItHasTo) {
  spdlog::info("{}{}", std::string(2000, 'a'), std::string(2000, '\x01'));
  const std::string message = Text(TheLine(), "message");
  EXPECT_EQ(message.rfind('a'), 1999u);
  EXPECT_GE(message.size(), 2000u + (3072 - 2000) / 6);
}

TEST_F(LogTest, shouldSayWhatWasSaid) {
  const std::string text = "a \"quoted\" C:\\path\twith tab\nand line, \xc3\xa4\xe2\x82\xac";
  spdlog::info("{}", text);
  EXPECT_EQ(Text(TheLine(), "message"), text);
  lines_.str("");
  spdlog::info("a\xff b");
  EXPECT_EQ(Text(TheLine(), "message"), "a? b");
}

}  // namespace
}  // namespace baton::log

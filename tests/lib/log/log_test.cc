#include "lib/log/log.h"

#include <sstream>
#include <string>

#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"

namespace baton::log {
namespace {

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

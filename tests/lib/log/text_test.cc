#include <sstream>

#include "gtest/gtest.h"
#include "lib/log/log.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"

namespace baton::log {
namespace {

// In a program of its own: lines that have become JSON stay so.
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

}  // namespace
}  // namespace baton::log

// The suite of scale, small: it measures what it says, of each Baton.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/bench/suite_run.h"

namespace baton::bench {
namespace {

TEST(ScaleBenchTest, shouldMeasureEverySide) {
  const auto run =
      RunSuite("scale", {"--connections", "60", "--services", "3", "--workers", "6", "--calls", "3",
                         "--handoffs", "3", "--attaches", "2", "--seconds", "0.3",
                         // Workers show every second that they live.
                         "--idle-seconds", "1.5"});
  ASSERT_TRUE(run.ok()) << run.status();
  for (const char* side : {"small", "wide", "many"}) {
    for (const char* figure :
         {"start_seconds", "connect_seconds", "memory_mib", "descriptors", "idle_percent_of_core",
          "first_call_after_idleness_us", "get_service_p50_us", "list_shards_p50_us",
          "list_workers_p50_us", "list_connections_p50_us", "list_services_p50_us",
          "list_all_workers_p50_us", "worker_start_p50_us", "attach_p50_us", "handoff_p50_us",
          "handoff_silence_p50_us", "round_trip_p50_us", "messages_per_second"}) {
      EXPECT_EQ(run->figures.count(absl::StrCat(side, "_", figure)), 1u) << side << figure;
    }
  }
  EXPECT_EQ(run->not_measured, std::vector<std::string>());
  for (const auto& [figure, value] : run->figures) EXPECT_GT(value, 0) << figure;
  for (const auto& [ratio, value] : run->ratios) EXPECT_GT(value, 0) << ratio;
  EXPECT_EQ(run->figures.at("connections"), 60);
  EXPECT_EQ(run->figures.at("services"), 3);
  EXPECT_EQ(run->figures.at("workers"), 6);
}

}  // namespace
}  // namespace baton::bench

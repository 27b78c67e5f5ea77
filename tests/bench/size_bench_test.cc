// The suite of sizes, small: it measures what it says.
#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/bench/suite_run.h"

namespace baton::bench {
namespace {

TEST(SizeBenchTest, shouldMeasureEverySize) {
  const auto run = RunSuite("size", {"--connections", "64", "--soak-seconds", "2"});
  ASSERT_TRUE(run.ok()) << run.status();
  for (const char* figure : {"layout_connection_metadata_bytes",
                             "layout_connection_work_request_log_bytes",
                             "layout_connection_completion_log_bytes",
                             "layout_connection_state_bytes",
                             "layout_connection_total_bytes",
                             "layout_shard_metadata_bytes",
                             "layout_shard_total_bytes",
                             "layout_service_metadata_bytes",
                             "layout_service_buffer_bytes",
                             "layout_service_total_bytes",
                             "service_file_bytes",
                             "batond_private_kib",
                             "control_private_kib",
                             "keeper_private_kib",
                             "driver_resident_kib",
                             "driver_connection_bytes",
                             "driver_connection_soft_device_bytes",
                             "soak_cycles",
                             "soak_messages",
                             "soak_keeper_kib_at_100_percent"}) {
    const auto found = run->figures.find(figure);
    ASSERT_NE(found, run->figures.end()) << figure;
    EXPECT_GT(found->second, 0) << figure;
  }
  EXPECT_EQ(run->figures.at("layout_connection_total_bytes"),
            run->figures.at("layout_connection_metadata_bytes") +
                run->figures.at("layout_connection_work_request_log_bytes") +
                run->figures.at("layout_connection_completion_log_bytes") +
                run->figures.at("layout_connection_state_bytes"));
  EXPECT_GE(run->figures.at("service_file_bytes"), run->figures.at("layout_service_total_bytes"));
  EXPECT_EQ(run->figures.at("connections"), 128);
  // It is of a difference of heaps, which few connections do not always show.
  const auto of_heaps = std::count(run->not_measured.begin(), run->not_measured.end(),
                                   "connection_metadata_to_one_kib");
  EXPECT_EQ(run->ratios.size() + static_cast<size_t>(of_heaps), 13u);
  for (const auto& [ratio, value] : run->ratios) EXPECT_GT(value, 0) << ratio;
  EXPECT_TRUE(run->has_plots);
}

}  // namespace
}  // namespace baton::bench

// The suites of inspections, of scale, of sizes, of files and of owners of queues, small: each
// measures what it says.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/bench/suite_run.h"

namespace baton::bench {
namespace {

TEST(InspectBenchTest, shouldMeasureEverySide) {
  const auto run = RunSuite("inspect", {"--seconds", "0.2", "--interval-ms", "50"});
  ASSERT_TRUE(run.ok()) << run.status();
  for (const char* figure :
       {"messages_alone", "messages_beside_inspecting_a_copy", "messages_beside_inspecting",
        "inspections", "inspections_of_the_copy"}) {
    const auto found = run->figures.find(figure);
    ASSERT_NE(found, run->figures.end()) << figure;
    EXPECT_GT(found->second, 0) << figure;
  }
  EXPECT_EQ(run->not_measured, std::vector<std::string>());
  EXPECT_GT(run->ratios.at("inspected_to_a_copy"), 0);
}

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

TEST(SizeBenchTest, shouldMeasureEverySize) {
  // How much processes grow is not judged here.
  const auto run =
      RunSuite("size", {"--connections", "64", "--soak-seconds", "2", "--warm-events", "200"});
  ASSERT_TRUE(run.ok()) << run.status();
  for (const char* figure :
       {"layout_connection_metadata_bytes", "layout_connection_work_request_log_bytes",
        "layout_connection_completion_log_bytes", "layout_connection_state_bytes",
        "layout_connection_total_bytes", "layout_shard_metadata_bytes", "layout_shard_total_bytes",
        "layout_service_metadata_bytes", "layout_service_buffer_bytes",
        "layout_service_total_bytes", "service_file_bytes", "batond_private_kib",
        "control_private_kib", "keeper_private_kib", "driver_resident_kib",
        "driver_connection_soft_device_bytes", "soak_cycles", "soak_messages",
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
  // Both are of a difference of heaps, which few connections do not always show.
  EXPECT_TRUE(run->figures.contains("driver_connection_bytes"));
  const auto of_heaps = std::count(run->not_measured.begin(), run->not_measured.end(),
                                   "connection_metadata_to_one_kib");
  // One is of a connection; six processes have three each.
  EXPECT_EQ(run->ratios.size() + static_cast<size_t>(of_heaps), 1u + 6u * 3u);
  for (const auto& [ratio, value] : run->ratios) EXPECT_GT(value, 0) << ratio;
  EXPECT_TRUE(run->has_plots);
}

TEST(MemoryBenchTest, shouldSendFilesInEveryWay) {
  const auto run = RunSuite("memory", {"--scale", "0.01", "--only", "files", "sendfile", "regions",
                                       "--largest-mib", "1"});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->not_measured, std::vector<std::string>());
  for (const auto& [figure, value] : run->figures) EXPECT_GT(value, 0) << figure;
  for (const char* way : {"static", "sendfile_brokered", "dynamic_brokered", "cached_brokered",
                          "sendfile_native", "static_checked", "sendfile_checked_brokered",
                          "sendfile_checked_native", "dynamic_native", "cached_native"}) {
    for (const char* size : {"4KiB", "16KiB", "64KiB", "256KiB", "1MiB"}) {
      EXPECT_EQ(run->figures.count(absl::StrCat("file_", way, "_", size)), 1u) << way << size;
    }
    // A static copy needs as much as the largest file has.
    EXPECT_EQ(run->figures.at("file_static_1MiB_registered"), 1 << 20);
  }
  EXPECT_GT(run->ratios.at("file_sendfile_native_1MiB_to_static"), 0);
  EXPECT_TRUE(run->has_plots);
}

// The suite `native`, small, over each wire: every owner answers every message, and each figure has
// a value. How large they are is not judged here.
class NativeBenchTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto measured = RunSuite("native", {"--scale", "0.002", "--wire", GetParam()});
    ASSERT_TRUE(measured.ok()) << measured.status();
    run = *std::move(measured);
  }

  SuiteRun run;
};

TEST_P(NativeBenchTest, shouldMeasureEveryOwner) {
  EXPECT_EQ(run.not_measured, std::vector<std::string>());
  for (const auto& [figure, value] : run.figures) EXPECT_GT(value, 0) << figure;
  for (const auto& [ratio, value] : run.ratios) EXPECT_GT(value, 0) << ratio;
  const std::string wire = GetParam();
  const std::string suffix = wire == "loopback" ? "" : "_" + wire;
  for (const std::string kind : {"raw", "native", "brokered"}) {
    const std::string owner = kind + suffix;
    EXPECT_EQ(run.figures.count("round_trip_" + owner), 1u) << owner;
    EXPECT_EQ(run.figures.count("paced_" + owner), 1u) << owner;
    EXPECT_EQ(run.figures.count("rate_32_" + owner), 1u) << owner;
  }
  EXPECT_EQ(run.ratios.count("turns_32_native" + suffix + "_to_raw"), 1u);
  // It has no connection manager.
  EXPECT_EQ(run.figures.count("round_trip_libmlx5"), wire == "loopback" ? 1u : 0u);
  EXPECT_TRUE(run.has_plots);
}

INSTANTIATE_TEST_SUITE_P(Wires, NativeBenchTest, ::testing::Values("loopback", "memory", "tcp"));

}  // namespace
}  // namespace baton::bench

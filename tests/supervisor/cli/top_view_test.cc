// Rates of counters, and what `baton top` makes of what control says.
#include "supervisor/cli/top_view.h"

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::StartsWith;

TEST(CounterRatesTest, ShouldTellWhatWasCountedPerSecond) {
  CounterRates rates;
  EXPECT_EQ(rates.Update("a", 1, 100, 10.0), std::nullopt);  // nothing to compare with
  EXPECT_THAT(rates.Update("a", 1, 150, 12.0), Optional(25.0));
  EXPECT_THAT(rates.Update("a", 1, 150, 12.5), Optional(0.0));
  EXPECT_EQ(rates.Update("b", 1, 7, 12.5), std::nullopt);  // another counter
}

TEST(CounterRatesTest, ShouldBeginAgainWithAnotherKeeper) {
  CounterRates rates;
  rates.Update("a", 1, 100, 10.0);
  EXPECT_EQ(rates.Update("a", 2, 5, 11.0), std::nullopt);
  EXPECT_THAT(rates.Update("a", 2, 8, 12.0), Optional(3.0));
  // Also when it has counted further than the one before.
  EXPECT_EQ(rates.Update("a", 3, 1000, 13.0), std::nullopt);
}

TEST(CounterRatesTest, ShouldBeginAgainWhenACounterHasGoneDown) {
  CounterRates rates;
  rates.Update("a", 1, 100, 10.0);
  EXPECT_EQ(rates.Update("a", 1, 3, 11.0), std::nullopt);
  EXPECT_THAT(rates.Update("a", 1, 4, 12.0), Optional(1.0));
}

TEST(CounterRatesTest, ShouldNotDivideByNothing) {
  CounterRates rates;
  rates.Update("a", 1, 100, 10.0);
  EXPECT_EQ(rates.Update("a", 1, 200, 10.0), std::nullopt);
}

TEST(CounterRatesTest, ShouldForgetWhatIsGone) {
  CounterRates rates;
  rates.Update("a", 1, 100, 10.0);
  rates.Update("b", 1, 100, 20.0);
  rates.ForgetOlderThan(15.0);
  EXPECT_EQ(rates.Update("a", 1, 200, 21.0), std::nullopt);
  EXPECT_THAT(rates.Update("b", 1, 101, 21.0), Optional(1.0));
}

TEST(FormatRateTest, ShouldBeShort) {
  EXPECT_EQ(FormatRate(std::nullopt), "-");
  EXPECT_EQ(FormatRate(0.0), "0");
  EXPECT_EQ(FormatRate(0.25), "0.2");
  EXPECT_EQ(FormatRate(812.4), "812");
  EXPECT_EQ(FormatRate(12345.0), "12.3k");
  EXPECT_EQ(FormatRate(4.561e6), "4.56M");
}

// A service with two shards, which have committed so much.
v1::GetServiceResponse Described(uint64_t first, uint64_t second) {
  v1::GetServiceResponse response;
  v1::Service& service = *response.mutable_service();
  service.set_name("kv");
  service.set_reachable(true);
  service.set_keeper_pid(4711);
  service.set_shard_count(2);
  service.set_shards_owned(2);
  service.set_worker_count(3);
  service.set_ready_workers(2);
  service.set_connection_count(10000);
  service.mutable_handoff_blackout()->set_count(12);
  service.mutable_handoff_blackout()->set_p50_us(212);
  service.mutable_handoff_blackout()->set_p99_us(1234);
  service.mutable_handoff_blackout()->set_max_us(23456);
  for (const uint64_t commits : {first, second}) {
    v1::Shard& shard = *response.add_shards();
    shard.set_index(static_cast<uint32_t>(response.shards_size() - 1));
    shard.set_owner_worker_id(1);
    shard.set_heir_worker_id(2);
    shard.set_epoch(7);
    shard.set_commits(commits);
    shard.set_sends_posted(commits * 2);
    shard.set_completions(commits * 4);
    shard.set_send_requests_in_flight(static_cast<uint32_t>(response.shards_size()));
  }
  return response;
}

v1::GetStatusResponse Status() {
  v1::GetStatusResponse status;
  status.mutable_version()->set_release("0.1.0");
  status.set_control_pid(42);
  status.set_control_uptime_seconds(61);
  v1::Service& other = *status.add_services();
  other.set_name("nvme");
  *status.add_services() = Described(0, 0).service();
  return status;
}

TEST(TopViewTest, ShouldShowRatesOfServicesAndShards) {
  CounterRates rates;
  MakeTopView(Status(), {Described(100, 0)}, 10.0, &rates);
  const TopView view = MakeTopView(Status(), {Described(200, 6000)}, 12.0, &rates);
  EXPECT_EQ(RenderTop(view, {.note = "q quit"}),
            "baton 0.1.0, control pid 42, up 1m01s; by shard; q quit\n"
            "SERVICE  STATE        WORKERS  CONNS  COMMIT/S  SEND/S  COMPL/S  INFLIGHT\n"
            "kv       ok               2/3  10000      3050    6100    12.2k         3\n"
            "nvme     unreachable        -      -         -       -        -         -\n"
            "BLACKOUTS  HANDOFFS    P50    P99     MAX  FAILOVERS  P50  P99  MAX\n"
            "kv               12  212us  1.2ms  23.5ms          0    -    -    -\n"
            "SERVICE  SHARD  OWNER  HEIR  EPOCH  COMMIT/S  SEND/S  COMPL/S  INFLIGHT  UNACKED\n"
            "kv           0      1     2      7        50     100      200         1        0\n"
            "kv           1      1     2      7      3000    6000    12.0k         2        0\n");
  const std::vector<std::string> lines = absl::StrSplit(RenderTop(view, {}), '\n');
  for (const std::string& line : lines) {
    EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST(TopViewTest, ShouldShowTheSameAsJson) {
  CounterRates rates;
  MakeTopView(Status(), {Described(100, 0)}, 10.0, &rates);
  const TopView view = MakeTopView(Status(), {Described(200, 6000)}, 12.0, &rates);
  EXPECT_THAT(RenderTopAsJson(view),
              StartsWith("{\"services\":[{\"name\":\"kv\",\"state\":\"ok\",\"ready_workers\":2,"
                         "\"worker_count\":3,\"connection_count\":10000,"
                         "\"commits_per_second\":3050.0,\"sends_per_second\":6100.0,"
                         "\"completions_per_second\":12200.0,\"send_requests_in_flight\":3,"
                         "\"handoff_blackout\":{\"count\":\"12\",\"p50_us\":212,\"p99_us\":1234,"));
}

TEST(TopViewTest, ShouldSortShards) {
  CounterRates rates;
  MakeTopView(Status(), {Described(100, 0)}, 10.0, &rates);
  const TopView view = MakeTopView(Status(), {Described(200, 10)}, 12.0, &rates);
  const auto first = [&](TopSort sort) {
    const std::string text = RenderTop(view, {.sort = sort});
    return text.find("kv           0 ") < text.find("kv           1 ") ? 0 : 1;
  };
  EXPECT_EQ(first(TopSort::kShard), 0);
  EXPECT_EQ(first(TopSort::kCommits), 0);
  EXPECT_EQ(first(TopSort::kInFlight), 1);
  EXPECT_EQ(Next(Next(Next(TopSort::kShard))), TopSort::kShard);
}

TEST(TopViewTest, ShouldShowTheUpgradeUnderWay) {
  v1::GetServiceResponse described = Described(0, 0);
  v1::Upgrade& upgrade = *described.mutable_service()->mutable_upgrade();
  upgrade.set_id(3);
  upgrade.set_old_version("1.0");
  upgrade.set_phase(v1::UPGRADE_PHASE_WATCHING);
  upgrade.set_watch_seconds_left(25);
  CounterRates rates;
  const TopView view = MakeTopView(Status(), {described}, 1.0, &rates);
  EXPECT_THAT(RenderTop(view, {}), HasSubstr("Upgrade 3 of kv: 1.0 -> ?, watching, 25s left\n"));
  EXPECT_THAT(RenderTopAsJson(view), HasSubstr("\"upgrade\":\"UPGRADE_PHASE_WATCHING\""));
  EXPECT_THAT(RenderTopAsJson(view), HasSubstr("\"commits_per_second\":null"));
}

}  // namespace
}  // namespace baton

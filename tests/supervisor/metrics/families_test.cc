#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "prometheus/text_serializer.h"
#include "supervisor/metrics/families.h"
#include "tests/supervisor/control/control_fixture.h"

namespace baton::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const std::vector<prometheus::MetricFamily>& families) {
  return prometheus::TextSerializer().Serialize(families);
}

std::string TextOfKv() {
  return Text(ServiceFamilies({{"kv", KvDescription()}, {"nvme", absl::UnavailableError("gone")}}));
}

TEST(ServiceFamiliesTest, shouldTellOfAServiceAndItsShards) {
  const std::string text = TextOfKv();
  for (const char* const line : {
           "\nbaton_service_up{service=\"kv\"} 1\n",
           "\nbaton_service_connections{service=\"kv\"} 3\n",
           "\nbaton_service_connections_limit{service=\"kv\"} 64\n",
           "\nbaton_service_shards_unowned{service=\"kv\"} 1\n",
           "\nbaton_service_workers{service=\"kv\",state=\"ready\"} 2\n",
           "\nbaton_service_workers{service=\"kv\",state=\"dying\"} 0\n",
           "\nbaton_shard_owned{service=\"kv\",shard=\"0\"} 1\n",
           "\nbaton_shard_has_heir{service=\"kv\",shard=\"0\"} 1\n",
           "\nbaton_shard_sends_in_flight{service=\"kv\",shard=\"0\"} 7\n",
           "\nbaton_shard_commits_total{service=\"kv\",shard=\"0\"} 120\n",
           "\nbaton_shard_epochs_total{service=\"kv\",shard=\"0\"} 3\n",
           "\nbaton_upgrade_running{service=\"kv\"} 0\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text,
              HasSubstr("baton_longest_blackout_seconds{service=\"kv\",cause=\"handoff\"} 4.5"));
  EXPECT_THAT(text, HasSubstr("# TYPE baton_shard_commits_total counter"));
  EXPECT_THAT(text, HasSubstr("# TYPE baton_service_connections gauge"));
}

void SetHistogram(internal::Histogram* histogram) {
  histogram->add_bounds_seconds(0.001);
  histogram->add_bounds_seconds(0.5);
  histogram->add_counts(2);
  histogram->add_counts(3);
  histogram->set_count(4);
  histogram->set_sum_seconds(1.25);
}

TEST(ServiceFamiliesTest, shouldHaveBlackoutsAsHistograms) {
  internal::Description described = KvDescription();
  described.mutable_service()->mutable_blackouts(0)->set_cause("crash");
  SetHistogram(described.mutable_blackouts(0));
  const std::string text = Text(ServiceFamilies({{"kv", described}}));
  const std::string of = "{service=\"kv\",cause=\"crash\"";
  for (const std::string& line : {
           "\nbaton_blackout_seconds_count" + of + "} 4\n",
           "\nbaton_blackout_seconds_sum" + of + "} 1.25\n",
           "\nbaton_blackout_seconds_bucket" + of + ",le=\"0.001\"} 2\n",
           "\nbaton_blackout_seconds_bucket" + of + ",le=\"0.5\"} 3\n",
           "\nbaton_blackout_seconds_bucket" + of + ",le=\"+Inf\"} 4\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, HasSubstr("# TYPE baton_blackout_seconds histogram"));
}

TEST(ServiceFamiliesTest, shouldTellHowBusyAnEngineIsAndWhatShardsCarry) {
  internal::Description described = KvDescription();
  EXPECT_THAT(TextOfKv(), Not(HasSubstr("baton_engine")));
  described.mutable_engine()->set_busy_seconds(2.5);
  described.mutable_engine()->set_turns(77);
  SetHistogram(described.mutable_engine()->mutable_turn());
  described.add_shard_loads()->set_bytes_sent(4096);
  described.mutable_shard_loads(0)->set_bytes_received(512);
  described.mutable_shard_loads(0)->set_receive_window(3);
  described.add_shard_loads();  // of a keeper that tells no bytes, without connections
  const std::string text = Text(ServiceFamilies({{"kv", described}}));
  for (const char* const line : {
           "\nbaton_engine_busy_seconds_total{service=\"kv\"} 2.5\n",
           "\nbaton_engine_turns_total{service=\"kv\"} 77\n",
           "\nbaton_engine_turn_seconds_count{service=\"kv\"} 4\n",
           "\nbaton_shard_sent_bytes_total{service=\"kv\",shard=\"0\"} 4096\n",
           "\nbaton_shard_received_bytes_total{service=\"kv\",shard=\"0\"} 512\n",
           "\nbaton_shard_receive_window{service=\"kv\",shard=\"0\"} 3\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  for (const char* const name : {"sent_bytes_total", "received_bytes_total", "receive_window"}) {
    EXPECT_THAT(text,
                Not(HasSubstr(absl::StrCat("baton_shard_", name, "{service=\"kv\",shard=\"1\"}"))));
  }
}

TEST(ServiceFamiliesTest, shouldTellOfHeapsWhatTheirOwnersSay) {
  internal::Description described = KvDescription();
  EXPECT_THAT(TextOfKv(), Not(HasSubstr("_heap_")));
  internal::ShardHeap* const used = described.add_shard_loads()->mutable_heap();
  used->set_bytes(65536);
  used->mutable_use()->set_kept(4096);
  used->mutable_use()->set_scratch(512);
  used->mutable_use()->set_largest_free(32768);
  used->mutable_use()->set_free(57344 + 2048);
  used->mutable_use()->set_rest(1536);
  described.add_shard_loads()->mutable_heap()->set_bytes(65536);
  const std::string text = Text(ServiceFamilies({{"kv", described}}));
  for (const char* const line : {
           "\nbaton_shard_heap_bytes{service=\"kv\",shard=\"0\"} 65536\n",
           "\nbaton_shard_heap_kept_bytes{service=\"kv\",shard=\"0\"} 4096\n",
           "\nbaton_shard_heap_scratch_bytes{service=\"kv\",shard=\"0\"} 512\n",
           "\nbaton_shard_heap_held_bytes{service=\"kv\",shard=\"0\"} 0\n",
           "\nbaton_shard_heap_largest_free_bytes{service=\"kv\",shard=\"0\"} 32768\n",
           "\nbaton_shard_heap_free_bytes{service=\"kv\",shard=\"0\"} 59392\n",
           "\nbaton_shard_heap_rest_bytes{service=\"kv\",shard=\"0\"} 1536\n",
           "\nbaton_shard_heap_fragmentation_ratio{service=\"kv\",shard=\"0\"} 0.448",
           "\nbaton_shard_heap_bytes{service=\"kv\",shard=\"1\"} 65536\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  for (const char* const what : {"kept_bytes", "scratch_bytes", "held_bytes", "largest_free_bytes",
                                 "free_bytes", "rest_bytes", "fragmentation_ratio"}) {
    EXPECT_THAT(
        text,
        Not(HasSubstr(absl::StrCat("baton_shard_heap_", what, "{service=\"kv\",shard=\"1\"}"))));
  }
}

TEST(ServiceFamiliesTest, shouldTellWhatIsFreeInHeapsOnlyIfTheirOwnersDo) {
  internal::Description described = KvDescription();
  internal::ShardHeap* const of_a_former_release = described.add_shard_loads()->mutable_heap();
  of_a_former_release->set_bytes(65536);
  of_a_former_release->mutable_use()->set_largest_free(32768);
  internal::ShardHeap* const full = described.add_shard_loads()->mutable_heap();
  full->set_bytes(65536);
  full->mutable_use()->set_kept(65536);
  full->mutable_use()->set_free(0);
  internal::ShardHeap* const impossible = described.add_shard_loads()->mutable_heap();
  impossible->set_bytes(65536);
  impossible->mutable_use()->set_largest_free(32768);
  impossible->mutable_use()->set_free(4096);
  const std::string text = Text(ServiceFamilies({{"kv", described}}));
  EXPECT_THAT(text, Not(HasSubstr("heap_free_bytes{service=\"kv\",shard=\"0\"}")));
  EXPECT_THAT(text, Not(HasSubstr("heap_fragmentation_ratio{service=\"kv\",shard=\"0\"}")));
  EXPECT_THAT(text, HasSubstr("heap_free_bytes{service=\"kv\",shard=\"1\"} 0\n"));
  for (const char* const shard : {"1", "2"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("heap_fragmentation_ratio{service=\"kv\",shard=\"",
                                             shard, "\"} 0\n")));
  }
}

// A device as Linux shows it, in a directory of the test's own.
class DeviceFamiliesTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/baton-devices-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    devices_ = name;
    Write("hw_counters", "rcvd_rnr_err", "7");
    Write("hw_counters", "completer_retry_err", "3");
    Write("hw_counters", "np_cnp_sent", "5");
    Write("hw_counters", "lifespan", "10");
    Write("hw_counters", "out_of_buffer", "N/A");
    Write("counters", "port_xmit_wait", "12");
    v1::DeviceState& device = *described_.mutable_service()->mutable_device_state();
    device.set_name("mlx5_0");
    device.set_port(2);
  }
  void TearDown() override { std::filesystem::remove_all(devices_); }

  void Write(const std::string& directory, const std::string& name, const std::string& value) {
    const std::filesystem::path path = devices_ + "/mlx5_0/ports/2/" + directory;
    std::filesystem::create_directories(path);
    std::ofstream(path / name) << value << "\n";
  }

  std::string devices_;
  internal::Description described_ = KvDescription();
};

TEST_F(DeviceFamiliesTest, shouldTellWhatAPortCounts) {
  const std::string text = Text(DeviceFamilies(
      {{"kv", described_}, {"other", described_}, {"nvme", absl::UnavailableError("gone")}},
      devices_));
  const std::string of = "{device=\"mlx5_0\",port=\"2\",counter=";
  for (const std::string& line : {
           "\nbaton_device_rnr_total" + of + "\"rcvd_rnr_err\"} 7\n",
           "\nbaton_device_retransmissions_total" + of + "\"completer_retry_err\"} 3\n",
           "\nbaton_device_congestion_total" + of + "\"np_cnp_sent\"} 5\n",
           "\nbaton_device_congestion_total" + of + "\"port_xmit_wait\"} 12\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
    EXPECT_EQ(text.find(line), text.rfind(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("lifespan")));
  EXPECT_THAT(text, Not(HasSubstr("out_of_buffer")));
}

TEST_F(DeviceFamiliesTest, shouldTellNothingOfADeviceWithoutPortsOrCounters) {
  EXPECT_TRUE(DeviceFamilies({{"kv", described_}}, devices_ + "/none").empty());
  described_.mutable_service()->mutable_device_state()->set_port(0);
  EXPECT_TRUE(DeviceFamilies({{"kv", described_}}, devices_).empty());
}

v1::Inspection KvInspection() {
  v1::Inspection inspection;
  inspection.set_service("kv");
  inspection.mutable_shape()->set_shards(2);
  inspection.mutable_shape()->set_connections(64);
  inspection.mutable_totals()->set_shards_owned(1);
  inspection.mutable_totals()->set_connections(3);
  v1::InspectedShard* const shard = inspection.add_shards();
  shard->set_epoch(3);
  shard->set_owner_slot(0);
  shard->set_connections(2);
  shard->set_transactions(120);
  shard->set_completions(500);
  shard->set_acknowledged(496);
  inspection.add_shards()->set_index(1);
  inspection.mutable_shards(1)->set_owner_slot(-1);
  inspection.mutable_shards(1)->set_acknowledged(17);  // of none
  return inspection;
}

TEST(ArenaFamiliesTest, shouldTellWhatAnArenaKnowsUnderTheSameNames) {
  const std::string text = Text(ArenaFamilies(KvInspection()));
  for (const char* const line : {
           "\nbaton_service_connections{service=\"kv\"} 3\n",
           "\nbaton_service_connections_limit{service=\"kv\"} 64\n",
           "\nbaton_service_shards_unowned{service=\"kv\"} 1\n",
           "\nbaton_shard_owned{service=\"kv\",shard=\"0\"} 1\n",
           "\nbaton_shard_owned{service=\"kv\",shard=\"1\"} 0\n",
           "\nbaton_shard_commits_total{service=\"kv\",shard=\"0\"} 120\n",
           "\nbaton_shard_completions_unacknowledged{service=\"kv\",shard=\"0\"} 4\n",
           "\nbaton_shard_completions_unacknowledged{service=\"kv\",shard=\"1\"} 0\n",
           "\nbaton_shard_epochs_total{service=\"kv\",shard=\"0\"} 3\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  // Nothing of which the arena says nothing: a 0 would be believed.
  for (const char* const unknown :
       {"uptime", "_up{", "workers", "has_heir", "posted", "blackout"}) {
    EXPECT_THAT(text, Not(HasSubstr(unknown)));
  }
}

TEST(ArenaFamiliesTest, shouldTellOfHeaps) {
  v1::Inspection inspection = KvInspection();
  inspection.mutable_shards(1)->mutable_heap()->set_bytes(8192);
  inspection.mutable_shards(1)->mutable_heap()->mutable_owner()->set_held(64);
  inspection.mutable_shards(1)->mutable_heap()->mutable_owner()->set_free(8128);
  const std::string text = Text(ArenaFamilies(inspection));
  EXPECT_THAT(text, HasSubstr("\nbaton_shard_heap_bytes{service=\"kv\",shard=\"1\"} 8192\n"));
  EXPECT_THAT(text, HasSubstr("\nbaton_shard_heap_held_bytes{service=\"kv\",shard=\"1\"} 64\n"));
  EXPECT_THAT(text, HasSubstr("\nbaton_shard_heap_free_bytes{service=\"kv\",shard=\"1\"} 8128\n"));
  EXPECT_THAT(text, HasSubstr("\nbaton_shard_heap_rest_bytes{service=\"kv\",shard=\"1\"} 0\n"));
  EXPECT_THAT(text,
              HasSubstr("\nbaton_shard_heap_fragmentation_ratio{service=\"kv\",shard=\"1\"} "));
  EXPECT_THAT(text, Not(HasSubstr("baton_shard_heap_bytes{service=\"kv\",shard=\"0\"}")));
  EXPECT_THAT(text, Not(HasSubstr("sent_bytes")));
}

// Dashboards and rules need not know from where they have it.
TEST(ArenaFamiliesTest, shouldHaveNoNameThatServicesHaveNot) {
  const std::string live = TextOfKv();
  const auto families = ArenaFamilies(KvInspection());
  EXPECT_EQ(families.size(), 11u);
  for (const prometheus::MetricFamily& family : families) {
    EXPECT_THAT(live, HasSubstr(absl::StrCat("# HELP ", family.name, " ", family.help, "\n")));
  }
}

TEST(ServiceFamiliesTest, shouldTellOnlyThatAnUnreachableServiceIs) {
  const std::string text = TextOfKv();
  EXPECT_THAT(text, HasSubstr("baton_service_up{service=\"nvme\"} 0"));
  const std::string label = "service=\"nvme\"";
  EXPECT_EQ(text.find(label), text.rfind(label));
}

TEST(ServiceFamiliesTest, shouldNotTellOfAPortOfADeviceWithoutPorts) {
  EXPECT_THAT(TextOfKv(), Not(HasSubstr("baton_device_port_up")));
  internal::Description described = KvDescription();
  v1::DeviceState& device = *described.mutable_service()->mutable_device_state();
  device.set_name("rxe0");
  device.set_port(1);
  device.set_port_state("down");
  EXPECT_THAT(Text(ServiceFamilies({{"kv", described}})),
              HasSubstr("baton_device_port_up{service=\"kv\",device=\"rxe0\"} 0"));
}

TEST(ServiceFamiliesTest, shouldTellWhatAServiceHasAndMayHave) {
  internal::Description described = KvDescription();
  v1::Accounts& accounts = *described.mutable_service()->mutable_accounts();
  accounts.set_queue_pairs(7);
  accounts.set_memory_regions(3);
  accounts.set_registered_bytes(4096);
  accounts.set_grants(2);
  accounts.set_granted_bytes(1024);
  accounts.set_descriptors(5);
  accounts.add_warnings("policy.service.grants: 2 of 2 in use");
  v1::Quota& quota = *described.mutable_service()->mutable_policy()->mutable_service();
  quota.set_grants(2);
  quota.set_queue_pairs(9);
  quota.set_registered_bytes(8192);
  const std::string text = Text(ServiceFamilies({{"kv", described}}));
  for (const char* const line : {
           "\nbaton_service_device_objects{service=\"kv\",kind=\"queue_pair\"} 7\n",
           "\nbaton_service_device_objects{service=\"kv\",kind=\"memory_region\"} 3\n",
           "\nbaton_service_device_objects{service=\"kv\",kind=\"completion_queue\"} 0\n",
           "\nbaton_service_registered_bytes{service=\"kv\"} 4096\n",
           "\nbaton_service_grants{service=\"kv\"} 2\n",
           "\nbaton_service_granted_bytes{service=\"kv\"} 1024\n",
           "\nbaton_service_held_descriptors{service=\"kv\"} 5\n",
           "\nbaton_service_warnings{service=\"kv\"} 1\n",
           "\nbaton_service_quota{service=\"kv\",of=\"grants\"} 2\n",
           "\nbaton_service_quota{service=\"kv\",of=\"connections\"} 0\n",
           "\nbaton_service_quota{service=\"kv\",of=\"queue_pairs\"} 9\n",
           "\nbaton_service_quota{service=\"kv\",of=\"completion_queues\"} 0\n",
           "\nbaton_service_quota{service=\"kv\",of=\"registered_bytes\"} 8192\n",
           "\nbaton_service_quota{service=\"kv\",of=\"descriptors\"} 0\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(ServiceFamiliesTest, shouldHaveNoLabelThatGrowsWithUse) {
  std::set<std::string> names;
  for (const prometheus::MetricFamily& family : ServiceFamilies({{"kv", KvDescription()}})) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      for (const auto& label : metric.label) names.insert(label.name);
    }
  }
  EXPECT_THAT(names, ::testing::ElementsAre("cause", "kind", "of", "service", "shard", "state"));
}

TEST(ProcessFamiliesTest, shouldReadThisProcessAndLeaveOutOneThatIsGone) {
  const std::string text =
      Text(ProcessFamilies({{"control", "", getpid()}, {"keeper", "kv", 0x7fffffff}}));
  EXPECT_THAT(text, HasSubstr("baton_process_resident_bytes{program=\"control\",service=\"\"} "));
  EXPECT_THAT(text, HasSubstr("baton_process_open_fds{program=\"control\",service=\"\"} "));
  EXPECT_THAT(text, HasSubstr("baton_process_cpu_seconds_total{program=\"control\""));
  EXPECT_THAT(text, Not(HasSubstr("keeper")));
}

TEST(EventCountsTest, shouldCountWhatHappenedSinceItsStart) {
  v1::Event event = KvEvent(1, "worker_dead", "worker 1 is dead");
  const int64_t start = event.unix_micros();
  EventCounts counts([start] { return start; }, [] { return uint64_t{7}; });
  counts.Note("kv", event);
  counts.Note("kv", event);
  event.set_unix_micros(event.unix_micros() - 1);  // told again by a keeper's log
  counts.Note("kv", event);
  EXPECT_THAT(Text({counts.Collect()}),
              HasSubstr("baton_events_total{service=\"kv\",kind=\"worker_dead\"} 2\n"));
}

TEST(EventCountsTest, shouldCountWhatHappensAfterTheClockIsSteppedBack) {
  constexpr int64_t kHourMicros = 3'600'000'000;
  v1::Event event = KvEvent(1, "worker_dead", "worker 1 is dead");
  const int64_t start = event.unix_micros();
  int64_t unix_micros = start;
  uint64_t monotonic_ns = 5'000'000'000;
  EventCounts counts([&] { return unix_micros; }, [&] { return monotonic_ns; });
  const auto note_at = [&](int64_t at) {
    event.set_unix_micros(at);
    counts.Note("kv", event);
  };
  // A minute later the clock is an hour behind.
  monotonic_ns += 60'000'000'000;
  unix_micros += 60'000'000 - kHourMicros;
  note_at(unix_micros);
  // A second later it is right again, and then an hour ahead.
  monotonic_ns += 1'000'000'000;
  unix_micros += 1'000'000 + kHourMicros;
  note_at(unix_micros);
  unix_micros += kHourMicros;
  note_at(unix_micros);
  note_at(start - 2 * kHourMicros);  // of a keeper's log, from before the start
  EXPECT_THAT(Text({counts.Collect()}),
              HasSubstr("baton_events_total{service=\"kv\",kind=\"worker_dead\"} 3\n"));
}

TEST(EventCountsTest, shouldLeaveOutEarlierEventsThoughTheClockIsSteppedForward) {
  v1::Event event = KvEvent(1, "worker_dead", "worker 1 is dead");
  const int64_t start = event.unix_micros() + 1;
  int64_t unix_micros = start;
  uint64_t monotonic_ns = 0;
  EventCounts counts([&] { return unix_micros; }, [&] { return monotonic_ns; });
  monotonic_ns += 1'000'000'000;
  unix_micros += 3'600'000'000;
  counts.Note("kv", event);
  EXPECT_THAT(Text({counts.Collect()}), Not(HasSubstr("worker_dead")));
  // A keeper that could not be reached for a while tells what happened before the step.
  event.set_unix_micros(start + 1);
  counts.Note("kv", event);
  EXPECT_THAT(Text({counts.Collect()}),
              HasSubstr("baton_events_total{service=\"kv\",kind=\"worker_dead\"} 1\n"));
}

TEST(EventCountsTest, shouldBoundItsKinds) {
  EventCounts counts([] { return int64_t{0}; }, [] { return uint64_t{0}; });
  for (size_t i = 0; i < 2 * EventCounts::kMaxKinds; ++i) {
    counts.Note("kv", KvEvent(i, absl::StrCat("kind_", i), ""));
  }
  EXPECT_EQ(counts.Collect().metric.size(), EventCounts::kMaxKinds + 1);
  EXPECT_THAT(Text({counts.Collect()}),
              HasSubstr(absl::StrCat("kind=\"other\"} ", EventCounts::kMaxKinds, "\n")));
}

}  // namespace
}  // namespace baton::metrics

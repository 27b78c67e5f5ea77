// Metrics of a running Baton, as Prometheus gets them; and the rules and the dashboard that are
// shipped speak of metrics that there are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/file_content.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/metrics/http_get.h"

namespace baton {
namespace {

class MetricsTest : public harness::ClusterFixture {
 protected:
  void SetUp() override {
    harness::ClusterOptions options;
    options.shards = 2;
    options.batond_arguments = {"--metrics-address", "127.0.0.1:0"};
    ASSERT_OK_AND_ASSIGN(cluster_, harness::Cluster::Start(options));
    ASSERT_TRUE(harness::WaitUntil("the address of the metrics", [&] { return Port() != 0; }).ok());
  }

  // Returns the port of the control that was started last, or 0 if none has told its port yet.
  int Port() const {
    const std::string beginning = "metrics are at http://127.0.0.1:";
    const std::string log = cluster_->batond().LogTail();
    const size_t place = log.rfind(beginning);
    return place == std::string::npos ? 0 : std::atoi(log.c_str() + place + beginning.size());
  }
  std::string Scrape() const { return metrics::HttpGet(Port(), "/metrics"); }

  // -1: it is not there.
  static double ValueOf(const std::string& text, const std::string& metric) {
    const size_t place = text.find("\n" + metric + " ");
    return place == std::string::npos ? -1 : std::atof(text.c_str() + place + metric.size() + 2);
  }
};

TEST_F(MetricsTest, shouldTellWhatTheServiceDoes) {
  auto worker = cluster_->StartLedger(1), standby = cluster_->StartLedger(1);
  ASSERT_TRUE(worker.ok() && standby.ok()) << worker.status() << standby.status();
  auto peer = cluster_->StartPeer(harness::PeerOptions());
  ASSERT_TRUE(peer.ok()) << peer.status();
  ASSERT_TRUE((*peer)->Settle().ok());
  std::string text = Scrape();
  EXPECT_EQ(ValueOf(text, "baton_service_up{service=\"ledger\"}"), 1) << text;
  EXPECT_EQ(ValueOf(text, "baton_service_workers{service=\"ledger\",state=\"ready\"}"), 2);
  EXPECT_EQ(ValueOf(text, "baton_service_shards_unowned{service=\"ledger\"}"), 0);
  EXPECT_GT(ValueOf(text, "baton_shard_completions_total{service=\"ledger\",shard=\"0\"}"), 0);
  EXPECT_GT(ValueOf(text, "baton_shard_sent_bytes_total{service=\"ledger\",shard=\"0\"}"), 0);
  EXPECT_GT(ValueOf(text, "baton_shard_received_bytes_total{service=\"ledger\",shard=\"0\"}"), 0);
  EXPECT_GT(ValueOf(text, "baton_shard_receive_window{service=\"ledger\",shard=\"0\"}"), 0);
  EXPECT_GT(ValueOf(text, "baton_engine_busy_seconds_total{service=\"ledger\"}"), 0);
  EXPECT_LT(ValueOf(text, "baton_engine_busy_seconds_total{service=\"ledger\"}"),
            ValueOf(text, "baton_service_uptime_seconds{service=\"ledger\"}"));
  EXPECT_GT(ValueOf(text, "baton_engine_turn_seconds_count{service=\"ledger\"}"), 0);
  EXPECT_EQ(ValueOf(text, "baton_audit_write_failures_total"), 0);
  EXPECT_GT(ValueOf(text, "baton_process_resident_bytes{program=\"keeper\",service=\"ledger\"}"),
            0);
  EXPECT_GT(ValueOf(text, "baton_process_resident_bytes{program=\"batond\",service=\"\"}"), 0);

  const char* const crashes = "baton_blackout_seconds_count{service=\"ledger\",cause=\"crash\"}";
  EXPECT_EQ(ValueOf(text, crashes), 0);
  ASSERT_TRUE((*worker)->process->Kill().ok());
  ASSERT_TRUE(cluster_->WaitUntilOwner((*standby)->id).ok());
  ASSERT_TRUE((*peer)->Settle().ok());
  const char* const dead = "baton_events_total{service=\"ledger\",kind=\"worker_dead\"}";
  EXPECT_TRUE(harness::WaitUntil("both to be counted", [&] {
                text = Scrape();
                return ValueOf(text, crashes) >= 2 && ValueOf(text, dead) >= 1;
              }).ok());
  EXPECT_EQ(ValueOf(text, crashes), 2) << text;
  EXPECT_EQ(ValueOf(text, dead), 1) << text;
}

TEST_F(MetricsTest, shouldLeaveTrafficAloneHoweverOftenTheyAreRead) {
  auto worker = cluster_->StartLedger(1);
  ASSERT_TRUE(worker.ok()) << worker.status();
  auto peer = cluster_->StartPeer(harness::SteadyLoad());
  ASSERT_TRUE(peer.ok()) << peer.status();
  std::atomic<bool> over{false};
  std::atomic<int> read{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!over) read += Scrape().find("baton_service_up") == std::string::npos ? 0 : 1;
    });
  }
  const auto often = harness::WaitUntil(
      "many readings", [&] { return read >= 300; }, std::chrono::seconds(60));
  const absl::Status settled = (*peer)->Settle();
  over = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_TRUE(often.ok()) << often;
  EXPECT_TRUE(settled.ok()) << settled;
  harness::ExpectNothingLost(**peer);
  EXPECT_TRUE(cluster_->OwnsAllShards((*worker)->id));
}

TEST_F(MetricsTest, shouldComeBackWithControl) {
  const auto status = cluster_->operators().GetStatus();
  ASSERT_TRUE(status.ok()) << status.status();
  const int former = status->control_pid();
  ASSERT_EQ(kill(former, SIGKILL), 0);
  ASSERT_TRUE(harness::WaitUntil("another control", [&] {
                const auto now = cluster_->operators().GetStatus();
                return now.ok() && now->control_pid() != former;
              }).ok());
  EXPECT_TRUE(harness::WaitUntil("its metrics", [&] {
                return ValueOf(Scrape(), "baton_service_up{service=\"ledger\"}") == 1;
              }).ok());
}

std::set<std::string> Matches(const std::string& text, const std::string& pattern, int group) {
  const std::regex regex(pattern);
  std::set<std::string> all;
  for (auto match = std::sregex_iterator(text.begin(), text.end(), regex);
       match != std::sregex_iterator(); ++match) {
    all.insert((*match)[group]);
  }
  return all;
}

// What is absent as long as a service is on a device without ports, has no connection, or nothing
// has happened yet.
const std::set<std::string> kSometimesThere = {"baton_device_port_up",
                                               "baton_device_rnr_total",
                                               "baton_device_retransmissions_total",
                                               "baton_device_congestion_total",
                                               "baton_certificate_expiry_timestamp_seconds",
                                               "baton_shard_receive_window"};

TEST_F(MetricsTest, shouldHaveWhatTheShippedRulesAndDashboardSpeakOf) {
  auto worker = cluster_->StartLedger(1);
  ASSERT_TRUE(worker.ok()) << worker.status();
  ASSERT_TRUE(cluster_->Handoff((*cluster_->StartLedger(1))->id).ok());
  std::set<std::string> there = Matches(Scrape(), "\n(baton_[a-z_]+)", 1);
  there.insert(kSometimesThere.begin(), kSometimesThere.end());
  const std::string rules = harness::ReadFile("deploy/prometheus/baton-rules.yaml");
  const std::string dashboard = harness::ReadFile("deploy/grafana/baton.json");
  for (const std::string& file : {rules, dashboard}) {
    const std::set<std::string> named = Matches(file, "baton_[a-z_]+", 0);
    EXPECT_GT(named.size(), 8u);
    for (const std::string& name : named) {
      EXPECT_EQ(there.count(name), 1u) << "there is no metric " << name;
    }
  }
  // Each rule says what to do.
  const size_t alerts = Matches(rules, "alert: ([A-Za-z]+)", 1).size();
  EXPECT_GE(alerts, 10u);
  EXPECT_EQ(Matches(rules, "\n +cure: (.*)", 1).size(), alerts);
  google::protobuf::Struct parsed;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(dashboard, &parsed).ok());
}

}  // namespace
}  // namespace baton

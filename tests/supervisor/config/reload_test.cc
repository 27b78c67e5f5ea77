// What a running Baton takes of a configuration that has changed.
#include "supervisor/config/reload.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "supervisor/config/config.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kBase[] =
    "state_dir: \"/run/b\" services { name: \"kv\" device { soft {} } }"
    " services { name: \"queue\" device { soft {} } }";
constexpr char kEndpoint[] =
    " operator_endpoint { address: \"127.0.0.1:9443\" certificate_file: \"/c\" key_file: \"/k\""
    " client_ca_file: \"/ca\" operators: \"alice\" }";

v1::Config Parse(const std::string& text) {
  auto config = ParseConfig(text, "conf");
  EXPECT_TRUE(config.ok()) << config.status();
  return *std::move(config);
}

bool Same(const google::protobuf::Message& a, const google::protobuf::Message& b) {
  return google::protobuf::util::MessageDifferencer::Equals(a, b);
}

std::vector<std::string> Refused(const TakenConfig& result) {
  std::vector<std::string> fields;
  for (const auto& refused : result.refused) fields.push_back(refused.field);
  return fields;
}

TEST(Reload, shouldTakeNothingOfWhatIsTheSame) {
  const v1::Config config = Parse(std::string(kBase) + kEndpoint);
  const TakenConfig result = TakeReloadable(config, config, false);
  EXPECT_TRUE(Same(result.config, config));
  EXPECT_THAT(result.taken, IsEmpty());
  EXPECT_THAT(Refused(result), IsEmpty());
}

TEST(Reload, shouldTakeWhoMayDoWhat) {
  const v1::Config wanted = Parse(std::string(kBase) +
                                  " operator_uids: 7 operator_gids: 8 viewer_uids: 9"
                                  " viewer_uids: 10 viewer_gids: 11");
  const TakenConfig result =
      TakeReloadable(Parse(std::string(kBase) + " operator_uids: 6 viewer_uids: 9"), wanted, false);
  EXPECT_TRUE(Same(result.config, wanted));
  EXPECT_THAT(result.taken,
              ElementsAre("operator_uids", "operator_gids", "viewer_uids", "viewer_gids"));
  EXPECT_THAT(Refused(result), IsEmpty());
}

TEST(Reload, shouldTakeOperatorsCertificatesAndRevocationLists) {
  const v1::Config wanted = Parse(
      std::string(kBase) +
      " operator_endpoint { address: \"127.0.0.1:9443\" certificate_file: \"/c2\" key_file: \"/k2\""
      " client_ca_file: \"/ca2\" crl_file: \"/crl\" viewers: \"alice\" }");
  const TakenConfig result = TakeReloadable(Parse(std::string(kBase) + kEndpoint), wanted, false);
  EXPECT_TRUE(Same(result.config, wanted));
  EXPECT_THAT(result.taken,
              ElementsAre("operator_endpoint.certificate_file", "operator_endpoint.key_file",
                          "operator_endpoint.client_ca_file", "operator_endpoint.operators",
                          "operator_endpoint.viewers", "operator_endpoint.crl_file"));
  EXPECT_THAT(Refused(result), IsEmpty());
}

constexpr char kChanged[] =
    "state_dir: \"/run/b\" services { name: \"kv\" device { soft {} } shards: 2"
    " policy { hot_standbys: 1 } } services { name: \"new\" device { soft {} } }";

TEST(Reload, shouldTakeNewServicesAndSayWhatWouldEndConnections) {
  const v1::Config running = Parse(kBase), wanted = Parse(kChanged);
  const TakenConfig result = TakeReloadable(running, wanted, /*disconnect=*/false);
  ASSERT_EQ(result.config.services_size(), 3);
  EXPECT_EQ(result.config.services(0).shards(), running.services(0).shards());
  EXPECT_TRUE(Same(result.config.services(2), wanted.services(1)));
  EXPECT_THAT(result.taken, ElementsAre("services[kv].policy", "services[new]"));
  EXPECT_THAT(result.added, ElementsAre("new"));
  EXPECT_THAT(result.removed, IsEmpty());
  EXPECT_THAT(result.changed, IsEmpty());
  EXPECT_THAT(result.live, ElementsAre("kv"));
  EXPECT_THAT(Refused(result), ElementsAre("services[kv].shards", "services[queue]"));
  for (const auto& refused : result.refused) {
    EXPECT_THAT(refused.why, HasSubstr("baton reload --disconnect"));
  }
  EXPECT_EQ(result.refused[0].ends_connections_of, "kv");
  EXPECT_EQ(result.refused[1].ends_connections_of, "queue");
}

TEST(Reload, shouldTakeWhatEndsConnectionsWhenItIsTold) {
  const v1::Config wanted = Parse(kChanged);
  const TakenConfig result = TakeReloadable(Parse(kBase), wanted, /*disconnect=*/true);
  EXPECT_TRUE(Same(result.config, wanted));
  EXPECT_THAT(result.added, ElementsAre("new"));
  EXPECT_THAT(result.removed, ElementsAre("queue"));
  EXPECT_THAT(result.changed, ElementsAre("kv"));
  EXPECT_THAT(Refused(result), IsEmpty());
}

// Each of these is a whole change. The keeper takes it while it runs, whether or not connections
// may end.
TEST(Reload, shouldHaveARunningKeeperTakeWhatItReadsWhenItNeedsIt) {
  for (const char* const change :
       {"policy { hot_standbys: 1 }", "worker_uids: 7", "listeners { port: 7471 }",
        "max_listeners: 9", "handoff_timeout_ms: 1", "hang_timeout_ms: 60000", "watch_window_ms: 1",
        "stop_timeout_ms: 1", "ready_timeout_ms: 1", "poison_deaths: 9",
        "state_decoder { program: \"/bin/cat\" }", "log_level: LOG_LEVEL_DEBUG"}) {
    SCOPED_TRACE(change);
    const v1::Config wanted =
        Parse(absl::StrCat("state_dir: \"/run/b\" services { name: \"kv\" device { soft {} } ",
                           change, " } services { name: \"queue\" device { soft {} } }"));
    for (const bool disconnect : {false, true}) {
      const TakenConfig result = TakeReloadable(Parse(kBase), wanted, disconnect);
      EXPECT_TRUE(Same(result.config, wanted));
      EXPECT_THAT(result.live, ElementsAre("kv"));
      EXPECT_THAT(result.changed, IsEmpty());
      EXPECT_THAT(Refused(result), IsEmpty());
      EXPECT_EQ(result.taken.size(), 1u);
    }
  }
}

// The file is in order: it has no huge_pages any more. The driver has them until it is replaced.
TEST(Reload, shouldLetNobodyElseIntoBuffersThatStayOnHugePages) {
  const std::string base = "state_dir: \"/run/b\" services { name: \"kv\" device { rdma {} } ";
  const v1::Config running = Parse(base + "huge_pages: HUGE_PAGES_2_MIB }");
  const v1::Config wanted = Parse(base + "worker_uids: 7 max_listeners: 9 }");
  const TakenConfig result = TakeReloadable(running, wanted, /*disconnect=*/false);
  EXPECT_THAT(Refused(result), ElementsAre("services[kv].worker_uids", "services[kv].huge_pages"));
  EXPECT_EQ(result.config.services(0).worker_uids_size(), 0);
  EXPECT_THAT(result.taken, ElementsAre("services[kv].max_listeners"));
  const TakenConfig anew = TakeReloadable(running, wanted, /*disconnect=*/true);
  EXPECT_TRUE(Same(anew.config, wanted));
  EXPECT_THAT(anew.changed, ElementsAre("kv"));
}

// All other fields, by what they are called, so that a new one is thought about.
TEST(Reload, shouldNeedAnotherKeeperForTheOtherFieldsOfAService) {
  const ServiceChange change = CompareService(
      Parse(kBase).services(0),
      Parse("state_dir: \"/run/b\" services { name: \"kv\" device { rdma {} } shards: 2"
            " max_connections: 4 send_queue_depth: 2 receive_queue_depth: 2"
            " connection_state_bytes: 8 shard_state_bytes: 8 buffer_bytes: 4096 max_workers: 2"
            " outside_effects: true realtime_priority: 1 heartbeat_ms: 10 max_inline_bytes: 8"
            " shared_receive_queue_depth: 2 network_namespace: \"n\" dump_buffers: true"
            " huge_pages: HUGE_PAGES_2_MIB placement { numa_node: 0 } log: \"journal\""
            " shard_heap_bytes: 4096 }")
          .services(0));
  EXPECT_THAT(change.taken, IsEmpty());
  EXPECT_THAT(change.refused,
              ::testing::UnorderedElementsAre(
                  "device", "shards", "max_connections", "send_queue_depth", "receive_queue_depth",
                  "connection_state_bytes", "shard_state_bytes", "buffer_bytes", "max_workers",
                  "outside_effects", "realtime_priority", "heartbeat_ms", "max_inline_bytes",
                  "shared_receive_queue_depth", "network_namespace", "dump_buffers", "huge_pages",
                  "placement", "log", "shard_heap_bytes", "broker_processes"));
  EXPECT_TRUE(Same(change.config, Parse(kBase).services(0)));
}

// Native workers count deaths by what they were started with.
TEST(Reload, shouldNeedAnotherKeeperForThePoisonDeathsOfANativeService) {
  v1::ServiceConfig running = Parse(kBase).services(0);
  running.set_mode(v1::NATIVE);
  v1::ServiceConfig wanted = running;
  wanted.set_poison_deaths(9);
  EXPECT_THAT(CompareService(running, wanted).refused, ElementsAre("poison_deaths"));
}

TEST(Reload, shouldTellEveryKeeperWhoIsDistrusted) {
  v1::Config wanted = Parse(kChanged);
  wanted.set_distrust_contained_root(true);
  const TakenConfig result = TakeReloadable(Parse(kBase), wanted, /*disconnect=*/false);
  EXPECT_TRUE(result.config.distrust_contained_root());
  EXPECT_THAT(result.live, ElementsAre("kv", "queue"));
}

TEST(Reload, shouldAskAKeeperAgainUnlessAnotherDriverIsStarted) {
  const v1::Config wanted =
      Parse(std::string(kBase) + " services { name: \"third\" device { soft {} } }");
  TakenConfig result = TakeReloadable(Parse(kBase), wanted, /*disconnect=*/false);
  for (const char* service : {"queue", "queue", "third", "gone"}) AddLive(service, &result);
  EXPECT_THAT(result.live, ElementsAre("queue"));
}

TEST(Reload, shouldRestartControlForWhatItReadsWhenItStarts) {
  const v1::Config running = Parse(std::string(kBase) + kEndpoint);
  v1::Config wanted = running;
  wanted.set_metrics_address("127.0.0.1:9464");
  wanted.mutable_operator_endpoint()->set_address("127.0.0.1:9444");
  wanted.mutable_operator_endpoint()->add_viewers("carol");
  const TakenConfig result = TakeReloadable(running, wanted, false);
  EXPECT_TRUE(Same(result.config, wanted));
  EXPECT_THAT(result.taken, ElementsAre("metrics_address", "operator_endpoint.address",
                                        "operator_endpoint.viewers"));
}

TEST(Reload, shouldLeaveWhatEveryProcessReadsWhenItStarts) {
  const v1::Config running = Parse(kBase);
  v1::Config wanted = running;
  wanted.set_state_dir("/run/c");
  wanted.set_log_format(v1::JSON);
  const TakenConfig result = TakeReloadable(running, wanted, true);
  EXPECT_TRUE(Same(result.config, running));
  EXPECT_THAT(Refused(result), ElementsAre("state_dir", "log_format"));
}

TEST(Reload, shouldOpenAndCloseTheEndpoint) {
  const v1::Config with = Parse(std::string(kBase) + kEndpoint);
  const v1::Config without = Parse(kBase);
  for (const auto& [from, to] : {std::pair(&with, &without), std::pair(&without, &with)}) {
    const TakenConfig result = TakeReloadable(*from, *to, false);
    EXPECT_TRUE(Same(result.config, *to));
  }
}

}  // namespace
}  // namespace baton

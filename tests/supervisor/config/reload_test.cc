// What a running Baton takes of a configuration that has changed.
#include "supervisor/config/reload.h"

#include <string>
#include <utility>
#include <vector>

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
  EXPECT_TRUE(Same(result.config.services(0), running.services(0)));
  EXPECT_TRUE(Same(result.config.services(2), wanted.services(1)));
  EXPECT_THAT(result.taken, ElementsAre("services[new]"));
  EXPECT_THAT(result.added, ElementsAre("new"));
  EXPECT_THAT(result.removed, IsEmpty());
  EXPECT_THAT(result.changed, IsEmpty());
  EXPECT_TRUE(result.restarts_control);
  EXPECT_THAT(Refused(result),
              ElementsAre("services[kv].shards", "services[kv].policy", "services[queue]"));
  for (const auto& refused : result.refused) {
    EXPECT_THAT(refused.why, HasSubstr("baton reload --disconnect"));
  }
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

// The keeper can take it without an end to anything.
TEST(Reload, shouldEndNoConnectionForAPolicy) {
  v1::Config wanted = Parse(kBase);
  wanted.mutable_services(0)->mutable_policy()->set_hot_standbys(1);
  const TakenConfig result = TakeReloadable(Parse(kBase), wanted, /*disconnect=*/true);
  EXPECT_THAT(result.changed, IsEmpty());
  ASSERT_THAT(Refused(result), ElementsAre("services[kv].policy"));
  EXPECT_THAT(result.refused[0].why, HasSubstr("baton service policy kv --set"));
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
  EXPECT_TRUE(result.restarts_control);
}

TEST(Reload, shouldLeaveWhatEveryProcessReadsWhenItStarts) {
  const v1::Config running = Parse(kBase);
  v1::Config wanted = running;
  wanted.set_state_dir("/run/c");
  wanted.set_log_format(v1::JSON);
  const TakenConfig result = TakeReloadable(running, wanted, true);
  EXPECT_TRUE(Same(result.config, running));
  EXPECT_THAT(Refused(result), ElementsAre("state_dir", "log_format"));
  EXPECT_FALSE(result.restarts_control);
}

TEST(Reload, shouldOpenAndCloseTheEndpoint) {
  const v1::Config with = Parse(std::string(kBase) + kEndpoint);
  const v1::Config without = Parse(kBase);
  for (const auto& [from, to] : {std::pair(&with, &without), std::pair(&without, &with)}) {
    const TakenConfig result = TakeReloadable(*from, *to, false);
    EXPECT_TRUE(Same(result.config, *to));
    EXPECT_TRUE(result.restarts_control);
  }
}

}  // namespace
}  // namespace baton

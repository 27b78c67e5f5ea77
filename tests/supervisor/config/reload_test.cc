// What a running Baton takes of a configuration that has changed.
#include "supervisor/config/reload.h"

#include <string>
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

bool Same(const v1::Config& a, const v1::Config& b) {
  return google::protobuf::util::MessageDifferencer::Equals(a, b);
}

std::vector<std::string> Refused(const TakenConfig& result) {
  std::vector<std::string> fields;
  for (const auto& refused : result.refused) fields.push_back(refused.field);
  return fields;
}

TEST(Reload, shouldTakeNothingOfWhatIsTheSame) {
  const v1::Config config = Parse(std::string(kBase) + kEndpoint);
  const TakenConfig result = TakeReloadable(config, config);
  EXPECT_TRUE(Same(result.config, config));
  EXPECT_THAT(result.taken, IsEmpty());
  EXPECT_THAT(Refused(result), IsEmpty());
}

TEST(Reload, shouldTakeWhoMayDoWhat) {
  const v1::Config wanted = Parse(std::string(kBase) +
                                  " operator_uids: 7 operator_gids: 8 viewer_uids: 9"
                                  " viewer_uids: 10 viewer_gids: 11");
  const TakenConfig result =
      TakeReloadable(Parse(std::string(kBase) + " operator_uids: 6 viewer_uids: 9"), wanted);
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
  const TakenConfig result = TakeReloadable(Parse(std::string(kBase) + kEndpoint), wanted);
  EXPECT_TRUE(Same(result.config, wanted));
  EXPECT_THAT(result.taken,
              ElementsAre("operator_endpoint.certificate_file", "operator_endpoint.key_file",
                          "operator_endpoint.client_ca_file", "operator_endpoint.operators",
                          "operator_endpoint.viewers", "operator_endpoint.crl_file"));
  EXPECT_THAT(Refused(result), IsEmpty());
}

TEST(Reload, shouldSayWhatOfServicesItLeavesAsItIsAndWhy) {
  const v1::Config running = Parse(kBase);
  const TakenConfig result = TakeReloadable(
      running,
      Parse("state_dir: \"/run/b\" services { name: \"kv\" device { soft {} } shards: 2"
            " policy { hot_standbys: 1 } } services { name: \"new\" device { soft {} } }"));
  EXPECT_TRUE(Same(result.config, running));
  EXPECT_THAT(result.taken, IsEmpty());
  EXPECT_THAT(Refused(result), ElementsAre("services[kv].shards", "services[kv].policy",
                                           "services[queue]", "services[new]"));
  EXPECT_THAT(result.refused[0].why, HasSubstr("restart batond"));
  EXPECT_THAT(result.refused[1].why, HasSubstr("baton service policy kv --set"));
}

TEST(Reload, shouldLeaveAddressesAndTheStateDirectory) {
  const v1::Config running = Parse(std::string(kBase) + kEndpoint);
  v1::Config wanted = running;
  wanted.set_state_dir("/run/c");
  wanted.set_metrics_address("127.0.0.1:9464");
  wanted.set_log_format(v1::JSON);
  wanted.mutable_operator_endpoint()->set_address("127.0.0.1:9444");
  wanted.mutable_operator_endpoint()->add_viewers("carol");
  const TakenConfig result = TakeReloadable(running, wanted);
  EXPECT_EQ(result.config.state_dir(), "/run/b");
  EXPECT_EQ(result.config.operator_endpoint().address(), "127.0.0.1:9443");
  EXPECT_THAT(result.taken, ElementsAre("operator_endpoint.viewers"));
  EXPECT_THAT(Refused(result), ElementsAre("state_dir", "metrics_address",
                                           "operator_endpoint.address", "log_format"));
}

TEST(Reload, shouldNeitherOpenNorCloseTheEndpoint) {
  const v1::Config with = Parse(std::string(kBase) + kEndpoint);
  const v1::Config without = Parse(kBase);
  EXPECT_TRUE(Same(TakeReloadable(with, without).config, with));
  EXPECT_THAT(Refused(TakeReloadable(with, without)), ElementsAre("operator_endpoint"));
  EXPECT_TRUE(Same(TakeReloadable(without, with).config, without));
  EXPECT_THAT(Refused(TakeReloadable(without, with)), ElementsAre("operator_endpoint"));
}

}  // namespace
}  // namespace baton

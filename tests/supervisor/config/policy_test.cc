#include "supervisor/config/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "lib/driver/device_needs.h"
#include "supervisor/config/config.h"
#include "supervisor/config/shape.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

v1::Policy Policy(const std::string& text) {
  const absl::StatusOr<v1::Policy> policy = ParsePolicy(text, "policy");
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *policy;
}

v1::ServiceConfig Brokered() {
  v1::Config config;
  config.set_state_dir("/run/baton");
  v1::ServiceConfig& service = *config.add_services();
  service.set_name("kv");
  service.mutable_device()->mutable_soft();
  EXPECT_TRUE(CompleteConfig(config).ok());
  return config.services(0);
}

v1::ServiceConfig Native() {
  v1::ServiceConfig service = Brokered();
  service.set_mode(v1::NATIVE);
  service.mutable_native()->set_workers(2);
  return service;
}

std::string PolicyProblemOf(const std::string& text,
                            const v1::ServiceConfig& service = Brokered()) {
  v1::Policy policy = Policy(text);
  const absl::Status status = CompletePolicy(policy, service);
  return status.ok() ? "valid" : std::string(status.message());
}

TEST(PolicyTest, ShouldTakeWhatTheServiceHas) {
  EXPECT_EQ(PolicyProblemOf(""), "valid");
  EXPECT_EQ(
      PolicyProblemOf("service { connections: 64 listeners: 8 grants: 320 granted_bytes: 16777216 "
                      "posts_per_second: 1000 } worker { connections: 64 posts_per_second: 1000 } "
                      "gids: \"10.0.0.1\" gids: \"fe80::1\" p_keys: 65535 p_keys: 1 "
                      "service_levels: 0 service_levels: 15 listen_ports { first: 1 last: 65535 } "
                      "connect_ports { first: 80 } hot_standbys: 15 on_hang: ON_HANG_REPORT "
                      "on_keeper_hang: ON_KEEPER_HANG_RESTART workers_may_take_over: true"),
      "valid");
}

TEST(PolicyTest, ShouldNameEveryFieldThatIsWrong) {
  const std::string problems = PolicyProblemOf("service { connections: 65 } hot_standbys: 16");
  EXPECT_THAT(problems,
              HasSubstr("policy.service.connections: 65 is more than max_connections, 64"));
  EXPECT_THAT(problems, HasSubstr("policy.hot_standbys: 16 "));
}

TEST(PolicyTest, ShouldRefuseMoreThanTheServiceHas) {
  for (const auto& [text, problem] : std::vector<std::pair<const char*, const char*>>{
           {"service { listeners: 9 }", "policy.service.listeners: 9 is more than max_listeners"},
           {"worker { grants: 321 }", "policy.worker.grants: 321"},
           {"worker { descriptors: 257 }", "policy.worker.descriptors: 257 is more than a driver "},
           {"service { descriptors: 4 } worker { descriptors: 5 }",
            "policy.worker.descriptors: 5 is more than policy.service.descriptors, 4"},
           {"service { grants: 4 } worker { grants: 5 }",
            "policy.worker.grants: 5 is more than policy.service.grants, 4"},
           {"service { posts_per_second: 4 } worker { posts_per_second: 5 }",
            "policy.worker.posts_per_second: 5 is more than"}}) {
    EXPECT_THAT(PolicyProblemOf(text), StartsWith(problem)) << text;
  }
}

TEST(PolicyTest, ShouldRefuseWhatIsNone) {
  for (const auto& [text, problem] : std::vector<std::pair<const char*, const char*>>{
           {"gids: \"eth0\"", "policy.gids: \"eth0\" is no IPv4"},
           {"p_keys: 65536", "policy.p_keys: 65536 is no P_Key"},
           {"p_keys: 32768", "policy.p_keys: 32768 is no P_Key"},
           {"service_levels: 16", "policy.service_levels: 16 is not between"},
           {"listen_ports { last: 7 }", "policy.listen_ports[0].first: 0 is not between"},
           {"connect_ports { first: 1 } connect_ports { first: 9 last: 8 }",
            "policy.connect_ports[1].last: 8 is not between"}}) {
    EXPECT_THAT(PolicyProblemOf(text), StartsWith(problem)) << text;
  }
  std::string many;
  for (int i = 1; i <= 65; ++i) absl::StrAppend(&many, "p_keys: ", i, " ");
  EXPECT_THAT(PolicyProblemOf(many), StartsWith("policy.p_keys: has 65 entries, at most 64"));
  v1::Policy policy;
  policy.set_on_hang(static_cast<v1::OnHang>(7));
  EXPECT_THAT(std::string(CompletePolicy(policy, Brokered()).message()),
              StartsWith("policy.on_hang: "));
  policy.clear_on_hang();
  policy.set_on_keeper_hang(static_cast<v1::OnKeeperHang>(7));
  EXPECT_THAT(std::string(CompletePolicy(policy, Brokered()).message()),
              StartsWith("policy.on_keeper_hang: "));
}

TEST(PolicyTest, ShouldKeepApartWhatIsForBrokeredAndForNativeServices) {
  EXPECT_THAT(PolicyProblemOf("service { posts_per_second: 1 }", Native()),
              StartsWith("policy.service.posts_per_second: is for mode BROKERED"));
  EXPECT_THAT(PolicyProblemOf("worker { posts_per_second: 1 }", Native()),
              StartsWith("policy.worker.posts_per_second: is for mode BROKERED"));
  EXPECT_EQ(PolicyProblemOf("restart { first_delay_ms: 20 } hot_standbys: 1"), "valid");
  EXPECT_EQ(PolicyProblemOf("restart { first_delay_ms: 20 } hot_standbys: 1", Native()), "valid");
  EXPECT_THAT(PolicyProblemOf("workers_may_take_over: true", Native()),
              HasSubstr("policy.workers_may_take_over: is for mode BROKERED"));
  EXPECT_THAT(PolicyProblemOf("restart { first_delay_ms: 20 max_delay_ms: 19 }", Native()),
              StartsWith("policy.restart.max_delay_ms: 19 is not between 20"));
  EXPECT_THAT(PolicyProblemOf("hot_standbys: 2", Native()),
              HasSubstr("more than native.workers, 2, keeps running"));
}

TEST(PolicyTest, ShouldRefuseFewerObjectsThanTheServiceIsMadeWith) {
  v1::ServiceConfig service = Brokered();
  service.set_shards(4);
  const uint64_t bytes = driver::NeedsOf(ShapeOf(service)).registered_bytes;
  EXPECT_EQ(PolicyProblemOf(
                absl::StrCat("service { queue_pairs: 1 completion_queues: 4 registered_bytes: ",
                             bytes, " }"),
                service),
            "valid");
  EXPECT_EQ(PolicyProblemOf("service { completion_queues: 3 }", service),
            "policy.service.completion_queues: 3 is less than 4, one for each shard, which the "
            "service is made with; raise it, or lower shards");
  EXPECT_EQ(PolicyProblemOf(absl::StrCat("service { registered_bytes: ", bytes - 1, " }"), service),
            absl::StrCat("policy.service.registered_bytes: ", bytes - 1, " is less than ", bytes,
                         ", its buffers, its heaps and the buffers of a recovery, which the "
                         "service is made with; raise it, or lower buffer_bytes or "
                         "shard_heap_bytes"));
  service = Native();
  service.set_shards(4);
  service.mutable_native()->set_queue_pairs_per_shard(10);
  EXPECT_EQ(PolicyProblemOf("service { queue_pairs: 40 }", service), "valid");
  EXPECT_THAT(PolicyProblemOf("service { queue_pairs: 39 }", service),
              StartsWith("policy.service.queue_pairs: 39 is less than 40, the pools of its shards, "
                         "which the service is made with; raise it, or lower "
                         "native.queue_pairs_per_shard"));
}

TEST(PolicyTest, ShouldHaveNoQuotaOfObjectsOfAWorker) {
  EXPECT_THAT(PolicyProblemOf("worker { queue_pairs: 9 }"),
              AllOf(StartsWith("policy.worker.queue_pairs: "), HasSubstr("set connections")));
  EXPECT_THAT(
      PolicyProblemOf("worker { completion_queues: 9 }"),
      AllOf(StartsWith("policy.worker.completion_queues: "), HasSubstr("without an owner")));
  EXPECT_THAT(PolicyProblemOf("worker { registered_bytes: 99999999 }"),
              AllOf(StartsWith("policy.worker.registered_bytes: "), HasSubstr("granted_bytes")));
}

// Regions are memory of the workers' own.
TEST(PolicyTest, ShouldTakeMoreGrantedBytesThanTheBuffersHave) {
  EXPECT_EQ(PolicyProblemOf("service { granted_bytes: 70368744177664 }"), "valid");
}

// The error tells what is wrong with the shape of the service, and nothing that follows from it.
TEST(PolicyTest, ShouldNotMeasureAServiceThatCannotBe) {
  const auto config = ParseConfig(
      "state_dir: \"/run/baton\"\nservices {\n name: \"kv\" device { soft {} } shards: 4294967295\n"
      " buffer_bytes: 18446744073709551615 policy { service { completion_queues: 1 "
      "registered_bytes: 1 } } }",
      "baton.conf");
  EXPECT_THAT(std::string(config.status().message()),
              AllOf(HasSubstr("shards: 4294967295 is not"), Not(HasSubstr("policy"))));
}

TEST(PolicyTest, ShouldFillInTheDefaults) {
  v1::Policy policy = Policy("restart { first_delay_ms: 6000 } listen_ports { first: 7000 }");
  ASSERT_TRUE(CompletePolicy(policy, Native()).ok());
  EXPECT_EQ(policy.restart().max_delay_ms(), 6000u);
  EXPECT_EQ(policy.listen_ports(0).last(), 7000u);
  policy = Policy("restart {}");
  ASSERT_TRUE(CompletePolicy(policy, Native()).ok());
  EXPECT_EQ(policy.restart().first_delay_ms(), 10u);
  EXPECT_EQ(policy.restart().max_delay_ms(), 5000u);
}

// The error tells the place of a wrong value, and that of a wrong word.
TEST(PolicyTest, ShouldSayWhereTheConfigurationIsWrong) {
  const auto config = ParseConfig(
      "state_dir: \"/run/baton\"\nservices {\n name: \"kv\" device { soft {} }\n policy {\n"
      "  service {\n   connections: 65 } } }",
      "baton.conf");
  EXPECT_EQ(std::string(config.status().message()),
            "baton.conf:6:4: services[0].policy.service.connections: 65 is more than "
            "max_connections, 64");
  EXPECT_THAT(std::string(ParsePolicy("service {\n conections: 1 }", "p.txt").status().message()),
              StartsWith("p.txt:2:"));
  EXPECT_THAT(std::string(LoadPolicy("/nonexistent/policy").status().message()),
              StartsWith("cannot read the policy /nonexistent/policy: "));
}

}  // namespace
}  // namespace baton

#include "supervisor/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "supervisor/config/shape.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The smallest configuration, with `extra` in its service and `top` beside it.
std::string With(const std::string& extra, const std::string& top = "") {
  return absl::StrCat("state_dir: \"/run/baton\"\n", top,
                      "services {\n  name: \"kv\"\n  device { soft {} }\n  ", extra, "\n}\n");
}

std::string ProblemOf(const std::string& text) {
  const absl::StatusOr<v1::Config> config = ParseConfig(text, "baton.conf");
  return config.ok() ? "valid" : std::string(config.status().message());
}

TEST(ConfigTest, FillsInEveryDefault) {
  const absl::StatusOr<v1::Config> config = ParseConfig(With("listeners {}"), "baton.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  const v1::ServiceConfig& service = config->services(0);
  EXPECT_EQ(service.shards(), 1u);
  EXPECT_EQ(service.max_connections(), 64u);
  EXPECT_EQ(service.send_queue_depth(), 64u);
  EXPECT_EQ(service.receive_queue_depth(), 64u);
  EXPECT_EQ(service.shared_receive_queue_depth(), 0u);
  EXPECT_EQ(service.connection_state_bytes(), 256u);
  EXPECT_EQ(service.shard_state_bytes(), 4096u);
  EXPECT_EQ(service.buffer_bytes(), 16u << 20);
  EXPECT_EQ(service.shard_heap_bytes(), 0u);
  EXPECT_EQ(service.max_workers(), 16u);
  EXPECT_EQ(service.max_listeners(), 8u);
  EXPECT_EQ(service.handoff_timeout_ms(), 5000u);
  EXPECT_EQ(service.poison_deaths(), 3u);
  EXPECT_EQ(service.listeners(0).host(), "0.0.0.0");
  EXPECT_EQ(service.listeners(0).port(), 0u);
}

// A program that is started for an upgrade maps the arena, a keeper fills it.
TEST(ConfigTest, GivesALargeArenaTimeToBeMapped) {
  const auto config = ParseConfig(With("buffer_bytes: 1099511627776"), "baton.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->services(0).ready_timeout_ms(), 30'000u + 1024 * 4'000);
  EXPECT_EQ(StartTimeout(config->services(0), std::chrono::seconds(30)).count(),
            30'000 + 1024 * 4'000);
  const auto told =
      ParseConfig(With("buffer_bytes: 1099511627776 ready_timeout_ms: 500"), "baton.conf");
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->services(0).ready_timeout_ms(), 500u);
}

TEST(ConfigTest, CountsTheLogsOfAnArenaToo) {
  const auto config = ParseConfig(With("max_connections: 131072 send_queue_depth: 1024 "
                                       "receive_queue_depth: 1024"),
                                  "baton.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  // 32 GiB of work requests, and what else there is.
  EXPECT_GT(config->services(0).ready_timeout_ms(), 30'000u + 32 * 4'000);
}

TEST(ConfigTest, KeepsWhatWasGiven) {
  const absl::StatusOr<v1::Config> config = ParseConfig(
      With("shards: 64 max_connections: 131072 send_queue_depth: 4096 receive_queue_depth: 1 "
           "buffer_bytes: 1099511627776 listeners { host: \"::1\" port: 65535 } worker_uids: 7 "
           "poison_deaths: 4294967295 shared_receive_queue_depth: 4096"),
      "baton.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  const v1::ServiceConfig& service = config->services(0);
  EXPECT_EQ(service.shards(), 64u);
  EXPECT_EQ(service.max_connections(), 131072u);
  EXPECT_EQ(service.send_queue_depth(), 4096u);
  EXPECT_EQ(service.receive_queue_depth(), 1u);
  EXPECT_EQ(service.buffer_bytes(), uint64_t{1} << 40);
  EXPECT_EQ(service.listeners(0).host(), "::1");
  EXPECT_EQ(service.worker_uids(0), 7u);
  EXPECT_EQ(service.poison_deaths(), UINT32_MAX);
  EXPECT_EQ(service.shared_receive_queue_depth(), 4096u);
}

// The first GID of a port has the index 0.
TEST(ConfigTest, KeepsAGidIndexOfZeroApartFromNone) {
  const auto parse = [](const std::string& rdma) {
    const std::string service = "services { name: \"kv\" device { rdma { " + rdma + " } } }";
    return ParseConfig("state_dir: \"/s\" " + service, "baton.conf");
  };
  const absl::StatusOr<v1::Config> none = parse("device: \"rxe0\"");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->services(0).device().rdma().has_gid_index());
  const absl::StatusOr<v1::Config> first = parse("gid_index: 0");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->services(0).device().rdma().has_gid_index());
  const absl::StatusOr<v1::Config> last = parse("gid_index: 255");
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->services(0).device().rdma().gid_index(), 255u);
}

// A native service, whose workers' user is given unless `native` is about that.
std::string Native(const std::string& native, const std::string& more = "",
                   const std::string& device = "rdma") {
  const bool has_identity = native.find("id: ") != std::string::npos;
  return "state_dir: \"/s\" services { name: \"kv\" mode: NATIVE native { " + native +
         (has_identity ? "" : " uid: 7 gid: 7") + " } device { " + device + " {} } " + more + " }";
}

TEST(ConfigTest, KnowsHowManyQueuePairsANativeServiceNeeds) {
  const auto parse = [](const std::string& native, const std::string& more,
                        const std::string& device = "soft") {
    const absl::StatusOr<v1::Config> config =
        ParseConfig(Native("object: \"/s.so\" " + native, more, device), "baton.conf");
    EXPECT_TRUE(config.ok()) << config.status();
    return config->services(0).native();
  };
  EXPECT_EQ(parse("", "").workers(), 2u);
  EXPECT_EQ(parse("", "").queue_pairs_per_shard(), 80u);  // 64 connections, and a quarter
  EXPECT_EQ(parse("", "shards: 4").queue_pairs_per_shard(), 20u);
  EXPECT_EQ(parse("", "max_connections: 2").queue_pairs_per_shard(), 8u);
  // And as many that rest after their connections.
  EXPECT_EQ(parse("", "", "rdma").queue_pairs_per_shard(), 144u);
  EXPECT_EQ(parse("", "shards: 4", "rdma").queue_pairs_per_shard(), 36u);
  EXPECT_EQ(parse("", "max_connections: 131072", "rdma").queue_pairs_per_shard(), 131'072u);
  EXPECT_EQ(parse("queue_pairs_per_shard: 7", "").queue_pairs_per_shard(), 7u);
  EXPECT_EQ(parse("", "max_workers: 1").workers(), 1u);
}

v1::ServiceConfig ServiceOn(const std::string& device, const std::string& fields) {
  const absl::StatusOr<v1::Config> config =
      ParseConfig(absl::StrCat("state_dir: \"/s\" services { name: \"a\" device { ", device,
                               " {} } ", fields, " }"),
                  "baton.conf");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? config->services(0) : v1::ServiceConfig();
}

TEST(ConfigTest, MakesQueuePairsForBrokersInAdvance) {
  const auto pools = [](const std::string& device, const std::string& fields) {
    return ShapeOf(ServiceOn(device, fields)).brokered_queue_pairs;
  };
  EXPECT_EQ(pools("soft", "max_connections: 100 shards: 4"), 100u);
  EXPECT_EQ(pools("soft", "max_connections: 4096 shards: 4"), 1280u);
  // Soft-RoCE's queue pairs rest after their connections.
  EXPECT_EQ(pools("rdma", "max_connections: 100 shards: 4"), 256u);
  EXPECT_EQ(pools("rdma", "max_connections: 1000 shards: 1"), 2000u);
  EXPECT_EQ(pools("rdma", "max_connections: 4096 shards: 4"), 2304u);
  EXPECT_EQ(pools("rdma", "max_connections: 131072"), arena::kMaxConnections);
  // Otherwise they are made when they are taken.
  EXPECT_EQ(pools("rdma", "max_connections: 100 shards: 4 broker_processes: false"), 100u);
}

// The driver asks a device whether forked processes can use it.
TEST(ConfigTest, LeavesItToAnRdmaDeviceWhetherBrokersDrive) {
  const auto brokers = [](const std::string& device, const std::string& fields) {
    const v1::ServiceConfig service = ServiceOn(device, fields);
    return service.has_broker_processes() ? std::optional<bool>(service.broker_processes())
                                          : std::nullopt;
  };
  EXPECT_EQ(brokers("soft", ""), true);
  EXPECT_EQ(brokers("rdma", ""), std::nullopt);
  EXPECT_EQ(brokers("rdma", "broker_processes: true"), true);
  EXPECT_EQ(brokers("rdma", "mode: NATIVE native { object: \"/o.so\" uid: 0 gid: 0 }"), false);
}

TEST(ConfigTest, LetsNativeServicesShareReceives) {
  const absl::StatusOr<v1::Config> config =
      ParseConfig(Native("object: \"/s.so\"", "shared_receive_queue_depth: 64"), "baton.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  const arena::Shape shape = ShapeOf(config->services(0));
  EXPECT_TRUE(arena::IsNative(shape));
  EXPECT_EQ(shape.shared_receive_queue_depth, 64u);
  EXPECT_TRUE(arena::ValidateShape(shape).ok());
}

TEST(ConfigTest, LeavesBuffersOutOfCoreDumpsUnlessItSaysSo) {
  for (const bool asked : {false, true}) {
    const absl::StatusOr<v1::Config> config =
        ParseConfig(Native("object: \"/s.so\"", asked ? "dump_buffers: true" : ""), "baton.conf");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(ShapeOf(config->services(0)).dump_buffers, asked ? 1u : 0u);
  }
}

// The application divides up buffer_bytes, whatever the heaps behind them take.
TEST(ConfigTest, AddsAHeapForEachShardToTheBuffers) {
  const auto shape_of = [](const std::string& extra) {
    const absl::StatusOr<v1::Config> config = ParseConfig(With(extra), "baton.conf");
    EXPECT_TRUE(config.ok()) << config.status();
    return ShapeOf(config->services(0));
  };
  const arena::Shape none = shape_of("shards: 4 buffer_bytes: 65536");
  EXPECT_EQ(none.heap_pages, 0u);
  EXPECT_EQ(none.buffer_bytes, 65536u);
  const arena::Shape shape = shape_of("shards: 4 buffer_bytes: 65536 shard_heap_bytes: 8193");
  EXPECT_EQ(shape.heap_pages, 3u);
  EXPECT_EQ(shape.buffer_bytes, 65536u + 4 * 3 * 4096);
  EXPECT_EQ(arena::HeapOffset(shape, 0), 65536u);
  EXPECT_TRUE(arena::ValidateShape(shape).ok());
  const arena::Shape largest =
      shape_of("shards: 15 buffer_bytes: 4096 shard_heap_bytes: 68719476736");
  EXPECT_TRUE(arena::ValidateShape(largest).ok());
}

TEST(ConfigTest, RoundsBuffersUpToTheHugePagesThatTheyAreOn) {
  const auto buffer_bytes = [](const std::string& pages) {
    const absl::StatusOr<v1::Config> config =
        ParseConfig(Native("object: \"/s.so\"",
                           "worker_uids: 7 buffer_bytes: 4096 shard_heap_bytes: 4096 " + pages),
                    "baton.conf");
    EXPECT_TRUE(config.ok()) << config.status();
    const arena::Shape shape = ShapeOf(config->services(0));
    EXPECT_TRUE(arena::ValidateShape(shape).ok());
    return shape.buffer_bytes;
  };
  EXPECT_EQ(buffer_bytes(""), 8192u);
  EXPECT_EQ(buffer_bytes("huge_pages: HUGE_PAGES_2_MIB"), uint64_t{2} << 20);
  EXPECT_EQ(buffer_bytes("huge_pages: HUGE_PAGES_1_GIB"), uint64_t{1} << 30);
}

struct BadConfig {
  const char* what;
  std::string text;
  std::string problem;  // whole
};

void PrintTo(const BadConfig& bad, std::ostream* out) { *out << bad.what; }

class BadConfigTest : public testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigTest, IsRefusedWithPlaceNameAndCure) {
  EXPECT_EQ(ProblemOf(GetParam().text), GetParam().problem);
}

const std::string kLongDir = "/" + std::string(100, 'd');

INSTANTIATE_TEST_SUITE_P(
    Values, BadConfigTest,
    testing::Values(
        BadConfig{"UnknownField", With("shardz: 3"),
                  "baton.conf:5:9: Message type \"baton.v1.ServiceConfig\" has no field named "
                  "\"shardz\"."},
        BadConfig{"UnknownTopField", With("", "state: 1\n"),
                  "baton.conf:2:6: Message type \"baton.v1.Config\" has no field named \"state\"."},
        BadConfig{"NotANumber", With("shards: many"),
                  "baton.conf:5:11: Expected integer, got: many"},
        BadConfig{"Negative", With("shards: -1"), "baton.conf:5:11: Expected integer, got: -"},
        BadConfig{"GivenTwice", With("shards: 1 shards: 2"),
                  "baton.conf:5:19: Non-repeated field \"shards\" is specified multiple times."},
        BadConfig{"TwoDevices", With("device { soft {} }"),
                  "baton.conf:5:10: Non-repeated field \"device\" is specified multiple times."},
        BadConfig{"NoDevice", "state_dir: \"/s\" services { name: \"kv\" }",
                  "baton.conf: services[0].device: is missing; a service has exactly one, for "
                  "example device { soft {} }"},
        BadConfig{"EmptyDevice", "state_dir: \"/s\" services { name: \"kv\" device {} }",
                  "baton.conf:1:39: services[0].device: is missing; a service has exactly one, for "
                  "example device { soft {} }"},
        BadConfig{"NoServices", "state_dir: \"/s\"",
                  "baton.conf: services: is missing; name at least one service, for example "
                  "services { name: \"kv\" device { soft {} } }"},
        BadConfig{"NoStateDir", "services { name: \"kv\" device { soft {} } }",
                  "baton.conf: state_dir: is missing; name a directory for sockets, for example "
                  "state_dir: \"/run/baton\""},
        BadConfig{"RelativeStateDir",
                  "state_dir: \"run\" services { name: \"kv\" device { soft {} } }",
                  "baton.conf:1:1: state_dir: \"run\" is not an absolute path; start it with /"},
        BadConfig{"LongStateDir",
                  "state_dir: \"" + kLongDir + "\" services { name: \"kv\" device { soft {} } }",
                  "baton.conf:1:1: state_dir: the socket " + kLongDir +
                      "/kv.keeper.sock would have 116 bytes, UNIX sockets take at most 107; use a "
                      "state_dir that is 9 bytes shorter"},
        BadConfig{"NoName", "state_dir: \"/s\" services { device { soft {} } }",
                  "baton.conf: services[0].name: \"\" is not a name; use 1 to 32 of a-z, 0-9 and "
                  "-"},
        BadConfig{
            "NamePattern", "state_dir: \"/s\" services { name: \"Kv\" device { soft {} } }",
            "baton.conf:1:28: services[0].name: \"Kv\" is not a name; use 1 to 32 of a-z, 0-9 "
            "and -"},
        BadConfig{"NameLength",
                  "state_dir: \"/s\" services { name: \"" + std::string(33, 'k') +
                      "\" device { soft {} } }",
                  "baton.conf:1:28: services[0].name: \"" + std::string(33, 'k') +
                      "\" is not a name; use 1 to 32 of a-z, 0-9 and -"},
        BadConfig{"NameReserved",
                  "state_dir: \"/s\" services { name: \"control\" device { soft {} } }",
                  "baton.conf:1:28: services[0].name: \"control\" is reserved for Baton's own "
                  "sockets; use another name"},
        BadConfig{"NameTwice", With("", "services { name: \"kv\" device { soft {} } }\n"),
                  "baton.conf:4:3: services[1].name: \"kv\" is taken by an earlier service; names "
                  "are unique"},
        BadConfig{"Shards", With("shards: 65"),
                  "baton.conf:5:3: services[0].shards: 65 is not between 1 and 64; leave it out "
                  "for 1"},
        BadConfig{
            "MaxConnections", With("max_connections: 131073"),
            "baton.conf:5:3: services[0].max_connections: 131073 is not between 1 and 131072; "
            "leave it out for 64"},
        BadConfig{"SendQueueDepth", With("send_queue_depth: 48"),
                  "baton.conf:5:3: services[0].send_queue_depth: 48 is not a power of two; use 32 "
                  "or 64"},
        BadConfig{"SendQueueDepthRange", With("send_queue_depth: 8192"),
                  "baton.conf:5:3: services[0].send_queue_depth: 8192 is not between 1 and 4096; "
                  "leave it out for 64"},
        BadConfig{"ReceiveQueueDepth", With("receive_queue_depth: 4095"),
                  "baton.conf:5:3: services[0].receive_queue_depth: 4095 is not a power of two; "
                  "use 2048 or 4096"},
        BadConfig{"SharedReceiveQueueDepth", With("shared_receive_queue_depth: 48"),
                  "baton.conf:5:3: services[0].shared_receive_queue_depth: 48 is not a power of "
                  "two; use 32 or 64"},
        BadConfig{"SharedReceiveQueueDepthRange", With("shared_receive_queue_depth: 8192"),
                  "baton.conf:5:3: services[0].shared_receive_queue_depth: 8192 is not between 0 "
                  "and 4096; leave it out for 0"},
        BadConfig{"ConnectionStateBytes", With("connection_state_bytes: 1048577"),
                  "baton.conf:5:3: services[0].connection_state_bytes: 1048577 is not between 1 "
                  "and 1048576; leave it out for 256"},
        BadConfig{"ShardStateBytes", With("shard_state_bytes: 1048577"),
                  "baton.conf:5:3: services[0].shard_state_bytes: 1048577 is not between 1 and "
                  "1048576; leave it out for 4096"},
        BadConfig{"BufferBytes", With("buffer_bytes: 4095"),
                  "baton.conf:5:3: services[0].buffer_bytes: 4095 is not between 4096 and "
                  "1099511627776; leave it out for 16777216"},
        BadConfig{"ShardHeapBytes", With("shard_heap_bytes: 68719476737"),
                  "baton.conf:5:3: services[0].shard_heap_bytes: 68719476737 is not between 0 and "
                  "68719476736; leave it out for 0"},
        BadConfig{"HeapsOfAllShards",
                  With("shard_heap_bytes: 68719476736 shards: 16 buffer_bytes: 4096"),
                  "baton.conf:5:3: services[0].shard_heap_bytes: the heaps of 16 shards and "
                  "buffer_bytes are 1099511631872 bytes together, at most 1099511627776 can be "
                  "registered; lower one of them"},
        BadConfig{"MaxWorkers", With("max_workers: 65"),
                  "baton.conf:5:3: services[0].max_workers: 65 is not between 1 and 64; leave it "
                  "out for 16"},
        BadConfig{"HandoffTimeout", With("handoff_timeout_ms: 600001"),
                  "baton.conf:5:3: services[0].handoff_timeout_ms: 600001 is not between 1 and "
                  "600000; leave it out for 5000"},
        BadConfig{"MaxListeners", With("max_listeners: 65"),
                  "baton.conf:5:3: services[0].max_listeners: 65 is not between 1 and 64; leave it "
                  "out for 8"},
        BadConfig{"DevicePort",
                  "state_dir: \"/s\" services { name: \"kv\" device { rdma { port: 256 } } }",
                  "baton.conf:1:55: services[0].device.rdma.port: 256 is not between 1 and 255; "
                  "leave it out for 1"},
        BadConfig{"GidIndex",
                  "state_dir: \"/s\" services { name: \"kv\" device { rdma { gid_index: 256 } } }",
                  "baton.conf:1:55: services[0].device.rdma.gid_index: 256 is not between 0 and "
                  "255; leave it out for the GID of each address"},
        BadConfig{"MaxInlineBytes", With("max_inline_bytes: 4097"),
                  "baton.conf:5:3: services[0].max_inline_bytes: 4097 is not between 0 and 4096; "
                  "leave it out for 0"},
        BadConfig{"StateDecoder", With("state_decoder { program: \"decode\" }"),
                  "baton.conf:5:19: services[0].state_decoder.program: is not the absolute path of "
                  "a program, in UTF-8"},
        BadConfig{"StateDecoderArgument",
                  With("state_decoder { program: \"/d\" arguments: \"\\xff\" }"),
                  "baton.conf: services[0].state_decoder.arguments: has a NUL, or bytes that are "
                  "not UTF-8"},
        BadConfig{"NativeOfBrokered", With("native { object: \"/s.so\" }"),
                  "baton.conf:5:3: services[0].native: is for mode NATIVE, and the mode is "
                  "BROKERED"},
        BadConfig{"NativeWithoutObject", Native("workers: 2"),
                  "baton.conf: services[0].native.object: \"\" is not the absolute path of a "
                  "shared object"},
        BadConfig{
            "NativeObject", Native("object: \"s.so\""),
            "baton.conf:1:61: services[0].native.object: \"s.so\" is not the absolute path of "
            "a shared object"},
        BadConfig{"NativeWorkers", Native("object: \"/s.so\" workers: 17"),
                  "baton.conf:1:77: services[0].native.workers: 17 is not between 1 and 16; leave "
                  "it out for 2"},
        BadConfig{"NativeWithoutUid", Native("object: \"/s.so\" gid: 99"),
                  "baton.conf: services[0].native.uid: is missing: name the user that the workers "
                  "run as, or root with uid: 0 gid: 0"},
        BadConfig{"NativeUidAlone", Native("object: \"/s.so\" uid: 99"),
                  "baton.conf: services[0].native.gid: is missing: name the group that the "
                  "workers of that uid are in, too"},
        BadConfig{"NativeUidOfNobody", Native("object: \"/s.so\" uid: 4294967295 gid: 99"),
                  "baton.conf:1:77: services[0].native.uid: 4294967295 is no user"},
        BadConfig{"NativeGidOfNobody", Native("object: \"/s.so\" gid: 4294967295 uid: 9"),
                  "baton.conf:1:77: services[0].native.gid: 4294967295 is no group"},
        BadConfig{"MoreListeners", With("max_listeners: 1 listeners {} listeners {}"),
                  "baton.conf:5:3: services[0].max_listeners: 2 listeners are more than 1; raise "
                  "max_listeners"},
        BadConfig{"ListenerHost", With("listeners { host: \"localhost\" }"),
                  "baton.conf:5:15: services[0].listeners[0].host: \"localhost\" is not an IPv4 or "
                  "IPv6 address; names are not resolved, write for example \"127.0.0.1\" or "
                  "\"::1\""},
        BadConfig{"ListenerHostWithNul", With(R"(listeners { host: "::1\000evil" })"),
                  std::string("baton.conf:5:15: services[0].listeners[0].host: \"::1\0evil\"", 58) +
                      " is not an IPv4 or IPv6 address; names are not resolved, write for example "
                      "\"127.0.0.1\" or \"::1\""},
        BadConfig{"StateDirWithNul",
                  R"(state_dir: "/s\000/t" services { name: "kv" device { soft {} } })",
                  "baton.conf:1:1: state_dir: has a NUL, which no path has"},
        BadConfig{"StateDirNotUtf8",
                  R"(state_dir: "/s\xff" services { name: "kv" device { soft {} } })",
                  "baton.conf:1:1: state_dir: is not UTF-8; name a directory that is"},
        BadConfig{"ListenerPort", With("listeners {} listeners { port: 65536 }"),
                  "baton.conf:5:28: services[0].listeners[1].port: 65536 is not between 0 and "
                  "65535; 0 takes any free port"},
        BadConfig{"NetworkNamespacePart", With("network_namespace: \"netns/blue\""),
                  "baton.conf:5:3: services[0].network_namespace: \"netns/blue\" is neither a "
                  "name, as ip netns list shows it, nor an absolute path; leave it out for that of "
                  "batond"},
        BadConfig{"NetworkNamespaceDots", With("network_namespace: \"..\""),
                  "baton.conf:5:3: services[0].network_namespace: \"..\" is neither a name, as ip "
                  "netns list shows it, nor an absolute path; leave it out for that of batond"},
        BadConfig{"NetworkNamespaceWithNul", With(R"(network_namespace: "blue\000")"),
                  "baton.conf:5:3: services[0].network_namespace: is neither a name nor a path"},
        BadConfig{"NetworkNamespaceLong",
                  With("network_namespace: \"" + std::string(256, 'n') + "\""),
                  "baton.conf:5:3: services[0].network_namespace: is neither a name nor a path"},
        BadConfig{"NetworkNamespaceByNameAndPath",
                  With("network_namespace: \"blue\" listeners { port: 7 }",
                       "services { name: \"a\" device { soft {} } listeners { port: 7 } "
                       "network_namespace: \"/run/netns/blue\" }\n"),
                  "baton.conf:6:41: services[1].listeners[0].port: 0.0.0.0 port 7 is already a "
                  "listener of service \"a\"; give each its own"},
        BadConfig{"HugePagesOnSoft", With("huge_pages: HUGE_PAGES_2_MIB"),
                  "baton.conf:5:3: services[0].huge_pages: needs an rdma device; leave it out on "
                  "the soft one"},
        BadConfig{"HugePagesUnknown", With("huge_pages: 3"),
                  "baton.conf:5:3: services[0].huge_pages: is none of HUGE_PAGES_TRANSPARENT, "
                  "HUGE_PAGES_2_MIB, HUGE_PAGES_1_GIB"},
        BadConfig{"HugePagesOfStrangers",
                  "state_dir: \"/s\" services { name: \"kv\" device { rdma {} } worker_uids: 7 "
                  "huge_pages: HUGE_PAGES_1_GIB }",
                  "baton.conf:1:73: services[0].huge_pages: goes with no worker_uids: a worker of "
                  "another user could take a page out of the buffers, which kills the driver that "
                  "touches it; leave out one of them, or use mode: NATIVE"},
        BadConfig{"ListenerTwice", With("listeners { port: 7 } listeners { port: 7 }"),
                  "baton.conf:5:37: services[0].listeners[1].port: 0.0.0.0 port 7 is already a "
                  "listener of service \"kv\"; give each its own"}),
    [](const testing::TestParamInfo<BadConfig>& info) { return info.param.what; });

std::string WithFaults(const std::string& faults) {
  return "state_dir: \"/s\" services { name: \"kv\" device { soft { faults { " + faults +
         " } } } }";
}

TEST(ConfigTest, TakesFaultsOfEveryKind) {
  const auto config = ParseConfig(
      WithFaults(
          "seed: 7 rules { kind: DELAY probability: 0.01 duration_us: 200 } "
          "rules { kind: STALL nth: 3 duration_us: 3600000000 } rules { kind: RNR every: 1 } "
          "rules { kind: CUT nth: 1000 } rules { kind: RETRY nth: 2 duration_us: 9 } "
          "rules { kind: LOST nth: 4 } rules { kind: ERROR every: 50 error: REMOTE_ACCESS } "
          "rules { kind: ERROR probability: 1 }"),
      "baton.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  const v1::FaultPlan& plan = config->services(0).device().soft().faults();
  EXPECT_EQ(plan.seed(), 7u);
  ASSERT_EQ(plan.rules_size(), 8);
  EXPECT_EQ(plan.rules(0).probability(), 0.01);
  EXPECT_EQ(plan.rules(6).error(), v1::FaultRule::REMOTE_ACCESS);
}

TEST(ConfigTest, NamesTheFieldOfAFaultThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"nth: 1", ".kind: is missing; use DELAY, STALL, RNR, CUT, RETRY, LOST or ERROR"},
      {"kind: 99 nth: 1", ".kind: is missing; use DELAY"},
      {"kind: CUT", ".probability: is missing; a rule has one of probability, nth and every"},
      {"kind: CUT probability: 2", ".probability: 2 is not above 0 and up to 1"},
      {"kind: CUT probability: 0", ".probability: 0 is not above 0 and up to 1"},
      {"kind: CUT probability: nan", ".probability: nan is not above 0 and up to 1"},
      {"kind: CUT nth: 0", ".nth: is 0; messages are counted from 1"},
      {"kind: CUT every: 0", ".every: is 0; 1 takes every message"},
      {"kind: DELAY nth: 1", ".duration_us: is missing; DELAY and STALL last that long"},
      {"kind: STALL nth: 1 duration_us: 3600000001", ".duration_us: 3600000001 is not between"},
      {"kind: CUT nth: 1 error: REMOTE_ACCESS", ".error: only a rule of kind ERROR has one"},
      {"kind: ERROR nth: 1 error: 99", ".error: 99 is no error"},
  };
  for (const auto& [rule, problem] : cases) {
    EXPECT_THAT(ProblemOf(WithFaults("rules { " + std::string(rule) + " }")),
                HasSubstr(absl::StrCat("services[0].device.soft.faults.rules[0]", problem)))
        << rule;
  }
  // What is no message is refused where it stands.
  for (const auto& [rule, problem] : std::initializer_list<std::pair<const char*, const char*>>{
           {"kind: EXPLODE nth: 1", "EXPLODE"},
           {"kind: CUT nth: -3", "-"},
           {"kind: CUT color: 1", "color"},
           {"kind: CUT nth: 1 every: 2", "every"},
           {"kind: ERROR nth: 1 error: GREAT", "GREAT"}}) {
    const std::string text = ProblemOf(WithFaults("rules { " + std::string(rule) + " }"));
    EXPECT_THAT(text, StartsWith("baton.conf:1:")) << rule;
    EXPECT_THAT(text, HasSubstr(problem)) << rule;
  }
  std::string many;
  for (int i = 0; i < 65; ++i) many += "rules { kind: CUT nth: 1 } ";
  EXPECT_THAT(ProblemOf(WithFaults(many)),
              HasSubstr("services[0].device.soft.faults.rules: has 65, at most 64"));
}

TEST(ConfigTest, ReportsEveryProblemAtOnce) {
  const std::string problem = ProblemOf(With("shards: 65 max_workers: 65"));
  EXPECT_THAT(problem, HasSubstr("services[0].shards: 65"));
  EXPECT_THAT(problem, HasSubstr("\nbaton.conf:5:14: services[0].max_workers: 65"));
}

TEST(ConfigTest, WithoutAFileProblemsHaveNoPlace) {
  v1::Config config;
  config.set_state_dir("/s");
  v1::ServiceConfig& service = *config.add_services();
  service.set_name("kv");
  service.mutable_device()->mutable_soft();
  EXPECT_TRUE(CompleteConfig(config).ok());
  service.set_shards(65);
  EXPECT_EQ(CompleteConfig(config).message(),
            "services[0].shards: 65 is not between 1 and 64; leave it out for 1");
}

TEST(ConfigTest, LoadNamesAFileThatIsNotThere) {
  const absl::Status status = LoadConfig("/nonexistent/baton.conf").status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()),
              StartsWith("cannot read the configuration /nonexistent/baton.conf: "));
}

TEST(ConfigTest, TheExamplesAreValid) {
  for (const char* const example : {"baton", "many_connections"}) {
    const absl::Status status =
        LoadConfig(absl::StrCat("deploy/config/", example, ".textproto")).status();
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(ConfigTest, MetricsAreAtAnAddressWithAPort) {
  const std::string services = " services { name: \"kv\" device { soft {} } }";
  const auto parse = [&](const std::string& address) {
    return ParseConfig("state_dir: \"/s\" metrics_address: \"" + address + "\"" + services,
                       "baton.conf")
        .status();
  };
  for (const char* const good : {"", "127.0.0.1:9464", "127.0.0.1:0", "[::1]:9464"}) {
    EXPECT_TRUE(parse(good).ok()) << good << ": " << parse(good);
  }
  for (const char* const bad :
       {"9464", "127.0.0.1", ":9464", "127.0.0.1:", "127.0.0.1: 9464", "127.0.0.1:+9464",
        "127.0.0.1:65536", "::1:9464", "[127.0.0.1]:9464", "localhost:9464", "127.0.0.1\\000:9464",
        "127.0.0.1:9464,127.0.0.1:9465", "127.0.0.1:9464s"}) {
    EXPECT_THAT(std::string(parse(bad).message()),
                HasSubstr("metrics_address: is not ADDRESS:PORT"))
        << bad;
  }
}

std::string EndpointProblem(const std::string& endpoint) {
  return std::string(ParseConfig("state_dir: \"/s\" services { name: \"kv\" device { soft {} } }\n"
                                 "operator_endpoint { " +
                                     endpoint + " }",
                                 "baton.conf")
                         .status()
                         .message());
}

TEST(ConfigTest, AnOperatorEndpointNamesItsFilesAndItsCallers) {
  const std::string address = "address: \"10.0.0.1:9443\" ";
  const std::string files =
      "certificate_file: \"/a.crt\" key_file: \"/a.key\" client_ca_file: \"/ca.crt\" ";
  const std::string names = "operators: \"alice\" viewers: \"spiffe://x/y\" ";
  EXPECT_EQ(EndpointProblem(address + files + names), "");
  EXPECT_EQ(EndpointProblem("address: \"[::1]:0\" " + files + "viewers: \"bob\""), "");
  const std::string nothing = EndpointProblem("");
  for (const char* field :
       {"address: is not ADDRESS:PORT", "certificate_file: is missing", "key_file: is missing",
        "client_ca_file: is missing", "operators: is missing, and so is viewers"}) {
    EXPECT_THAT(nothing, HasSubstr(absl::StrCat("operator_endpoint.", field)));
  }
  EXPECT_THAT(EndpointProblem("address: \"host:9443\" " + files + names),
              HasSubstr("baton.conf:2:21: operator_endpoint.address: is not ADDRESS:PORT"));
  EXPECT_THAT(EndpointProblem(address + files + names + "key_file: \"a.key\""),
              HasSubstr("key_file"));
  EXPECT_THAT(EndpointProblem(address +
                              "certificate_file: \"a.crt\" key_file: \"/a\\000\" "
                              "client_ca_file: \"/\\377\" " +
                              names),
              AllOf(HasSubstr("certificate_file: is not an absolute path"),
                    HasSubstr("key_file: is not an absolute path")));
  EXPECT_THAT(EndpointProblem(address + files + names + "operators: \"\""),
              HasSubstr("operators: has a name that is empty"));
  EXPECT_THAT(EndpointProblem(address + files + names + "viewers: \"alice\""),
              HasSubstr("viewers: \"alice\" stands there already"));
}

TEST(ConfigTest, LogsAreTextOrJson) {
  const std::string rest = "state_dir: \"/s\" services { name: \"kv\" device { soft {} } }\n";
  EXPECT_EQ(ParseConfig(rest, "baton.conf")->log_format(), v1::TEXT);
  EXPECT_EQ(ParseConfig(rest + "log_format: JSON", "baton.conf")->log_format(), v1::JSON);
  EXPECT_THAT(std::string(ParseConfig(rest + "log_format: 7", "baton.conf").status().message()),
              HasSubstr("log_format"));
}

TEST(ConfigTest, AServiceIsOnCpusAndANodeThatThereCanBe) {
  EXPECT_EQ(ProblemOf(With("placement { cpus: \"2-5,8\" numa_node: 1 }")), "valid");
  EXPECT_EQ(ProblemOf(With("placement {}")), "valid");
  EXPECT_THAT(ProblemOf(With("placement { cpus: \"5-2\" }")), HasSubstr("as in 2-5,8"));
  EXPECT_THAT(ProblemOf(With("placement { cpus: \"all\" }")), HasSubstr("placement.cpus"));
  EXPECT_THAT(ProblemOf(With("placement { numa_node: 1024 }")), HasSubstr("numactl -H"));
}

TEST(ConfigTest, AServiceHasALogLevelAndALogOfItsOwn) {
  const auto plain = ParseConfig(With(""), "baton.conf");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->log_level(), v1::LOG_LEVEL_INFO);
  EXPECT_EQ(plain->services(0).log_level(), v1::LOG_LEVEL_INFO);
  const auto all = ParseConfig(With("", "log_level: LOG_LEVEL_WARNING\n"), "baton.conf");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->services(0).log_level(), v1::LOG_LEVEL_WARNING);
  const auto own = ParseConfig(
      With("log_level: LOG_LEVEL_DEBUG log: \"journal\"", "log_level: LOG_LEVEL_ERROR\n"),
      "baton.conf");
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(own->log_level(), v1::LOG_LEVEL_ERROR);
  EXPECT_EQ(own->services(0).log_level(), v1::LOG_LEVEL_DEBUG);
  EXPECT_EQ(ProblemOf(With("log: \"/var/log/baton/kv.log\"")), "valid");
  for (const char* const bad : {"kv.log", "/var/log/", "/a\\000b", "/\\377"}) {
    EXPECT_THAT(ProblemOf(With(absl::StrCat("log: \"", bad, "\""))),
                HasSubstr("log: is neither \"journal\" nor the absolute path"))
        << bad;
  }
}

TEST(ConfigTest, APortIsOneServicesInEachNetworkNamespace) {
  const absl::StatusOr<v1::Config> config =
      ParseConfig(With("network_namespace: \"blue\" listeners { port: 7 }",
                       "services { name: \"a\" device { soft {} } listeners { port: 7 } "
                       "network_namespace: \"red\" }\n"
                       "services { name: \"b\" device { soft {} } listeners { port: 7 } }\n"),
                  "baton.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->services(2).network_namespace(), "blue");
}

TEST(ConfigTest, TheLongestStateDirThatFitsIsTaken) {
  const std::string state_dir = "/" + std::string(kMaxSocketPathBytes - 16, 'd');
  ASSERT_EQ(ManagementSocketPath(state_dir, "kv").size(), kMaxSocketPathBytes);
  EXPECT_EQ(
      ProblemOf("state_dir: \"" + state_dir + "\" services { name: \"kv\" device { soft {} } }"),
      "valid");
  EXPECT_NE(
      ProblemOf("state_dir: \"" + state_dir + "d\" services { name: \"kv\" device { soft {} } }"),
      "valid");
}

}  // namespace
}  // namespace baton

#include "lib/driver/device_needs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace baton::driver {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

arena::Shape ShapeOfAService() {
  arena::Shape shape = {};
  shape.shards = 4;
  shape.connections = 100;
  shape.send_queue_depth = 64;
  shape.receive_queue_depth = 32;
  shape.buffer_bytes = 16 << 20;
  return shape;
}

// A device that is just large enough.
verbs::DeviceLimits LimitsFor(const DeviceNeeds& needs) {
  verbs::DeviceLimits limits;
  limits.max_queue_pairs = static_cast<uint32_t>(needs.queue_pairs);
  limits.max_completion_queues = static_cast<uint32_t>(needs.completion_queues);
  limits.max_completion_queue_entries = static_cast<uint32_t>(needs.completion_queue_entries);
  limits.max_send_requests = static_cast<uint32_t>(needs.send_requests);
  limits.max_receive_requests = static_cast<uint32_t>(needs.receive_requests);
  limits.max_scatter_gather = static_cast<uint32_t>(needs.scatter_gather);
  limits.max_memory_regions = static_cast<uint32_t>(needs.memory_regions);
  return limits;
}

TEST(DeviceNeedsTest, shouldHaveRoomForARecoveryInEveryQueue) {
  const DeviceNeeds needs = NeedsOf(ShapeOfAService());
  EXPECT_EQ(needs.queue_pairs, 100u);
  EXPECT_EQ(needs.completion_queues, 4u);
  EXPECT_EQ(needs.completion_queue_entries,
            100u * (64 + 32) + arena::kShardMarkers + arena::kSpares);
  EXPECT_EQ(needs.send_requests, 64u + arena::kMarkers);
  EXPECT_EQ(needs.receive_requests, 32u + arena::kMarkers);
  EXPECT_EQ(needs.registered_bytes, (16u << 20) + 4 * arena::kSpares * arena::kSpareBytes);
}

TEST(DeviceNeedsTest, shouldHaveThePoolsOfANativeService) {
  arena::Shape shape = ShapeOfAService();
  shape.pooled_queue_pairs = 60;
  const DeviceNeeds needs = NeedsOf(shape);
  EXPECT_EQ(needs.queue_pairs, 240u);
  verbs::DeviceLimits limits = LimitsFor(needs);
  EXPECT_TRUE(CheckLimits(needs, limits, "rxe0").ok());
  limits.max_queue_pairs = 239;
  EXPECT_THAT(std::string(CheckLimits(needs, limits, "rxe0").message()),
              HasSubstr("240 queue pairs in the pools of its shards, of which it has 239: lower "
                        "native.queue_pairs_per_shard"));
}

// Each shard has its own, more than there are connections.
TEST(DeviceNeedsTest, shouldHaveThePoolsThatAreMadeForBrokers) {
  arena::Shape shape = ShapeOfAService();
  shape.brokered_queue_pairs = 256;
  EXPECT_EQ(NeedsOf(shape, /*in_advance=*/true).queue_pairs, 4u * 256);
  EXPECT_EQ(NeedsOf(shape).queue_pairs, 100u);
}

TEST(DeviceNeedsTest, shouldFitADeviceThatIsJustLargeEnough) {
  const DeviceNeeds needs = NeedsOf(ShapeOfAService());
  EXPECT_TRUE(CheckLimits(needs, LimitsFor(needs), "rxe0").ok());
}

TEST(DeviceNeedsTest, shouldNameEachLimitThatIsTooLowAndWhatToLower) {
  const DeviceNeeds needs = NeedsOf(ShapeOfAService());
  const struct {
    uint32_t verbs::DeviceLimits::*limit;
    const char* cure;
  } cases[] = {
      {&verbs::DeviceLimits::max_queue_pairs, "of which it has 99: lower max_connections"},
      {&verbs::DeviceLimits::max_completion_queues, "of which it has 3: lower shards"},
      {&verbs::DeviceLimits::max_completion_queue_entries,
       "lower max_connections or the queue depths"},
      {&verbs::DeviceLimits::max_send_requests, "lower send_queue_depth"},
      {&verbs::DeviceLimits::max_receive_requests, "lower receive_queue_depth"},
      {&verbs::DeviceLimits::max_scatter_gather, "scatter-gather"},
      {&verbs::DeviceLimits::max_memory_regions, "memory regions"},
  };
  for (const auto& [limit, cure] : cases) {
    verbs::DeviceLimits limits = LimitsFor(needs);
    --(limits.*limit);
    const absl::Status status = CheckLimits(needs, limits, "rxe0");
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("device rxe0 is too small"),
                                                     HasSubstr(cure), Not(HasSubstr("; "))));
  }
}

TEST(DeviceNeedsTest, shouldNameAllLimitsAtOnce) {
  const DeviceNeeds needs = NeedsOf(ShapeOfAService());
  EXPECT_THAT(std::string(CheckLimits(needs, verbs::DeviceLimits(), "rxe0").message()),
              AllOf(HasSubstr("lower max_connections"), HasSubstr("lower shards"),
                    HasSubstr("lower send_queue_depth")));
}

}  // namespace
}  // namespace baton::driver

#include <algorithm>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "supervisor/driver/engine/describe.h"
#include "supervisor/driver/engine/news_queue.h"
#include "supervisor/driver/engine/registrar.h"
#include "supervisor/driver/native/native_engine.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/lib/verbs/forwarding_device.h"

namespace baton::driver_process {
namespace {

// Nobody is forked.
class UnforkedDevice final : public verbs::testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  absl::Status CheckForkable() const override { return absl::OkStatus(); }
};

// Native workers write some of the memory that operators are told of.
class DescribeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    arena::Shape shape = driver::testing::TestShape(1);
    shape.pooled_queue_pairs = 1;
    shape.shared_receive_queue_depth = 4;
    shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
    arena.emplace(arena::Arena::Create(shape, "kv").value());
    device = std::make_unique<UnforkedDevice>(
        verbs::testing::OpenDevice(verbs::testing::FabricUnderTest()).value());
    engine = NativeEngine::Create(&*arena, device.get(), &news, {}).value();
    record = &arena->connection(0);
    record->state = static_cast<uint32_t>(arena::ConnectionState::kEstablished);
  }

  std::optional<arena::Arena> arena;
  std::unique_ptr<UnforkedDevice> device;
  NewsQueue news;
  std::unique_ptr<NativeEngine> engine;
  arena::ConnectionRecord* record = nullptr;
};

TEST_F(DescribeTest, shouldNotLookIntoAShardThatDoesNotExist) {
  arena->shard(0).shared_receives_posted = 3;
  EXPECT_EQ(ConnectionDescriber(*engine).Describe(0).receive_window(), 3u);
  for (const uint32_t shard : {1u, 1u << 20, ~0u}) {
    record->shard = shard;
    const v1::Connection described = ConnectionDescriber(*engine).Describe(0);
    EXPECT_EQ(described.shard(), shard);
    EXPECT_EQ(described.receive_window(), 0u);
  }
}

TEST_F(DescribeTest, shouldTellTheBytesThatAShardOfANativeServiceCarries) {
  arena->shard(0).bytes_sent = 4096;
  record->bytes_received = 512;
  const internal::ShardLoad load = DescribeShardLoad(engine->counters(0));
  EXPECT_EQ(load.bytes_sent(), 4096u);
  EXPECT_EQ(load.bytes_received(), 512u);
}

// A worker writes how it uses its heap.
TEST(DescribeHeapsTest, shouldTellOfHeapsWhatTheirOwnersSayAsFarAsItIsPossible) {
  arena::Shape shape = driver::testing::TestShape(2);
  shape.heap_pages = 2;
  shape.buffer_bytes += 2 * arena::HeapBytes(shape);
  const arena::Arena arena = arena::Arena::Create(shape, "kv").value();
  arena.shard(1).owner.ownership = arena::PackOwnership(5, 0);
  arena.bank(1, 4).heap_kept = 64;  // of a former owner
  google::protobuf::RepeatedPtrField<internal::ShardLoad> loads;
  loads.Add();
  loads.Add();
  AddHeaps(arena, &loads);
  EXPECT_EQ(loads.Get(0).heap().bytes(), 8192u);
  EXPECT_FALSE(loads.Get(0).heap().has_use());
  EXPECT_FALSE(loads.Get(1).heap().has_use());
  arena::BankHeader& bank = arena.bank(1, 5);
  bank.heap_kept = 4096;
  bank.heap_scratch = 3968;
  bank.heap_held = 64;
  AddHeaps(arena, &loads);
  EXPECT_FALSE(loads.Get(1).heap().use().has_free());  // of a worker of a former release
  bank.heap_held = ~uint64_t{0};
  bank.heap_rest = 64;
  AddHeaps(arena, &loads);
  EXPECT_FALSE(loads.Get(0).heap().has_use());
  const internal::ShardHeap::Use& use = loads.Get(1).heap().use();
  EXPECT_EQ(use.kept(), 4096u);
  EXPECT_EQ(use.scratch(), 3968u);
  EXPECT_EQ(use.held(), 8192u);
  EXPECT_EQ(use.largest_free(), 0u);
  EXPECT_TRUE(use.has_free());
  EXPECT_EQ(use.free(), 0u);
  EXPECT_EQ(use.rest(), 64u);
  bank.heap_scratch = 8193;
  bank.heap_free = ~uint64_t{0};
  AddHeaps(arena, &loads);
  EXPECT_EQ(use.scratch(), 8192u);
  EXPECT_EQ(use.free(), 8192u);
}

// Both are 0 then, as they are where a worker of a former release does not tell them.
TEST(DescribeHeapsTest, shouldTellThatAFullHeapHasNothingFree) {
  arena::Shape shape = driver::testing::TestShape(1);
  shape.heap_pages = 2;
  shape.buffer_bytes += arena::HeapBytes(shape);
  const arena::Arena arena = arena::Arena::Create(shape, "kv").value();
  arena.shard(0).owner.ownership = arena::PackOwnership(5, 0);
  arena.bank(0, 5).heap_kept = arena.bank(0, 5).heap_scratch = 4096;
  google::protobuf::RepeatedPtrField<internal::ShardLoad> loads;
  loads.Add();
  AddHeaps(arena, &loads);
  EXPECT_TRUE(loads.Get(0).heap().use().has_free());
  EXPECT_EQ(loads.Get(0).heap().use().free(), 0u);
}

// Control closes a session with a keeper whose messages do not parse.
TEST_F(DescribeTest, shouldTellOfAddressesOnlyWhatControlCanRead) {
  std::fill_n(record->local_address, sizeof(record->local_address), '\xff');
  std::fill_n(record->peer_address, sizeof(record->peer_address), 'x');
  const v1::Connection described = ConnectionDescriber(*engine).Describe(0);
  EXPECT_EQ(described.local_address(), std::string(sizeof(record->local_address), '?'));
  EXPECT_EQ(described.peer_address(), std::string(sizeof(record->peer_address), 'x'));
  v1::Connection parsed;
  EXPECT_TRUE(parsed.ParseFromString(described.SerializeAsString()));
}

using ::testing::ElementsAre;

TEST(RegistrarTest, shouldDoItsWorkInOrder) {
  std::vector<int> done;
  std::promise<void> all;
  Registrar registrar;
  for (int i = 1; i <= 3; ++i) registrar.Post([&done, i] { done.push_back(i); });
  registrar.Post([&all] { all.set_value(); });
  all.get_future().wait();
  EXPECT_THAT(done, ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace baton::driver_process

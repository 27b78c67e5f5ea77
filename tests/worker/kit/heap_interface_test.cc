// Heaps in the C interface, and in the C++ classes on top of it. Linked with each kind of worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <baton/baton.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory_resource>
#include <new>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/arena/layout.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/supervisor/keeper/keeper_thread.h"
#include "tests/worker/kind.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kHeapBytes = 1 << 20;

class Owner final : public Service {
 public:
  bool OnAdopt(Shard adopted) override {
    shard = adopted.handle();
    return true;
  }
  void OnCompletion(Shard, const Completion&) override {}

  baton_shard* shard = nullptr;
};

class HeapInterfaceTest : public ::testing::Test {
 protected:
  void Start(uint64_t heap_bytes = kHeapBytes) {
    const auto change = [&](v1::ServiceConfig* service) {
      service->set_shard_heap_bytes(heap_bytes);
    };
    ASSERT_EQ(keeper_.Start(change, testing::ServiceKind::EngineOptions()), absl::OkStatus());
    kind_.Begin(keeper_);
  }
  void Attach(Owner& owner, Worker* worker) {
    WorkerOptions options;
    options.socket = keeper_.socket();
    options.service = "kv";
    options.commit_mode = BATON_COMMIT_MANUAL;
    options.control_stream = false;
    const Status attached = worker->Attach(options, &owner);
    ASSERT_TRUE(attached.ok()) << attached.message();
    ASSERT_TRUE(worker->Ready().ok());
  }
  static bool Adopts(Worker& worker, const Owner& owner) {
    return driver::testing::Pump([&] { EXPECT_TRUE(worker.Poll().ok()); },
                                 [&] { return owner.shard != nullptr; });
  }
  static baton_heap_statistics StatisticsOf(baton_shard* shard) {
    baton_heap_statistics now = {};
    const Status status = Shard(shard).heap().statistics(&now);
    EXPECT_TRUE(status.ok()) << status.message();
    return now;
  }
  // Of all that is kept.
  static std::vector<uint64_t> OffsetsOf(baton_shard* shard) {
    std::vector<uint64_t> offsets;
    const Status status =
        Shard(shard).heap().ForEachAllocated([&](const Buffer& buffer, bool kept) {
          if (kept) offsets.push_back(buffer.offset);
        });
    EXPECT_TRUE(status.ok()) << status.message();
    return offsets;
  }

  keeper::testing::KeeperThread keeper_;
  testing::ServiceKind kind_;
};

TEST_F(HeapInterfaceTest, shouldAllocateAndFreeInTransactions) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Owner owner;
  Worker worker;
  ASSERT_NO_FATAL_FAILURE(Attach(owner, &worker));
  ASSERT_TRUE(Adopts(worker, owner));
  size_t length = 0;
  worker.buffers(&length);
  baton_buffer value = {}, abandoned = {}, scratch = {};
  ASSERT_EQ(baton_allocate(owner.shard, 1000, 0, &value), BATON_OK) << baton_error();
  EXPECT_GE(value.offset, length);
  EXPECT_EQ(value.offset % 64, 0u);
  EXPECT_EQ(value.length, 1000u);
  ASSERT_EQ(baton_commit(owner.shard), BATON_OK) << baton_error();

  ASSERT_EQ(baton_allocate(owner.shard, 5000, 4096, &abandoned), BATON_OK) << baton_error();
  EXPECT_EQ(abandoned.offset % 4096, 0u);
  baton_abandon(owner.shard);
  EXPECT_THAT(OffsetsOf(owner.shard), UnorderedElementsAre(value.offset));

  ASSERT_EQ(baton_allocate_scratch(owner.shard, 100, 0, &scratch), BATON_OK) << baton_error();
  EXPECT_EQ(StatisticsOf(owner.shard).scratch, 128u);
  ASSERT_EQ(baton_keep(owner.shard, &scratch), BATON_OK) << baton_error();
  ASSERT_EQ(baton_free(owner.shard, &value), BATON_OK) << baton_error();
  ASSERT_EQ(baton_commit(owner.shard), BATON_OK) << baton_error();
  EXPECT_THAT(OffsetsOf(owner.shard), UnorderedElementsAre(scratch.offset));
  const baton_heap_statistics now = StatisticsOf(owner.shard);
  EXPECT_EQ(now.bytes, kHeapBytes);
  EXPECT_EQ(now.kept, 128u);
  EXPECT_EQ(now.scratch, 0u);
  EXPECT_EQ(now.kept + now.held + now.free, now.bytes);
  EXPECT_LE(now.largest_free, now.free);
}

TEST_F(HeapInterfaceTest, shouldHandOnWhatWasCommitted) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Owner first, second;
  Worker former, next;
  ASSERT_NO_FATAL_FAILURE(Attach(first, &former));
  ASSERT_TRUE(Adopts(former, first));
  size_t length = 0;
  baton_buffer value = {}, scratch = {}, staged = {};
  ASSERT_EQ(baton_allocate(first.shard, 10'000, 0, &value), BATON_OK) << baton_error();
  std::memcpy(former.buffers(&length) + value.offset, "value", sizeof("value"));
  ASSERT_EQ(baton_commit(first.shard), BATON_OK) << baton_error();
  ASSERT_EQ(baton_allocate_scratch(first.shard, 100, 0, &scratch), BATON_OK) << baton_error();
  ASSERT_EQ(baton_allocate(first.shard, 100, 0, &staged), BATON_OK) << baton_error();
  ASSERT_EQ(baton_free(first.shard, &value), BATON_OK) << baton_error();
  ASSERT_NO_FATAL_FAILURE(Attach(second, &next));
  former.Detach();
  ASSERT_TRUE(Adopts(next, second));
  EXPECT_THAT(OffsetsOf(second.shard), UnorderedElementsAre(value.offset));
  EXPECT_EQ(StatisticsOf(second.shard).scratch, 0u);
  EXPECT_STREQ(reinterpret_cast<const char*>(next.buffers(&length) + value.offset), "value");
  ASSERT_EQ(baton_free(second.shard, &value), BATON_OK) << baton_error();
  ASSERT_EQ(baton_commit(second.shard), BATON_OK) << baton_error();
  EXPECT_THAT(OffsetsOf(second.shard), UnorderedElementsAre());
}

TEST_F(HeapInterfaceTest, shouldHoldContainersForAnEpoch) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Owner owner, second;
  Worker worker, next;
  ASSERT_NO_FATAL_FAILURE(Attach(owner, &worker));
  ASSERT_TRUE(Adopts(worker, owner));
  size_t length = 0;
  HeapResource resource(owner.shard, worker.buffers(&length));
  {
    std::pmr::vector<uint64_t> numbers(1000, 7, &resource);
    const Buffer buffer = resource.BufferAt(numbers.data(), 8000);
    EXPECT_GE(buffer.offset, length);
    EXPECT_LE(buffer.offset + buffer.length, length + kHeapBytes);
    EXPECT_GE(StatisticsOf(owner.shard).scratch, 8000u);
    EXPECT_THROW(numbers.resize(kHeapBytes), std::bad_alloc);
    EXPECT_EQ(numbers.size(), 1000u);
  }
  EXPECT_EQ(StatisticsOf(owner.shard).scratch, 0u);
  EXPECT_FALSE(resource.is_equal(*std::pmr::new_delete_resource()));
  std::pmr::vector<uint64_t> late(100, 7, &resource);
  ASSERT_NO_FATAL_FAILURE(Attach(second, &next));
  auto handoff = std::async(std::launch::async, [&] { return keeper_.Handoff(next.id()); });
  EXPECT_TRUE(driver::testing::Pump(
      [&] {
        EXPECT_TRUE(worker.Poll().ok());
        EXPECT_TRUE(next.Poll().ok());
      },
      [&] { return handoff.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
  EXPECT_EQ(handoff.get(), absl::OkStatus());
  ASSERT_NE(second.shard, nullptr);
  EXPECT_THROW(late.resize(1000), std::bad_alloc);
}

TEST_F(HeapInterfaceTest, shouldSayWhatIsWrong) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Owner owner;
  Worker worker;
  ASSERT_NO_FATAL_FAILURE(Attach(owner, &worker));
  ASSERT_TRUE(Adopts(worker, owner));
  baton_buffer buffer = {};
  EXPECT_EQ(baton_allocate(owner.shard, 0, 0, &buffer), BATON_INVALID_ARGUMENT);
  EXPECT_EQ(baton_allocate(owner.shard, 64, 3, &buffer), BATON_INVALID_ARGUMENT);
  EXPECT_THAT(baton_error(), HasSubstr("alignment"));
  EXPECT_EQ(baton_allocate(owner.shard, kHeapBytes + 1, 0, &buffer), BATON_RESOURCE_EXHAUSTED);
  EXPECT_THAT(baton_error(), HasSubstr("shard_heap_bytes"));
  EXPECT_EQ(baton_free(owner.shard, &buffer), BATON_INVALID_ARGUMENT);  // it is not of the heap
  EXPECT_EQ(baton_keep(owner.shard, &buffer), BATON_INVALID_ARGUMENT);
}

TEST_F(HeapInterfaceTest, shouldSayThatTheServiceHasNoHeaps) {
  ASSERT_NO_FATAL_FAILURE(Start(/*heap_bytes=*/0));
  Owner owner;
  Worker worker;
  ASSERT_NO_FATAL_FAILURE(Attach(owner, &worker));
  ASSERT_TRUE(Adopts(worker, owner));
  EXPECT_EQ(worker.capacity().shard_heap_bytes, 0u);
  Heap heap = Shard(owner.shard).heap();
  Buffer buffer = {};
  baton_heap_statistics statistics = {};
  const auto ignore = [](const Buffer&, bool) {};
  for (const Status& status :
       {heap.Allocate(64, &buffer), heap.AllocateScratch(64, &buffer), heap.Keep(buffer),
        heap.Free(buffer), heap.ForEachAllocated(ignore), heap.statistics(&statistics)}) {
    EXPECT_EQ(status.code(), BATON_FAILED_PRECONDITION);
    EXPECT_THAT(status.message(), HasSubstr("shard_heap_bytes"));
  }
}

TEST_F(HeapInterfaceTest, shouldSayThatAHeapIsDamaged) {
  ASSERT_NO_FATAL_FAILURE(Start());
  keeper_.engine().arena().heap(0)[0] = {.pages = 0, .units = 7, .kept = 0};
  Owner owner;
  Worker worker;
  ASSERT_NO_FATAL_FAILURE(Attach(owner, &worker));
  ASSERT_TRUE(Adopts(worker, owner));
  baton_buffer buffer = {};
  EXPECT_EQ(baton_allocate(owner.shard, 64, 0, &buffer), BATON_DATA_LOSS);
  EXPECT_THAT(baton_error(), HasSubstr("damaged"));
}

// A program that was built with an earlier header, whose structures end earlier.
TEST_F(HeapInterfaceTest, shouldTakeStructuresOfEarlierReleases) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Owner owner;
  Worker worker;
  ASSERT_NO_FATAL_FAILURE(Attach(owner, &worker));
  ASSERT_TRUE(Adopts(worker, owner));
  baton_capacity capacity = {};
  capacity.size = offsetof(baton_capacity, shard_heap_bytes);
  capacity.shard_heap_bytes = 99;
  baton_get_capacity(worker.handle(), &capacity);
  EXPECT_EQ(capacity.shards, 1u);
  EXPECT_EQ(capacity.shard_heap_bytes, 99u);
  EXPECT_EQ(worker.capacity().shard_heap_bytes, kHeapBytes);
  baton_heap_statistics statistics = {};
  statistics.size = offsetof(baton_heap_statistics, kept);
  statistics.kept = 99;
  EXPECT_EQ(baton_get_heap_statistics(owner.shard, &statistics), BATON_OK) << baton_error();
  EXPECT_EQ(statistics.bytes, kHeapBytes);
  EXPECT_EQ(statistics.kept, 99u);
}

}  // namespace
}  // namespace baton

// The blocks of heaps as the driver applies them, and as it dies of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/base/crash_point.h"
#include "lib/driver/queue_driver.h"
#include "tests/lib/driver/scripted_driver_fixture.h"

namespace baton::driver {
namespace {

using arena::HeapBlock;
using testing::DriverDied;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Block = std::tuple<uint32_t, uint32_t, uint64_t>;

// The driver dies when it passes this point so many times.
std::string_view g_point;
int g_left = 0;

void DieAt(std::string_view point, int nth) {
  g_point = point;
  g_left = nth;
  SetCrashPointHandler([](const char* name) {
    if (name == g_point && --g_left == 0) throw DriverDied();
  });
}
void LiveOn() {
  SetCrashPointHandler([](const char*) {});
}

class HeapCommitTest : public testing::ScriptedDriverTest {
 protected:
  void SetUp() override {
    arena::Shape shape = testing::TestShape(1);
    shape.heap_pages = 6;
    Start(shape);
    LiveOn();
  }
  void TearDown() override { SetCrashPointHandler(nullptr); }

  std::vector<Block> Table() const {
    std::vector<Block> table;
    for (uint32_t page = 0; page < 6; ++page) {
      const HeapBlock& block = arena->heap(0)[page];
      table.emplace_back(block.pages, block.units, block.kept);
    }
    return table;
  }
  void CommitFirst() {
    writer->Heap(0, {1, 1, 0b111}).Heap(1, {2, 0, 1}).Heap(3, {1, 20, 1}).Heap(4, {1, 0, 1});
    writer->Publish();
    ASSERT_EQ(Apply(), CommitOutcome::kApplied) << error;
  }
  // Some blocks go, some change, one comes.
  void PublishSecond() {
    writer->Heap(0, {1, 1, uint64_t{1} << 63}).Heap(1, {}).Heap(3, {}).Heap(4, {2, 0, 1});
    writer->Publish();
  }
  void ApplyAll() {
    while (driver->PendingEntries(0) > 0) ASSERT_EQ(Apply(), CommitOutcome::kApplied) << error;
  }
  void ExpectSecond() {
    EXPECT_THAT(Table(), ElementsAre(Block(1, 1, uint64_t{1} << 63), Block(), Block(), Block(),
                                     Block(2, 0, 1), Block()));
  }
};

TEST_F(HeapCommitTest, shouldApplyChangesInTheirOrder) {
  ASSERT_NO_FATAL_FAILURE(CommitFirst());
  EXPECT_THAT(Table(), ElementsAre(Block(1, 1, 0b111), Block(2, 0, 1), Block(), Block(1, 20, 1),
                                   Block(1, 0, 1), Block()));
  PublishSecond();
  EXPECT_EQ(driver->PendingEntries(0), 2u);
  ASSERT_EQ(Apply(), CommitOutcome::kApplied) << error;
  ExpectSecond();
  writer->Heap(5, {1, 0, 1}).Heap(5, {}).Publish();
  ASSERT_EQ(Apply(), CommitOutcome::kApplied) << error;
  ExpectSecond();
}

// The engine fences the worker then.
TEST_F(HeapCommitTest, shouldApplyNothingOfATransactionThatIsRefused) {
  ASSERT_NO_FATAL_FAILURE(CommitFirst());
  const std::vector<Block> before = Table();
  writer->Heap(0, {}).Heap(5, {2, 0, 1}).Publish();
  EXPECT_EQ(Apply(), CommitOutcome::kInvalid);
  EXPECT_THAT(std::string(error.message()), HasSubstr("changes[1]: a block of 2 pages"));
  EXPECT_EQ(Table(), before);
}

TEST_F(HeapCommitTest, shouldRefuseAnEntryWithMoreChangesThanItHas) {
  arena::HeapEntry entry = {};
  entry.kind = static_cast<uint8_t>(arena::CommitKind::kHeap);
  entry.count = 4;
  writer->Add(arena::CommitKind::kHeap) = std::bit_cast<arena::CommitEntry>(entry);
  writer->Publish();
  EXPECT_EQ(Apply(), CommitOutcome::kInvalid);
  EXPECT_THAT(std::string(error.message()), HasSubstr("count: 4"));
}

TEST_F(HeapCommitTest, shouldFinishWhatADeadDriverHasBegun) {
  ASSERT_NO_FATAL_FAILURE(CommitFirst());
  PublishSecond();
  DieAt("driver-apply-begun", 1);
  EXPECT_THROW(Apply(), DriverDied);
  LiveOn();
  Recover();
  ApplyAll();
  ExpectSecond();
}

class KilledWithinAHeapTest : public HeapCommitTest, public ::testing::WithParamInterface<int> {};

// Its pages and units are stored, and what is kept is not.
TEST_P(KilledWithinAHeapTest, shouldFinishWhatADeadDriverHasBegun) {
  ASSERT_NO_FATAL_FAILURE(CommitFirst());
  PublishSecond();
  DieAt("driver-heap-half", GetParam());
  EXPECT_THROW(Apply(), DriverDied);
  LiveOn();
  Recover();
  ApplyAll();
  ExpectSecond();
}

TEST_P(KilledWithinAHeapTest, shouldFinishWhatADeadRecoveryHasBegun) {
  ASSERT_NO_FATAL_FAILURE(CommitFirst());
  PublishSecond();
  DieAt("driver-heap-half", GetParam());
  EXPECT_THROW(Apply(), DriverDied);
  DieAt("driver-heap-half", 5 - GetParam());
  DieRecovering();
  LiveOn();
  Recover();
  ApplyAll();
  ExpectSecond();
}

INSTANTIATE_TEST_SUITE_P(Changes, KilledWithinAHeapTest, ::testing::Range(1, 5));

}  // namespace
}  // namespace baton::driver

// What a connection, a shard and a service take of memory by the layout, as recorded. It depends on
// no machine, so it keeps to that within a fiftieth. Where it is to change, the record changes here
// and in RESULTS.md.
#include "tests/bench/service_bytes.h"

#include "gtest/gtest.h"

namespace baton::bench {
namespace {

constexpr double kTight = 1.02;

void ExpectRecorded(double value, double recorded, const char* what) {
  EXPECT_LE(value, recorded * kTight) << what << ": more than recorded";
  EXPECT_GE(value, recorded / kTight) << what << ": less than recorded, so record it";
}

class LayoutBytesTest : public ::testing::Test {
 protected:
  const arena::Shape shape_ = DefaultShape().value();
};

TEST_F(LayoutBytesTest, shouldTakeWhatIsRecordedForAConnection) {
  constexpr uint32_t kMany = 1024;  // no file's last page shows in that many
  const LayoutBytes each = Difference(BytesOf(WithConnections(shape_, 2 * kMany)),
                                      BytesOf(WithConnections(shape_, kMany)), kMany);
  ExpectRecorded(each.metadata, 976, "metadata");
  ExpectRecorded(each.work_request_logs, 32'768, "work request logs");
  ExpectRecorded(each.completion_logs, 32'768, "completion log");
  ExpectRecorded(each.state, 512, "state");
}

TEST_F(LayoutBytesTest, shouldTakeWhatIsRecordedForAShard) {
  const LayoutBytes each = Difference(BytesOf(WithShards(shape_, 2)), BytesOf(shape_), 1);
  ExpectRecorded(each.metadata, 1'351'680, "metadata");
  ExpectRecorded(each.completion_logs, 2'097'152, "completion log");
  ExpectRecorded(each.state, 8192, "state");
}

TEST_F(LayoutBytesTest, shouldTakeWhatIsRecordedForAService) {
  const LayoutBytes service = BytesOf(shape_);
  ExpectRecorded(service.metadata, 1'445'888, "metadata");
  ExpectRecorded(service.work_request_logs, 2'097'152, "work request logs");
  ExpectRecorded(service.completion_logs, 2'097'152, "completion log");
  ExpectRecorded(service.state, 40'960, "state");
  ExpectRecorded(service.buffers, 16'777'216, "buffers");
}

// A service that has very many connections, few of which are busy, shares receives and has short
// queues. At any depth up to 4 an idle connection fits into 6 KiB, with the pool of a native one.
TEST(IdleBytesTest, shouldBeSmallForManyConnectionsThatShareReceives) {
  constexpr double kMost = 6 * 1024;
  for (const uint32_t connections : {32'768u, 50'000u, 65'536u, 100'000u}) {
    for (const uint32_t depth : {1u, 2u, 4u}) {
      for (const bool native : {false, true}) {
        const IdleBytes bytes = IdleBytesOf(ShapeOfSharing({connections, depth, native}).value());
        EXPECT_LE(bytes.Total(), kMost)
            << connections << " connections of depth " << depth << (native ? ", native" : "")
            << ": arena " << bytes.arena << ", queues " << bytes.queues;
      }
    }
  }
}

TEST(IdleBytesTest, shouldTakeWhatIsRecordedForAConnection) {
  const IdleBytes brokered = IdleBytesOf(ShapeOfSharing({65'536, 4, /*native=*/false}).value());
  ExpectRecorded(brokered.arena, 3569, "arena, brokered");
  ExpectRecorded(brokered.queues, 1920, "queues, brokered");
  const IdleBytes native = IdleBytesOf(ShapeOfSharing({65'536, 4, /*native=*/true}).value());
  ExpectRecorded(native.arena, 3571, "arena, native");
  ExpectRecorded(native.queues, 2272, "queues, native");
}

}  // namespace
}  // namespace baton::bench

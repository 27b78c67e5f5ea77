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
  ExpectRecorded(each.metadata, 768, "metadata");
  ExpectRecorded(each.work_request_logs, 32'768, "work request logs");
  ExpectRecorded(each.completion_logs, 32'768, "completion log");
  ExpectRecorded(each.state, 512, "state");
}

TEST_F(LayoutBytesTest, shouldTakeWhatIsRecordedForAShard) {
  const LayoutBytes each = Difference(BytesOf(WithShards(shape_, 2)), BytesOf(shape_), 1);
  ExpectRecorded(each.metadata, 1'323'008, "metadata");
  ExpectRecorded(each.completion_logs, 2'097'152, "completion log");
  ExpectRecorded(each.state, 8192, "state");
}

TEST_F(LayoutBytesTest, shouldTakeWhatIsRecordedForAService) {
  const LayoutBytes service = BytesOf(shape_);
  ExpectRecorded(service.metadata, 1'404'928, "metadata");
  ExpectRecorded(service.work_request_logs, 2'097'152, "work request logs");
  ExpectRecorded(service.completion_logs, 2'097'152, "completion log");
  ExpectRecorded(service.state, 40'960, "state");
  ExpectRecorded(service.buffers, 16'777'216, "buffers");
}

}  // namespace
}  // namespace baton::bench

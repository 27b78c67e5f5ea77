// Describes the engine's state for operators. Call on the engine's thread unless stated otherwise.
#ifndef SUPERVISOR_DRIVER_ENGINE_DESCRIBE_H_
#define SUPERVISOR_DRIVER_ENGINE_DESCRIBE_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "proto/baton/internal/keeper.pb.h"
#include "proto/baton/v1/types.pb.h"
#include "supervisor/driver/engine/service_engine.h"

namespace baton::driver_process {

// `counters`: of the shard, from the engine. The caller asks for them once, since a native service
// counts by looking at all of its connections.
v1::Shard DescribeShard(const ServiceEngine& engine, uint32_t shard,
                        const driver::ShardCounters& counters);
internal::ShardLoad DescribeShardLoad(const driver::ShardCounters& counters);

// Describes connections at one moment. Asks for the counters of each shard once: a native service
// counts by looking at all of its connections.
class ConnectionDescriber {
 public:
  // `engine` outlives it.
  explicit ConnectionDescriber(const ServiceEngine& engine) : engine_(engine) {}

  v1::Connection Describe(uint32_t connection);

 private:
  void DescribeWindow(const arena::ConnectionRecord& record, uint32_t connection,
                      v1::Connection* out);

  const ServiceEngine& engine_;
  std::map<uint32_t, uint64_t> receives_completed_;  // by shard
};

v1::DeviceState DescribeDevice(const verbs::DeviceInfo& device);
v1::ReconciliationReport DescribeReport(const ReconciliationReport& report,
                                        size_t max_requests = ~size_t{0});
v1::BlackoutSummary Summarize(const LatencyHistogram& histogram);
void AddBlackout(const std::string& cause, const LatencyHistogram& histogram,
                 internal::Description* description);
internal::EngineLoad DescribeLoad(const EngineLoad& load);
// Sets receive_window of `loads`, which has one for each shard. Looks at every connection; any
// thread may call it.
void AddReceiveWindows(const arena::Arena& arena,
                       google::protobuf::RepeatedPtrField<internal::ShardLoad>* loads);
// Sets heap of `loads`, which has one for each shard, if shards have heaps. Any thread may call it.
void AddHeaps(const arena::Arena& arena,
              google::protobuf::RepeatedPtrField<internal::ShardLoad>* loads);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_DESCRIBE_H_

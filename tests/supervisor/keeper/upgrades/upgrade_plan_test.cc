#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/keeper/upgrades/started_processes.h"
#include "supervisor/keeper/upgrades/upgrade_plan.h"

namespace baton::keeper {
namespace {

using testing::StartsWith;

constexpr uint32_t kShards = 4;

void ExpectRefusal(const v1::UpgradePlan& plan, const std::string& field) {
  const absl::Status status = CheckUpgradePlan(plan, kShards);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
  EXPECT_THAT(std::string(status.message()), StartsWith(field));
}

TEST(UpgradePlanTest, shouldNameTheFieldThatDoesNotDo) {
  v1::UpgradePlan plan;
  EXPECT_TRUE(CheckUpgradePlan(plan, kShards).ok());
  plan.set_canary_window_ms(1);
  ExpectRefusal(plan, "canary_window_ms");
  plan.set_pause_after_canary(true);
  ExpectRefusal(plan, "pause_after_canary");
  plan.add_canary_shards(3);
  EXPECT_TRUE(CheckUpgradePlan(plan, kShards).ok());
  plan.set_no_rollback(true);
  ExpectRefusal(plan, "no_rollback");
  plan.set_no_rollback(false);
  plan.mutable_gates()->set_max_blackout_us(std::nan(""));
  ExpectRefusal(plan, "gates.max_blackout_us");
  plan.clear_gates();
  for (const uint32_t shard : {0, 1, 2}) plan.add_canary_shards(shard);
  ExpectRefusal(plan, "canary_shards");
  plan.clear_canary_shards();
  plan.add_canary_shards(kShards);
  ExpectRefusal(plan, "canary_shards");
}

TEST(UpgradePlanTest, shouldTakeTheTimesThatItLeavesOutFromTheService) {
  v1::ServiceConfig service;
  service.set_ready_timeout_ms(10);
  service.set_watch_window_ms(20);
  v1::UpgradePlan plan = WithTimesOf(service, {});
  EXPECT_EQ(plan.ready_timeout_ms(), 10u);
  EXPECT_EQ(plan.watch_window_ms(), 20u);
  EXPECT_EQ(plan.canary_window_ms(), 20u);
  plan.set_ready_timeout_ms(1);
  plan.set_watch_window_ms(2);
  plan.set_canary_window_ms(3);
  plan = WithTimesOf(service, plan);
  EXPECT_EQ(plan.ready_timeout_ms(), 1u);
  EXPECT_EQ(plan.watch_window_ms(), 2u);
  EXPECT_EQ(plan.canary_window_ms(), 3u);
}

class NoPrograms final : public WorkerPrograms {
 public:
  absl::Status Check(const std::string&) const override { return absl::OkStatus(); }
  void Read(pid_t, uint32_t, uint32_t, ProgramDone) override {}
  absl::StatusOr<StartedProgram> Start(const internal::Program&) override {
    return absl::UnimplementedError("no");
  }
  FileDescriptor PidfdOf(pid_t) const override { return {}; }
  std::string Reap(pid_t, int) override { return ""; }
  void OnServing(const internal::Program&) override {}
};

// Its keeper died unanswered, and the next one knows of both.
TEST(StartedProcessesTest, shouldKnowAWorkerThatAttachesAgain) {
  boost::asio::io_context loop;
  NoPrograms programs;
  StartedProcesses processes(loop, programs, [](const internal::StartedWorker&) {});
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const FileDescriptor other_end(ends[1]);
  internal::StartedWorker known;
  known.set_pid(7);
  known.set_worker_id(5);
  processes.Watch(known, FileDescriptor(ends[0]));
  EXPECT_TRUE(processes.NoteAttached(7, 5));
  EXPECT_TRUE(processes.NoteAttached(7, 6));  // another of its threads
  EXPECT_EQ(processes.List().at(0).worker_id(), 5u);
  EXPECT_FALSE(processes.NoteAttached(8, 5));
}

}  // namespace
}  // namespace baton::keeper

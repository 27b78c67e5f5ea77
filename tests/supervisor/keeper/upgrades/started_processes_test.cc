#include "supervisor/keeper/upgrades/started_processes.h"

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <string>

#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"

namespace baton::keeper {
namespace {

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
  processes.Adopt(known, FileDescriptor(ends[0]));
  EXPECT_TRUE(processes.NoteAttached(7, 5));
  EXPECT_FALSE(processes.NoteAttached(7, 6));
  EXPECT_FALSE(processes.NoteAttached(8, 5));
}

}  // namespace
}  // namespace baton::keeper

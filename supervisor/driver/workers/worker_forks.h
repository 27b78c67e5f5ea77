// Forks the processes of a native service's workers from the driver, which has opened the device
// that they use. Copies what they print to the log. They end with the driver.
#ifndef SUPERVISOR_DRIVER_WORKERS_WORKER_FORKS_H_
#define SUPERVISOR_DRIVER_WORKERS_WORKER_FORKS_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/internal/driver.pb.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/batond/spawn.h"
#include "supervisor/driver/native/native_engine.h"
#include "supervisor/driver/workers/fork_worker.h"
#include "supervisor/driver/workers/output_lines.h"

namespace baton::driver_process {

// Thread-compatible: the driver's one thread, which waits for no worker.
class WorkerForks {
 public:
  // Called with an event for operators.
  using Tell = std::function<void(std::string_view kind, const std::string& message)>;

  // `engine` outlives it. `native`: what all programs of the service have in common. `presence`:
  // the lock of lifeline.h, which all workers inherit. `code`: of drivers (driver_code.h).
  static absl::StatusOr<std::unique_ptr<WorkerForks>> Create(NativeEngine& engine,
                                                             const v1::NativeConfig& native,
                                                             FileDescriptor presence,
                                                             ReplaceableProgram code, Tell tell);
  ~WorkerForks();  // kills them
  WorkerForks(const WorkerForks&) = delete;
  WorkerForks& operator=(const WorkerForks&) = delete;

  // Adds the worker's pidfd and the keeper's end of its session to `sent`. kUnavailable: the former
  // process of the slot has not ended yet. kResourceExhausted: its descriptors cannot be copied,
  // and it is killed.
  absl::Status Fork(const internal::ForkWorker& order, internal::Forked* forked,
                    std::vector<FileDescriptor>* sent);
  // Called when the worker has attached. Closes the driver's copy of the keeper's end of its
  // session.
  void NoteAttached(uint64_t worker_id);
  // Describes, as Fork() does, the next process after `pid` (0: the first) that is not reaped.
  // Leaves the results empty if there is none. A worker that has not attached has a session that
  // the next keeper accepts.
  absl::Status Next(pid_t pid, internal::Forked* forked, std::vector<FileDescriptor>* sent) const;
  // Reaps process `pid` if it has ended, and returns how. Later calls return the same.
  internal::Reaped Reap(pid_t pid);

  // Workers that are forked from now on have the code of drivers that is in place now. It is given
  // up if one of them does not attach, or crashes before it has lived for `probation`, and is
  // proven once one has. kFailedPrecondition: the file in place is no such code.
  absl::Status ReplaceCode(std::chrono::milliseconds probation);
  // The release of the code that a worker which is forked now gets. Empty: it is not known.
  const std::string& code_release() const { return code_release_; }
  // Why the last new code was given up. Empty: it was not.
  const std::string& code_given_up() const { return code_given_up_; }

  // Returns whether code was proven or given up since the last call.
  bool TakeCodeChanged() { return std::exchange(code_changed_, false); }

  // Copies output to the log. Call it when one of descriptors() is readable, and every
  // NativeEngine::kTurnMs.
  void Turn();
  std::vector<int> descriptors() const;

 private:
  struct Process {
    internal::Forked facts;
    FileDescriptor pidfd;
    FileDescriptor session;  // the keeper's end, until the worker has attached
    uint64_t forked_ns = 0;
    bool has_next_code = false;  // that was on probation at the fork
    uint64_t heartbeat = 0;      // in the arena, as it was seen last
    uint64_t beat_ns = 0;        // when it had changed
    internal::Reaped end;
  };

  WorkerForks(NativeEngine& engine, const v1::NativeConfig& native, FileDescriptor presence,
              ReplaceableProgram code, Tell tell);
  absl::Status Open();

  static bool HasEnded(const Process& process);
  static absl::Status Give(const Process& process, internal::Forked* forked,
                           std::vector<FileDescriptor>* sent);
  void ForgetOldest();
  void LookAtProbation();
  void JudgeCode(const Process& ended);
  void ReadCodeRelease();

  NativeEngine& engine_;
  const v1::NativeConfig native_;
  const uint32_t slots_;
  const FileDescriptor presence_;
  ReplaceableProgram code_;
  const Tell tell_;
  std::string code_release_, code_given_up_;
  bool code_changed_ = false;
  Pipe lifeline_, output_;
  OutputLines lines_{kNativeOutput};
  std::deque<Process> processes_;  // the oldest first
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_WORKERS_WORKER_FORKS_H_

// Threads that call the backings that may take long, so that the serving thread never waits.
//
// Why threads and blocking system calls: a blocking call that a process has begun is over when the
// process has ended, and a successor waits for that (outside_effects). The pidfd reports the end
// only when the last thread of the process has left the kernel.
#ifndef WORKER_EXAMPLES_NVMED_EXECUTOR_H_
#define WORKER_EXAMPLES_NVMED_EXECUTOR_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "worker/examples/nvmed/io_command.h"

namespace baton::nvmed {

// Thread-safety: one thread calls Submit, Take and Drain.
class Executor {
 public:
  struct Job {
    uint32_t id = 0;  // the caller's
    IoWork work;
    absl::Span<uint8_t> data;  // nobody else may touch it until the job's result is taken
  };
  struct Result {
    uint32_t id = 0;
    StatusCode status = StatusCode::kSuccess;
  };

  // `capacity`: jobs at once, including those whose results have not been taken. The threads call
  // `wake` when a result is there.
  Executor(uint32_t threads, size_t capacity, std::function<void()> wake);
  ~Executor();  // waits for jobs that were begun; others are not begun any more
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  bool has_room() const { return under_way_ < queue_.size(); }
  void Submit(const Job& job);  // REQUIRES: has_room()
  // Takes the results of finished jobs, in the order in which they finished.
  void Take(std::vector<Result>* results);
  // Waits until all submitted jobs are done and can be taken.
  void Drain();

 private:
  void Work();

  const std::function<void()> wake_;
  size_t under_way_ = 0;  // used by the caller's thread alone

  std::mutex mutex_;
  std::condition_variable submitted_, done_;
  std::vector<Job> queue_;  // a ring
  size_t first_ = 0, count_ = 0;
  size_t running_ = 0;
  std::vector<Result> results_;
  bool ending_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_EXECUTOR_H_

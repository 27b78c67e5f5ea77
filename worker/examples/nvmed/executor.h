// Threads that call the backings which may take long, so that the thread that serves never does.
//
// Why threads and system calls that block: what a process has begun is over when the process is,
// and that is what a successor waits for (outside_effects). pidfd tells so only when the last
// thread of the process has left the kernel.
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

// Thread-safety: Submit, Take and Drain are for one thread.
class Executor {
 public:
  struct Job {
    uint32_t id = 0;  // the caller's
    IoWork work;
    absl::Span<uint8_t> data;  // nobody else touches it until the job is taken back
  };
  struct Result {
    uint32_t id = 0;
    StatusCode status = StatusCode::kSuccess;
  };

  // `capacity`: jobs at once, those included whose results have not been taken. `wake` is called by
  // its threads when a result is there.
  Executor(uint32_t threads, size_t capacity, std::function<void()> wake);
  ~Executor();  // every job that was begun is over; those that were not are not begun any more
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  bool has_room() const { return under_way_ < queue_.size(); }
  void Submit(const Job& job);  // while there is room
  // Takes the results of finished jobs, in the order in which they finished.
  void Take(std::vector<Result>* results);
  // All that was submitted is done, and can be taken.
  void Drain();

 private:
  void Work();

  const std::function<void()> wake_;
  size_t under_way_ = 0;  // of the caller's thread

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

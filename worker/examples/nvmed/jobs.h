// Threads execute the commands that may take long, so that the serving thread never waits. Each of
// these commands is known here until it is answered.
#ifndef WORKER_EXAMPLES_NVMED_JOBS_H_
#define WORKER_EXAMPLES_NVMED_JOBS_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "worker/examples/nvmed/buffer_plan.h"
#include "worker/examples/nvmed/io_command.h"
#include "worker/examples/nvmed/nvme_spec.h"

namespace baton::nvmed {

// Threads that call the backings.
//
// Why threads and blocking system calls: a blocking call that a process has begun is over when the
// process has ended, and a successor waits for that (outside_effects). The pidfd reports the end
// only when the last thread of the process has left the kernel.
//
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

struct Job {
  uint32_t connection = 0;
  uint32_t generation = 0;
  uint16_t slot = 0;
  std::optional<uint32_t> chunk;
  IoWork work;
  bool active = false;
  bool orphaned = false;  // its connection has ended
};

// The commands that take long. Thread-compatible.
class Jobs {
 public:
  // The threads call `wake` when there is a result.
  Jobs(uint32_t threads, std::function<void()> wake);

  bool has_room() const { return !free_.empty() && executor_.has_room(); }
  // Returns whether `work` is a write that overlaps a write under way. It then has to wait until
  // that is answered: a successor executes both again in the order of arrival, and nobody may have
  // seen the results of another order.
  bool Conflicts(const IoWork& work) const;

  // REQUIRES: has_room(). `done`: the work that a thread executes for the job. Nobody else may
  // touch `data` until it is done.
  void Start(const Job& job, const IoWork& done, absl::Span<uint8_t> data);

  // Calls `answer` for each job that is done, in the order in which they finished, beginning with
  // those for which it had no room before. `answer` returns whether it had room.
  void TakeResults(const std::function<bool(Job&, StatusCode)>& answer);

  // Orphans the jobs of a connection that has ended. Their chunks stay in use until the jobs are
  // done.
  void Orphan(uint32_t connection, ChunkPool* chunks);

  // Waits until all jobs are done and can be taken.
  void Drain() { executor_.Drain(); }
  // Forgets all jobs, unanswered.
  void Forget();

 private:
  std::vector<Job> jobs_;  // by number
  std::vector<uint32_t> free_;
  std::vector<Executor::Result> results_;
  std::vector<Executor::Result> unanswered_;  // `answer` had no room
  Executor executor_;
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_JOBS_H_

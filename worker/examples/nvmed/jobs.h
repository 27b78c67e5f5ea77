// Commands that take long. Threads execute them, and each is known here until it is answered.
#ifndef WORKER_EXAMPLES_NVMED_JOBS_H_
#define WORKER_EXAMPLES_NVMED_JOBS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "worker/examples/nvmed/chunk_pool.h"
#include "worker/examples/nvmed/executor.h"
#include "worker/examples/nvmed/io_command.h"
#include "worker/examples/nvmed/nvme_spec.h"

namespace baton::nvmed {

struct Job {
  uint32_t connection = 0;
  uint32_t generation = 0;
  uint16_t slot = 0;
  std::optional<uint32_t> chunk;
  IoWork work;
  bool active = false;
  bool orphaned = false;  // its connection has ended
};

// Thread-compatible.
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

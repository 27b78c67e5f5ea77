// Commands that take long: executed by threads, each known until it has been answered.
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
  // `wake` is called by the threads when there is a result.
  Jobs(uint32_t threads, std::function<void()> wake);

  bool has_room() const { return !free_.empty() && executor_.has_room(); }
  // A write that overlaps one which is under way waits until that has been answered: a successor
  // executes both again, in the order of their arrival, and nobody may have seen them in another.
  bool Conflicts(const IoWork& work) const;

  // While there is room. `done`: what is executed for it; nobody else touches `data` until then.
  void Start(const Job& job, const IoWork& done, absl::Span<uint8_t> data);

  // `answer` is given what is done, in that order, those first that it had no room for before. It
  // says whether there was.
  void TakeResults(const std::function<bool(Job&, StatusCode)>& answer);

  // Orphans the jobs of a connection that has ended. Their chunks stay in use until they are done.
  void Orphan(uint32_t connection, ChunkPool* chunks);

  // All are done, and can be taken.
  void Drain() { executor_.Drain(); }
  // Nobody answers them any more.
  void Forget();

 private:
  std::vector<Job> jobs_;  // by number
  std::vector<uint32_t> free_;
  std::vector<Executor::Result> results_;
  std::vector<Executor::Result> unanswered_;  // for want of room
  Executor executor_;
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_JOBS_H_

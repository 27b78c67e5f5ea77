#include "worker/examples/nvmed/jobs.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace baton::nvmed {
namespace {

constexpr size_t kMaxJobs = 1024;

}  // namespace

Jobs::Jobs(uint32_t threads, std::function<void()> wake)
    : jobs_(kMaxJobs), executor_(threads, kMaxJobs, std::move(wake)) {
  for (uint32_t id = kMaxJobs; id-- > 0;) free_.push_back(id);
}

bool Jobs::Conflicts(const IoWork& work) const {
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [&](const Job& job) { return job.active && IsOverlap(work, job.work); });
}

void Jobs::Start(const Job& job, const IoWork& done, absl::Span<uint8_t> data) {
  const uint32_t id = free_.back();
  free_.pop_back();
  jobs_[id] = job;
  jobs_[id].active = true;
  executor_.Submit({id, done, data});
}

void Jobs::TakeResults(const std::function<bool(Job&, StatusCode)>& answer) {
  executor_.Take(&results_);
  results_.insert(results_.begin(), unanswered_.begin(), unanswered_.end());
  unanswered_.clear();
  for (const Executor::Result& result : results_) {
    Job& job = jobs_[result.id];
    if (!job.active) continue;
    if (!answer(job, result.status)) {
      unanswered_.push_back(result);
      continue;
    }
    job = Job();
    free_.push_back(result.id);
  }
}

void Jobs::Orphan(uint32_t connection, ChunkPool* chunks) {
  for (Job& job : jobs_) {
    if (!job.active || job.orphaned || job.connection != connection) continue;
    job.orphaned = true;
    if (job.chunk) chunks->Keep(*job.chunk);
  }
}

void Jobs::Forget() {
  executor_.Take(&results_);
  unanswered_.clear();
  for (uint32_t id = 0; id < jobs_.size(); ++id) {
    if (jobs_[id].active) free_.push_back(id);
    jobs_[id] = Job();
  }
}

}  // namespace baton::nvmed

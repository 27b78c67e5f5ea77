#include "worker/examples/nvmed/jobs.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "lib/base/check.h"

namespace baton::nvmed {

Executor::Executor(uint32_t threads, size_t capacity, std::function<void()> wake)
    : wake_(std::move(wake)), queue_(capacity) {
  results_.reserve(capacity);
  // The new threads block all signals: they are for the serving thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  submitted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Executor::Submit(const Job& job) {
  BATON_CHECK(has_room());
  ++under_way_;
  {
    const std::lock_guard lock(mutex_);
    queue_[(first_ + count_++) % queue_.size()] = job;
  }
  submitted_.notify_one();
}

void Executor::Take(std::vector<Result>* results) {
  results->clear();
  if (under_way_ == 0) return;
  const std::lock_guard lock(mutex_);
  results->insert(results->end(), results_.begin(), results_.end());
  results_.clear();
  under_way_ -= results->size();
}

void Executor::Drain() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return count_ == 0 && running_ == 0; });
}

void Executor::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    submitted_.wait(lock, [this] { return ending_ || count_ > 0; });
    if (ending_) return;
    const Job job = queue_[first_];
    first_ = (first_ + 1) % queue_.size();
    --count_;
    ++running_;
    lock.unlock();
    const StatusCode status = Run(job.work, job.data);
    lock.lock();
    results_.push_back({job.id, status});
    wake_();  // before Drain can return, because the woken worker may be gone then
    --running_;
    if (count_ == 0 && running_ == 0) done_.notify_all();
  }
}

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

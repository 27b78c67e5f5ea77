#include "worker/examples/nvmed/executor.h"

#include <pthread.h>
#include <signal.h>

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

}  // namespace baton::nvmed

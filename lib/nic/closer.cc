#include "lib/nic/closer.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace baton::nic {

struct Closer::Work {
  std::mutex mutex;
  std::condition_variable more;
  std::deque<FileDescriptor> descriptors;
  bool ended = false;
};

Closer::Closer() : work_(std::make_shared<Work>()) {}

Closer::~Closer() {
  const std::lock_guard lock(work_->mutex);
  work_->ended = true;
  work_->more.notify_one();
}

void* Closer::Run(void* own) {
  const std::unique_ptr<std::shared_ptr<Work>> owned(static_cast<std::shared_ptr<Work>*>(own));
  Work& work = **owned;
  std::unique_lock lock(work.mutex);
  for (;;) {
    work.more.wait(lock, [&work] { return work.ended || !work.descriptors.empty(); });
    if (work.descriptors.empty()) return nullptr;
    FileDescriptor descriptor = std::move(work.descriptors.front());
    work.descriptors.pop_front();
    lock.unlock();
    descriptor.Reset();
    lock.lock();
  }
}

void Closer::Close(FileDescriptor descriptor) {
  if (!descriptor) return;
  if (!started_) {
    auto owned = std::make_unique<std::shared_ptr<Work>>(work_);
    pthread_t thread;
    if (pthread_create(&thread, nullptr, Run, owned.get()) != 0) return;
    (void)owned.release();
    pthread_detach(thread);
    started_ = true;
  }
  const std::lock_guard lock(work_->mutex);
  work_->descriptors.push_back(std::move(descriptor));
  work_->more.notify_one();
}

}  // namespace baton::nic

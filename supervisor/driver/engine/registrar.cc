#include "supervisor/driver/engine/registrar.h"

#include <utility>

namespace baton::driver_process {

Registrar::~Registrar() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Registrar::Post(std::function<void()> work) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    posted_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void Registrar::Loop() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return stopped_ || !posted_.empty(); });
      if (stopped_) return;
      work = std::move(posted_.front());
      posted_.pop_front();
    }
    work();
  }
}

}  // namespace baton::driver_process

// A thread that registers memory with a device, and deregisters it.
#ifndef SUPERVISOR_DRIVER_ENGINE_REGISTRAR_H_
#define SUPERVISOR_DRIVER_ENGINE_REGISTRAR_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace baton::driver_process {

// Thread-safe.
class Registrar {
 public:
  Registrar() : thread_([this] { Loop(); }) {}
  // Ends the thread. Waits for the work that has begun, and drops the rest.
  ~Registrar();

  // Runs `work` on the thread, in the order of the calls. `work` is destroyed there, too.
  void Post(std::function<void()> work);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;  // guarded by mutex_
  bool stopped_ = false;                      // guarded by mutex_
  std::thread thread_;                        // last: it uses what is above
};

inline Registrar::~Registrar() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

inline void Registrar::Post(std::function<void()> work) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    posted_.push_back(std::move(work));
  }
  changed_.notify_one();
}

inline void Registrar::Loop() {
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

#endif  // SUPERVISOR_DRIVER_ENGINE_REGISTRAR_H_

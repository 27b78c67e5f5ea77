// Inside the worker library: what other threads and signal handlers ask of a worker's thread.
#ifndef WORKER_WORKER_NOTICES_H_
#define WORKER_WORKER_NOTICES_H_

#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"

namespace baton {

// The worker's thread asks, except where a function says otherwise.
class WorkerNotices {
 public:
  absl::Status Open() {
    event_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return event_ ? absl::OkStatus() : ErrnoStatus(errno, "eventfd (see RLIMIT_NOFILE)");
  }
  // Readable from the first notice to TakeEvent.
  int fd() const { return event_.get(); }
  void TakeEvent() {
    eventfd_t value;
    eventfd_read(event_.get(), &value);
  }

  // Any thread, and signal handlers.
  void Stop() {
    stop_.store(true);
    Wake();
  }
  void Wake() {
    woken_.store(true);
    eventfd_write(event_.get(), 1);
  }
  // Any thread.
  void AskShutdown(std::string_view reason) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      shutdown_reason_ = std::string(reason);
    }
    shutdown_asked_.store(true);
    eventfd_write(event_.get(), 1);
  }

  bool stopped() const { return stop_.load(std::memory_order_relaxed); }
  // For the worker's thread, which is awake.
  void StopWithoutWaking() { stop_.store(true); }
  // By Stop or Wake, since ForgetWake.
  bool woken() const { return woken_.load(std::memory_order_relaxed); }
  void ForgetWake() { woken_.store(false); }
  bool shutdown_asked() const { return shutdown_asked_.load(std::memory_order_relaxed); }
  // Returns the reason. The shutdown counts as asked no more.
  std::string TakeShutdown() {
    shutdown_asked_.store(false);
    const std::lock_guard<std::mutex> lock(mutex_);
    return shutdown_reason_;
  }

 private:
  FileDescriptor event_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> woken_{false};
  std::atomic<bool> shutdown_asked_{false};
  std::mutex mutex_;
  std::string shutdown_reason_;  // guarded by mutex_
};

}  // namespace baton

#endif  // WORKER_WORKER_NOTICES_H_

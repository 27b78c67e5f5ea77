#include "lib/base/closer.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace baton {

struct Closer::Work {
  std::mutex mutex;
  std::condition_variable more;
  std::deque<FileDescriptor> descriptors;
  bool started = false;
  bool ended = false;
};

Closer::Closer() : work_(std::make_shared<Work>()) {}

Closer::~Closer() {
  const std::lock_guard lock(work_->mutex);
  work_->ended = true;
  work_->more.notify_one();
}

void Closer::Run(const std::shared_ptr<Work>& owned) {
  Work& work = *owned;
  std::unique_lock lock(work.mutex);
  for (;;) {
    work.more.wait(lock, [&work] { return work.ended || !work.descriptors.empty(); });
    if (work.descriptors.empty()) return;
    FileDescriptor descriptor = std::move(work.descriptors.front());
    work.descriptors.pop_front();
    lock.unlock();
    descriptor.Reset();
    lock.lock();
  }
}

void Closer::Close(FileDescriptor descriptor) {
  if (!descriptor) return;
  const std::lock_guard lock(work_->mutex);
  if (!work_->started) {
    try {
      std::thread(Run, work_).detach();
    } catch (const std::system_error&) {
      return;
    }
    work_->started = true;
  }
  work_->descriptors.push_back(std::move(descriptor));
  work_->more.notify_one();
}

void CloseConnection(FileDescriptor socket) {
  static Closer& closer = *new Closer;  // outlives every thread
  // Nothing arrives afterwards. The other side sees the end, even if the Closer waits.
  shutdown(socket.get(), SHUT_RDWR);
  int unread = 0;
  if (ioctl(socket.get(), FIONREAD, &unread) == 0 && unread != 0) closer.Close(std::move(socket));
}

}  // namespace baton

#include "supervisor/driver/engine/worker_wakes.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "lib/arena/atomic_access.h"
#include "lib/base/closer.h"

namespace baton::driver_process {

void WorkerWakes::Add(uint32_t slot, FileDescriptor wake) {
  Remove(slot);
  KeepInLine(wake.get());
  workers_[slot].wake = std::move(wake);
}

void WorkerWakes::Remove(uint32_t slot) {
  FileDescriptor& wake = workers_[slot].wake;
  if (others_close_) {
    if (wake) shutdown(wake.get(), SHUT_RDWR);
  } else {
    CloseConnection(std::move(wake));
  }
  workers_[slot] = Worker{};
}

// A full socket is readable already; a closed one is its worker's problem.
void WorkerWakes::Wake(uint32_t slot) const {
  (void)send(workers_[slot].wake.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

std::vector<int> WorkerWakes::descriptors() const {
  std::vector<int> all;
  for (const Worker& worker : workers_) {
    if (worker.wake) all.push_back(worker.wake.get());
  }
  return all;
}

void WorkerWakes::WakeAll() const {
  for (uint32_t slot = 0; slot < workers_.size(); ++slot) {
    if (workers_[slot].wake) Wake(slot);
  }
}

void WorkerWakes::WakeSleepers() {
  any_notified_ = false;
  // Orders what was published before the look at `sleeping`; Worker::ArmEvent has the other half.
  arena::FullFence();
  for (uint32_t slot = 0; slot < workers_.size(); ++slot) {
    Worker& worker = workers_[slot];
    if (!worker.notify) continue;
    worker.notify = false;
    uint32_t& sleeping = arena_->worker(slot).sleeping;
    if (!worker.wake || arena::LoadRelaxed(sleeping) == 0) continue;
    arena::StoreRelaxed(sleeping, 0u);
    Wake(slot);
  }
}

size_t WorkerWakes::ListenForSignals(pollfd* entries) const {
  size_t count = 0;
  for (const Worker& worker : workers_) {
    if (worker.wake && !worker.deaf) entries[count++] = {worker.wake.get(), POLLIN, 0};
  }
  return count;
}

void WorkerWakes::TakeSignals(const pollfd* entries) {
  for (Worker& worker : workers_) {
    if (!worker.wake || worker.deaf) continue;
    const pollfd& entry = *entries++;
    if (entry.revents == 0) continue;
    char signals[256];
    iovec into = {signals, sizeof(signals)};
    msghdr header = {};
    header.msg_iov = &into;
    header.msg_iovlen = 1;
    const ssize_t got = ReceiveBytes(entry.fd, &header);
    // poll(2) would report the end of the socket, or descriptors in it, at once, for ever.
    worker.deaf = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
  }
}

}  // namespace baton::driver_process

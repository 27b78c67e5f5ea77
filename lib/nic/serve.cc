#include "lib/nic/serve.h"

#include <poll.h>
#include <sched.h>

#include <cerrno>
#include <cstdint>

#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/waiting/pause.h"

namespace baton::nic {
namespace {

absl::Status Sleep(Nic* nic) {
  pollfd entry = {nic->event_fd(), POLLIN, 0};
  if (poll(&entry, 1, -1) >= 0 || errno == EINTR) return absl::OkStatus();
  return ErrnoStatus(errno, "poll of the NIC");
}

// Looks at the doorbells for a short time, without a system call, because a client that has just
// been served is about to ring again.
bool Glance(Nic* nic) {
  for (uint32_t look = 0; look < kLooksBeforeYield; ++look) {
    if (nic->TakeRings()) return true;
    Pause();
  }
  return false;
}

}  // namespace

absl::Status Serve(Nic* nic, uint32_t yield_microseconds) {
  constexpr uint64_t kNsPerUs = 1000;
  const uint64_t yield_ns = yield_microseconds * kNsPerUs;
  uint64_t idle_since = 0;
  while (nic->has_clients()) {
    const bool worked = nic->Progress();
    if (idle_since == 0 && (worked || Glance(nic))) continue;
    if (worked) {
      idle_since = 0;
      continue;
    }
    const uint64_t now = MonotonicNanoseconds();
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < yield_ns) {
      sched_yield();
    } else if (nic->PrepareToWait()) {
      if (absl::Status slept = Sleep(nic); !slept.ok()) return slept;
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::nic

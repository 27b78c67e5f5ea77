#include "lib/nic/serve.h"

#include <poll.h>
#include <sched.h>

#include <cerrno>
#include <cstdint>

#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/waiting/yield_budget.h"

namespace baton::nic {
namespace {

absl::Status Sleep(Nic* nic) {
  pollfd entry = {nic->event_fd(), POLLIN, 0};
  if (poll(&entry, 1, -1) >= 0 || errno == EINTR) return absl::OkStatus();
  return ErrnoStatus(errno, "poll of the NIC");
}

}  // namespace

absl::Status Serve(Nic* nic, uint32_t yield_microseconds) {
  YieldBudget budget(yield_microseconds);
  uint64_t idle_since = 0;
  while (nic->has_clients()) {
    const bool worked = nic->Progress();
    if (worked && idle_since == 0) continue;
    const uint64_t now = MonotonicNanoseconds();
    if (worked) {
      budget.NoteWait(now - idle_since);
      idle_since = 0;
      continue;
    }
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < budget.nanoseconds()) {
      sched_yield();
    } else if (nic->PrepareToWait()) {
      if (absl::Status slept = Sleep(nic); !slept.ok()) return slept;
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::nic

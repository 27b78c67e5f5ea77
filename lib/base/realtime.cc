#include "lib/base/realtime.h"

#include <sched.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"

namespace baton {

absl::Status UseRealtimePriority(int priority) {
  sched_param parameters = {};
  parameters.sched_priority = priority;
  if (sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &parameters) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, absl::StrCat("real-time priority ", priority,
                                         " (needs CAP_SYS_NICE or RLIMIT_RTPRIO, LimitRTPRIO= of "
                                         "a systemd unit)"));
}

}  // namespace baton

// Forked drivers of a check, and their ends.
#ifndef SUPERVISOR_NIC_CHECK_PROCESSES_H_
#define SUPERVISOR_NIC_CHECK_PROCESSES_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::nic_check {

// Drivers are killed at a random instant of so long.
inline constexpr uint64_t kLatestKillNs = 400'000;

// Runs it in a forked process, which ends with 0 if it returns OK. The process ends with this one:
// nobody else would stop a driver that works.
absl::StatusOr<pid_t> Fork(const std::function<absl::Status()>& run);
absl::Status AwaitSuccess(pid_t child);
absl::Status Kill(pid_t child);

// Without a system call, which would end a while later.
void PassTime(uint64_t nanoseconds);

}  // namespace baton::nic_check

#endif  // SUPERVISOR_NIC_CHECK_PROCESSES_H_

// The names of the files in a state directory, and which process makes each. They are in one place
// so that batond, drivers, keepers, control and tools agree, and the longest name can be checked
// before a socket is bound (a socket's path has at most 107 bytes).
#ifndef SUPERVISOR_CONFIG_STATE_FILES_H_
#define SUPERVISOR_CONFIG_STATE_FILES_H_

#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

namespace baton {

inline constexpr size_t kMaxSocketPathBytes = 107;

// The state directory of this user's batond, unless another is named.
inline std::string DefaultStateDir() {
  if (geteuid() == 0) return "/run/baton";
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/') return std::string(runtime) + "/baton";
  return "/tmp/baton-" + std::to_string(geteuid());
}

// Held by batond while it runs; contains its pid.
inline std::string BatondLockPath(std::string_view state_dir) {
  return std::string(state_dir) + "/batond.lock";
}

// The program that batond ran before the one that is on trial.
inline std::string FormerBatondPath(std::string_view state_dir) {
  return std::string(state_dir) + "/batond.before";
}

// Bound by batond. A driver whose batond is gone connects to the next one here.
inline std::string RejoinSocketPath(std::string_view state_dir) {
  return std::string(state_dir) + "/batond.rejoin";
}

// Held by a child of batond, and by what it has started, through an inherited descriptor, until the
// last of them is gone; contains the child's pid.
inline constexpr std::string_view kKeeperLockEnding = ".keeper.lock";
inline std::string KeeperLockPath(std::string_view state_dir, std::string_view service) {
  return std::string(state_dir) + "/" + std::string(service) + std::string(kKeeperLockEnding);
}
inline std::string ControlLockPath(std::string_view state_dir) {
  return std::string(state_dir) + "/control.lock";
}

// Held by the native workers of `service`, and by its driver, through an inherited descriptor,
// until the last of them is gone.
inline std::string WorkersLockPath(std::string_view state_dir, std::string_view service) {
  return std::string(state_dir) + "/" + std::string(service) + ".workers.lock";
}

// Bound by control: operators, and workers' gRPC streams.
inline std::string OperatorSocketPath(std::string_view state_dir) {
  return std::string(state_dir) + "/operator.sock";
}
inline std::string ControlSocketPath(std::string_view state_dir) {
  return std::string(state_dir) + "/control.sock";
}

// Bound by the keeper of `service`: workers attach at the first, control uses the second.
inline std::string WorkerSocketPath(std::string_view state_dir, std::string_view service) {
  return std::string(state_dir) + "/" + std::string(service) + ".sock";
}
inline std::string ManagementSocketPath(std::string_view state_dir, std::string_view service) {
  return std::string(state_dir) + "/" + std::string(service) + ".keeper.sock";
}

// Written by the driver or keeper of `service` when it ends because of a problem; removed by the
// next keeper that is up.
inline std::string DownReasonPath(std::string_view state_dir, std::string_view service) {
  return std::string(state_dir) + "/" + std::string(service) + ".down";
}

// Written by the keeper of `service` while an operator has it drained; its successors read it.
inline std::string DrainPath(std::string_view state_dir, std::string_view service) {
  return std::string(state_dir) + "/" + std::string(service) + ".drain";
}

// The directory in which a control that does not run as batond's user may create files. batond
// creates it in the state directory or in the service manager's log directory.
inline std::string ControlDirectoryPath(std::string_view directory) {
  return std::string(directory) + "/control";
}

// The audit trail, which control writes; older files are beside it. The state directory contains it
// or a link to it.
inline std::string AuditTrailPath(std::string_view directory) {
  return std::string(directory) + "/audit.log";
}

// A service of this name would take control's sockets.
inline bool IsReservedServiceName(std::string_view name) {
  return name == "operator" || name == "control";
}

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_STATE_FILES_H_

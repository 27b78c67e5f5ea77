// Names the files in a state directory, says which process makes each, and replaces such files. The
// names are in one place so that batond, drivers, keepers, control and tools agree, and the longest
// one can be checked before a socket is bound (a socket's path has at most 107 bytes).
#ifndef SUPERVISOR_CONFIG_STATE_FILES_H_
#define SUPERVISOR_CONFIG_STATE_FILES_H_

#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

inline constexpr size_t kMaxSocketPathBytes = 107;

// The state directory of this user's batond, unless another is named.
inline std::string DefaultStateDir() {
  if (geteuid() == 0) return "/run/baton";
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/') return std::string(runtime) + "/baton";
  return "/tmp/baton-" + std::to_string(geteuid());
}

inline std::string FileIn(std::string_view dir, std::string_view name,
                          std::string_view ending = "") {
  return std::string(dir) + "/" + std::string(name) + std::string(ending);
}

// Held by batond while it runs; contains its pid, padded to kPaddedLockBytes.
inline std::string BatondLockPath(std::string_view dir) { return FileIn(dir, "batond.lock"); }

// A batond that takes in the control of the batond before pads its lock's file with newlines to
// this length. A batond of a former release writes its pid and one newline, and cannot start while
// a control of this release lives. That control, which may not read the file, ends when it is
// shorter.
inline constexpr size_t kPaddedLockBytes = 32;

// The program that batond ran before the one that is on trial.
inline std::string FormerBatondPath(std::string_view dir) { return FileIn(dir, "batond.before"); }

// Bound by batond. A driver whose batond is gone connects to the next one here.
inline std::string RejoinSocketPath(std::string_view dir) { return FileIn(dir, "batond.rejoin"); }

// Bound by batond. A control whose batond is gone connects to the next one here.
inline std::string ControlRejoinSocketPath(std::string_view dir) {
  return FileIn(dir, "control.rejoin");
}

// Held by a child of batond, and by what it has started, through an inherited descriptor, until the
// last of them is gone; contains the child's pid.
inline constexpr std::string_view kKeeperLockEnding = ".keeper.lock";
inline std::string KeeperLockPath(std::string_view dir, std::string_view service) {
  return FileIn(dir, service, kKeeperLockEnding);
}
inline std::string ControlLockPath(std::string_view dir) { return FileIn(dir, "control.lock"); }

// Held by the native workers of `service`, and by its driver, through an inherited descriptor,
// until the last of them is gone.
inline std::string WorkersLockPath(std::string_view dir, std::string_view service) {
  return FileIn(dir, service, ".workers.lock");
}

// Bound by control: operators, and workers' gRPC streams.
inline std::string OperatorSocketPath(std::string_view dir) { return FileIn(dir, "operator.sock"); }
inline std::string ControlSocketPath(std::string_view dir) { return FileIn(dir, "control.sock"); }

// Bound by the keeper of `service`: workers attach at the first, control uses the second.
inline std::string WorkerSocketPath(std::string_view dir, std::string_view service) {
  return FileIn(dir, service, ".sock");
}
inline std::string ManagementSocketPath(std::string_view dir, std::string_view service) {
  return FileIn(dir, service, ".keeper.sock");
}

// Written by the driver or keeper of `service` when it ends because of a problem; removed by the
// next keeper that is up.
inline std::string DownReasonPath(std::string_view dir, std::string_view service) {
  return FileIn(dir, service, ".down");
}

// Why a service is down. Its last driver or keeper leaves the reason in that file, for callers that
// cannot ask it any more. A process that was killed leaves nothing.

// The driver or keeper calls it when it ends, and with an empty `why` when the service is up.
// Ignores errors.
void SetDownReason(const std::string& state_dir, const std::string& service, std::string_view why);

// Returns one line of printable UTF-8, at most 1024 bytes; empty: nothing is known. Event loops may
// call it: it does not wait for a file that is no regular one, and ignores it.
std::string DownReason(const std::string& state_dir, const std::string& service);

// Written by the keeper of `service` while an operator has it drained; its successors read it.
inline std::string DrainPath(std::string_view dir, std::string_view service) {
  return FileIn(dir, service, ".drain");
}

// Exists while a keeper of `service` reads that record. Its size is the number of keepers that have
// begun to read it, and of which none has come to the end.
inline std::string DrainReadersPath(std::string_view dir, std::string_view service) {
  return DrainPath(dir, service) + ".readers";
}
// The record, once several keepers have died while they read it: no keeper reads it.
inline std::string DrainSetAsidePath(std::string_view dir, std::string_view service) {
  return DrainPath(dir, service) + ".set_aside";
}

// Written by the driver of `service`: the value of an entry that keepers held for each other, and
// died of. `number`: the next entry has another, up to a bound.
inline std::string SetAsidePath(std::string_view dir, std::string_view service, unsigned number) {
  return FileIn(dir, service, ".set_aside.") + std::to_string(number);
}

// The directory in which a control that does not run as batond's user may create files. batond
// creates it in the state directory or in the service manager's log directory.
inline std::string ControlDirectoryPath(std::string_view dir) { return FileIn(dir, "control"); }

// The audit trail, which control writes; older files are beside it. The state directory contains it
// or a link to it.
inline std::string AuditTrailPath(std::string_view dir) { return FileIn(dir, "audit.log"); }

// A service of this name would take control's sockets.
inline bool IsReservedServiceName(std::string_view name) {
  return name == "operator" || name == "control";
}

// Returns the directory of `service` in the state directory, for a container that gets this
// directory only. It has links to the socket at which workers attach and to control's socket for
// their gRPC streams. The links are made anew with the sockets; the directory stays. No path is
// longer than ManagementSocketPath().
inline std::string ServiceDirectoryPath(std::string_view dir, std::string_view service) {
  return FileIn(dir, service);
}
inline std::string LinkedWorkerSocketPath(std::string_view dir, std::string_view service) {
  return ServiceDirectoryPath(dir, service) + "/worker.sock";
}
inline std::string LinkedControlSocketPath(std::string_view dir, std::string_view service) {
  return ServiceDirectoryPath(dir, service) + "/stream.sock";
}

// Gives `socket`, which is bound, the second name `link`, and replaces what had that name. Makes
// the directory of `link` if it is missing: everybody may pass it, and only this user may write.
// kAlreadyExists: something else has the directory's name.
absl::Status LinkSocket(const std::string& socket, const std::string& link);

// Replaces a file that others may read, or a successor may find, at any moment: as a whole or not
// at all, also across a loss of power. Uses PATH.new, which one process at a time may write. After
// an error the file is unchanged, or, if only the last step failed, new until power is lost. Waits
// for the disk, if the directory is on one (/run is not).
absl::Status ReplaceFile(const std::string& path, std::string_view contents);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_STATE_FILES_H_

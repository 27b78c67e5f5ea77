// A native worker's process: forked from the driver, which has opened the device that it uses.
// native_workers.md has what such a process is given, and what it can reach.
#ifndef SUPERVISOR_DRIVER_WORKERS_FORK_WORKER_H_
#define SUPERVISOR_DRIVER_WORKERS_FORK_WORKER_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/batond/spawn.h"
#include "supervisor/driver/native/native_driver.h"
#include "supervisor/driver/workers/forked_child.h"

namespace baton::driver_process {

struct NativeProgram {
  std::string object;  // path of the shared object
  std::vector<std::string> arguments;
  std::optional<uid_t> uid;  // that it runs as; none: the driver's
  std::optional<gid_t> gid;

  bool operator==(const NativeProgram&) const = default;
};

struct ForkedWorker {
  ForkedChild process;
  FileDescriptor session;  // the keeper's end
};

// The host that baton_native_host() returns. nullptr in the driver itself.
BatonNativeHost* HostOfThisProcess();

// Forks a worker, which has `code` (driver_code.h) beside its object, and sets
// `inheritance.session`. `output` becomes the worker's standard output and
// error. The child reports its errors as news. Errors: see ForkChild.
absl::StatusOr<ForkedWorker> ForkWorker(const NativeProgram& program, const ProgramFile& code,
                                        NativeInheritance inheritance, int output);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_WORKERS_FORK_WORKER_H_

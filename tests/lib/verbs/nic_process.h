#ifndef TESTS_LIB_VERBS_NIC_PROCESS_H_
#define TESTS_LIB_VERBS_NIC_PROCESS_H_

#include <sys/types.h>

#include <memory>

#include "absl/status/statusor.h"
#include "lib/nic/soft_options.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::testing {

// Returns a soft device whose NIC is a process of its own, which ends with the device and, if
// `tied`, with this process. `pid` (may be null) is set to that process.
absl::StatusOr<std::unique_ptr<Device>> OpenWithNic(pid_t* pid,
                                                    const soft::SoftDeviceOptions& options = {},
                                                    bool tied = true);
inline absl::StatusOr<std::unique_ptr<Device>> OpenWithNicProcess() { return OpenWithNic(nullptr); }

}  // namespace baton::verbs::testing

#endif  // TESTS_LIB_VERBS_NIC_PROCESS_H_

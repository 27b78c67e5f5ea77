// Devices by name, for programs that own one themselves.
#ifndef WORKER_EXAMPLES_COMMON_DEVICE_FACTORY_H_
#define WORKER_EXAMPLES_COMMON_DEVICE_FACTORY_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"

namespace baton::examples {

// `name`: "soft", "rdma" (the only RDMA device of the machine) or "rdma:NAME".
absl::StatusOr<std::unique_ptr<verbs::Device>> OpenDevice(std::string_view name);

}  // namespace baton::examples

#endif  // WORKER_EXAMPLES_COMMON_DEVICE_FACTORY_H_

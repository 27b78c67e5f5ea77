#include "worker/examples/common/device_factory.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "lib/verbs/rdma/rdma_device.h"
#include "lib/verbs/soft/soft_device.h"

namespace baton::examples {
namespace {

constexpr std::string_view kRdmaPrefix = "rdma:";

}  // namespace

absl::StatusOr<std::unique_ptr<verbs::Device>> OpenDevice(std::string_view name) {
  if (name == "soft") return verbs::soft::CreateSoftDevice({});
  if (name == "rdma" || name.starts_with(kRdmaPrefix)) {
    verbs::rdma::RdmaDeviceOptions options;
    if (name.starts_with(kRdmaPrefix)) options.device = name.substr(kRdmaPrefix.size());
    return verbs::rdma::CreateRdmaDevice(options);
  }
  return absl::InvalidArgumentError(absl::StrCat("no device is called \"", std::string(name),
                                                 "\": use soft, rdma, or rdma:NAME"));
}

}  // namespace baton::examples

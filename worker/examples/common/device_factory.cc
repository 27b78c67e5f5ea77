#include "worker/examples/common/device_factory.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "lib/verbs/soft/soft_device.h"

namespace baton::examples {

absl::StatusOr<std::unique_ptr<verbs::Device>> OpenDevice(std::string_view name) {
  if (name == "soft") return verbs::soft::CreateSoftDevice({});
  return absl::InvalidArgumentError(
      absl::StrCat("no device is called \"", std::string(name), "\": use soft"));
}

}  // namespace baton::examples

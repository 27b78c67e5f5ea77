#include "supervisor/keeper/open_device.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/verbs/rdma/rdma_device.h"
#include "lib/verbs/soft/soft_device.h"

namespace baton::keeper {
namespace {

absl::StatusOr<std::unique_ptr<verbs::Device>> OpenSoft(const v1::SoftDeviceConfig& config) {
  verbs::soft::SoftDeviceOptions options;
  if (!config.faults().empty()) {
    BATON_ASSIGN_OR_RETURN(options.faults, verbs::soft::FaultPlan::Parse(config.faults()));
  }
  return verbs::soft::CreateSoftDevice(options);
}

absl::StatusOr<std::unique_ptr<verbs::Device>> OpenRdma(const v1::RdmaDeviceConfig& config,
                                                        const std::string& network_namespace) {
  verbs::rdma::RdmaDeviceOptions options;
  options.device = config.device();
  options.port = static_cast<uint8_t>(config.port());
  if (config.has_gid_index()) options.gid_index = static_cast<uint8_t>(config.gid_index());
  options.in_network_namespace = !network_namespace.empty();
  absl::StatusOr<std::unique_ptr<verbs::Device>> device = verbs::rdma::CreateRdmaDevice(options);
  if (!options.in_network_namespace || !absl::IsNotFound(device.status())) return device;
  // With `rdma system` exclusive, a device is in one namespace, and not seen in any other.
  return absl::NotFoundError(absl::StrCat(
      device.status().message(), "; in network namespace ", network_namespace,
      ": see rdma system show, and where it is exclusive, rdma dev set DEVICE netns NAMESPACE"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<verbs::Device>> OpenDevice(const v1::ServiceConfig& service) {
  const v1::Device& device = service.device();
  return device.has_rdma() ? OpenRdma(device.rdma(), service.network_namespace())
                           : OpenSoft(device.soft());
}

}  // namespace baton::keeper

#include "supervisor/keeper/open_device.h"

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

absl::StatusOr<std::unique_ptr<verbs::Device>> OpenRdma(const v1::RdmaDeviceConfig& config) {
  verbs::rdma::RdmaDeviceOptions options;
  options.device = config.device();
  options.port = static_cast<uint8_t>(config.port());
  if (config.has_gid_index()) options.gid_index = static_cast<uint8_t>(config.gid_index());
  return verbs::rdma::CreateRdmaDevice(options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<verbs::Device>> OpenDevice(const v1::Device& config) {
  return config.has_rdma() ? OpenRdma(config.rdma()) : OpenSoft(config.soft());
}

}  // namespace baton::keeper

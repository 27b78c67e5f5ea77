#include "supervisor/keeper/open_device.h"

#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/verbs/rdma/rdma_device.h"
#include "lib/verbs/soft/soft_device.h"
#include "supervisor/keeper/nic_process.h"

namespace baton::keeper {
namespace {

using verbs::CompletionStatus;

// By v1::FaultRule::Error.
constexpr CompletionStatus kErrors[] = {
    CompletionStatus::kGeneralError,      CompletionStatus::kLocalLengthError,
    CompletionStatus::kLocalQpError,      CompletionStatus::kLocalProtectionError,
    CompletionStatus::kBadResponse,       CompletionStatus::kRemoteInvalidRequest,
    CompletionStatus::kRemoteAccessError, CompletionStatus::kRemoteOperationError,
    CompletionStatus::kRetryExceeded,     CompletionStatus::kRnrRetryExceeded,
};
static_assert(std::size(kErrors) == v1::FaultRule::Error_ARRAYSIZE);
static_assert(static_cast<int>(verbs::soft::FaultKind::kDelay) == v1::FaultRule::DELAY &&
              static_cast<int>(verbs::soft::FaultKind::kStall) == v1::FaultRule::STALL &&
              static_cast<int>(verbs::soft::FaultKind::kRnr) == v1::FaultRule::RNR &&
              static_cast<int>(verbs::soft::FaultKind::kCut) == v1::FaultRule::CUT &&
              static_cast<int>(verbs::soft::FaultKind::kRetry) == v1::FaultRule::RETRY &&
              static_cast<int>(verbs::soft::FaultKind::kLost) == v1::FaultRule::LOST &&
              static_cast<int>(verbs::soft::FaultKind::kError) == v1::FaultRule::ERROR);

verbs::soft::FaultRule RuleOf(const v1::FaultRule& config) {
  verbs::soft::FaultRule rule;
  rule.kind = static_cast<verbs::soft::FaultKind>(config.kind());
  rule.probability = config.probability();
  rule.nth = config.nth();
  rule.every = config.every();
  rule.duration_us = config.duration_us();
  rule.status = kErrors[config.error()];
  return rule;
}

absl::StatusOr<std::unique_ptr<verbs::Device>> OpenSoft(const v1::SoftDeviceConfig& config) {
  verbs::soft::SoftDeviceOptions options;
  options.faults.seed = config.faults().seed();
  for (const v1::FaultRule& rule : config.faults().rules()) {
    options.faults.rules.push_back(RuleOf(rule));
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
  if (device.has_rdma()) return OpenRdma(device.rdma(), service.network_namespace());
  // Workers that drive their queues need a NIC that is no part of the keeper.
  if (service.mode() != v1::NATIVE) return OpenSoft(device.soft());
  Identity identity;
  identity.realtime_priority = static_cast<int>(service.realtime_priority());
  if (service.native().has_uid()) identity.uid = service.native().uid();
  if (service.native().has_gid()) identity.gid = service.native().gid();
  return StartNic(identity);
}

}  // namespace baton::keeper

#include "supervisor/driver/device/soft_faults.h"

#include <iterator>

#include "google/protobuf/text_format.h"
#include "lib/base/status.h"
#include "supervisor/config/node.h"

namespace baton::driver_process {
namespace {

using google::protobuf::TextFormat;
using verbs::CompletionStatus;
using verbs::soft::FaultKind;

// Indexed by v1::FaultRule::Error.
constexpr CompletionStatus kErrors[] = {
    CompletionStatus::kGeneralError,      CompletionStatus::kLocalLengthError,
    CompletionStatus::kLocalQpError,      CompletionStatus::kLocalProtectionError,
    CompletionStatus::kBadResponse,       CompletionStatus::kRemoteInvalidRequest,
    CompletionStatus::kRemoteAccessError, CompletionStatus::kRemoteOperationError,
    CompletionStatus::kRetryExceeded,     CompletionStatus::kRnrRetryExceeded,
};
static_assert(std::size(kErrors) == v1::FaultRule::Error_ARRAYSIZE);
static_assert(static_cast<int>(FaultKind::kDelay) == v1::FaultRule::DELAY &&
              static_cast<int>(FaultKind::kStall) == v1::FaultRule::STALL &&
              static_cast<int>(FaultKind::kRnr) == v1::FaultRule::RNR &&
              static_cast<int>(FaultKind::kCut) == v1::FaultRule::CUT &&
              static_cast<int>(FaultKind::kRetry) == v1::FaultRule::RETRY &&
              static_cast<int>(FaultKind::kLost) == v1::FaultRule::LOST &&
              static_cast<int>(FaultKind::kError) == v1::FaultRule::ERROR);

verbs::soft::FaultRule RuleOf(const v1::FaultRule& config) {
  verbs::soft::FaultRule rule;
  rule.kind = static_cast<FaultKind>(config.kind());
  rule.probability = config.probability();
  rule.nth = config.nth();
  rule.every = config.every();
  rule.duration_us = config.duration_us();
  rule.status = kErrors[config.error()];
  return rule;
}

}  // namespace

std::string FaultsToText(const v1::FaultPlan& plan) {
  TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintToString(plan, &text);
  return text;
}

absl::StatusOr<verbs::soft::FaultPlan> FaultsFromText(const std::string& text) {
  v1::FaultPlan plan;
  if (!TextFormat::ParseFromString(text, &plan)) {
    return absl::InvalidArgumentError("faults: no FaultPlan in protobuf text format");
  }
  Problems problems("");
  CheckFaults(plan, Node(plan, "faults", nullptr, problems));
  BATON_RETURN_IF_ERROR(problems.ToStatus());
  verbs::soft::FaultPlan faults;
  faults.seed = plan.seed();
  for (const v1::FaultRule& rule : plan.rules()) faults.rules.push_back(RuleOf(rule));
  return faults;
}

}  // namespace baton::driver_process

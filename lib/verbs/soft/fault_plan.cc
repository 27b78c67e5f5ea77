#include "lib/verbs/soft/fault_plan.h"

#include <charconv>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/status_macros.h"

namespace baton::verbs::soft {
namespace {

constexpr uint64_t kMaxDurationUs = 3'600'000'000;  // an hour: longer is surely a slip

struct KindName {
  FaultKind kind;
  std::string_view name;
};
constexpr KindName kKinds[] = {
    {FaultKind::kDelay, "delay"}, {FaultKind::kStall, "stall"}, {FaultKind::kRnr, "rnr"},
    {FaultKind::kCut, "cut"},     {FaultKind::kRetry, "retry"}, {FaultKind::kError, "error"},
    {FaultKind::kLost, "lost"},
};

struct StatusName {
  CompletionStatus status;
  std::string_view name;
};
constexpr StatusName kStatuses[] = {
    {CompletionStatus::kLocalLengthError, "local_length"},
    {CompletionStatus::kLocalQpError, "local_qp"},
    {CompletionStatus::kLocalProtectionError, "local_protection"},
    {CompletionStatus::kBadResponse, "bad_response"},
    {CompletionStatus::kRemoteInvalidRequest, "remote_invalid_request"},
    {CompletionStatus::kRemoteAccessError, "remote_access"},
    {CompletionStatus::kRemoteOperationError, "remote_operation"},
    {CompletionStatus::kRetryExceeded, "retry_exceeded"},
    {CompletionStatus::kRnrRetryExceeded, "rnr_retry_exceeded"},
    {CompletionStatus::kGeneralError, "general"},
};

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

absl::Status Bad(absl::string_view field, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("fault plan: '", field, "': ", why));
}

absl::Status ParseNumber(absl::string_view field, absl::string_view value, uint64_t minimum,
                         uint64_t maximum, uint64_t* number) {
  if (!absl::SimpleAtoi(value, number) || *number < minimum || *number > maximum) {
    return Bad(field, absl::StrCat("needs a whole number from ", minimum, " to ", maximum));
  }
  return absl::OkStatus();
}

absl::Status ParseStatus(absl::string_view field, absl::string_view value, FaultRule* rule) {
  std::string known;
  for (const StatusName& entry : kStatuses) {
    if (value == View(entry.name)) {
      rule->status = entry.status;
      return absl::OkStatus();
    }
    absl::StrAppend(&known, known.empty() ? "" : ", ", View(entry.name));
  }
  return Bad(field, absl::StrCat("unknown status; one of ", known));
}

absl::Status ParseField(absl::string_view field, FaultRule* rule) {
  const std::pair<absl::string_view, absl::string_view> pair =
      absl::StrSplit(field, absl::MaxSplits('=', 1));
  if (pair.first == "p") {
    const bool number = absl::SimpleAtod(pair.second, &rule->probability);
    if (!number || !(rule->probability > 0 && rule->probability <= 1)) {
      return Bad(field, "needs a probability above 0 and up to 1");
    }
    return absl::OkStatus();
  }
  if (pair.first == "n") return ParseNumber(field, pair.second, 1, UINT64_MAX, &rule->nth);
  if (pair.first == "every") return ParseNumber(field, pair.second, 1, UINT64_MAX, &rule->every);
  if (pair.first == "us") {
    return ParseNumber(field, pair.second, 0, kMaxDurationUs, &rule->duration_us);
  }
  if (pair.first == "status") {
    if (rule->kind != FaultKind::kError) return Bad(field, "only an 'error' rule has a status");
    return ParseStatus(field, pair.second, rule);
  }
  return Bad(field, "unknown field; one of p, n, every, us, status");
}

absl::StatusOr<FaultRule> ParseRule(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  FaultRule rule;
  for (const KindName& entry : kKinds) {
    if (parts.first == View(entry.name)) rule.kind = entry.kind;
  }
  if (rule.kind == FaultKind::kNone) {
    return Bad(text,
               "unknown fault; one of delay, stall, rnr, cut, retry, error, lost (or seed=N)");
  }
  for (absl::string_view field : absl::StrSplit(parts.second, ',', absl::SkipEmpty())) {
    BATON_RETURN_IF_ERROR(ParseField(field, &rule));
  }
  const int triggers = (rule.probability > 0) + (rule.nth > 0) + (rule.every > 0);
  if (triggers != 1) return Bad(text, "needs exactly one of p=, n= and every=");
  const bool waits = rule.kind == FaultKind::kDelay || rule.kind == FaultKind::kStall;
  if (waits && rule.duration_us == 0) return Bad(text, "needs us=, the duration in microseconds");
  return rule;
}

// The shortest text that is read back as the same number.
std::string ExactText(double value) {
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

// splitmix64 (Steele, Lea, Flood 2014): decisions need no state but the message's number.
uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

std::string_view FaultKindName(FaultKind kind) {
  for (const KindName& entry : kKinds) {
    if (entry.kind == kind) return entry.name;
  }
  return "none";
}

absl::StatusOr<FaultPlan> FaultPlan::Parse(std::string_view text) {
  FaultPlan plan;
  for (absl::string_view part : absl::StrSplit(View(text), ';', absl::SkipEmpty())) {
    if (absl::string_view value = part; absl::ConsumePrefix(&value, "seed=")) {
      BATON_RETURN_IF_ERROR(ParseNumber(part, value, 0, UINT64_MAX, &plan.seed));
      continue;
    }
    BATON_ASSIGN_OR_RETURN(const FaultRule rule, ParseRule(part));
    plan.rules.push_back(rule);
  }
  return plan;
}

std::string FaultPlan::ToString() const {
  std::string text = absl::StrCat("seed=", seed);
  for (const FaultRule& rule : rules) {
    absl::StrAppend(&text, ";", View(FaultKindName(rule.kind)), ":");
    if (rule.probability > 0) absl::StrAppend(&text, "p=", ExactText(rule.probability));
    if (rule.nth > 0) absl::StrAppend(&text, "n=", rule.nth);
    if (rule.every > 0) absl::StrAppend(&text, "every=", rule.every);
    if (rule.duration_us > 0) absl::StrAppend(&text, ",us=", rule.duration_us);
    if (rule.kind != FaultKind::kError) continue;
    for (const StatusName& entry : kStatuses) {
      if (entry.status == rule.status) absl::StrAppend(&text, ",status=", View(entry.name));
    }
  }
  return text;
}

bool FaultSequence::Applies(const FaultRule& rule, size_t index) const {
  if (rule.nth > 0) return message_ == rule.nth;
  if (rule.every > 0) return message_ % rule.every == 0;
  const uint64_t draw = Mix(Mix(Mix(plan_->seed ^ (index << 56)) ^ connection_) ^ message_);
  return std::ldexp(static_cast<double>(draw >> 11), -53) < rule.probability;
}

FaultDecision FaultSequence::Next() {
  ++message_;
  for (size_t index = 0; index < plan_->rules.size(); ++index) {
    const FaultRule& rule = plan_->rules[index];
    if (Applies(rule, index)) return {rule.kind, rule.duration_us, rule.status};
  }
  return {};
}

}  // namespace baton::verbs::soft

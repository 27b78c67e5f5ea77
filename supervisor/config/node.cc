#include "supervisor/config/node.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status.h"

namespace baton {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::TextFormat;

// "48 is not a power of two; use 32 or 64", or empty.
std::string PowerOfTwoProblem(uint64_t value, const Range& range) {
  if ((value & (value - 1)) == 0) return "";
  uint64_t below = 1;
  while (below * 2 < value) below *= 2;
  return absl::StrCat(value, " is not a power of two; use ", below,
                      below * 2 <= range.max ? absl::StrCat(" or ", below * 2) : "");
}

constexpr int kMaxRules = 64;
constexpr uint64_t kMaxDurationUs = 3'600'000'000;  // an hour: longer is surely a slip

void CheckMessages(const v1::FaultRule& rule, const Node& node) {
  const auto messages = rule.messages_case();
  const double share = rule.probability();
  if (messages == v1::FaultRule::MESSAGES_NOT_SET) {
    node.Refuse("probability", "is missing; a rule has one of probability, nth and every");
  } else if (messages == v1::FaultRule::kProbability && !(share > 0 && share <= 1)) {
    node.Refuse("probability", absl::StrCat(share, " is not above 0 and up to 1"));
  } else if (messages == v1::FaultRule::kNth && rule.nth() == 0) {
    node.Refuse("nth", "is 0; messages are counted from 1");
  } else if (messages == v1::FaultRule::kEvery && rule.every() == 0) {
    node.Refuse("every", "is 0; 1 takes every message");
  }
}

void CheckRule(const v1::FaultRule& rule, const Node& node) {
  if (rule.kind() == v1::FaultRule::NONE || !v1::FaultRule::Kind_IsValid(rule.kind())) {
    node.Refuse("kind", "is missing; use DELAY, STALL, RNR, CUT, RETRY, LOST or ERROR");
  }
  CheckMessages(rule, node);
  const bool waits = rule.kind() == v1::FaultRule::DELAY || rule.kind() == v1::FaultRule::STALL;
  if (waits && rule.duration_us() == 0) {
    node.Refuse("duration_us", "is missing; DELAY and STALL last that long");
  } else if (rule.duration_us() > kMaxDurationUs) {
    node.Refuse("duration_us",
                absl::StrCat(rule.duration_us(), " is not between 0 and ", kMaxDurationUs));
  }
  if (!v1::FaultRule::Error_IsValid(rule.error())) {
    node.Refuse("error",
                absl::StrCat(rule.error(), " is no error; see proto/baton/v1/config.proto"));
  } else if (rule.error() != v1::FaultRule::GENERAL && rule.kind() != v1::FaultRule::ERROR) {
    node.Refuse("error", "only a rule of kind ERROR has one");
  }
}

}  // namespace

void Problems::AddAt(int line, int column, std::string_view text) {
  std::string place;
  if (!file_name_.empty()) {
    place = line > 0 ? absl::StrCat(file_name_, ":", line, ":", column, ": ")
                     : absl::StrCat(file_name_, ": ");
  }
  lines_.push_back(absl::StrCat(place, View(text)));
}

absl::Status Problems::ToStatus() const {
  if (lines_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(lines_, "\n"));
}

const FieldDescriptor* Node::Find(std::string_view field) const {
  return message_.GetDescriptor()->FindFieldByName(std::string(field));
}

std::string Node::NameOf(std::string_view field) const {
  return absl::StrCat(name_, name_.empty() ? "" : ".", View(field));
}

void Node::Refuse(std::string_view field, std::string_view text) const {
  int line = 0;
  int column = 0;
  if (places_ != nullptr && !Find(field)->is_repeated()) {
    const TextFormat::ParseLocation place = places_->GetLocation(Find(field), -1);
    line = place.line + 1;  // the location is -1 if there is none
    column = place.column + 1;
  }
  problems_.AddAt(line, column, absl::StrCat(NameOf(field), ": ", View(text)));
}

Node Node::Child(std::string_view field, int index) const {
  const google::protobuf::Reflection& reflection = *message_.GetReflection();
  google::protobuf::Message* const child =
      index < 0 ? reflection.MutableMessage(&message_, Find(field))
                : reflection.MutableRepeatedMessage(&message_, Find(field), index);
  TextFormat::ParseInfoTree* places =
      places_ == nullptr ? nullptr : places_->GetTreeForNested(Find(field), index);
  const std::string indexed = index < 0 ? "" : absl::StrCat("[", index, "]");
  return Node(*child, NameOf(field) + indexed, places, problems_);
}

void Node::CheckRange(const Range& range) const {
  const FieldDescriptor* field = Find(range.field);
  const google::protobuf::Reflection* reflection = message_.GetReflection();
  const bool wide = field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64;
  const uint64_t value =
      wide ? reflection->GetUInt64(message_, field) : reflection->GetUInt32(message_, field);
  if (value == 0) {
    if (wide) {
      reflection->SetUInt64(&message_, field, range.default_value);
    } else {
      reflection->SetUInt32(&message_, field, static_cast<uint32_t>(range.default_value));
    }
    return;
  }
  if (value < range.min || value > range.max) {
    return Refuse(range.field, absl::StrCat(value, " is not between ", range.min, " and ",
                                            range.max, "; leave it out for ", range.default_value));
  }
  if (!range.power_of_two) return;
  const std::string problem = PowerOfTwoProblem(value, range);
  if (!problem.empty()) Refuse(range.field, problem);
}

void CheckFaults(const v1::FaultPlan& plan, const Node& node) {
  if (plan.rules_size() > kMaxRules) {
    return node.Refuse("rules", absl::StrCat("has ", plan.rules_size(), ", at most ", kMaxRules));
  }
  for (int i = 0; i < plan.rules_size(); ++i) {
    CheckRule(plan.rules(i), node.Child("rules", i));
  }
}

}  // namespace baton

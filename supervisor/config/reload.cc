#include "supervisor/config/reload.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"

namespace baton {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr std::string_view kTaken[] = {"operator_uids", "operator_gids", "viewer_uids",
                                       "viewer_gids"};
constexpr char kAddress[] = "address";
constexpr char kRestart[] =
    "it is taken when batond starts; restart batond, which ends brokered connections";

// `message` with nothing but this field.
std::unique_ptr<Message> Only(const Message& message, const FieldDescriptor* field) {
  std::unique_ptr<Message> whole(message.New());
  whole->CopyFrom(message);
  std::unique_ptr<Message> only(message.New());
  message.GetReflection()->SwapFields(whole.get(), only.get(), {field});
  return only;
}

// Fields in which the two differ, which are of one type.
std::vector<const FieldDescriptor*> Differences(const Message& a, const Message& b) {
  std::vector<const FieldDescriptor*> differences;
  for (int i = 0; i < a.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = a.GetDescriptor()->field(i);
    const bool same =
        google::protobuf::util::MessageDifferencer::Equals(*Only(a, field), *Only(b, field));
    if (!same) differences.push_back(field);
  }
  return differences;
}

void Take(const Message& from, const FieldDescriptor* field, Message* to) {
  const std::unique_ptr<Message> value = Only(from, field);
  to->GetReflection()->SwapFields(value.get(), to, {field});
}

const v1::ServiceConfig* Find(const v1::Config& config, const std::string& name) {
  const auto found = std::find_if(config.services().begin(), config.services().end(),
                                  [&](const auto& service) { return service.name() == name; });
  return found == config.services().end() ? nullptr : &*found;
}

void CompareServices(const v1::Config& running, const v1::Config& wanted, TakenConfig* result) {
  for (const v1::ServiceConfig& service : running.services()) {
    const std::string place = absl::StrCat("services[", service.name(), "]");
    const v1::ServiceConfig* other = Find(wanted, service.name());
    if (other == nullptr) {
      result->refused.push_back(
          {place, absl::StrCat("it is no longer there and goes on until batond is restarted: ",
                               kRestart)});
      continue;
    }
    for (const FieldDescriptor* field : Differences(service, *other)) {
      const bool policy = field->name() == "policy";
      result->refused.push_back({absl::StrCat(place, ".", field->name()),
                                 policy
                                     ? absl::StrCat("the keeper has it: `baton service policy ",
                                                    service.name(), " --set FILE` puts it in force")
                                     : kRestart});
    }
  }
  for (const v1::ServiceConfig& service : wanted.services()) {
    if (Find(running, service.name()) != nullptr) continue;
    result->refused.push_back(
        {absl::StrCat("services[", service.name(), "]"), absl::StrCat("it is new: ", kRestart)});
  }
}

void CompareEndpoints(const v1::Config& wanted, const FieldDescriptor* field, TakenConfig* result) {
  v1::Config* config = &result->config;
  if (!config->has_operator_endpoint() || !wanted.has_operator_endpoint()) {
    result->refused.push_back(
        {field->name(),
         absl::StrCat(wanted.has_operator_endpoint()
                          ? "there was none, and nothing listens: "
                          : "it goes on listening, with the operators and viewers it had: ",
                      kRestart)});
    return;
  }
  for (const FieldDescriptor* part :
       Differences(config->operator_endpoint(), wanted.operator_endpoint())) {
    const std::string name = absl::StrCat(field->name(), ".", part->name());
    if (part->name() == kAddress) {
      result->refused.push_back(
          {name, absl::StrCat("it goes on listening where it was: ", kRestart)});
      continue;
    }
    Take(wanted.operator_endpoint(), part, config->mutable_operator_endpoint());
    result->taken.push_back(name);
  }
}

}  // namespace

TakenConfig TakeReloadable(const v1::Config& running, const v1::Config& wanted) {
  TakenConfig result;
  result.config = running;
  for (const FieldDescriptor* field : Differences(running, wanted)) {
    if (std::find(std::begin(kTaken), std::end(kTaken), field->name()) != std::end(kTaken)) {
      Take(wanted, field, &result.config);
      result.taken.push_back(field->name());
    } else if (field->name() == "operator_endpoint") {
      CompareEndpoints(wanted, field, &result);
    } else if (field->name() == "services") {
      CompareServices(running, wanted, &result);
    } else {
      result.refused.push_back({field->name(), kRestart});
    }
  }
  return result;
}

}  // namespace baton

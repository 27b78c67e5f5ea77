#include "supervisor/config/reload.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"

namespace baton {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Control and batond take these at once; for the last one control is restarted.
constexpr std::string_view kTaken[] = {"operator_uids", "operator_gids", "viewer_uids",
                                       "viewer_gids",   "log_level",     "metrics_address"};
// A running keeper takes these: it reads them when it needs them, or is asked to change them.
constexpr std::string_view kTakenByKeepers[] = {
    "worker_uids",     "listeners",       "max_listeners",   "handoff_timeout_ms",
    "hang_timeout_ms", "watch_window_ms", "stop_timeout_ms", "ready_timeout_ms",
    "state_decoder",   "policy",          "log_level"};
constexpr char kRestart[] =
    "every process reads it when it starts; stop batond, which ends all connections, and start it";
constexpr char kDisconnects[] =
    "and that would end the service's connections: `baton reload --disconnect` does so";

std::unique_ptr<Message> Only(const Message& message, const FieldDescriptor* field) {
  std::unique_ptr<Message> whole(message.New());
  whole->CopyFrom(message);
  std::unique_ptr<Message> only(message.New());
  message.GetReflection()->SwapFields(whole.get(), only.get(), {field});
  return only;
}

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

bool IsTakenByKeeper(const v1::ServiceConfig& running, std::string_view field) {
  const bool brokered = running.mode() == v1::BROKERED;
  // Native workers count deaths themselves, with the limit that they were started with.
  if (field == "poison_deaths") return brokered;
  // The buffers stay on huge pages, also if `wanted` has none, and those go with no worker_uids
  // (CheckHugePages).
  if (field == "worker_uids" && brokered && running.huge_pages() != v1::HUGE_PAGES_TRANSPARENT) {
    return false;
  }
  return absl::c_linear_search(kTakenByKeepers, field);
}

// Takes `to`, or the part of it that ends no connection.
void Change(const v1::ServiceConfig& from, const v1::ServiceConfig& to, bool disconnect,
            TakenConfig* result) {
  const std::string& name = from.name();
  const auto place = [&](const std::string& field) {
    return absl::StrCat("services[", name, "].", field);
  };
  const ServiceChange change = CompareService(from, to);
  for (const std::string& field : change.taken) result->taken.push_back(place(field));
  for (const std::string& field : change.refused) {
    if (disconnect) {
      result->taken.push_back(place(field));
    } else {
      result->refused.push_back(
          {place(field), absl::StrCat("it takes another driver, ", kDisconnects), name});
    }
  }
  const bool anew = disconnect && !change.refused.empty();
  if (anew) {
    result->changed.push_back(name);
  } else if (!change.taken.empty()) {
    result->live.push_back(name);
  }
  *FindService(&result->config, name) = anew ? to : change.config;
}

void Remove(const std::string& name, bool disconnect, TakenConfig* result) {
  const std::string place = absl::StrCat("services[", name, "]");
  if (!disconnect) {
    return result->refused.push_back(
        {place, absl::StrCat("it is no longer there, ", kDisconnects), name});
  }
  auto* const services = result->config.mutable_services();
  services->erase(std::find_if(services->begin(), services->end(),
                               [&](const auto& service) { return service.name() == name; }));
  result->removed.push_back(name);
  result->taken.push_back(place);
}

void CompareServices(const v1::Config& running, const v1::Config& wanted, bool disconnect,
                     TakenConfig* result) {
  v1::Config other = wanted;
  for (const v1::ServiceConfig& service : running.services()) {
    const v1::ServiceConfig* const to = FindService(&other, service.name());
    if (to == nullptr) {
      Remove(service.name(), disconnect, result);
    } else {
      Change(service, *to, disconnect, result);
    }
  }
  for (const v1::ServiceConfig& service : wanted.services()) {
    if (FindService(&result->config, service.name()) != nullptr) continue;
    *result->config.add_services() = service;
    result->added.push_back(service.name());
    result->taken.push_back(absl::StrCat("services[", service.name(), "]"));
  }
}

void CompareEndpoints(const v1::Config& wanted, const FieldDescriptor* field, TakenConfig* result) {
  v1::Config* config = &result->config;
  if (!config->has_operator_endpoint() || !wanted.has_operator_endpoint()) {
    Take(wanted, field, config);
    result->taken.push_back(field->name());
    return;
  }
  for (const FieldDescriptor* part :
       Differences(config->operator_endpoint(), wanted.operator_endpoint())) {
    Take(wanted.operator_endpoint(), part, config->mutable_operator_endpoint());
    result->taken.push_back(absl::StrCat(field->name(), ".", part->name()));
  }
}

// Every keeper has the field, so all running keepers take it.
void TakeDistrust(const v1::Config& wanted, const FieldDescriptor* field, TakenConfig* result) {
  Take(wanted, field, &result->config);
  result->taken.push_back(field->name());
  for (const v1::ServiceConfig& service : result->config.services()) {
    AddLive(service.name(), result);
  }
}

}  // namespace

v1::ServiceConfig* FindService(v1::Config* config, const std::string& name) {
  auto* const services = config->mutable_services();
  const auto found = std::find_if(services->begin(), services->end(),
                                  [&](const auto& service) { return service.name() == name; });
  return found == services->end() ? nullptr : &*found;
}

void AddLive(const std::string& service, TakenConfig* taken) {
  if (FindService(&taken->config, service) == nullptr) return;
  for (const auto* const has_it : {&taken->added, &taken->changed, &taken->live}) {
    if (absl::c_linear_search(*has_it, service)) return;
  }
  taken->live.push_back(service);
}

ServiceChange CompareService(const v1::ServiceConfig& running, const v1::ServiceConfig& wanted) {
  ServiceChange change;
  change.config = running;
  for (const FieldDescriptor* field : Differences(running, wanted)) {
    const bool taken = IsTakenByKeeper(running, field->name());
    if (taken) Take(wanted, field, &change.config);
    (taken ? change.taken : change.refused).push_back(field->name());
  }
  return change;
}

TakenConfig TakeReloadable(const v1::Config& running, const v1::Config& wanted, bool disconnect) {
  TakenConfig result;
  result.config = running;
  for (const FieldDescriptor* field : Differences(running, wanted)) {
    if (absl::c_linear_search(kTaken, field->name())) {
      Take(wanted, field, &result.config);
      result.taken.push_back(field->name());
    } else if (field->name() == "operator_endpoint") {
      CompareEndpoints(wanted, field, &result);
    } else if (field->name() == "services") {
      CompareServices(running, wanted, disconnect, &result);
    } else if (field->name() == "distrust_contained_root") {
      TakeDistrust(wanted, field, &result);
    } else {
      result.refused.push_back({field->name(), kRestart});
    }
  }
  return result;
}

}  // namespace baton

#include "supervisor/keeper/policy/live_config.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/log_level.h"
#include "supervisor/config/reload.h"

namespace baton::keeper {
namespace {

using Listeners = google::protobuf::RepeatedPtrField<v1::ListenerConfig>;

verbs::Address AddressOf(const v1::ListenerConfig& listener) {
  return {listener.host(), static_cast<uint16_t>(listener.port())};
}

bool Has(const Listeners& listeners, const v1::ListenerConfig& wanted) {
  return std::any_of(listeners.begin(), listeners.end(), [&](const v1::ListenerConfig& one) {
    return one.host() == wanted.host() && one.port() == wanted.port();
  });
}

void Refuse(const std::string& field, const std::string& why, internal::ConfigTaken* result) {
  internal::Refused* const refused = result->add_refused();
  refused->set_field(field);
  refused->set_why(why);
}

}  // namespace

LiveConfig::LiveConfig(internal::KeeperConfig& in_use, v1::ServiceConfig configured,
                       DriverClient& driver, Policies& policies, EventLog& events)
    : in_use_(in_use),
      configured_(std::move(configured)),
      driver_(driver),
      policies_(policies),
      events_(events) {}

absl::StatusOr<internal::ConfigTaken> LiveConfig::Take(const internal::TakeConfig& wanted) {
  if (wanted.expires_ns() != 0 && MonotonicNanoseconds() > wanted.expires_ns()) {
    return absl::DeadlineExceededError(
        "nothing is taken: batond has reported already that the keeper did not answer; reload "
        "again");
  }
  internal::ConfigTaken result;
  ServiceChange change = CompareService(configured_, wanted.service());
  for (const std::string& field : change.refused) {
    Refuse(field, "the keeper reads it when it starts", &result);
    result.mutable_refused()->rbegin()->set_ends_connections_of(configured_.name());
  }
  if (in_use_.distrust_contained_root() != wanted.distrust_contained_root()) {
    in_use_.set_distrust_contained_root(wanted.distrust_contained_root());
    change.taken.emplace_back("distrust_contained_root");
  }
  if (!change.taken.empty()) {
    // The policy first: it is judged by the capacity, which no reload changes.
    if (absl::c_linear_search(change.taken, "policy")) TakePolicy(&change.config, &result);
    if (absl::c_linear_search(change.taken, "listeners")) TakeListeners(&change.config, &result);
    PutInForce(change.config);
    driver_.NoteService(configured_, in_use_.distrust_contained_root());
    events_.Add("config_taken", absl::StrCat("a changed configuration is in force: ",
                                             absl::StrJoin(change.taken, ", ")));
  }
  *result.mutable_service() = configured_;
  return result;
}

// Stops listeners that go before it starts those that come, which may have the same port at another
// address. If this keeper dies meanwhile, the next one listens at all of them until the next
// reload.
void LiveConfig::TakeListeners(v1::ServiceConfig* next, internal::ConfigTaken* result) {
  const Listeners former = configured_.listeners(), wanted = next->listeners();
  v1::ServiceConfig both = configured_;
  for (const v1::ListenerConfig& one : wanted) {
    if (!Has(former, one)) *both.add_listeners() = one;
  }
  driver_.NoteService(both, in_use_.distrust_contained_root());
  next->clear_listeners();
  for (const v1::ListenerConfig& one : former) {
    if (!Has(wanted, one)) driver_.StopListening(AddressOf(one));
  }
  for (const v1::ListenerConfig& one : wanted) {
    const absl::Status listens =
        Has(former, one) ? absl::OkStatus() : driver_.Listen(AddressOf(one));
    if (listens.ok()) {
      *next->add_listeners() = one;
    } else {
      Refuse("listeners",
             absl::StrCat("the service does not listen at ", one.host(), " port ", one.port(), ": ",
                          std::string(MessageOf(listens)), "; free it, and reload again"),
             result);
    }
  }
}

void LiveConfig::TakePolicy(v1::ServiceConfig* next, internal::ConfigTaken* result) {
  const auto replaced = policies_.Replace(next->policy(), /*validate_only=*/false);
  if (replaced.ok()) return;
  Refuse("policy", std::string(MessageOf(replaced.status())), result);
  *next->mutable_policy() = configured_.policy();
}

void LiveConfig::PutInForce(const v1::ServiceConfig& next) {
  configured_ = next;
  const v1::Placement placement = in_use_.service().placement();
  in_use_.mutable_service()->CopyFrom(next);
  *in_use_.mutable_service()->mutable_placement() = placement;
  spdlog::default_logger()->set_level(LevelOf(next.log_level()));
  if (next.poison_deaths() != 0) driver_.SetPoisonDeaths(next.poison_deaths());
}

}  // namespace baton::keeper

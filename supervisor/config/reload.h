// Decides which parts of a changed configuration a running Baton takes over.
#ifndef SUPERVISOR_CONFIG_RELOAD_H_
#define SUPERVISOR_CONFIG_RELOAD_H_

#include <string>
#include <vector>

#include "proto/baton/v1/config.pb.h"

namespace baton {

// The fields of one service that a reload takes, and those that it does not. batond and the keeper
// derive it from the same two configurations, so that they decide alike.
struct ServiceChange {
  v1::ServiceConfig config;          // the running one, with the fields of `taken`
  std::vector<std::string> taken;    // fields that a running keeper takes
  std::vector<std::string> refused;  // fields that need another driver
};

// Both must be complete, and of one name.
ServiceChange CompareService(const v1::ServiceConfig& running, const v1::ServiceConfig& wanted);

// Returns the service of this name in `config`, or nullptr.
v1::ServiceConfig* FindService(v1::Config* config, const std::string& name);

struct TakenConfig {
  struct Refused {
    std::string field;  // "services[kv].shards"
    std::string why;    // and what to do about it
    // The service whose connections would end if the field were taken. Empty: it cannot be taken.
    std::string ends_connections_of = {};
  };

  v1::Config config;               // what is in force then
  std::vector<std::string> taken;  // fields that differ from before, "operator_endpoint.viewers"
  std::vector<Refused> refused;    // fields that differ, and stay as they were
  // Services of `config` whose keepers are to be started, ended, and ended and started again.
  std::vector<std::string> added, removed, changed;
  // Services of `config` whose keepers take it while they run.
  std::vector<std::string> live;
  bool restarts_control = false;  // what was taken, control reads only when it starts
};

// Both configurations must be complete. Takes the rights of callers, everything else that only
// control reads, services that are new, and what running keepers take. `disconnect`: takes also
// what ends the connections of services, which are those that need another driver or are no longer
// there.
TakenConfig TakeReloadable(const v1::Config& running, const v1::Config& wanted, bool disconnect);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_RELOAD_H_

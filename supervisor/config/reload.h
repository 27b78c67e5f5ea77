// Decides which parts of a changed configuration a running Baton accepts.
#ifndef SUPERVISOR_CONFIG_RELOAD_H_
#define SUPERVISOR_CONFIG_RELOAD_H_

#include <string>
#include <vector>

#include "proto/baton/v1/config.pb.h"

namespace baton {

// The fields of one service that a reload takes, and those that it does not take. batond and the
// keeper compute it from the same two configurations, so they decide alike.
struct ServiceChange {
  v1::ServiceConfig config;          // the running one, with the fields of `taken`
  std::vector<std::string> taken;    // fields that a running keeper takes
  std::vector<std::string> refused;  // fields that need another driver
};

// REQUIRES: both are complete and have the same name.
ServiceChange CompareService(const v1::ServiceConfig& running, const v1::ServiceConfig& wanted);

// Returns the service of this name in `config`, or nullptr.
v1::ServiceConfig* FindService(v1::Config* config, const std::string& name);

struct TakenConfig {
  struct Refused {
    std::string field;  // "services[kv].shards"
    std::string why;    // the reason, and what to do about it
    // The service whose connections would end if the field were taken. Empty: it cannot be taken.
    std::string ends_connections_of = {};
  };

  v1::Config config;               // the configuration that is in force after the reload
  std::vector<std::string> taken;  // changed fields that are taken: "operator_endpoint.viewers"
  std::vector<Refused> refused;    // changed fields that are not taken
  // Services whose drivers are to be started, to be ended, and to be restarted.
  std::vector<std::string> added, removed, changed;
  // Services of `config` whose running keepers take changes.
  std::vector<std::string> live;
};

// Has the service's running keeper take `taken`, too, unless another driver is started for it.
void AddLive(const std::string& service, TakenConfig* taken);

// Both configurations must be complete. Takes the rights of callers, everything else that only
// control reads, new services, and what running keepers can take. `disconnect`: takes also changes
// that end a service's connections, because it needs another driver or was removed.
TakenConfig TakeReloadable(const v1::Config& running, const v1::Config& wanted, bool disconnect);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_RELOAD_H_

// Decides which parts of a changed configuration a running Baton takes over.
#ifndef SUPERVISOR_CONFIG_RELOAD_H_
#define SUPERVISOR_CONFIG_RELOAD_H_

#include <string>
#include <vector>

#include "proto/baton/v1/config.pb.h"

namespace baton {

struct TakenConfig {
  struct Refused {
    std::string field;  // "services[kv].shards"
    std::string why;    // and what to do about it
  };

  v1::Config config;               // what is in force then
  std::vector<std::string> taken;  // fields that differ from before, "operator_endpoint.viewers"
  std::vector<Refused> refused;    // fields that differ, and stay as they were
  // Services of `config` whose keepers are to be started, ended, and ended and started again.
  std::vector<std::string> added, removed, changed;
  bool restarts_control = false;  // what was taken, control reads only when it starts
};

// Both configurations must be complete. Takes the rights of callers, everything else that only
// control reads, and services that are new. `disconnect`: takes also what ends the connections of
// services, which are those that have changed or are no longer there.
TakenConfig TakeReloadable(const v1::Config& running, const v1::Config& wanted, bool disconnect);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_RELOAD_H_

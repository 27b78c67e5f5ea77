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
};

// Both configurations must be complete. The rights of callers are taken, and the files by which
// operators' certificates are judged. Processes read everything else only when they start.
TakenConfig TakeReloadable(const v1::Config& running, const v1::Config& wanted);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_RELOAD_H_

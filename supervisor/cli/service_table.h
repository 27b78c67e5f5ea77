// Tables that more than one noun shows.
#ifndef SUPERVISOR_CLI_SERVICE_TABLE_H_
#define SUPERVISOR_CLI_SERVICE_TABLE_H_

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "proto/baton/v1/operator.pb.h"
#include "supervisor/cli/format.h"

namespace baton {

// "rxe0, RoCE on eth0, port 1 active, MTU 4096"
std::string FormatDevice(const v1::Service& service);
std::string FormatListeners(const v1::Service& service, const std::string& separator);
// Returns "ok", "waiting" (for owners of shards) or "unreachable".
std::string StateOf(const v1::Service& service);
// Returns the next step for a service that no worker serves; empty: each is served or cannot be
// reached.
std::string NextForServices(const google::protobuf::RepeatedPtrField<v1::Service>& services);
void PrintServices(std::ostream& out,
                   const google::protobuf::RepeatedPtrField<v1::Service>& services,
                   TableStyle style);
void PrintWorkers(std::ostream& out, const std::vector<std::pair<std::string, v1::Worker>>& workers,
                  TableStyle style);
void PrintShards(std::ostream& out, const std::vector<v1::Shard>& shards, TableStyle style);

}  // namespace baton

#endif  // SUPERVISOR_CLI_SERVICE_TABLE_H_

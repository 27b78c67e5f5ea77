#ifndef SUPERVISOR_KEEPER_KEEPER_PARTS_H_
#define SUPERVISOR_KEEPER_KEEPER_PARTS_H_

#include <boost/asio/io_context.hpp>

#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/event_log.h"
#include "supervisor/keeper/policy/policies.h"

namespace baton::keeper {

class WorkerPrograms;
class WorkerSessions;

// The parts of a keeper that all others use. All of them outlive each holder of this.
struct CommonParts {
  boost::asio::io_context& loop;
  const internal::KeeperConfig& config;
  DriverClient& driver;
  Policies& policies;
  EventLog& events;
};

// The parts of a keeper that its upgrades, its standbys and its management use, likewise.
struct KeeperParts : CommonParts {
  WorkerSessions& workers;
  WorkerPrograms& programs;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_KEEPER_PARTS_H_

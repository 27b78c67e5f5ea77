// Which of a service's workers own shards, and which stand by.
#ifndef SUPERVISOR_KEEPER_SESSIONS_WORKER_ROLES_H_
#define SUPERVISOR_KEEPER_SESSIONS_WORKER_ROLES_H_

#include <vector>

#include "supervisor/keeper/service_driver.h"
#include "supervisor/keeper/sessions/worker_sessions.h"

namespace baton::keeper {

struct WorkerRoles {
  std::vector<WorkerInfo> owners;
  std::vector<WorkerInfo> standbys;  // ready, without shards
};

// Sorts `workers` into owners and ready standbys, and leaves the others out. Asks the
// driver.
WorkerRoles RolesOf(const std::vector<WorkerInfo>& workers, ServiceDriver& driver);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_WORKER_ROLES_H_

#include "tests/worker/kind.h"

namespace baton::testing {

struct ServiceKind::Hosts {};

ServiceKind::ServiceKind() = default;
ServiceKind::~ServiceKind() = default;

driver_process::EngineOptions ServiceKind::EngineOptions() { return {}; }

void ServiceKind::Begin(keeper::testing::KeeperThread&) {}

void ServiceKind::DriveForOwners() {}

}  // namespace baton::testing

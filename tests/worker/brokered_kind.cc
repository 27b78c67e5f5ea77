#include "tests/worker/kind.h"

namespace baton::testing {

struct ServiceKind::Hosts {};

ServiceKind::ServiceKind() = default;
ServiceKind::~ServiceKind() = default;

keeper::EngineOptions ServiceKind::EngineOptions() { return {}; }

void ServiceKind::Begin(keeper::testing::KeeperThread&) {}

void ServiceKind::DriveForOwners() {}

}  // namespace baton::testing

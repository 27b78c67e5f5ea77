#include "lib/driver/connection_gate.h"

namespace baton::driver {

absl::Status AdmitRequest(ConnectionGate* gate, uint32_t connections, verbs::CmEvent* event) {
  if (gate == nullptr) return absl::OkStatus();
  absl::Status may = gate->CheckRequest(connections, *event->new_id);
  if (!may.ok()) {
    (void)event->new_id->Reject(may.code() == absl::StatusCode::kUnavailable
                                    ? "baton: the service takes no new connections"
                                    : "baton: the service's policy refuses it");
    event->new_id.reset();
  }
  return may;
}

std::function<absl::Status(const verbs::Route&)> RouteCheckOf(const ConnectionGate* gate) {
  if (gate == nullptr) return nullptr;
  return [gate](const verbs::Route& route) { return gate->CheckRoute(route); };
}

}  // namespace baton::driver

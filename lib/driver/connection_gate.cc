#include "lib/driver/connection_gate.h"

namespace baton::driver {

absl::Status AdmitRequest(ConnectionGate* gate, uint32_t connections, verbs::CmEvent* event) {
  if (gate == nullptr) return absl::OkStatus();
  absl::Status may = gate->CheckRequest(connections, *event->new_id);
  if (!may.ok()) {
    Refuse(event, may.code() == absl::StatusCode::kUnavailable
                      ? "baton: the service takes no new connections"
                      : "baton: the service's policy refuses it");
  }
  return may;
}

void Refuse(verbs::CmEvent* event, std::string_view words) {
  (void)event->new_id->Reject(words);
  event->new_id.reset();
}

std::function<absl::Status(const verbs::Route&)> RouteCheckOf(const ConnectionGate* gate) {
  if (gate == nullptr) return nullptr;
  return [gate](const verbs::Route& route) { return gate->CheckRoute(route); };
}

}  // namespace baton::driver

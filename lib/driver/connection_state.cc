#include "lib/driver/connection_state.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/arena/text_field.h"

namespace baton::driver {

void FillAddresses(const verbs::ConnectionId& id, arena::ConnectionRecord* record) {
  const verbs::Address local = id.local_address();
  const verbs::Address peer = id.peer_address();
  arena::SetText(record->local_address, absl::StrCat(local.host, ":", local.port));
  arena::SetText(record->peer_address, absl::StrCat(peer.host, ":", peer.port));
}

void FillPrivateData(std::string_view data, arena::ConnectionRecord* record) {
  // The length is not read back from the record, because other processes may write it.
  const size_t length = std::min<size_t>(data.size(), arena::kPrivateDataBytes);
  std::memcpy(record->private_data, data.data(), length);
  arena::StoreRelaxed(record->private_data_length, static_cast<uint32_t>(length));
}

absl::Status NoSlotFree(size_t slots) {
  return absl::ResourceExhaustedError(
      absl::StrCat("all ", slots, " connections of the service are in use: raise max_connections"));
}

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

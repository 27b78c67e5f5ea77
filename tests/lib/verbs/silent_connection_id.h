// A connection of a peer that wants nothing: whatever is done with it succeeds.
#ifndef TESTS_LIB_VERBS_SILENT_CONNECTION_ID_H_
#define TESTS_LIB_VERBS_SILENT_CONNECTION_ID_H_

#include <string_view>

#include "absl/status/status.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::testing {

class SilentConnectionId : public ConnectionId {
 public:
  Address local_address() const override { return {}; }
  Address peer_address() const override { return {}; }
  ReadDepths depths() const override { return {}; }
  absl::Status Accept(QueuePair*, const ConnectionParameters&) override { return absl::OkStatus(); }
  absl::Status Reject(std::string_view) override { return absl::OkStatus(); }
  absl::Status Disconnect() override { return absl::OkStatus(); }
};

}  // namespace baton::verbs::testing

#endif  // TESTS_LIB_VERBS_SILENT_CONNECTION_ID_H_

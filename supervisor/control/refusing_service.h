// What a caller that may not operate Baton meets: every method answers PERMISSION_DENIED with the
// reason, which a closed socket could not tell.
#ifndef SUPERVISOR_CONTROL_REFUSING_SERVICE_H_
#define SUPERVISOR_CONTROL_REFUSING_SERVICE_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "grpcpp/generic/async_generic_service.h"
#include "supervisor/control/peer_registry.h"

namespace baton {

class RefusingService final : public grpc::CallbackGenericService {
 public:
  explicit RefusingService(const PeerRegistry* peers) : peers_(peers) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* call) override {
    const auto peer = peers_->Find(call->peer());
    const std::string who = peer ? absl::StrCat("uid ", peer->uid) : "this caller";
    return new Refusal(
        absl::StrCat(who,
                     " may not operate Baton: add it to operator_uids, or one of its groups to "
                     "operator_gids, in batond's configuration"));
  }

 private:
  class Refusal final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Refusal(const std::string& reason) {
      Finish(grpc::Status(grpc::StatusCode::PERMISSION_DENIED, reason));
    }
    void OnDone() override { delete this; }
  };

  const PeerRegistry* const peers_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_REFUSING_SERVICE_H_

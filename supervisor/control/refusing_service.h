// Answers calls that a caller may not make with PERMISSION_DENIED and the reason, which a closed
// socket could not carry.
#ifndef SUPERVISOR_CONTROL_REFUSING_SERVICE_H_
#define SUPERVISOR_CONTROL_REFUSING_SERVICE_H_

#include <string>

#include "grpcpp/generic/async_generic_service.h"
#include "supervisor/control/callers.h"

namespace baton {

class RefusingService final : public grpc::CallbackGenericService {
 public:
  explicit RefusingService(Callers* callers) : callers_(callers) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* call) override {
    return new Refusal(callers_->Refuse(*call, call->method()));
  }

 private:
  class Refusal final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Refusal(const std::string& reason) {
      Finish(grpc::Status(grpc::StatusCode::PERMISSION_DENIED, reason));
    }
    void OnDone() override { delete this; }
  };

  Callers* const callers_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_REFUSING_SERVICE_H_

#ifndef SUPERVISOR_CONTROL_OPERATOR_SERVICE_H_
#define SUPERVISOR_CONTROL_OPERATOR_SERVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/impl/codegen/service_type.h"
#include "proto/baton/v1/operator.pb.h"
#include "supervisor/control/audit_trail.h"
#include "supervisor/control/callers.h"
#include "supervisor/control/keepers.h"
#include "supervisor/control/streams.h"

namespace baton {

class EventStreams;

// The objects that the operator service uses. They must outlive it.
struct OperatorServiceContext {
  Keepers* keepers;
  WorkerStreams* streams;
  const Callers* callers;
  AuditTrail* trail;
  EventStreams* event_streams;
  std::function<absl::Status(const v1::ReloadRequest&, v1::ReloadResponse*)> reload;
  std::function<absl::Status(const v1::ReplaceProgramRequest&)> replace_program;
  std::function<void(v1::ReadProgramsResponse*)> read_programs;
  std::function<uint64_t()> batonds_followed;
};

// Makes the service for `role`. Methods that the role may not call are left to the server's generic
// service.
std::unique_ptr<grpc::Service> MakeOperatorService(const OperatorServiceContext& context,
                                                   Role role);

// Answers calls that a caller may not make with PERMISSION_DENIED and the reason. Closing the
// socket could not tell the reason.
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

#endif  // SUPERVISOR_CONTROL_OPERATOR_SERVICE_H_

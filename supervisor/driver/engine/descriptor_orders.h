// Executes a keeper's orders about the descriptors that workers hand over to their service.
#ifndef SUPERVISOR_DRIVER_ENGINE_DESCRIPTOR_ORDERS_H_
#define SUPERVISOR_DRIVER_ENGINE_DESCRIPTOR_ORDERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/internal/driver.pb.h"
#include "supervisor/driver/engine/admission.h"
#include "supervisor/driver/engine/held_descriptors.h"

namespace baton::driver_process {

// Thread-compatible: the engine's thread.
class DescriptorOrders {
 public:
  // Both outlive it.
  DescriptorOrders(HeldDescriptors& held, const Admission& admission)
      : held_(held), admission_(admission) {}

  // `descriptors`: what came with the order.
  absl::Status Hold(const internal::HoldDescriptor& order, std::vector<FileDescriptor> descriptors,
                    internal::DriverAnswer* answer);
  // Executes the others. `sent` takes what goes with the answer. REQUIRES: it is one of them.
  absl::Status Execute(const internal::DriverOrder& order, internal::DriverAnswer* answer,
                       std::vector<FileDescriptor>* sent);

 private:
  HeldDescriptors& held_;
  const Admission& admission_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_DESCRIPTOR_ORDERS_H_

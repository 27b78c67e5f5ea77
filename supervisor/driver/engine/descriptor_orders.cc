#include "supervisor/driver/engine/descriptor_orders.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::driver_process {

absl::Status DescriptorOrders::Hold(const internal::HoldDescriptor& order,
                                    std::vector<FileDescriptor> descriptors,
                                    internal::DriverAnswer* answer) {
  if (descriptors.size() != 1) {
    return absl::ResourceExhaustedError(
        "hold_descriptor: its descriptor has not arrived: raise RLIMIT_NOFILE of the driver");
  }
  BATON_RETURN_IF_ERROR(
      admission_.CheckDescriptor(held_.count(), held_.CountOf(order.worker_id())));
  BATON_ASSIGN_OR_RETURN(const uint64_t number, held_.Hold(order.worker_id(), order.tag(),
                                                           std::move(descriptors.front())));
  answer->set_count(number);
  return absl::OkStatus();
}

absl::Status DescriptorOrders::Execute(const internal::DriverOrder& order,
                                       internal::DriverAnswer* answer,
                                       std::vector<FileDescriptor>* sent) {
  if (order.has_list_descriptors()) {
    for (const uint64_t number : held_.Numbers(order.list_descriptors().tag())) {
      answer->mutable_held_numbers()->add_numbers(number);
    }
    return absl::OkStatus();
  }
  if (sent == nullptr) return absl::InvalidArgumentError("descriptors cannot go with the answer");
  if (order.has_drop_descriptor()) {
    FileDescriptor dropped = held_.Take(order.drop_descriptor().number());
    if (dropped) sent->push_back(std::move(dropped));
    return absl::OkStatus();
  }
  const uint64_t number = order.take_descriptor().number();
  const int held = held_.Find(number);
  if (held < 0) {
    return absl::NotFoundError(absl::StrCat("no descriptor with number ", number,
                                            " is held: it was dropped, or never handed over"));
  }
  FileDescriptor copy = CopyOf(held);
  if (!copy) return ErrnoStatus(errno, "a held descriptor's copy (see the driver's RLIMIT_NOFILE)");
  sent->push_back(std::move(copy));
  return absl::OkStatus();
}

}  // namespace baton::driver_process

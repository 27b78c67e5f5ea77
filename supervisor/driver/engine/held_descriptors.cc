#include "supervisor/driver/engine/held_descriptors.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::driver_process {

absl::StatusOr<uint64_t> HeldDescriptors::Hold(uint64_t worker_id, uint64_t tag,
                                               FileDescriptor descriptor) {
  if (held_.size() >= kMost) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the service's driver holds ", held_.size(),
                     " descriptors, and no more are possible: drop those that no state names"));
  }
  held_[++last_] = {worker_id, tag, std::move(descriptor)};
  return last_;
}

int HeldDescriptors::Find(uint64_t number) const {
  const auto found = held_.find(number);
  return found == held_.end() ? -1 : found->second.descriptor.get();
}

FileDescriptor HeldDescriptors::Take(uint64_t number) {
  const auto found = held_.find(number);
  if (found == held_.end()) return FileDescriptor();
  FileDescriptor descriptor = std::move(found->second.descriptor);
  held_.erase(found);
  return descriptor;
}

void HeldDescriptors::Forget(uint64_t worker_id) {
  for (auto& [number, held] : held_) {
    if (held.worker_id == worker_id) held.worker_id = 0;
  }
}

uint32_t HeldDescriptors::CountOf(uint64_t worker_id) const {
  return static_cast<uint32_t>(std::count_if(
      held_.begin(), held_.end(),
      [worker_id](const auto& entry) { return entry.second.worker_id == worker_id; }));
}

std::vector<uint64_t> HeldDescriptors::Numbers(uint64_t tag) const {
  std::vector<uint64_t> numbers;
  for (const auto& [number, held] : held_) {
    if (held.tag == tag) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace baton::driver_process

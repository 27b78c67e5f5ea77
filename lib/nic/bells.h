#ifndef LIB_NIC_BELLS_H_
#define LIB_NIC_BELLS_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "lib/nic/mapped_file.h"
#include "lib/verbs/mlx5/doorbell_page.h"

namespace baton::nic {

// The NIC's side of one doorbell page. A driver that writes nonsense there rings in vain, and does
// no other harm: the NIC keeps its own heads in its own memory.
class Bells {
 public:
  // The page lies in `file`.
  Bells(std::shared_ptr<MappedFile> file, verbs::mlx5::DoorbellPage* page);

  // Take the oldest value of a queue. Return false if there is none.
  bool TakeSend(uint64_t* bytes);
  bool TakeArm(uint64_t* bytes);

  // Takes the bits kOverflow and kLook. After the call the NIC sees what the driver stored before
  // it set them.
  uint32_t TakeAttention();
  // Takes the numbers of queue pairs to look at, as many as `numbers` has room for, and returns how
  // many these are. After the call the NIC sees what their drivers stored before.
  size_t TakeLooks(absl::Span<uint32_t> numbers);

  // Tells the driver whether a ring has to be followed by a write to the eventfd.
  void SetSleeping(bool sleeping);
  // Returns true if there is nothing to take. After SetSleeping(true), the driver follows every
  // ring that this call does not see with a write to the eventfd.
  bool empty() const;

 private:
  static bool Take(absl::Span<uint64_t> places, std::atomic_ref<uint32_t> shared_head,
                   uint32_t* head, uint64_t* bytes);

  const std::shared_ptr<MappedFile> file_;
  verbs::mlx5::DoorbellPage* const page_;
  uint32_t send_head_ = 0;
  uint32_t arm_head_ = 0;
};

}  // namespace baton::nic

#endif  // LIB_NIC_BELLS_H_

#include "lib/nic/bells.h"

#include <atomic>
#include <utility>

namespace baton::nic {

using verbs::mlx5::DoorbellPage;

// Clears the places, because the page may have been a register before. Its old rings are void.
Bells::Bells(std::shared_ptr<MappedFile> file, DoorbellPage* page)
    : file_(std::move(file)), page_(page) {
  *page_ = {};
}

// Stores the head before it clears the place, so a driver that sees the place empty also sees the
// new head.
bool Bells::Take(absl::Span<uint64_t> places, std::atomic_ref<uint32_t> shared_head, uint32_t* head,
                 uint64_t* bytes) {
  std::atomic_ref place(places[*head % places.size()]);
  *bytes = place.load(std::memory_order_acquire);
  if (*bytes == 0) return false;
  ++*head;
  shared_head.store(*head, std::memory_order_release);
  place.store(0, std::memory_order_release);
  return true;
}

bool Bells::TakeSend(uint64_t* bytes) {
  return Take(absl::MakeSpan(page_->sends), std::atomic_ref(page_->sq_head), &send_head_, bytes);
}

bool Bells::TakeArm(uint64_t* bytes) {
  return Take(absl::MakeSpan(page_->arms), std::atomic_ref(page_->cq_head), &arm_head_, bytes);
}

uint32_t Bells::TakeAttention() {
  std::atomic_ref attention(page_->attention);
  if (attention.load(std::memory_order_relaxed) == 0) return 0;
  return attention.exchange(0, std::memory_order_seq_cst);
}

size_t Bells::TakeLooks(absl::Span<uint32_t> numbers) {
  size_t count = 0;
  for (uint32_t& look : page_->looks) {
    std::atomic_ref place(look);
    if (count == numbers.size()) break;
    if (place.load(std::memory_order_acquire) == 0) continue;
    numbers[count++] = place.exchange(0, std::memory_order_seq_cst);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return count;
}

void Bells::SetSleeping(bool sleeping) {
  std::atomic_ref(page_->sleeping).store(sleeping ? 1 : 0, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool Bells::empty() const {
  return std::atomic_ref(page_->sends[send_head_ % verbs::mlx5::kSendPlaces])
                 .load(std::memory_order_acquire) == 0 &&
         std::atomic_ref(page_->arms[arm_head_ % verbs::mlx5::kArmPlaces])
                 .load(std::memory_order_acquire) == 0 &&
         std::atomic_ref(page_->attention).load(std::memory_order_acquire) == 0;
}

}  // namespace baton::nic

// A queue of work requests addressed by ever-growing index, which starts small and grows to its
// bound: thousands of idle queue pairs must not cost what busy ones do.
#ifndef LIB_NIC_WORK_RING_H_
#define LIB_NIC_WORK_RING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

template <typename Work>
class WorkRing {
 public:
  // `max_inline`: bytes that a request can have in the ring itself.
  WorkRing(uint32_t limit, uint32_t max_sges, uint32_t max_inline = 0)
      : limit_(limit), max_sges_(max_sges), max_inline_(max_inline) {}

  uint64_t head() const { return head_; }  // oldest outstanding
  uint64_t tail() const { return tail_; }  // next to be posted
  bool empty() const { return head_ == tail_; }
  bool full() const { return tail_ - head_ >= limit_; }

  uint32_t limit() const { return limit_; }
  uint32_t max_sges() const { return max_sges_; }
  uint32_t max_inline() const { return max_inline_; }

  Work& operator[](uint64_t index) { return work_[index & mask()]; }
  const ScatterGather* sges(uint64_t index) const { return &sges_[(index & mask()) * max_sges_]; }
  // The pointer is valid until the next Push.
  uint8_t* inline_data(uint64_t index) { return inline_.data() + (index & mask()) * max_inline_; }

  // Requires that the ring is not full, and no more sges than it was made for.
  Work& Push(absl::Span<const ScatterGather> sges) {
    if (tail_ - head_ == work_.size()) Grow();
    std::copy(sges.begin(), sges.end(), sges_.begin() + (tail_ & mask()) * max_sges_);
    return work_[tail_++ & mask()];
  }

  void Pop() { ++head_; }

 private:
  uint64_t mask() const { return work_.size() - 1; }

  void Grow() {
    const size_t capacity = std::max<size_t>(4, work_.size() * 2);
    std::vector<Work> work(capacity);
    std::vector<ScatterGather> sges(capacity * max_sges_);
    std::vector<uint8_t> bytes(capacity * max_inline_);
    for (uint64_t index = head_; index != tail_; ++index) {
      const size_t to = index & (capacity - 1);
      work[to] = (*this)[index];
      std::copy_n(this->sges(index), max_sges_, sges.begin() + to * max_sges_);
      std::copy_n(inline_data(index), max_inline_, bytes.begin() + to * max_inline_);
    }
    work_.swap(work);
    sges_.swap(sges);
    inline_.swap(bytes);
  }

  const uint32_t limit_;
  const uint32_t max_sges_;  // at least 1
  const uint32_t max_inline_;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  std::vector<Work> work_;           // size: a power of two, or 0
  std::vector<ScatterGather> sges_;  // max_sges_ for each
  std::vector<uint8_t> inline_;      // max_inline_ for each
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_WORK_RING_H_

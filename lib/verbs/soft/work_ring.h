// A queue of work requests addressed by ever-growing index, which starts small and grows to its
// bound: thousands of idle queue pairs must not cost what busy ones do.
#ifndef LIB_VERBS_SOFT_WORK_RING_H_
#define LIB_VERBS_SOFT_WORK_RING_H_

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
  WorkRing(uint32_t limit, uint32_t max_sges) : limit_(limit), max_sges_(max_sges) {}

  uint64_t head() const { return head_; }  // oldest outstanding
  uint64_t tail() const { return tail_; }  // next to be posted
  bool empty() const { return head_ == tail_; }
  bool full() const { return tail_ - head_ >= limit_; }

  Work& operator[](uint64_t index) { return work_[index & mask()]; }
  const ScatterGather* sges(uint64_t index) const { return &sges_[(index & mask()) * max_sges_]; }

  // Only when not full, and with no more sges than the ring was made for.
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
    for (uint64_t index = head_; index != tail_; ++index) {
      const size_t to = index & (capacity - 1);
      work[to] = (*this)[index];
      std::copy_n(this->sges(index), max_sges_, sges.begin() + to * max_sges_);
    }
    work_.swap(work);
    sges_.swap(sges);
  }

  const uint32_t limit_;
  const uint32_t max_sges_;  // at least 1
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  std::vector<Work> work_;           // size: a power of two, or 0
  std::vector<ScatterGather> sges_;  // max_sges_ for each
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_WORK_RING_H_

// This is the work of a queue pair: requests as the NIC keeps them, the sources that it takes
// them from, and the sink that it completes them into.
#ifndef LIB_NIC_WORK_SOURCE_H_
#define LIB_NIC_WORK_SOURCE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

// A queue of work requests addressed by ever-growing index. It starts small and grows to its bound:
// thousands of idle queue pairs must not cost what busy ones do.
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

struct SendWork {
  uint64_t id;  // its source's: a wr_id, or the counter where it begins in a client's queue
  uint64_t remote_address;
  uint64_t compare_add;
  uint64_t swap;
  uint64_t length;
  uint32_t rkey;
  uint32_t immediate;  // or the rkey to invalidate
  Opcode opcode;
  bool fence;
  bool solicited;
  bool signalled;
  bool malformed;  // fails with kLocalQpError when its turn comes
  bool drawn;      // its fault was decided
  bool inline_data;
  uint8_t sge_count;
  uint8_t rnr_tries;
};

struct ReceiveWork {
  uint64_t id;  // as above
  uint64_t length;
  uint8_t sge_count;
  bool malformed;  // the message that takes it fails with kLocalQpError
};

// The source of a queue pair's sends, or of its receives.
//
// The window holds the requests that are in flight: they are fetched in order, one just before it
// begins, and stay until they complete. What is in the window is the NIC's copy. Each try of a
// request reads that copy, and nothing that the user writes to its queue changes it.
template <typename Work>
class WorkSource {
 public:
  virtual ~WorkSource() = default;

  WorkRing<Work>& window() { return window_; }
  const WorkRing<Work>& window() const { return window_; }

  // Copies the next request to the window. Returns false if none is queued. Requires a window that
  // is not full.
  virtual bool Fetch() = 0;

  // Returns how many requests are queued behind the window for this queue pair alone, or a larger
  // number. A flush fetches at most this many, so a user that keeps posting does not prolong it.
  virtual uint32_t Waiting() = 0;

 protected:
  WorkSource(uint32_t max_requests, uint32_t max_sges, uint32_t max_inline = 0)
      : window_(max_requests, max_sges, max_inline) {}

 private:
  WorkRing<Work> window_;
};

using SendSource = WorkSource<SendWork>;
using ReceiveSource = WorkSource<ReceiveWork>;

// The sink of a queue pair's completions. `completion` has neither wr_id nor qp_number, and that of
// a send has no opcode, because the sink knows them. Returns false if the completion queue is
// overrun. Must not call the queue pair.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  virtual bool CompleteSend(const SendWork& work, const Completion& completion) = 0;
  virtual bool CompleteReceive(const ReceiveWork& work, const Completion& completion) = 0;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_WORK_SOURCE_H_

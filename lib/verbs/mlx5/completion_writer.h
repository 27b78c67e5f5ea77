#ifndef LIB_VERBS_MLX5_COMPLETION_WRITER_H_
#define LIB_VERBS_MLX5_COMPLETION_WRITER_H_

#include <cstdint>

#include "lib/verbs/mlx5/format.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::mlx5 {

// A client's completion queue as its device sees it.
struct FoundCompletionQueue {
  uint8_t* entries = nullptr;
  const __be32* record = nullptr;  // completions consumed so far, 24 bits
  uint32_t entry_count = 0;        // a power of two, at most kMaxEntries
  uint32_t entry_bytes = 64;       // 64, or 128, of which the last 64 are the entry
};

// A device's account of a request that it has executed, or of a message that it has received.
struct Executed {
  uint8_t kind = MLX5_CQE_REQ;  // MLX5_CQE_*, without errors
  CompletionStatus status = CompletionStatus::kSuccess;
  uint8_t vendor_error = 0;
  uint8_t code = 0;        // of a send: MLX5_OPCODE_*
  uint16_t counter = 0;    // where the request began; the slot of a shared receive
  uint32_t qp_number = 0;  // whose it is
  uint32_t bytes = 0;
  uint32_t immediate = 0;   // host order; or the rkey that was invalidated
  uint32_t srq_number = 0;  // the shared queue of a shared receive
};

// Writes completions as a device does: an entry first, its owner byte last. Thread-compatible; one
// process at a time.
class CompletionWriter {
 public:
  // REQUIRES: `queue` has no completions yet.
  explicit CompletionWriter(const FoundCompletionQueue& queue);
  virtual ~CompletionWriter() = default;

  // Returns false if the queue has no room. The queue has then failed, and every later call returns
  // false.
  virtual bool Write(const Executed& executed);

  uint32_t written() const { return written_; }  // so far, modulo 2^24

 protected:
  // Makes every later Write() return false.
  void Fail() { failed_ = true; }
  // Called between an entry and its owner byte.
  virtual void BeforeOwnerByte() {}

 private:
  // Marks an entry as not written.
  void Mark(uint32_t index);

  const FoundCompletionQueue queue_;
  uint32_t written_ = 0;
  bool marked_ = false;  // all entries were written once, or marked
  bool failed_ = false;
};

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_COMPLETION_WRITER_H_

// The work of a queue pair: requests as the engine keeps them, the sources that it takes them
// from, and the sink that it completes them into.
#ifndef LIB_NIC_WORK_SOURCE_H_
#define LIB_NIC_WORK_SOURCE_H_

#include <cstdint>

#include "lib/nic/work_ring.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

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
// begins, and stay until they complete. What is in the window is the engine's copy. Each try of a
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

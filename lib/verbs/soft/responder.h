// The receive half of a queue pair: the peer's requests against receives and memory, and the
// answers to them.
#ifndef LIB_VERBS_SOFT_RESPONDER_H_
#define LIB_VERBS_SOFT_RESPONDER_H_

#include <sys/uio.h>

#include <cstdint>
#include <vector>

#include "lib/verbs/soft/frame_stream.h"
#include "lib/verbs/soft/shared_receive_queue.h"
#include "lib/verbs/soft/work_host.h"
#include "lib/verbs/soft/work_ring.h"

namespace baton::verbs::soft {

class Responder {
 public:
  Responder(WorkHost* host, uint32_t max_requests, uint32_t max_sges)
      : host_(host), ring_(max_requests, max_sges) {}
  // Of receives that are shared a message takes one when it begins.
  Responder(WorkHost* host, SoftSharedReceiveQueue* shared)
      : host_(host), shared_(shared), ring_(1, shared->max_sges()) {}
  void Start(uint32_t responder_resources, uint32_t rnr_timer_us) {
    resources_ = responder_resources;
    rnr_timer_us_ = rnr_timer_us;
  }

  bool full() const { return ring_.full(); }
  void Post(const ReceiveRequest& request) { PushReceive(request, &ring_); }
  void Flush();      // receives outstanding complete with kFlushError
  void DropReads();  // answers that would read memory

  bool OnRequest(const FrameHeader& header, const uint8_t* body);
  int Place(uint32_t done, uint32_t length, iovec* iovecs, int max);
  bool OnRequestEnd();
  // For a request that arrives while the queue pair is in the error state.
  void Refuse(uint32_t sequence);

  bool NextFrame(OutFrame* frame);

 private:
  enum class Kind : uint8_t { kAck, kNak, kReceiverNotReady, kRead, kAtomic };
  struct Answer {
    Kind kind;
    NakCode code;
    uint32_t sequence;
    uint32_t rkey;
    uint64_t address;  // kRead; kAtomic: the value
    uint64_t length;
    uint64_t offset;
  };

  bool OnSend(const FrameHeader& header, uint32_t size);
  bool OnWrite(const FrameHeader& header, const uint8_t* body, uint32_t size);
  bool OnRead(const FrameHeader& header, const uint8_t* body);
  bool OnAtomic(const FrameHeader& header, const uint8_t* body);
  bool InOrder(const FrameHeader& header);
  bool HasReceive();
  bool HasAnswer(Kind kind) const;
  void EndSend();
  void EndWrite();
  void NotReady(uint32_t sequence);
  void Acknowledge(uint32_t sequence);
  void Push(const Answer& answer);
  void Reject(uint32_t sequence, NakCode code);
  void RejectReceive(CompletionStatus status, NakCode code);
  void BuildRead(Answer* answer, OutFrame* frame);
  Completion TakeReceive();

  WorkHost* const host_;
  uint32_t resources_ = 0;
  uint32_t rnr_timer_us_ = 0;
  SoftSharedReceiveQueue* const shared_ = nullptr;
  WorkRing<ReceiveWork> ring_;

  // The request in progress.
  uint32_t expected_ = 0;        // sequence
  FrameHeader current_ = {};     // of its segment
  bool in_message_ = false;      // between its first and its last segment
  bool discard_ = false;         // this segment's payload goes nowhere
  bool dropping_ = false;        // after RNR: until the first segment of expected_ comes again
  uint64_t offset_ = 0;          // of the segment in the message
  uint64_t message_length_ = 0;  // WRITE
  uint64_t address_ = 0;         // WRITE: of the message
  uint32_t rkey_ = 0;            // WRITE
  uint32_t segment_size_ = 0;

  // From first_answer_ on. Between two acknowledgements is another answer, and there are at most as
  // many of these as responder resources, one "receiver not ready" and one NAK.
  std::vector<Answer> answers_;
  size_t first_answer_ = 0;
  uint32_t reads_ = 0;  // READ and atomic answers among them
  bool refused_ = false;
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_RESPONDER_H_

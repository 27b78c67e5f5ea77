// The receive half of a queue pair. It executes the peer's requests on the receives of its source
// and on memory, and answers them.
#ifndef LIB_NIC_RESPONDER_H_
#define LIB_NIC_RESPONDER_H_

#include <sys/uio.h>

#include <cstdint>
#include <vector>

#include "lib/nic/frame_stream.h"
#include "lib/nic/work_host.h"
#include "lib/nic/work_source.h"

namespace baton::verbs::soft {

class Responder {
 public:
  // All of them outlive the responder.
  Responder(WorkHost* host, ReceiveSource* source, CompletionSink* sink)
      : host_(host), source_(source), sink_(sink) {}
  void Start(uint32_t responder_resources, uint32_t rnr_timer_us) {
    resources_ = responder_resources;
    rnr_timer_us_ = rnr_timer_us;
  }

  // Flushes the receives. Shared receives that no message took stay where they are.
  void Flush();
  void DropReads();  // answers that would read memory

  bool OnRequest(const FrameHeader& header, const uint8_t* body);
  int Place(uint32_t done, uint32_t length, iovec* iovecs, int max);
  bool OnRequestEnd();
  // Refuses a request that arrives, or ends, while the queue pair is in the error state. The answer
  // names the first message that was not executed, because it says that all before it were.
  void Refuse() { Refuse(expected_); }

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

  void Refuse(uint32_t sequence);
  bool OnSend(const FrameHeader& header, uint32_t size);
  bool OnWrite(const FrameHeader& header, const uint8_t* body, uint32_t size);
  bool OnRead(const FrameHeader& header, const uint8_t* body);
  bool OnAtomic(const FrameHeader& header, const uint8_t* body);
  bool InOrder(const FrameHeader& header);
  bool HasReceive() { return !ring().empty() || source_->Fetch(); }
  bool HasAnswer(Kind kind) const;
  void EndSend();
  void EndWrite();
  void NotReady(uint32_t sequence);
  void Acknowledge(uint32_t sequence);
  void Push(const Answer& answer);
  void Reject(uint32_t sequence, NakCode code);
  void RejectReceive(CompletionStatus status, NakCode code);
  void BuildRead(Answer* answer, OutFrame* frame);
  void CompleteReceive(const Completion& completion);
  void FailReceive(CompletionStatus status);
  WorkRing<ReceiveWork>& ring() { return source_->window(); }

  WorkHost* const host_;
  ReceiveSource* const source_;
  CompletionSink* const sink_;
  uint32_t resources_ = 0;
  uint32_t rnr_timer_us_ = 0;

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

  // Answers that are not sent yet begin at first_answer_. There is another answer between any two
  // acknowledgements, and there are at most as many others as responder resources, one "receiver
  // not ready" and one NAK.
  std::vector<Answer> answers_;
  size_t first_answer_ = 0;
  uint32_t reads_ = 0;  // READ and atomic answers among them
  bool refused_ = false;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_RESPONDER_H_

// The send half of a queue pair. It sends the requests of its source as frames, in order, and
// handles the peer's answers.
#ifndef LIB_NIC_REQUESTER_H_
#define LIB_NIC_REQUESTER_H_

#include <sys/uio.h>

#include <cstdint>

#include "lib/nic/frame_stream.h"
#include "lib/nic/soft_options.h"
#include "lib/nic/work_host.h"
#include "lib/nic/work_source.h"

namespace baton::verbs::soft {

class Requester {
 public:
  struct Parameters {
    uint32_t initiator_depth = 0;
    uint32_t retry_count = 7;
    uint32_t rnr_retry_count = 7;
    uint32_t rnr_timer_us = 500;  // of injected RNR faults without a duration
    uint64_t ack_timeout_ns = 0;  // 0: none
    FaultSequence faults;
    uint64_t* receivers_not_ready = nullptr;  // see SoftDeviceOptions
  };

  // All of them outlive the requester.
  Requester(WorkHost* host, SendSource* source, CompletionSink* sink);
  ~Requester();
  void Start(const Parameters& parameters) { parameters_ = parameters; }

  // Returns whether the peer takes such requests: it may answer no READs and atomics.
  bool Allows(Opcode opcode) const;
  // Completes all requests that are in flight or queued with kFlushError. In the error state it is
  // called again whenever the client has posted more.
  void Flush();

  bool NextFrame(OutFrame* frame);
  int Gather(uint64_t index, uint64_t offset, uint64_t length, iovec* iovecs, int max);
  // Called after transmission and after answers. Completes a request that failed on this side, when
  // its turn has come.
  void Settle();
  void Touch();  // the peer showed life
  // Called after a post. Bounds the time for which a peer that reads nothing keeps the request from
  // being sent.
  void WatchPosted();

  // Handle answers. Return false if the peer breaks the protocol.
  bool OnAck(uint32_t sequence);
  bool OnNak(uint32_t sequence, NakCode code);
  bool OnReceiverNotReady(uint32_t sequence, uint32_t timer_us);
  bool OnReadResponse(const FrameHeader& header);
  int PlaceReadResponse(uint32_t done, uint32_t length, iovec* iovecs, int max);
  bool OnAnswerEnd();  // at the end of any answer's frame
  bool OnAtomicResponse(uint32_t sequence, uint64_t value);

 private:
  WorkRing<SendWork>& ring() const { return source_->window(); }
  bool Fetch();
  bool HasRequest() { return !ring().empty() || source_->Fetch(); }
  bool MayStart(const SendWork& work) const;
  bool DrawFault(SendWork* work);
  CompletionStatus CheckLocal(const SendWork& work) const;
  bool Start(SendWork* work);
  void BuildSegment(const SendWork& work, OutFrame* frame);
  void BuildRead(const SendWork& work, OutFrame* frame);
  void BuildAtomic(const SendWork& work, OutFrame* frame);
  uint64_t IndexOf(uint32_t sequence) const;
  bool AwaitsRetry() const {
    return !ring().empty() && next_ == ring().head() && !started_ && ring()[next_].rnr_tries > 0;
  }
  uint64_t started_end() const { return next_ + (started_ ? 1 : 0); }
  // The requests before this index were wholly transmitted. The peer cannot have executed any
  // other.
  uint64_t transmitted_end() const { return host_->FirstUnwritten(next_); }
  bool CompleteUpTo(uint64_t end);
  void CompleteHead(CompletionStatus status, uint32_t byte_len);
  void FailHead(CompletionStatus status);
  void Halt(uint64_t index, CompletionStatus status);
  void Wait(uint64_t delay_us);
  void RetryLater(uint64_t index, uint64_t delay_us);
  void WatchPeer();
  void OnPeerTimer();

  WorkHost* const host_;
  SendSource* const source_;
  CompletionSink* const sink_;
  Parameters parameters_;
  uint64_t next_ = 0;         // index being, or next to be, transmitted
  bool started_ = false;      // next_ has a segment out
  uint64_t sent_ = 0;         // bytes of next_ in frames
  uint32_t unanswered_ = 0;   // READs and atomics transmitted and not answered
  uint64_t read_offset_ = 0;  // of the READ at the head
  uint32_t read_segment_ = 0;
  bool read_last_ = false;
  bool reading_ = false;  // the frame in progress is a READ response
  bool waiting_ = false;  // RNR or injected delay: wait_timer_ runs
  bool held_ = false;     // the window was full: fetch when there is room again
  bool halted_ = false;   // halt_index_ fails with halt_status_ once all before it are complete
  bool suspect_ = false;  // the peer's time is up; it gets a short grace, as we may have slept
  uint64_t halt_index_ = 0;
  CompletionStatus halt_status_ = CompletionStatus::kSuccess;
  uint64_t life_ns_ = 0;  // when the peer last showed life
  Timer wait_timer_;
  Timer peer_timer_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_REQUESTER_H_

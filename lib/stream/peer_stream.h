// An end of a stream over plain verbs: for a peer without Baton. ring.h has the protocol.
//
//   PeerStream stream(queue_pair, {memory, ring_bytes, staging_bytes, lkey, rkey}, {32, 64});
//   stream.Open();                        // posts receives
//   device->Connect(…, {.private_data = stream.Greeting()});
//   stream.Begin(event.private_data);     // of kEstablished
//   stream.Send(bytes);                   // kResourceExhausted: when an event has credit
//   …stream.OnCompletion(completion)…     // of each completion of the queue pair
//
// An end that accepts calls Begin with the request's private data, and answers with its greeting.
// An end that connects leaves completions in their queue until Begin: a peer's first bell may be
// there before the event of the connection is.
#ifndef LIB_STREAM_PEER_STREAM_H_
#define LIB_STREAM_PEER_STREAM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/stream/ring.h"
#include "lib/verbs/verbs.h"

namespace baton::stream {

// Owns neither the queue pair nor the memory. One thread uses it, as it does the queue pair, whose
// wr_ids are all the stream's.
class PeerStream {
 public:
  // Registered with kLocalWrite and kRemoteWrite: the ring, and behind it the bytes from which
  // messages are sent, at least as many as the longest message has.
  struct Memory {
    uint8_t* base = nullptr;
    uint32_t ring_bytes = 0;
    uint32_t staging_bytes = 0;
    uint32_t lkey = 0;
    uint32_t rkey = 0;
  };
  // Receives and sends of the queue pair that are the stream's.
  struct Requests {
    uint16_t window = 0;
    uint32_t sends = 0;
    uint64_t max_message_bytes = 0;  // DeviceLimits::max_message_bytes; 0: unknown
  };
  struct Event {
    enum class Kind : uint8_t { kNothing, kMessage };
    Kind kind = Kind::kNothing;
    bool has_credit = false;  // what Send has refused may be taken now
    absl::Span<const uint8_t> message;
    uint64_t end = 0;  // for Release
  };

  PeerStream(verbs::QueuePair* queue_pair, const Memory& memory, const Requests& requests)
      : queue_pair_(queue_pair), memory_(memory), requests_(requests) {}

  // Posts the receives. Call it before the queue pair is connected, once. kInvalidArgument: the
  // message names the wrong size.
  absl::Status Open();
  std::string Greeting() const;
  // The peer's greeting has come. kInvalidArgument: it is none.
  absl::Status Begin(std::string_view private_data);

  // Sends one message, which is copied. kResourceExhausted: the peer has no room now, or messages
  // before it have not been sent. kInvalidArgument: longer than the peer's ring, the memory, or
  // what the device sends in one message.
  absl::Status Send(absl::Span<const uint8_t> message);

  // kInvalidArgument: the peer does not keep to the protocol. Other errors are those of the
  // completion. The connection has failed either way. REQUIRES: Begin, or the bell is lost
  // (kFailedPrecondition).
  absl::StatusOr<Event> OnCompletion(const verbs::Completion& completion);
  // The message, and all before it, are read.
  absl::Status Release(const Event& event);

  // REQUIRES: Begin.
  const StreamState& state() const { return end_->state(); }

 private:
  absl::Status PostReceive();
  absl::Status PostOwed();
  // Posts what has led to `next`, which is the state from then on. What is refused does not count:
  // a queue pair takes no send before it is connected.
  absl::Status Post(const StreamEnd& next, uint32_t immediate, uint64_t offset,
                    const verbs::ScatterGather* message);
  absl::Status CheckRoom(uint64_t length);
  absl::Status ReturnCredit();
  std::optional<uint64_t> PlaceInStaging(uint64_t length);
  absl::StatusOr<Event> OnReceive(const verbs::Completion& completion);

  verbs::QueuePair* queue_pair_;
  const Memory memory_;
  const Requests requests_;
  std::optional<StreamEnd> end_;
  // Bytes from the beginning: staged, and sent.
  uint64_t staged_ = 0, unstaged_ = 0;
  uint32_t sends_outstanding_ = 0;
};

}  // namespace baton::stream

#endif  // LIB_STREAM_PEER_STREAM_H_

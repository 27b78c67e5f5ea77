// A stream of messages over a connection, whose peer has the same class, in a service or not
// (lib/stream/peer_stream.h). lib/stream/ring.h has the protocol: messages of any length up to the
// ring's and the device's longest (longest_message()), and credit, so that no end ever meets
// "receiver not ready".
//
//   case Kind::kConnectRequest: {
//     const StreamRing ring = …Stream::OpenRing(shard, 1 << 20)…;
//     Stream stream = …Stream::Accept(connection, ring, 32)…;
//     shard.SetState(connection, stream.state(), kFormat);
//   }
//   case Kind::kReceive:
//   case Kind::kSend: {
//     Stream stream = …Stream::Load(connection, connection.state())…;
//     const Stream::Event event = …stream.OnCompletion(completion)…;
//     if (event.kind == Stream::Event::Kind::kMessage) {
//       …read shard.heap().At(event.message), answer with stream.Send…
//       stream.Release(event);
//     }
//     shard.SetState(connection, stream.state(), kFormat);
//   }
//   case Kind::kDisconnected:
//   case Kind::kConnectFailed:  // a peer that was accepted, and left before it was established
//     Stream::CloseRing(shard, stream.ring());  // of the state, if there is one
//
// Everything is staged in the shard's open transaction, and nothing is committed here: messages
// that were read, credit that was returned and messages that were sent move together, and a killed
// owner's successor goes on exactly. Every call may change the state, also one that fails: so set
// the state once, last. With CommitMode::kAfterEachBatch, keep the Stream until the batch is
// committed, since Connection::state() is that of the last commit. Load it again after
// Shard::Abandon, and in each epoch. After Shard::Abandon call HeapGrants::RevokeLost if a ring was
// opened: otherwise its grant and its memory are nobody's until the next owner.
//
// A transaction has at most 4096 requests, of which the library leaves 256 to each completion. A
// handler that stages more than that calls OnCompletion and Release first: credit that finds no
// room is returned at the next completion of the connection, and the peer may be waiting for it.
//
// "Receiver not ready" has one exception. Soft-RoCE cannot say which receives of a native owner
// that died it has, so its successor posts one until that has completed, and the others then. A
// peer that has credit for more repeats its message meanwhile, as often as rnr_retry says.
//
// All receives of the connection belong to the stream, so the service must not share them
// (shared_receive_queue_depth). An error of OnCompletion means that the peer is wrong: disconnect
// it. If poison has ended a connection and nobody was told, its ring is memory of which no state
// knows: an owner frees such memory in OnAdopt, with HeapGrants::FreeLost.
#ifndef WORKER_STREAM_H_
#define WORKER_STREAM_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/stream/ring.h"
#include "worker/worker.h"

namespace baton {

// Memory of a shard's heap that a peer may WRITE to.
struct StreamRing {
  Buffer memory;
  uint32_t grant = 0;
  uint32_t rkey = 0;
  uint64_t address = 0;  // for the peer; not part of a stream's state
};

class Stream {
 public:
  struct Event {
    enum class Kind : uint8_t { kNothing, kMessage };
    Kind kind = Kind::kNothing;
    bool has_credit = false;  // what Send has refused may be taken now
    // Valid until it is released. A wrong peer may WRITE there meanwhile: judge a copy.
    Buffer message;
    uint64_t end = 0;  // for Release; an owner that keeps messages keeps it in its state
  };

  // The bytes at the beginning of an application's state that are a stream's.
  static constexpr uint32_t kStateBytes = sizeof(stream::StreamState);

  // Allocates a ring of `bytes`, clears it and grants it. The grant is no part of the transaction:
  // see HeapGrants. A service has 256 grants. One with more streams grants a larger range itself,
  // and makes rings of parts of it, which it clears, and does not close with CloseRing: that would
  // revoke the grant of all. Peers that it trusts no more than that have access to all of it.
  static absl::StatusOr<StreamRing> OpenRing(Shard& shard, uint32_t bytes);
  // Revokes the grant, which ends the peer's access at once, and frees the memory in the
  // transaction. A successor that does it again revokes nobody else's grant. If the grant cannot be
  // revoked now, nobody is given the memory before it is.
  static absl::Status CloseRing(Shard& shard, const StreamRing& ring);

  // Accepts a connection request whose private data begins with a greeting, with receives for
  // `window` bells. kInvalidArgument: it has none, or the window or the ring is wrong.
  static absl::StatusOr<Stream> Accept(Connection& connection, const StreamRing& ring,
                                       uint16_t window);
  // The private data for Worker::Connect, and the stream when that is kEstablished. The peer may
  // send from then on.
  static std::string GreetingOf(const StreamRing& ring);
  static absl::StatusOr<Stream> Connected(Connection& connection, const StreamRing& ring,
                                          uint16_t window);
  // Goes on with what was committed. kDataLoss: `state` does not begin with a stream's.
  static absl::StatusOr<Stream> Load(Connection& connection, absl::Span<const uint8_t> state);

  // Returns the kStateBytes that the application keeps in the connection's state, valid as long as
  // this.
  absl::Span<const uint8_t> state() const {
    return {reinterpret_cast<const uint8_t*>(&end_.state()), kStateBytes};
  }
  StreamRing ring() const;

  // For each kReceive and kSend of the connection, whatever its status.
  absl::StatusOr<Event> OnCompletion(const Completion& completion);

  // Sends one message, the bytes of `buffers`, at most 4. They must not change until the send has
  // completed; memory of the heap may be freed in the same transaction. A message that is sent on
  // from the ring may not be released before, because the peer writes there.
  // kResourceExhausted: the peer has no room now. Try again when an event has credit. Or the
  // transaction is full, and no event says when: commit, and try again.
  // kInvalidArgument: longer than longest_message().
  absl::Status Send(absl::Span<const Buffer> buffers);
  // The same for bytes anywhere, which are copied into the heap. kResourceExhausted may also be the
  // heap's, which other connections fill: then no event of this one says when to try again.
  absl::Status SendCopy(absl::Span<const uint8_t> message);

  // For an application that prepares messages only when they can be sent.
  // Returns how many messages of `length` bytes, at most `most`, Send would take now as far as the
  // peer and the send queue are concerned.
  uint32_t RoomFor(uint32_t length, uint32_t most) const;
  // Returns whether Send would take one. If not, the peer is asked for a report if need be, and an
  // event that has credit comes. kResourceExhausted: the transaction has no room to ask it, and no
  // event says when to try again. kInvalidArgument: longer than longest_message().
  absl::StatusOr<bool> AwaitRoom(uint32_t length);
  uint32_t peer_ring_bytes() const { return end_.state().sender.ring_units * stream::kUnitBytes; }
  // Returns the length of the longest message that Send may take: the peer's ring, or what the
  // service's device sends in one message, if that is less.
  uint32_t longest_message() const;

  // The message, and all before it, are read: their part of the ring is the peer's again.
  absl::Status Release(const Event& event);

 private:
  Stream(Connection& connection, const stream::StreamEnd& end)
      : connection_(&connection), end_(end) {}

  static absl::StatusOr<Stream> Begin(Connection& connection, const StreamRing& ring,
                                      uint16_t window, uint16_t greeted);
  absl::StatusOr<Event> OnReceive(const Completion& completion);
  absl::Status PostReceives();
  absl::Status ReturnCredit();
  absl::Status Ring(uint32_t immediate);
  absl::Status CheckLength(uint64_t length) const;
  absl::Status CheckRoom(uint64_t length);
  absl::Status AskForReport(uint32_t length);

  Connection* connection_;
  stream::StreamEnd end_;
};

}  // namespace baton

#endif  // WORKER_STREAM_H_

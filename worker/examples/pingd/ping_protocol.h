// The protocols of pingd: the server's side of two of librdmacm's example programs. Debian's
// `rping -c` and `rdma_client` work as its clients. `--protocol` selects the one that a process
// accepts. A connection keeps the protocol that it was accepted with.
//
// rping. Every message is a SEND of 16 bytes; integers of the client's are big-endian.
//   client: SEND  {address, rkey, size} of its source     kAwaitSource
//   server: READ  `size` bytes of the source              kReading, until the READ has completed
//   server: SEND  go ahead                                kAwaitSink
//   client: SEND  {address, rkey, size} of its sink
//   server: WRITE the text it read, with its final NUL    kWriting, until the WRITE has completed
//   server: SEND  go ahead                                kAwaitSource: one ping is done
// The client speaks first, has at most one message on the way, and posts its receive again before
// it sends the next, so one receive on either side is enough. It connects without private data,
// with responder_resources and initiator_depth 1 (one READ at a time), both retry counts 7 (for
// ever, when the receiver is not ready), and ends by disconnecting. With `-V` it compares the sink
// with its source; its exit status says nothing.
//
// rdma_client. The client sends 16 bytes, inline if the device can, and has one receive posted; the
// server answers with 16 bytes, and disconnects when they have arrived. No private data either; it
// offers all READs that its device can, and none is made.
//
// Neither client looks into the server's messages (rping's and rdma_server's own are zero). pingd's
// have their number within the connection and their sender (ServerMessage), so that a lost or
// repeated step can be seen on the wire.
//
// Why each step happens exactly once. A step processes one completion. The new position
// (PingPosition), the work requests that the step asks for, the receive that it posts again and the
// acknowledgement of the completion are one transaction. pingd keeps nothing anywhere else; the
// position is read from the connection's state for each completion.
//   - Killed before the commit: nothing was sent, and nothing of the position has changed. The
//     successor is given the same completion, at the same position, and makes the same step. The
//     buffer may already hold the step's message, which does no harm: it is written again.
//   - Killed after the commit: the position is the next one, the completion is acknowledged and not
//     given to anybody again, and the driver posts the work requests, once, whoever lives (P2).
//   - The data: the READ's target is the connection's data buffer, and is the WRITE's source. The
//     next READ uses it again, and is committed after that WRITE has completed. A worker that
//     adopts the connection in between does not write to it: its place follows from the service's
//     capacity, which no upgrade changes, and not from pingd's flags.
//   - A completion that does not belong to the position (a client that sends out of turn) ends that
//     connection, with the reason in the log, and no other.
// Nothing waits for a worker meanwhile but the client: it has one message on the way and two
// receives are posted for it, so it is never answered "receiver not ready".
#ifndef WORKER_EXAMPLES_PINGD_PING_PROTOCOL_H_
#define WORKER_EXAMPLES_PINGD_PING_PROTOCOL_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace baton::pingd {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kMessageBytes = 16;

// rping's limit for `-S` is one less.
inline constexpr uint32_t kDefaultMaxDataBytes = 64 * 1024;

// Memory that the client offers.
struct Advertisement {
  uint64_t address = 0;
  uint32_t rkey = 0;
  uint32_t size = 0;
};
static_assert(offsetof(Advertisement, rkey) == 8);
static_assert(offsetof(Advertisement, size) == 12);
static_assert(sizeof(Advertisement) == kMessageBytes);

// Converts between this machine's byte order and the wire's; its own inverse.
inline Advertisement SwapBytes(const Advertisement& advertisement) {
  return {__builtin_bswap64(advertisement.address), __builtin_bswap32(advertisement.rkey),
          __builtin_bswap32(advertisement.size)};
}

// A go ahead, or the answer to rdma_client. Little-endian.
struct ServerMessage {
  uint64_t number;   // 1, 2, 3, … within the connection
  uint32_t version;  // of the binary that made the step
  uint32_t reserved;
};
static_assert(offsetof(ServerMessage, version) == 8);
static_assert(sizeof(ServerMessage) == kMessageBytes);

}  // namespace baton::pingd

#endif  // WORKER_EXAMPLES_PINGD_PING_PROTOCOL_H_

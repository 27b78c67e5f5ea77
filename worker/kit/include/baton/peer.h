/* An end of a stream for a peer without Baton, for C11 and later. The other end is a service's
 * (baton_accept_stream(), baton.h), or another peer's. It needs no batond, and no other library of
 * Baton: link with -lbaton-peer.
 *
 * The library touches no device. The caller has the connection: a queue pair with `window` receives
 * and `sends` sends, all of them the stream's.
 *
 *   baton_peer_open(&options, &peer);         // posts the receives, before the connection
 *   baton_peer_greeting(peer, private_data);  // the first bytes, of the request or of the answer
 *   baton_peer_begin(peer, theirs, length);   // the peer's, before any completion is taken
 *   baton_peer_send(peer, message, length);
 *   // for each completion that ibv_poll_cq() returns with IBV_WC_SUCCESS:
 *   //   IBV_WC_RDMA_WRITE:         baton_peer_sent(peer, wc.wr_id)
 *   //   IBV_WC_RECV_RDMA_WITH_IMM: baton_peer_received(peer, ntohl(wc.imm_data), wc.byte_len,
 * &event)
 *
 * After any other completion, and after each error but BATON_RESOURCE_EXHAUSTED and those that say
 * that nothing was sent, the connection has failed: close it, and begin anew.
 *
 * One thread uses a peer. Errors: a function that returns `int` returns 0 or a code of enum
 * baton_code (baton.h). baton_peer_error() then has the message. Structures begin with their size,
 * and later releases add members at the end. A pointer may be NULL where its function says so, and
 * with a length of 0.
 */
#ifndef BATON_PEER_H_
#define BATON_PEER_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns why the last call of this thread that failed did so. Valid until the next one. */
const char* baton_peer_error(void);

struct baton_peer; /* the caller gives it back with baton_peer_close() */

/* A WRITE with an immediate: IBV_WR_RDMA_WRITE_WITH_IMM, signalled and solicited. */
struct baton_peer_write {
  size_t size; /* of this structure */
  uint64_t wr_id;
  const void* data;   /* in the memory of the options, registered there */
  uint32_t length;    /* 0: the request has no buffer */
  uint32_t immediate; /* host order */
  uint64_t remote_address;
  uint32_t rkey;
};

/* Begin with zeros and `size`. */
struct baton_peer_options {
  size_t size;   /* sizeof(struct baton_peer_options) */
  void* context; /* first argument of the functions */
  /* Posts a receive without buffers, and a WRITE. They return 0, or another value if they cannot.
   * They must not call functions of this header. */
  int (*post_receive)(void* context);
  int (*post_write)(void* context, const struct baton_peer_write* write);
  /* `ring_bytes` to which the other end WRITEs, and behind them `staging_bytes` from which this end
   * sends. Registered for local and remote writes, as long as the connection. */
  void* memory;
  uint32_t ring_bytes;    /* a multiple of 64 from 256 to 64 MiB */
  uint32_t staging_bytes; /* no message that is sent is longer */
  uint32_t rkey;
  uint16_t window;            /* receives: 4 to 128 */
  uint32_t sends;             /* at least 2 */
  uint64_t max_message_bytes; /* the longest that the device sends at once; 0: unknown */
};

/* Posts the receives. BATON_INVALID_ARGUMENT: the message names the wrong option. */
int baton_peer_open(const struct baton_peer_options* options, struct baton_peer** peer);
/* NULL is allowed. Posts nothing, and the memory is the caller's still. */
void baton_peer_close(struct baton_peer* peer);

#define BATON_PEER_GREETING_BYTES 24
/* Sets the first bytes of the private data with which this end connects or accepts. */
void baton_peer_greeting(const struct baton_peer* peer,
                         uint8_t greeting[BATON_PEER_GREETING_BYTES]);
/* The other end's private data has come. Call it once. BATON_INVALID_ARGUMENT: it does not begin
 * with a greeting. */
int baton_peer_begin(struct baton_peer* peer, const void* private_data, size_t length);

/* Sends one message, which is copied. BATON_RESOURCE_EXHAUSTED: no room now. Try again when an
 * event has credit, or a WRITE has completed. BATON_INVALID_ARGUMENT: longer than the other end's
 * ring, the memory, or what the device sends; nothing was sent. */
int baton_peer_send(struct baton_peer* peer, const void* message, size_t length);

struct baton_peer_event {
  size_t size; /* the caller sets it to sizeof(struct baton_peer_event) */
  bool has_message;
  bool has_credit;     /* what baton_peer_send() has refused may be taken now */
  const void* message; /* in the ring, valid until it is released */
  size_t length;
  uint64_t end; /* for baton_peer_release() */
};
/* A WRITE has completed. */
int baton_peer_sent(struct baton_peer* peer, uint64_t wr_id);
/* A receive has completed, by a WRITE of `byte_len` bytes. `immediate`: host order.
 * BATON_INVALID_ARGUMENT: the other end does not keep to the protocol. */
int baton_peer_received(struct baton_peer* peer, uint32_t immediate, uint32_t byte_len,
                        struct baton_peer_event* event);
/* The message of the event, and all before it, are read: their part of the ring is the other end's
 * again. */
int baton_peer_release(struct baton_peer* peer, const struct baton_peer_event* event);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif  // BATON_PEER_H_

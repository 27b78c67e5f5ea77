/* The C interface of Baton's worker library.
 *
 * A worker attaches to a service of Baton, owns shards of its connections, and processes their
 * completions in transactions. It stages what it does to a shard; baton_commit() makes it happen:
 * the commit submits work requests, acknowledges completions and replaces application state, all
 * together. If the worker dies before the commit, nothing of it happens, and the successor receives
 * the same completions.
 *
 * Threads: only the thread that called baton_attach() may use a worker, its shards and its
 * connections, except where a function says otherwise. All callbacks come on that thread. It must
 * not end before baton_detach() or the end of the process: the keeper kills a process that goes on
 * without it.
 *
 * Errors: a function that returns `int` returns BATON_OK or a code of enum baton_code.
 * baton_error() then has the message. The library does not end the process.
 *
 * Versions: structures begin with their size, and later releases add members at the end. The
 * functions of a soname stay as they are.
 */
#ifndef BATON_BATON_H_
#define BATON_BATON_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are those of gRPC's status codes. Later releases may add some. */
enum baton_code {
  BATON_OK = 0,
  BATON_UNKNOWN = 2,
  BATON_INVALID_ARGUMENT = 3,  /* the message names the wrong field */
  BATON_DEADLINE_EXCEEDED = 4, /* the keeper did not answer; it may still do what was asked */
  BATON_NOT_FOUND = 5,
  BATON_ALREADY_EXISTS = 6,
  BATON_PERMISSION_DENIED = 7,
  BATON_RESOURCE_EXHAUSTED = 8, /* no room now; the message names the limit */
  BATON_FAILED_PRECONDITION = 9,
  BATON_ABORTED = 10,       /* this worker does not own the shard */
  BATON_UNIMPLEMENTED = 12, /* the device cannot do it */
  BATON_INTERNAL = 13,
  BATON_UNAVAILABLE = 14, /* the service's driver or keeper is gone */
  BATON_DATA_LOSS = 15,   /* memory of the service is damaged: a shard's heap */
};

/* Returns why the last call of this thread that failed did so. Valid until the next call of this
 * thread that fails. */
const char* baton_error(void);

/* Returns the release of the library: "0.1.0". */
const char* baton_release(void);

struct baton_worker;     /* a process's membership in a service */
struct baton_shard;      /* valid as long as its worker */
struct baton_connection; /* valid until on_completion() has returned from its last completion, or
                            until this worker no longer owns the shard */

/* ---------------------------------------------------------------- completions */

enum baton_kind {
  BATON_SEND = 1,            /* a request of baton_send() has completed */
  BATON_RECEIVE = 2,         /* a message has arrived */
  BATON_CONNECT_REQUEST = 3, /* a peer asks: answer with baton_accept() or baton_reject() */
  BATON_ESTABLISHED = 4,
  BATON_DISCONNECTED = 5,   /* the last completion of its connection */
  BATON_CONNECT_FAILED = 6, /* likewise: it was not established */
};

/* Outcomes of work requests, in the order of ibv_wc_status without the bind errors. */
enum baton_completion_status {
  BATON_SUCCESS = 0,
  BATON_LOCAL_LENGTH_ERROR,
  BATON_LOCAL_QP_ERROR,
  BATON_LOCAL_PROTECTION_ERROR,
  BATON_FLUSH_ERROR,
  BATON_BAD_RESPONSE,
  BATON_REMOTE_INVALID_REQUEST,
  BATON_REMOTE_ACCESS_ERROR,
  BATON_REMOTE_OPERATION_ERROR,
  BATON_RETRY_EXCEEDED,
  BATON_RNR_RETRY_EXCEEDED,
  BATON_GENERAL_ERROR,
  BATON_FATAL_ERROR, /* the device is lost */
};

enum baton_opcode {
  BATON_OP_SEND = 0,
  BATON_OP_SEND_WITH_IMMEDIATE = 1,
  BATON_OP_WRITE = 2,
  BATON_OP_WRITE_WITH_IMMEDIATE = 3,
  BATON_OP_READ = 4,
  BATON_OP_COMPARE_AND_SWAP = 5,
  BATON_OP_FETCH_AND_ADD = 6,
  BATON_OP_SEND_WITH_INVALIDATE = 7,
};

/* The library makes it, and it is valid during on_completion(). After an error only `kind`,
 * `status`, `sequence`, `tag` and `connection` are meaningful. */
struct baton_completion {
  size_t size; /* of this structure, in bytes */
  enum baton_kind kind;
  enum baton_completion_status status;
  bool has_immediate;
  bool has_invalidate;
  uint32_t byte_len;  /* bytes received or read */
  uint32_t immediate; /* host order */
  uint64_t sequence;  /* of the work request; of a shared receive: its slot */
  uint64_t tag;       /* of the work request; of an outcome: that of baton_connect() */
  struct baton_connection* connection; /* never NULL */
};

/* ---------------------------------------------------------------- the application */

/* The library skips functions that are NULL; only on_completion() may not be NULL. A callback that
 * does not return within the service's hang_timeout_ms is a hang: the keeper kills the process. A
 * callback must not throw or longjmp. */
struct baton_service {
  size_t size;   /* sizeof(struct baton_service) */
  void* context; /* first argument of the functions */

  /* This worker owns `shard` from now on, with the connections and the state that its former owner
   * committed. Completions that the former owner had not acknowledged follow. What is staged here
   * is committed on return. Returns 0; after another value the library gives the shard back. May be
   * NULL. */
  int (*on_adopt)(void* context, struct baton_shard* shard);

  /* If `poison_deaths` owners die on one completion, one after the other, its connection is failed:
   * the next owner receives it as BATON_FLUSH_ERROR, and BATON_DISCONNECTED follows. */
  void (*on_completion)(void* context, struct baton_shard* shard,
                        const struct baton_completion* completion);

  /* The shard is about to move to another worker: the last chance to stage. The library commits
   * what is staged and releases the shard when this returns, but does not commit with
   * BATON_COMMIT_MANUAL. May be NULL. */
  void (*on_release)(void* context, struct baton_shard* shard);

  /* The driver has taken the shard away, or the worker is detached after its driver has ended. What
   * was staged is forgotten. May be NULL. */
  void (*on_lost)(void* context, struct baton_shard* shard);

  /* An operator or an upgrade asks this worker to end. baton_run() then releases the shards and
   * returns. May be NULL. */
  void (*on_shutdown)(void* context, const char* reason);
};

enum baton_commit_mode {
  BATON_COMMIT_EACH_BATCH = 0,      /* after all completions that one poll delivers for a shard */
  BATON_COMMIT_EACH_COMPLETION = 1, /* after each on_completion() */
  BATON_COMMIT_MANUAL = 2,          /* the application calls baton_commit() */
};

/* Begin with BATON_WORKER_OPTIONS_INIT. */
struct baton_worker_options {
  size_t size;         /* sizeof(struct baton_worker_options) */
  const char* socket;  /* "STATE_DIR/SERVICE.sock"; a native worker ignores it */
  const char* service; /* attaching fails if the socket is another service's */
  const char* name;    /* shown to operators; NULL: the program's name */
  const char* version; /* of the program, shown to operators; NULL: none */
  /* The formats of application state that this program reads, and the one that it writes. An
   * upgrade is refused if the new program does not read what is there, or writes what the old one
   * does not read. */
  uint32_t reads_state_version_min;
  uint32_t reads_state_version_max;
  uint32_t writes_state_version;
  enum baton_commit_mode commit_mode;
  int realtime_priority;       /* SCHED_RR, 1 to 99, of the thread that attaches; 0: unchanged */
  bool no_control_stream;      /* no thread and no connection for health and notices */
  uint32_t yield_microseconds; /* the longest time for which a wait polls before it sleeps */
  /* Ignored. Programs that were built with the first release have padding here. */
  uint32_t unused;
  bool take_over; /* baton_run() calls baton_take_over() for all shards */
};

#define BATON_WORKER_OPTIONS_INIT                                                                  \
  {                                                                                                \
    sizeof(struct baton_worker_options), NULL, NULL, NULL, NULL, 0, 0, 0, BATON_COMMIT_EACH_BATCH, \
        0, false, 100, 0, false                                                                    \
  }

/* ---------------------------------------------------------------- workers */

/* Connects to the service's socket and maps its memory. `service` and its context must outlive the
 * worker; the structure itself is copied. BATON_NOT_FOUND: there is no such socket.
 * BATON_FAILED_PRECONDITION: the socket is another service's, or the releases do not fit; the
 * message names both. */
int baton_attach(const struct baton_worker_options* options, const struct baton_service* service,
                 struct baton_worker** worker);
/* Releases the shards that the worker owns, detaches, and frees it. Does nothing if `worker` is
 * NULL. */
void baton_detach(struct baton_worker* worker);

/* baton_ready(), baton_take_over(), baton_listen(), baton_connect(), baton_grant() and
 * baton_revoke_grant() block until the keeper answers, for at most 10 s. No callback comes
 * meanwhile. If a brokered service's keeper dies meanwhile, they wait for the next one, for at most
 * 10 s, and then for its answer. */

/* Reports to the keeper that this worker may be given shards. */
int baton_ready(struct baton_worker* worker);

/* Asks for shards that other workers own; call it after baton_ready(). Returns when the take-over
 * has begun: on_adopt() follows, and on_shutdown() if it is undone. Without shards (NULL, 0) it
 * asks for all: an upgrade to this program, with its watch window. The former owners stand by for
 * that time, and are asked to end after it. With some shards it is a handoff, which is not watched.
 * BATON_OK, and nothing moves: the worker owns the shards, no other is ready, or the keeper has
 * started this process. BATON_PERMISSION_DENIED: the policy has no workers_may_take_over.
 * BATON_INVALID_ARGUMENT: there is no such shard. BATON_FAILED_PRECONDITION: the message has the
 * reason. BATON_UNIMPLEMENTED: the keeper is of an earlier release. */
int baton_take_over(struct baton_worker* worker, const uint32_t* shards, size_t shard_count);

/* Adopts and releases shards and delivers completions, once, without blocking. Sets `*delivered`,
 * unless it is NULL, to how many completions and changes of ownership there were.
 * BATON_UNAVAILABLE: the service's driver is gone, or no keeper has this worker's session any more,
 * and all that the driver had published was delivered. */
int baton_poll(struct baton_worker* worker, int* delivered);

/* For loops of the application's: poll, epoll, io_uring. Call baton_arm_event() before each sleep.
 * If it returns true, the descriptor becomes readable when baton_poll() has something to do, and
 * each heartbeat_ms of the service, because baton_poll() is the worker's sign of life. If it
 * returns false, call baton_poll() now. Do not read from the descriptor. */
int baton_event_fd(const struct baton_worker* worker);
bool baton_arm_event(struct baton_worker* worker);

/* Polls, yields, then sleeps, until baton_poll() has something to do, `timeout_ms` milliseconds are
 * over (-1: no limit), or baton_stop() or baton_wake() was called. */
int baton_wait(struct baton_worker* worker, int timeout_ms);

/* Calls baton_ready(), and baton_take_over() if the options say so, then polls and waits until
 * baton_stop() or a notice to end, and releases all shards. */
int baton_run(struct baton_worker* worker);
/* Makes baton_run() return. Any thread, and signal handlers. */
void baton_stop(struct baton_worker* worker);
/* Ends a baton_wait(), or a wait for the descriptor. Any thread, and signal handlers. */
void baton_wake(struct baton_worker* worker);

/* Makes the service listen at host:port; port 0 is any free one. Idempotent: each worker of a
 * service may call it, and listeners outlive workers. `*bound`, unless NULL, is the port. */
int baton_listen(struct baton_worker* worker, const char* host, uint16_t port, uint16_t* bound);

/* The capacity that the service was created with. */
struct baton_capacity {
  size_t size;          /* the caller sets it to sizeof(struct baton_capacity) */
  uint32_t connections; /* at once */
  uint32_t shards;
  uint32_t send_queue_depth;           /* outstanding per connection, a power of two */
  uint32_t receive_queue_depth;        /* the same; 0: receives are shared */
  uint32_t shared_receive_queue_depth; /* of each shard; 0: not shared */
  uint32_t connection_state_bytes;     /* the longest state of a connection, and of a shard */
  uint32_t shard_state_bytes;
  bool outside_effects;
  uint64_t shard_heap_bytes; /* registered memory that each shard allocates from; 0: none */
};
void baton_get_capacity(const struct baton_worker* worker, struct baton_capacity* capacity);

/* Returns the service's registered memory without the shards' heaps, the same for all of its
 * workers, and its length in bytes. The application divides it up. Writes to it are not part of a
 * transaction. */
uint8_t* baton_buffers(const struct baton_worker* worker, size_t* length);

enum baton_access {
  BATON_REMOTE_WRITE = 2,
  BATON_REMOTE_READ = 4,
  BATON_REMOTE_ATOMIC = 8,
};
struct baton_remote_grant {
  size_t size; /* the caller sets it to sizeof(struct baton_remote_grant) */
  uint32_t id;
  uint32_t rkey;
  uint64_t remote_address;
};
/* Gives peers access to `length` bytes of the buffers from `offset`. `access`: one of enum
 * baton_access, or several. The grant belongs to the service and outlives this worker. */
int baton_grant(struct baton_worker* worker, uint64_t offset, uint64_t length, uint32_t access,
                struct baton_remote_grant* grant);
/* BATON_OK: no peer has access through the grant any more. */
int baton_revoke_grant(struct baton_worker* worker, uint32_t id);

/* Reports whether this worker is healthy; a worker that never reports counts as healthy. Operators
 * see the first 256 bytes of `detail`. Any thread. Does not block. */
void baton_report_health(struct baton_worker* worker, bool healthy, const char* detail);
/* Returns the number by which operators know this worker. */
uint64_t baton_worker_id(const struct baton_worker* worker);

/* ---------------------------------------------------------------- shards */

/* A range of the service's registered memory, from the beginning of baton_buffers(). The heaps lie
 * behind these, in the same mapping. */
struct baton_buffer {
  uint64_t offset;
  uint32_t length;
};

/* Begin with zeros and `size`. */
struct baton_send_work {
  size_t size; /* sizeof(struct baton_send_work) */
  enum baton_opcode opcode;
  const struct baton_buffer* buffers; /* their bytes must not change until the request completes */
  uint32_t buffer_count;              /* at most 4 */
  uint32_t immediate;
  uint64_t tag; /* comes back in the completion */
  uint64_t remote_address;
  uint32_t rkey;
  uint32_t invalidate_rkey;
  uint64_t compare_add;
  uint64_t swap;
  bool fence;
  bool solicited;
};

uint32_t baton_shard_index(const struct baton_shard* shard);
uint64_t baton_shard_epoch(
    const struct baton_shard* shard); /* grows with each owner; 0: not owned */
/* Return the committed state and its length, and the version with which it was set. */
const uint8_t* baton_shard_state(const struct baton_shard* shard, size_t* length);
uint32_t baton_shard_state_version(const struct baton_shard* shard);
/* Calls `visit` for each connection of the shard that has not ended. Looks at each connection slot
 * of the service: call it in on_adopt(), if at all. */
void baton_for_each_connection(struct baton_shard* shard,
                               void (*visit)(void* context, struct baton_connection* connection),
                               void* context);

/* The functions from here to baton_disconnect() stage: nothing has an effect before the commit.
 * They return BATON_RESOURCE_EXHAUSTED (no room: commit, and go on when completions have come),
 * BATON_INVALID_ARGUMENT, BATON_FAILED_PRECONDITION (the connection has ended), BATON_UNIMPLEMENTED
 * or BATON_ABORTED. */
int baton_receive(struct baton_shard* shard, struct baton_connection* connection,
                  const struct baton_buffer* buffers, uint32_t buffer_count, uint64_t tag);
/* Requires a service with shared_receive_queue_depth; such a service has no baton_receive(). */
int baton_receive_shared(struct baton_shard* shard, const struct baton_buffer* buffers,
                         uint32_t buffer_count, uint64_t tag);
int baton_send(struct baton_shard* shard, struct baton_connection* connection,
               const struct baton_send_work* work);
/* Replace the application state, which is copied. `version` is its format. */
int baton_set_state(struct baton_shard* shard, struct baton_connection* connection,
                    const void* state, size_t length, uint32_t version);
int baton_set_shard_state(struct baton_shard* shard, const void* state, size_t length,
                          uint32_t version);
/* Answer BATON_CONNECT_REQUEST. `target` is the shard where the connection is to live, which this
 * worker owns; NULL: this one. */
int baton_accept(struct baton_shard* shard, struct baton_connection* connection,
                 struct baton_shard* target, const void* private_data, size_t length);
int baton_reject(struct baton_shard* shard, struct baton_connection* connection,
                 const void* private_data, size_t length);
/* BATON_DISCONNECTED follows. */
int baton_disconnect(struct baton_shard* shard, struct baton_connection* connection);

/* Makes what was staged happen and acknowledges the completions that were delivered so far, as one
 * transaction. The library calls it, unless the mode is BATON_COMMIT_MANUAL. */
int baton_commit(struct baton_shard* shard);
/* Forgets what was staged. Completions that were delivered stay unacknowledged. */
void baton_abandon(struct baton_shard* shard);

/* Return, one after the other, how many shared receives may be staged now, how many are staged,
 * posted, or completed and not delivered, and the slot of the next one. A buffer chosen by the slot
 * is not in use by another receive. */
uint32_t baton_shared_receive_room(const struct baton_shard* shard);
uint32_t baton_shared_receives_outstanding(const struct baton_shard* shard);
uint32_t baton_next_shared_receive(const struct baton_shard* shard);

/* ---------------------------------------------------------------- heaps */

/* A shard's heap is registered memory from which its owner allocates. Its bytes are at
 * baton_buffers() + offset, and are not part of a transaction.
 *
 * Memory that is freed is not given to anybody else while a work request of the shard, or a grant,
 * refers to it. So a buffer may be freed in the transaction that sends it.
 *
 * The functions return
 *   BATON_RESOURCE_EXHAUSTED: no room, in the heap or in the transaction. The message says which.
 *   BATON_INVALID_ARGUMENT: the message names the wrong field.
 *   BATON_FAILED_PRECONDITION: the service has no heaps (shard_heap_bytes), or another thread
 *     called.
 *   BATON_ABORTED: this worker does not own the shard.
 *   BATON_DATA_LOSS: a former owner, or another native worker, has damaged the heap. Nothing can be
 *     allocated until the service's driver is started anew. */

/* Stages: the memory belongs to the committed state when the open transaction is committed. If it
 * is abandoned, or the worker dies before, the memory is free. `buffer->length` is `bytes`.
 * `alignment`: a power of two up to 4096; 0: 64. */
int baton_allocate(struct baton_shard* shard, uint64_t bytes, uint32_t alignment,
                   struct baton_buffer* buffer);
/* Scratch memory belongs to no transaction, and ends with this owner. */
int baton_allocate_scratch(struct baton_shard* shard, uint64_t bytes, uint32_t alignment,
                           struct baton_buffer* buffer);
/* Stages: the scratch memory belongs to the committed state from then on. */
int baton_keep(struct baton_shard* shard, const struct baton_buffer* buffer);
/* Stages: frees what begins where `buffer` does. Scratch memory is free at once, whatever becomes
 * of the transaction. */
int baton_free(struct baton_shard* shard, const struct baton_buffer* buffer);

/* Calls `visit` for all memory that is allocated, with its length in the heap, in the order of
 * addresses. `kept`: it is no scratch memory. `visit` must not call functions of this section. An
 * owner that finds memory here which its state does not know may free it. */
int baton_for_each_allocated(struct baton_shard* shard,
                             void (*visit)(void* context, const struct baton_buffer* buffer,
                                           bool kept),
                             void* context);

/* Bytes. What the other members leave of `bytes` is lost in the last pages of blocks. */
struct baton_heap_statistics {
  size_t size; /* the caller sets it to sizeof(struct baton_heap_statistics) */
  uint64_t bytes;
  uint64_t kept;    /* allocated, and committed or in the open transaction */
  uint64_t scratch; /* allocated as scratch memory */
  uint64_t held;    /* freed, and maybe still in use by work requests */
  uint64_t free;
  uint64_t largest_free; /* of `free`: the longest range */
};
int baton_get_heap_statistics(struct baton_shard* shard, struct baton_heap_statistics* statistics);

/* ---------------------------------------------------------------- connections */

/* Begins a connection to host:port that lives in `shard`. The outcome, BATON_ESTABLISHED or
 * BATON_CONNECT_FAILED with `tag`, is delivered to the worker that owns the shard then. */
int baton_connect(struct baton_shard* shard, const char* host, uint16_t port,
                  const void* private_data, size_t length, uint64_t tag,
                  struct baton_connection** connection);

/* Below baton_capacity::connections. Another connection may have the same index after this one
 * ended, and then has another generation. */
uint32_t baton_connection_index(const struct baton_connection* connection);
uint32_t baton_connection_generation(const struct baton_connection* connection);
struct baton_shard* baton_connection_shard(const struct baton_connection* connection);
bool baton_connection_established(const struct baton_connection* connection);
/* Return text and bytes in shared memory, which are not to be kept beyond the callback. The address
 * is "HOST:PORT", without a zero at its end. */
const char* baton_connection_peer_address(const struct baton_connection* connection,
                                          size_t* length);
const uint8_t* baton_connection_private_data(const struct baton_connection* connection,
                                             size_t* length);
/* Returns the application state of the last commit, whoever committed it, and its length; 0 before
 * the first. */
const uint8_t* baton_connection_state(const struct baton_connection* connection, size_t* length);
uint32_t baton_connection_state_version(const struct baton_connection* connection);
/* Return the sequence numbers of the next requests that are staged, and how many may be staged. */
uint64_t baton_connection_next_send(const struct baton_connection* connection);
uint64_t baton_connection_next_receive(const struct baton_connection* connection);
uint32_t baton_connection_send_room(const struct baton_connection* connection);
uint32_t baton_connection_receive_room(const struct baton_connection* connection);
/* A pointer of the application's. A successor finds NULL. */
void baton_connection_set_context(struct baton_connection* connection, void* context);
void* baton_connection_context(const struct baton_connection* connection);

/* Call `visit` for each buffer of a work request that is not acknowledged: an owner must not use it
 * for anything else. A successor that manages its buffers itself needs this; one that chooses them
 * by sequence number does not. */
void baton_for_each_buffer_in_use(struct baton_shard* shard, struct baton_connection* connection,
                                  void (*visit)(void* context, const struct baton_buffer* buffer,
                                                bool send),
                                  void* context);
void baton_for_each_shared_buffer_in_use(
    struct baton_shard* shard,
    void (*visit)(void* context, const struct baton_buffer* buffer, uint64_t tag), void* context);

/* ---------------------------------------------------------------- descriptors */

/* Makes `fd` a part of the worker's wait: a timerfd, signalfd, eventfd, socket or io_uring. While
 * it is readable, or has an error or a hang-up, baton_wait() returns, baton_event_fd() is readable,
 * and baton_poll() calls `callback` with `context` after it has delivered completions. `callback`
 * has to take what is there, or it is called again. The library commits what it stages, unless the
 * mode is BATON_COMMIT_MANUAL. It may call baton_watch() and baton_unwatch(), but neither
 * baton_poll() nor baton_wait() nor baton_run() nor baton_detach().
 * The application owns `fd`, and calls baton_unwatch() before it closes it.
 * BATON_ALREADY_EXISTS: it is watched already. BATON_RESOURCE_EXHAUSTED: 256 are.
 * BATON_PERMISSION_DENIED: it is a regular file, which cannot be waited for. */
int baton_watch(struct baton_worker* worker, int fd, void (*callback)(void* context),
                void* context);
/* Does nothing if `fd` is not watched. No call of its callback follows. */
void baton_unwatch(struct baton_worker* worker, int fd);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif  // BATON_BATON_H_

/* The C interface of Baton's worker library.
 *
 * A worker attaches to a service of Baton, owns shards of its connections, and processes their
 * completions in transactions. It stages what it does to a shard; baton_commit() makes it happen:
 * the commit submits work requests, acknowledges completions and replaces application state, all
 * together. If the worker dies before the commit, nothing of it happens, and the successor receives
 * the same completions.
 *
 * Threads: only the thread that called baton_attach() may use a worker, its shards, its connections
 * and what is made for these, except where a function says otherwise. All callbacks come on that
 * thread. It must not end before baton_detach() or the end of the process: the keeper kills a
 * process that goes on without it.
 *
 * Errors: a function that returns `int` returns BATON_OK or a code of enum baton_code.
 * baton_error() then has the message. The library does not end the process. A pointer may be NULL
 * where its function says so, with a length of 0, and as a `context`.
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
  BATON_OUT_OF_RANGE = 11,  /* the file ends before the range does */
  BATON_UNIMPLEMENTED = 12, /* the device cannot do it */
  BATON_INTERNAL = 13,
  BATON_UNAVAILABLE = 14, /* the service's driver or keeper is gone */
  BATON_DATA_LOSS = 15,   /* a shard's heap, or state that is loaded, is damaged */
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

/* The caller owns these, and gives each back with the function that is named here, which also takes
 * NULL: at the latest in on_release(), in on_lost(), in the on_completion() of its connection's
 * last completion, and in an on_adopt() that fails. */
struct baton_leases;      /* baton_forget_leases() */
struct baton_stream;      /* baton_forget_stream() */
struct baton_file_sender; /* baton_forget_file() */

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

/* The library makes it, and it is valid during on_completion(). Who copies it sets the copy's
 * `size` to at most the copy's bytes: a newer library's structure may be longer. After an error
 * only `kind`, `status`, `sequence`, `tag` and `connection` are meaningful. */
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
  bool is_write; /* of BATON_RECEIVE: the peer's request was a WRITE with an immediate */
};

/* ---------------------------------------------------------------- the application */

/* The library skips functions that are NULL; only on_completion() may not be NULL. A callback that
 * does not return within the service's hang_timeout_ms is a hang: the keeper kills the process. A
 * callback must not throw or longjmp, and calls neither baton_poll() nor baton_wait() nor
 * baton_run() nor baton_detach(). */
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

/* baton_ready(), baton_take_over(), baton_listen(), baton_connect(), baton_grant(),
 * baton_revoke_grant(), the functions about held descriptors, and those that register memory block
 * until the keeper answers, for at most 10 s. So do functions that grant and revoke themselves:
 * they say so. No callback comes meanwhile. If a brokered service's keeper dies meanwhile, they
 * wait for the next one, for at most 10 s, and then for its answer. */

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
 * see the first 256 bytes of `detail`, which may be NULL. Any thread. Does not block. */
void baton_report_health(struct baton_worker* worker, bool healthy, const char* detail);
/* Returns the number by which operators know this worker. */
uint64_t baton_worker_id(const struct baton_worker* worker);

/* ---------------------------------------------------------------- shards */

/* A range of the service's registered memory, from the beginning of baton_buffers(). The heaps lie
 * behind these, in the same mapping. baton_region_buffer() returns ranges of the application's own
 * memory. */
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

/* ---------------------------------------------------------------- leases */

/* Memory of a shard's heap that a peer uses with READ, WRITE and atomics, for a time. Each lease
 * has a grant, and so an rkey, of its own. The peer's accesses need no worker, and a lease has the
 * same rkey and address after an upgrade or a crash.
 *
 * A struct baton_leases has the leases of one connection. Their bytes, baton_leases_state(), stand
 * at the beginning of the connection's state. Every function that takes it without `const` may
 * change them, also if it fails: call baton_set_state() once, last. Memory and state are staged,
 * but grants are there, or gone, at once. After baton_abandon(), and for each epoch, load the
 * leases anew. After baton_abandon() also call baton_revoke_lost() if a lease was allocated, and
 * free again what was freed.
 *
 * In on_adopt() an owner calls baton_free_lost() with what the states of all connections know, and
 * sets a timer (baton_watch()) for the earliest baton_leases_next_end(). On BATON_DISCONNECTED and
 * BATON_CONNECT_FAILED it calls baton_free_all_leases().
 *
 * A service has 256 grants, and its policy may allow fewer. A peer may ask for all of them, and for
 * the whole heap: limit both. Functions that allocate and free block until the keeper answers, once
 * for each lease. All need a service with shard_heap_bytes. */

/* The bytes of the state of `count` leases, at most 64. */
#define BATON_LEASES_BYTES(count) (16 + 64 * (count))

/* Begin with zeros and `size`. */
struct baton_lease_request {
  size_t size; /* sizeof(struct baton_lease_request) */
  /* The peer's number for it. A request that is repeated, because its answer may be lost, has the
   * same number. */
  uint64_t request;
  uint64_t bytes;       /* at least 8 with BATON_REMOTE_ATOMIC */
  uint64_t duration_ns; /* at most 365 days; 0: as long as the connection */
  uint32_t access;      /* one of enum baton_access, or several */
};

struct baton_lease {
  size_t size; /* in results: the caller sets it to sizeof(struct baton_lease) */
  uint64_t request;
  uint64_t offset;         /* of the memory, as in struct baton_buffer */
  uint64_t remote_address; /* for the peer */
  uint64_t ends_ns;        /* of baton_lease_clock(); 0: with the connection */
  uint64_t duration_ns;
  uint32_t id; /* never 0 */
  uint32_t bytes;
  uint32_t access;
  uint32_t rkey; /* for the peer */
};

/* Returns the nanoseconds of CLOCK_BOOTTIME, which is the same for all workers of a host. Any
 * thread. */
uint64_t baton_lease_clock(void);

/* Goes on with what was committed, at the beginning of `state`; length 0: none. `most`: leases at
 * once, from here on; 0: 64. The library lowers it to what connection_state_bytes has room for.
 * Does not block. BATON_DATA_LOSS: `state` does not begin with leases. */
int baton_load_leases(struct baton_connection* connection, const void* state, size_t length,
                      uint32_t most, struct baton_leases** leases);
/* Frees the memory of `leases` in this process. The leases themselves go on. */
void baton_forget_leases(struct baton_leases* leases);
/* Returns the bytes for the connection's state, valid until the leases change. */
const uint8_t* baton_leases_state(const struct baton_leases* leases, size_t* length);

/* Leases memory, all bytes of which are 0. The same request number again gives the same lease.
 * Frees overdue leases first. Blocks. BATON_ALREADY_EXISTS: the number has a lease with other
 * parameters. BATON_INVALID_ARGUMENT: the message names the field. BATON_RESOURCE_EXHAUSTED: the
 * message says where there is no room. BATON_UNIMPLEMENTED: the device has no atomics. */
int baton_allocate_lease(struct baton_leases* leases, const struct baton_lease_request* request,
                         uint64_t now_ns, struct baton_lease* lease);
/* Ends the peer's access at once, and frees the memory in the transaction. Blocks. BATON_OK: the
 * peer has no lease `id`, or never had. */
int baton_free_lease(struct baton_leases* leases, uint32_t id);
/* The lease ends `duration_ns` after `now_ns`, be that sooner or later than before; 0: with the
 * connection. Does not block. BATON_NOT_FOUND: there is no such lease, or its time is over. */
int baton_renew_lease(struct baton_leases* leases, uint32_t id, uint64_t duration_ns,
                      uint64_t now_ns, struct baton_lease* lease);
/* Frees all leases that end at `now_ns` or before. Blocks. */
int baton_free_overdue_leases(struct baton_leases* leases, uint64_t now_ns);
/* Frees all. Blocks. BATON_RESOURCE_EXHAUSTED: leases are left. Commit, and call it again. */
int baton_free_all_leases(struct baton_leases* leases);
/* Returns when the first lease ends; 0 if none does before the connection. */
uint64_t baton_leases_next_end(const struct baton_leases* leases);
/* Calls `visit` for each lease, in no order. `visit` must not change the leases. */
void baton_for_each_lease(const struct baton_leases* leases,
                          void (*visit)(void* context, const struct baton_lease* lease),
                          void* context);

/* Frees all allocated memory of the shard's heap of which `is_known` returns false, and then does
 * as baton_revoke_lost(). For on_adopt(). `buffer->length` is that in the heap. `is_known` must not
 * call functions of heaps, leases and streams. Blocks if there is something to revoke. */
int baton_free_lost(struct baton_shard* shard,
                    bool (*is_known)(void* context, const struct baton_buffer* buffer),
                    void* context);
/* Revokes the grants of memory of the shard's heap that is not allocated, or is freed in the open
 * transaction: their owners ended, or abandoned their transaction, before they committed it.
 * Blocks if there are any. */
int baton_revoke_lost(struct baton_shard* shard);

/* ---------------------------------------------------------------- the application's own memory */

/* A range of a memfd that the device reads. A send or WRITE may name it in place of
 * baton_buffers(), and peers may READ it. Receives, and what READs and atomics return, go to
 * baton_buffers() and heaps only. A region is the service's and outlives its worker. A service has
 * at most 64. */
struct baton_region {
  size_t size;             /* in results: the caller sets it to sizeof(struct baton_region) */
  uint32_t id;             /* 1 to 64 */
  uint32_t access;         /* 0 or BATON_REMOTE_READ */
  uint64_t length;         /* bytes */
  uint64_t descriptor;     /* of the memfd: the number of baton_hold_descriptor() */
  uint64_t offset;         /* in the memfd */
  uint64_t remote_address; /* for peers that READ, with `rkey` */
  uint32_t rkey;
};

/* Registers `length` bytes from `offset` of a memfd that baton_hold_descriptor() has handed over.
 * It is writable, and sealed with F_SEAL_SHRINK and F_SEAL_GROW. The application maps it for
 * itself. `access`: 0 or BATON_REMOTE_READ. Blocks. Takes time for each page, and counts as a
 * grant. BATON_NOT_FOUND: no such descriptor is held. BATON_INVALID_ARGUMENT: the message names the
 * argument, or the seal that is missing. BATON_RESOURCE_EXHAUSTED: 64 regions exist, or the message
 * names the quota or limit. BATON_UNIMPLEMENTED: the service's driver is of an earlier release. */
int baton_register_memory(struct baton_worker* worker, uint64_t descriptor, uint64_t offset,
                          uint64_t length, uint32_t access, struct baton_region* region);
/* Requires that no worker has staged a request that names the region. Blocks. BATON_OK: the device
 * does not read the memory any more. BATON_FAILED_PRECONDITION: committed requests that name it
 * have not completed, and nothing has happened. BATON_NOT_FOUND: there is no such region. After any
 * other error it may be gone, or go yet: name it no more, and look at baton_for_each_region()
 * before another try. */
int baton_unregister_memory(struct baton_worker* worker, uint32_t id);
/* Calls `visit` for each region of the service, whichever worker registered it, by id. Does not
 * block. `visit` may call any function. */
void baton_for_each_region(const struct baton_worker* worker,
                           void (*visit)(void* context, const struct baton_region* region),
                           void* context);
/* Returns `bytes` from byte `from` of the region `id`, for baton_send_work::buffers. A send refuses
 * what is in no region. */
struct baton_buffer baton_region_buffer(uint32_t id, uint64_t from, uint32_t bytes);

/* ---------------------------------------------------------------- streams */

/* Messages of any length up to a ring's, over a connection whose peer speaks the protocol of
 * lib/stream/ring.h (baton/peer.h), with credit: no end meets "receiver not ready". The stream has
 * all receives of the connection, so the service must not share them, and has heaps
 * (shard_heap_bytes).
 *
 * Everything is staged. The bytes baton_stream_state() are kept in the connection's state. Every
 * function that takes a stream without `const` may change them, also if it fails: call
 * baton_set_state() once, last. After baton_abandon(), and for each epoch, load the stream anew.
 * After baton_abandon() also call baton_revoke_lost() if a stream was accepted. An error of
 * baton_stream_completed() means that the peer is wrong: disconnect it. In on_adopt() an owner
 * calls baton_free_lost() with the rings of all connections.
 *
 * baton_connection_state() is what was committed last. With BATON_COMMIT_EACH_BATCH a second
 * message of the connection may come before: keep the stream until on_completion() is called for
 * the next batch, or choose BATON_COMMIT_EACH_COMPLETION and load it each time. */

/* The bytes of a stream at the beginning of the state that baton_load_stream() is given. */
#define BATON_STREAM_STATE_BYTES 128

/* Accepts a connection request whose private data begins with a stream's greeting. Allocates and
 * grants a ring of `ring_bytes`, a multiple of 64 from 256 to 64 MiB, with receives for `window`
 * bells, 4 to 128. Each ring takes one of the service's 256 grants. Blocks. BATON_INVALID_ARGUMENT:
 * the request has no greeting, or the message names what is wrong. */
int baton_accept_stream(struct baton_connection* connection, uint32_t ring_bytes, uint16_t window,
                        struct baton_stream** stream);
/* Goes on with what was committed. Does not block. BATON_DATA_LOSS: `state` does not begin with a
 * stream's. */
int baton_load_stream(struct baton_connection* connection, const void* state, size_t length,
                      struct baton_stream** stream);
/* Frees the memory of `stream` in this process. The stream itself goes on. */
void baton_forget_stream(struct baton_stream* stream);
/* Ends the peer's access to the ring at once, and frees it in the transaction: for
 * BATON_DISCONNECTED and BATON_CONNECT_FAILED. Blocks. The handle is still the caller's. */
int baton_close_stream(struct baton_stream* stream);

/* Returns the bytes for the connection's state, valid until the stream changes. */
const uint8_t* baton_stream_state(const struct baton_stream* stream, size_t* length);
/* Returns the memory of the ring, for baton_free_lost(). */
struct baton_buffer baton_stream_ring(const struct baton_stream* stream);

struct baton_stream_event {
  size_t size; /* the caller sets it to sizeof(struct baton_stream_event) */
  bool has_message;
  bool has_credit; /* what baton_stream_send() has refused may be taken now */
  /* Valid until it is released. A wrong peer may WRITE there meanwhile: judge a copy. */
  struct baton_buffer message;
  uint64_t end; /* for baton_stream_release() */
};
/* For each BATON_RECEIVE and BATON_SEND of the connection, whatever its status, with the completion
 * of on_completion(). */
int baton_stream_completed(struct baton_stream* stream, const struct baton_completion* completion,
                           struct baton_stream_event* event);
/* The message of the event, and all before it, are read: their part of the ring is the peer's
 * again. */
int baton_stream_release(struct baton_stream* stream, const struct baton_stream_event* event);
/* Sends the bytes of at most 4 buffers as one message. They must not change until the send has
 * completed. Memory of the heap may be freed in the same transaction. BATON_RESOURCE_EXHAUSTED: the
 * peer has no room now. Try again when an event has credit. Or the transaction is full: commit, and
 * try again. BATON_INVALID_ARGUMENT: longer than the peer's ring. */
int baton_stream_send(struct baton_stream* stream, const struct baton_buffer* buffers,
                      uint32_t buffer_count);
/* The same for bytes anywhere, which are copied into the heap. BATON_RESOURCE_EXHAUSTED may also be
 * the heap's: then no event of this stream says when to try again. */
int baton_stream_send_copy(struct baton_stream* stream, const void* message, size_t length);

/* ---------------------------------------------------------------- files */

/* Sends ranges of files over streams, in messages as lib/stream/file_pieces.h has them, through a
 * few pieces of registered memory. struct baton_file_transfer says which byte is next, and moves
 * with the commit that sends the bytes before. A successor goes on with exactly that byte:
 *
 *   baton_send_file(worker, connection, &file, &range, &sender);
 *   // in on_completion(), after baton_stream_completed(), and in `wake`:
 *   baton_advance_file(sender, stream, &state.transfer);
 *   baton_set_state(... the bytes of the stream, and the transfer ...);
 *   if (state.transfer.next == state.transfer.end) baton_forget_file(sender);
 *   // in on_adopt() of the successor, for each connection with next < end:
 *   baton_resume_file(worker, connection, &file, &state.transfer, &sender);
 *
 * The functions do not wait for the disk, unless io_uring is not to be had. When on_release() or
 * on_lost() has returned, the library cancels the reads that are left, and waits for them.
 *
 * The service's driver holds the file of a transfer of 1 MiB or more, so that a successor can go on
 * when it was renamed or deleted. The library hands it over before any of it is sent, and
 * drops it when the peer has the bytes. Files that no transfer has, which was resumed in
 * on_adopt(), are dropped as well. */

/* Begin with zeros and `size`. Zero in the others: the default. */
struct baton_file_options {
  size_t size;          /* sizeof(struct baton_file_options) */
  uint64_t most_bytes;  /* of pieces, in all heaps, at least 1 MiB: 8 MiB */
  uint32_t most_reads;  /* pieces that are read, or read and not sent, 1 to 1024: 64 */
  uint32_t piece_bytes; /* of the longest message, a multiple of 4 KiB up to 1 MiB: 64 KiB */
  uint32_t depth;       /* pieces of one transfer that are read at once, 1 to 64: 4 */
  bool no_io_uring;     /* reads are done by pread(2) while the caller waits */
  bool no_checksums;    /* pieces have none, and the peer takes the bytes as they come */
};
/* Prepares the worker to send files. Call it once, between baton_attach() and baton_ready().
 * `options` may be NULL. BATON_FAILED_PRECONDITION: the service lacks outside_effects or a heap.
 * BATON_INVALID_ARGUMENT: the message names the wrong option. BATON_ALREADY_EXISTS: it was called
 * before. */
int baton_open_files(struct baton_worker* worker, const struct baton_file_options* options);

struct baton_file {
  size_t size; /* sizeof(struct baton_file) */
  int fd; /* of a regular file, open for reading without O_DIRECT. The library duplicates it, so the
             caller may close it. O_NONBLOCK is cleared. -1 in baton_resume_file(): the one that
             the driver holds */
  /* Called from baton_poll(), not in on_completion(), when baton_advance_file() has something to
   * do. What it stages is committed after it, unless the mode is BATON_COMMIT_MANUAL. It may call
   * baton_forget_file(). */
  void (*wake)(void* context);
  void* context;
};

struct baton_file_range {
  size_t size;       /* sizeof(struct baton_file_range) */
  uint64_t transfer; /* the number by which the peer knows it */
  uint64_t offset;   /* in the file */
  uint64_t length;   /* 0: the transfer is done at once, and no message is sent */
  uint64_t held;     /* of baton_hold_descriptor(), which the application drops; 0: see above */
};

/* The application keeps these 80 bytes in the connection's state. They are the same in each release
 * of this soname. All zero: no transfer. */
struct baton_file_transfer {
  uint32_t version;
  uint32_t crc; /* CRC32C of the range up to `next` */
  uint64_t transfer;
  uint64_t device; /* the file's identity, of stat(2) */
  uint64_t inode;
  uint64_t file_bytes;
  int64_t mtime_seconds;
  uint32_t mtime_nanoseconds;
  uint32_t reserved;
  uint64_t next; /* the first byte that is not sent */
  uint64_t end;
  uint64_t held; /* of the range, or what the library has handed to the driver; 0: none */
};

/* Begins a transfer. Call baton_advance_file() in the same transaction. BATON_INVALID_ARGUMENT: the
 * message names what is wrong. BATON_OUT_OF_RANGE: the file has no such range.
 * BATON_FAILED_PRECONDITION: baton_open_files() was not called. */
int baton_send_file(struct baton_worker* worker, struct baton_connection* connection,
                    const struct baton_file* file, const struct baton_file_range* range,
                    struct baton_file_sender** sender);
/* Goes on with what was committed. Call it in on_adopt(): when that has returned, the library drops
 * the files that it has handed to the driver and that no transfer has. `wake` is called soon. If
 * the file is missing (fd -1) or another one than the transfer's, it goes on with the one that the
 * driver holds, for which it blocks. Otherwise also BATON_NOT_FOUND: it is missing.
 * BATON_FAILED_PRECONDITION: it is another one, or has been changed since. BATON_DATA_LOSS:
 * `transfer` is none. BATON_UNAVAILABLE, BATON_DEADLINE_EXCEEDED, BATON_RESOURCE_EXHAUSTED: the
 * keeper does not answer, or descriptors are short. Then call it again later: the driver goes on
 * holding the file, at least as long as this worker owns the shard. */
int baton_resume_file(struct baton_worker* worker, struct baton_connection* connection,
                      const struct baton_file* file, const struct baton_file_transfer* transfer,
                      struct baton_file_sender** sender);
/* Stages the pieces that are read, begins further reads, and sets `*transfer`, also after an error.
 * Call it after each event of the stream, and when woken, with the stream as it was staged or
 * committed last. An error ends the transfer. BATON_OUT_OF_RANGE: the file ends before the range
 * does. BATON_FAILED_PRECONDITION: it was changed meanwhile. Others: it cannot be read. */
int baton_advance_file(struct baton_file_sender* sender, struct baton_stream* stream,
                       struct baton_file_transfer* transfer);
/* Cancels the reads that are under way, and frees the sender. What is staged is sent all the same.
 * Call it also before baton_abandon() is followed by baton_resume_file(). */
void baton_forget_file(struct baton_file_sender* sender);

/* ---------------------------------------------------------------- connections */

/* Begins a connection to host:port that lives in `shard`. The outcome, BATON_ESTABLISHED or
 * BATON_CONNECT_FAILED with `tag`, is delivered to the worker that owns the shard then.
 * `*connection`, unless NULL, is the connection. */
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

/* The service's driver holds descriptors for workers, so that a successor can go on with a file
 * that was renamed or deleted meanwhile, and for baton_register_memory(). These functions block
 * until the keeper answers. BATON_UNIMPLEMENTED: the keeper or the driver is of an earlier release.
 */

/* Hands a duplicate of `fd` to the driver, which holds it until baton_drop_descriptor(), however
 * this worker ends. `*number` is never 0, and is never given again while the driver lives. `tag`:
 * for baton_for_each_held_descriptor(), such as the number of a shard. BATON_INVALID_ARGUMENT: `fd`
 * is neither a memfd nor a regular file on a local file system. BATON_RESOURCE_EXHAUSTED: a quota
 * of the policy, or 256 are held. */
int baton_hold_descriptor(struct baton_worker* worker, int fd, uint64_t tag, uint64_t* number);
/* Sets `*fd` to a duplicate, close-on-exec, which the caller closes. It shares its file offset with
 * all others: read with pread(2). BATON_NOT_FOUND: nothing with that number is held. */
int baton_take_descriptor(struct baton_worker* worker, uint64_t number, int* fd);
/* Returns BATON_OK also if nothing with that number is held. Duplicates that were taken stay open.
 */
int baton_drop_descriptor(struct baton_worker* worker, uint64_t number);
/* Calls `visit` for each number that is held with `tag`, of all workers, ascending. The owner of a
 * shard that it adopts drops those that no state of the shard names. `visit` may call any function.
 */
int baton_for_each_held_descriptor(struct baton_worker* worker, uint64_t tag,
                                   void (*visit)(void* context, uint64_t number), void* context);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif  // BATON_BATON_H_

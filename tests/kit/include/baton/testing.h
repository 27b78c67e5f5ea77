/* Tests of services that other workers go on with, for C11 and later. The library runs a service on
 * the soft device, with batond and workers as processes of the test, kills owners, and is a peer.
 *
 * testing.hpp has the tests themselves: a scenario that is run once for each commit, with the owner
 * killed right before it and right after it.
 *
 * Needs the packages baton and libbaton0 of the same release. $BATON_BIN names another directory
 * with batond and the rest (/usr/libexec/baton), and $BATON_TESTING_LIBRARIES another one with the
 * library that has points to die at (/usr/libexec/baton/testing).
 *
 * Errors: a function that returns `int` returns 0 or a code of enum baton_code (baton.h).
 * baton_test_error() then has the message. Every wait is bounded: by 30 seconds unless it says
 * otherwise.
 *
 * Threads: the thread that started a service is the only one that uses it and its peers, and lives
 * as long as the service does: all processes end with it, also if the test is killed. batond is in
 * a process group of its own, and then ends its service in order, within seconds.
 */
#ifndef BATON_TESTING_H_
#define BATON_TESTING_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns why the last call of this thread that failed did so. Valid until the next one. */
const char* baton_test_error(void);

struct baton_test;      /* a service that runs */
struct baton_test_peer; /* a connection to it */

/* Begin with BATON_TEST_OPTIONS_INIT. */
struct baton_test_options {
  size_t size;
  /* The path of a worker's program and its arguments, ended by NULL. In each, {socket} stands for
   * the socket on which workers attach, and {port} for the port of 127.0.0.1 at which the worker
   * has to listen. */
  const char* const* worker;
  const char* service; /* as the worker calls it when it attaches */
  /* Where the first worker, which owns the shard, kills itself: "commit-before-publish:N" or
   * "commit-published:N", at its Nth commit. NULL: nowhere. Requires that the program is linked
   * with libbaton.so.0 and without DT_RPATH: LD_LIBRARY_PATH names a library that has these points.
   */
  const char* crash_at;
  /* The workers are native: `worker` begins with the path of their object. The keeper starts them,
   * and others when they end. `crash_at` is NULL. */
  bool native;
  /* Further options of `batond --dev`, ended by NULL: "--shared-receive-queue-depth", "64". NULL:
   * none. */
  const char* const* batond;
};
#define BATON_TEST_OPTIONS_INIT \
  { sizeof(struct baton_test_options), NULL, "test", NULL, false, NULL }

/* Starts batond and two workers. The first owns the shard, the second stands by. BATON_NOT_FOUND: a
 * program or library is missing. BATON_UNAVAILABLE: one of them ended; the message has the end of
 * the logs. */
int baton_test_start(const struct baton_test_options* options, struct baton_test** test);
/* Ends all processes and removes what they wrote. NULL is allowed. */
void baton_test_end(struct baton_test* test);

/* Kills the owner. When the other worker owns the shard, starts one that stands by, and returns. */
int baton_test_kill_owner(struct baton_test* test);
/* The same in two steps: returns at once, and the owner of now is killed `microseconds` later,
 * whatever the caller does then. baton_test_settle() waits for that kill, and for the next worker
 * that stands by. */
int baton_test_kill_owner_after(struct baton_test* test, uint64_t microseconds);
int baton_test_settle(struct baton_test* test);
/* Hands the shard to the worker that stands by. If the first worker has killed itself, starts one
 * before. */
int baton_test_hand_off(struct baton_test* test);
/* Upgrades the service to `worker`, as `baton upgrade` does, on the operators' socket. `worker`:
 * see struct baton_test_options; NULL: the program that runs, once more. Returns when two new
 * workers serve and stand by, and the old ones have ended. BATON_FAILED_PRECONDITION: it is
 * refused, for example because of the state that it reads and writes, or the old workers serve
 * again; the message says why. */
int baton_test_upgrade(struct baton_test* test, const char* const* worker);
/* Sets `*crashed` to 1 if the first worker has killed itself at `crash_at`, to 0 if not.
 * BATON_INTERNAL: a worker has ended that nobody was to end. */
int baton_test_crashed(struct baton_test* test, int* crashed);
/* Returns the last lines that batond and the workers logged. Valid until the next call. */
const char* baton_test_logs(struct baton_test* test);

/* Connects to the service. Has 16 receives of 4,096 bytes posted. The peer's device works while a
 * call below waits: a peer that is left alone for 16 seconds with messages to acknowledge loses its
 * connection. */
int baton_test_connect(struct baton_test* test, struct baton_test_peer** peer);
/* NULL is allowed. */
void baton_test_disconnect(struct baton_test_peer* peer);
/* Sends a message of at most 4,096 bytes, and waits until it is acknowledged.
 * BATON_UNAVAILABLE: the connection has ended, or an earlier send was not acknowledged. */
int baton_test_send(struct baton_test_peer* peer, const void* data, size_t length);
/* Waits for the next message. `message` is valid until the next call. BATON_DEADLINE_EXCEEDED: none
 * came. BATON_UNAVAILABLE: the connection has ended. */
int baton_test_receive(struct baton_test_peer* peer, const void** message, size_t* length);

#ifdef __cplusplus
}
#endif

#endif  // BATON_TESTING_H_

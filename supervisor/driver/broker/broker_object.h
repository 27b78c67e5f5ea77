/* The interface between `baton-driver` and a broker's code, which is a shared object of its own, so
 * that a newer broker can take over the queues of a service whose `baton-driver` goes on. It is C:
 * what crosses it is plain data, so the two may be of different releases, compilers and libraries.
 * Both are in one process, which `baton-driver` has forked and confined. Memory that the pointers
 * lead to, and descriptors, stay as long as that process.
 *
 * BATON_BROKER_VERSION stands for all that the two have between them: these structs,
 * lib/verbs/inherited.h, BrokerBoard (broker_board.h), BrokerMessage (broker_message.h) and the
 * lines of news_line.h. The arena has a version of its own. A change of any of them is another
 * version. Versions that differ refuse each other: the broker that serves goes on. */
#ifndef SUPERVISOR_DRIVER_BROKER_BROKER_OBJECT_H_
#define SUPERVISOR_DRIVER_BROKER_BROKER_OBJECT_H_

#include <stdint.h>

#include "lib/verbs/inherited.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BATON_BROKER_VERSION 1
#define BATON_BROKER_OBJECT_SYMBOL "baton_broker_object"

/* The worker in a slot at the fork. */
struct BatonBrokerWorker {
  uint64_t watched; /* its id, if its locks are watched; else 0 */
  int32_t process;  /* likewise */
  int32_t wake;     /* the socket that wakes it; -1: there is none in the slot */
};

struct BatonBrokerShard {
  struct BatonInheritedCompletionQueue queue;
  struct BatonInheritedSharedReceiveQueue shared_receives; /* queue null: the service has none */
  const struct BatonInheritedQueuePair* queue_pairs;       /* by place in the shard's pool */
  uint64_t queue_pair_count;
};

/* What `baton-driver` hands over. */
struct BatonBrokerHost {
  /* These three are the same in every version. */
  uint32_t version;          /* BATON_BROKER_VERSION */
  uint32_t bytes;            /* of the struct */
  const char* baton_release; /* for messages */

  void* memories[4]; /* of the arena, by its MemoryKind */
  struct BatonInheritedDevice device;
  const struct BatonBrokerShard* shards;
  const struct BatonBrokerWorker* workers; /* by slot */
  uint32_t shard_count;
  uint32_t worker_count;
  uint32_t buffers_lkey; /* of the arena's buffers */
  uint32_t spares_lkey;  /* and of its spare buffers */

  void* board;          /* BrokerBoard */
  uint64_t board_bytes; /* its size */
  uint32_t place;       /* of this broker on the board */
  int32_t messages;     /* socket: BrokerMessage */
  int32_t wake;         /* eventfd: there is something new on the board */
  int32_t host_wake;    /* eventfd: there is something new for `baton-driver` */
  int32_t news;         /* pipe for lines of news */
  int32_t lifeline;     /* this process ends when its other end does */

  /* The service's settings: see EngineOptions. Those that change are on the board. */
  uint32_t outside_effects;
  uint32_t realtime_priority;
  uint32_t poison_deaths;
  uint32_t yield_microseconds;
  uint32_t break_recovery; /* test builds only */
  uint32_t reserved;
};

/* Exported by the object. */
struct BatonBrokerObject {
  /* These three are the same in every version. */
  uint32_t version;
  uint32_t bytes;
  const char* baton_release;

  /* Waits for its turn, and then drives the queues. Returns only with what made that impossible.
   * Call it once, on the process's only thread. */
  const char* (*run)(const struct BatonBrokerHost* host);
};

#ifdef __cplusplus
} /* extern "C" */

static_assert(sizeof(struct BatonBrokerShard) == 88);
static_assert(sizeof(struct BatonBrokerHost) == 176);
#endif

#endif  // SUPERVISOR_DRIVER_BROKER_BROKER_OBJECT_H_

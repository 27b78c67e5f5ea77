/* The interface between `baton-driver` and the code of drivers, which is a shared object of its own
 * (libbaton-driver.so), so that newer code can take over the queues of a service whose
 * `baton-driver` goes on. A broker has this code, and a native worker beside its service's object.
 * The interface is C: what crosses it is plain data, so the two sides may be of different releases,
 * compilers and libraries. Both are in one process, which `baton-driver` has forked. Memory that
 * the pointers lead to, and descriptors, stay as long as that process.
 *
 * BATON_DRIVER_CODE_VERSION stands for all that the two have between them: these structs, the board
 * (../broker/broker_board.h), BrokerMessage (../broker/broker_message.h), the lines of
 * ../engine/news_line.h, and TurnTimes (../engine/turn_loop.h) with its LatencyHistogram. A change
 * of any of them is another version. What has versions of its own is compared, too:
 * lib/verbs/inherited.h, the arena, lib/native/host.h and the NIC's protocol. Versions that differ
 * refuse each other, and the code that serves goes on. */
#ifndef SUPERVISOR_DRIVER_CODE_DRIVER_CODE_H_
#define SUPERVISOR_DRIVER_CODE_DRIVER_CODE_H_

#include <stdint.h>

#include "lib/verbs/inherited.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BATON_DRIVER_CODE_VERSION 1
#define BATON_DRIVER_CODE_SYMBOL "baton_driver_code"

struct BatonInheritedShard {
  struct BatonInheritedCompletionQueue queue;
  struct BatonInheritedSharedReceiveQueue shared_receives; /* queue null: the service has none */
  const struct BatonInheritedQueuePair* queue_pairs;       /* by place in the shard's pool */
  uint64_t queue_pair_count;
};

/* What both kinds of drivers have of a service. */
struct BatonInheritedQueues {
  /* The first three members are the same in every version. */
  uint32_t version;          /* BATON_DRIVER_CODE_VERSION */
  uint32_t bytes;            /* of this struct */
  const char* baton_release; /* of `baton-driver`, for messages */

  void* memories[4]; /* of the arena, by its MemoryKind */
  struct BatonInheritedDevice device;
  const struct BatonInheritedShard* shards;
  uint32_t shard_count;
  uint32_t buffers_lkey; /* of the arena's buffers */
  uint32_t spares_lkey;  /* and of its spare buffers */
  int32_t lifeline;      /* this process ends when its other end does */
  int32_t news;          /* pipe for lines of news */
  int32_t host_wake;     /* eventfd: there is something new for `baton-driver` */
  /* The service's settings: see EngineOptions. */
  uint32_t outside_effects;
  uint32_t realtime_priority;
  uint32_t poison_deaths;
  uint32_t inherited_version; /* BATON_INHERITED_VERSION */
};

/* The worker in a slot at a broker's fork. */
struct BatonBrokerWorker {
  uint64_t watched; /* its id, if its locks are watched; else 0 */
  int32_t process;  /* likewise */
  int32_t wake;     /* the socket that wakes it; -1: there is none in the slot */
};

struct BatonBrokerHost {
  struct BatonInheritedQueues queues;
  void* board;          /* BrokerBoard. What it has of the settings counts, once a broker drives */
  uint64_t board_bytes; /* its size */
  const struct BatonBrokerWorker* workers; /* by slot */
  uint32_t worker_count;
  uint32_t place;              /* of this broker on the board */
  int32_t messages;            /* socket: BrokerMessage */
  int32_t wake;                /* eventfd: there is something new on the board */
  uint32_t yield_microseconds; /* see EngineOptions */
  uint32_t break_recovery;     /* test builds only */
};

struct BatonOwnerHost {
  struct BatonInheritedQueues queues;
  const int32_t* wakes; /* eventfds, by worker slot */
  uint64_t worker_id;
  uint32_t worker_count;
  uint32_t slot;           /* of the worker */
  int32_t session;         /* the worker's end of its session with the keeper */
  int32_t presence;        /* a lock that the process holds as long as it lives */
  uint32_t native_version; /* BATON_NATIVE_VERSION of the loader of the service's object */
  uint32_t reserved;
};

struct BatonNativeHost; /* lib/native/host.h */

/* Exported by the object. */
struct BatonDriverCode {
  /* These three are the same in every version. */
  uint32_t version;
  uint32_t bytes;
  const char* baton_release;

  /* Called once, on the process's only thread: one of these. */

  /* Waits for its turn, and then drives the queues. Returns only with what made that impossible. */
  const char* (*run_broker)(const struct BatonBrokerHost* host);
  /* Makes the driver of a native worker. Returns null, or what made that impossible. */
  const char* (*begin_owner)(const struct BatonOwnerHost* host);

  /* What baton_native_host() returns in the process of a native worker. */
  struct BatonNativeHost* (*native_host)(void);
};

#ifdef __cplusplus
} /* extern "C" */

static_assert(sizeof(struct BatonInheritedShard) == 88);
static_assert(sizeof(struct BatonInheritedQueues) == 128);
static_assert(sizeof(struct BatonBrokerHost) == 176);
static_assert(sizeof(struct BatonOwnerHost) == 168);
static_assert(sizeof(struct BatonDriverCode) == 40);
#endif

#endif  // SUPERVISOR_DRIVER_CODE_DRIVER_CODE_H_

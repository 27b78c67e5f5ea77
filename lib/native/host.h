/* The interface between the executable of `baton-driver` and a native worker's shared object, in
 * one process. Each finds the other with dlsym. It is C, so that the two may be of different
 * releases, compilers and libraries. host.md is the specification. */
#ifndef LIB_NATIVE_HOST_H_
#define LIB_NATIVE_HOST_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BATON_NATIVE_VERSION 2
#define BATON_NATIVE_HOST_SYMBOL "baton_native_host"
#define BATON_NATIVE_OBJECT_SYMBOL "baton_native_object"
#define BATON_NATIVE_EXPORT __attribute__((visibility("default")))

/* The side of `baton-driver`'s executable: the driver of the shards. Functions return 0, or a
 * negated errno value. After an error this process is no driver any more, and ends. The worker's
 * thread calls them, one at a time. */
struct BatonNativeHost {
  /* These three are the same in every version. */
  uint32_t version;          /* BATON_NATIVE_VERSION of Baton's code of drivers */
  uint32_t bytes;            /* of the struct: members may be added behind the last */
  const char* baton_release; /* of that code, for messages */

  void* context; /* first argument of the functions */
  /* The worker's end of its session with the keeper, connected. The worker library takes ownership:
   * it sets -1 here, and closes the socket. */
  int32_t socket;
  /* The host's descriptor, for poll and epoll. It is readable when attend or poll has work that
   * request_notification asked for, or that the host waits for by itself. */
  int32_t event_fd;

  /* Does all work that is not of one shard, such as taking over from a dead owner. */
  int (*attend)(void* context);
  /* Makes this process the driver of a shard whose ownership word names this worker and `epoch`.
   * Before it returns, it settles what a dead driver left, as far as the worker's records in the
   * arena depend on it. */
  int (*adopt)(void* context, uint32_t shard, uint64_t epoch);
  /* Applies what is committed. REQUIRES: the shard is adopted; so do the next two. */
  int (*apply)(void* context, uint32_t shard);
  /* Moves completions to the shard's log. */
  int (*poll)(void* context, uint32_t shard);
  /* Makes event_fd readable at the shard's next completion. The next poll finds completions that
   * came before. */
  int (*request_notification)(void* context, uint32_t shard);
  /* The worker calls this when it neither reads nor writes the shard any more: it has published the
   * transaction that gives the shard away, or has seen that the ownership word has moved on. */
  int (*release)(void* context, uint32_t shard, uint64_t epoch);
  /* Why the last call failed. Good until the next call; never null. */
  const char* (*last_error)(void* context);
};

/* Exported by the executable. Null: this process is no native worker. */
BATON_NATIVE_EXPORT struct BatonNativeHost* baton_native_host(void);

/* The object's side: what its worker library declares. */
struct BatonNativeObject {
  /* These three are the same in every version. */
  uint32_t version; /* BATON_NATIVE_VERSION of the worker library */
  uint32_t bytes;
  const char* baton_release; /* of the worker library, for messages */
};

/* Exported by the object, beside its main. */
BATON_NATIVE_EXPORT extern const struct BatonNativeObject baton_native_object;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif  // LIB_NATIVE_HOST_H_

/* What a process that was forked from the opener of a device knows of the device's objects, in C:
 * with it, code of another release makes objects of its own for the same queues (Device::Inherit,
 * and InheritDevice of each device). No type of C++ crosses this interface, and nothing is
 * allocated on one side and freed on the other.
 *
 * The pointers are into the process that was forked: what they point to lives as long as that
 * process, and descriptors stay open. An entry that the kind of device does not use is 0.
 *
 * BATON_INHERITED_VERSION stands for these structs and for the memory that they lead to: the
 * layouts of lib/verbs/mlx5/queue_layout.h, what drivers keep there (completion_queue.h's
 * TakenWord, arming and former; receive_queue.h's FreedWord and order; format.h's QueueCursors and
 * SendNote), and the doorbell page. A change of any of them is another version, which whoever
 * passes the structs on compares. */
#ifndef LIB_VERBS_INHERITED_H_
#define LIB_VERBS_INHERITED_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BATON_INHERITED_VERSION 1

enum BatonDeviceKind {
  BATON_SOFT_DEVICE = 1, /* a client of a NIC in another process (lib/nic/control.md) */
  BATON_RDMA_DEVICE = 2, /* libibverbs, which both sides link dynamically: one is in the process */
};

struct BatonInheritedDevice {
  uint32_t kind;        /* BatonDeviceKind */
  uint32_t port;        /* rdma: of the device */
  void* context;        /* rdma: struct ibv_context* */
  int32_t file;         /* soft: the file of objects, */
  int32_t calls;        /* and the call socket of this process alone */
  uint32_t last_tag;    /* soft: of the last call there */
  uint32_t nic_version; /* soft: of the NIC's control protocol */
};

struct BatonInheritedCompletionQueue {
  void* queue;             /* rdma: struct ibv_cq*; soft: CompletionQueueLayout begins here */
  void* channel;           /* rdma: struct ibv_comp_channel*; soft: the doorbell page */
  uint32_t entry_count;    /* soft: of the layout */
  uint32_t number;         /* soft: the NIC's, of the queue, */
  uint32_t reg;            /* of its register, */
  uint32_t channel_number; /* and of its channel */
  int32_t reg_wake;        /* soft: eventfd of the register */
  int32_t channel_socket;  /* soft */
};

struct BatonInheritedSharedReceiveQueue {
  void* queue;      /* rdma: struct ibv_srq*; soft: SharedReceiveQueueLayout begins here */
  uint32_t entries; /* soft: receives that it was made for */
  uint32_t max_scatter_gather; /* of a receive */
  uint32_t number;             /* soft: the NIC's */
  uint32_t slot_count;         /* soft: of the layout */
  uint32_t slot_bytes;         /* soft: of the layout */
  uint32_t reserved;
};

/* All its completions go to one queue. */
struct BatonInheritedQueuePair {
  void* queue_pair;            /* rdma: struct ibv_qp*; soft: QueuePairLayout begins here */
  uint32_t number;             /* the device's */
  uint32_t max_scatter_gather; /* of a request */
  uint32_t max_inline_data;    /* granted */
  uint32_t place; /* soft: among the queue pairs that complete in its queue (mlx5::TakenWord) */
  uint32_t send_slots; /* soft: of the layout, as the next two */
  uint32_t receive_slots;
  uint32_t receive_bytes;
  uint32_t reserved;
};

#ifdef __cplusplus
} /* extern "C" */

static_assert(sizeof(struct BatonInheritedDevice) == 32);
static_assert(sizeof(struct BatonInheritedCompletionQueue) == 40);
static_assert(sizeof(struct BatonInheritedSharedReceiveQueue) == 32);
static_assert(sizeof(struct BatonInheritedQueuePair) == 40);
#endif

#endif  // LIB_VERBS_INHERITED_H_

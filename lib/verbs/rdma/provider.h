// What a provider (the part of a device's driver that libibverbs loads) has of its own and
// libibverbs does not hide. A device whose provider has no row here has the general one.
#ifndef LIB_VERBS_RDMA_PROVIDER_H_
#define LIB_VERBS_RDMA_PROVIDER_H_

#include <infiniband/verbs.h>

#include <cstdint>

#include "absl/status/status.h"

namespace baton::verbs::rdma {

struct Provider {
  // What the last receive of a queue pair in error is given to complete in where the device does
  // not tell, or did not yet.
  uint32_t drain_ms;

  // IBV_WC_*, any of which says that a peer's message has invalidated a key of ours.
  unsigned int invalidated_flags;

  // It sends and receives in the machine's first network namespace alone, whoever has connections.
  bool first_network_namespace_only;

  // As ibv_post_send, in a process that was forked from the opener: one call for a chain. nullptr:
  // what forked processes have of its queues is of no use. mlx5.md has what its row would need.
  int (*post_send_forked)(ibv_qp* queue_pair, ibv_send_wr* chain, ibv_send_wr** bad);

  // Whether what forked processes need of device and kernel is there; with post_send_forked only.
  absl::Status (*check_forkable)(ibv_context* context);
};

const Provider& ProviderOf(const ibv_device_attr& device);

// Whether libibverbs leaves registered memory to forked processes, whichever the provider.
absl::Status CheckMemoryForkable();

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_PROVIDER_H_

// Properties of providers (the part of a device's driver that libibverbs loads) that libibverbs
// does not hide. A provider without a row here uses the general one.
#ifndef LIB_VERBS_RDMA_PROVIDER_H_
#define LIB_VERBS_RDMA_PROVIDER_H_

#include <infiniband/verbs.h>

#include <cstdint>

#include "absl/status/status.h"

namespace baton::verbs::rdma {

struct Provider {
  // How long to wait for the last receive of a queue pair in error, if the device has not reported
  // that it is drained; milliseconds.
  uint32_t drain_ms;

  // IBV_WC_*, any of which says that a peer's message has invalidated a key of ours.
  unsigned int invalidated_flags;

  // The device sends and receives only in the machine's first network namespace.
  bool first_network_namespace_only;

  // Does what ibv_post_send does, in a process that was forked from the opener: one call for a
  // chain. nullptr: forked processes cannot use the queues. mlx5.md describes what its row needs.
  int (*post_send_forked)(ibv_qp* queue_pair, ibv_send_wr* chain, ibv_send_wr** bad);

  // Checks that device and kernel have what forked processes need. Set if post_send_forked is.
  absl::Status (*check_forkable)(ibv_context* context);
};

const Provider& ProviderOf(const ibv_device_attr& device);

// Returns OK if libibverbs lets forked processes inherit registered memory, with every provider.
absl::Status CheckMemoryForkable();

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_PROVIDER_H_

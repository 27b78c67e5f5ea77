// This file says in what providers (the part of a device's driver that libibverbs loads) differ and
// libibverbs does not hide it. A provider without a row here uses the general one.
#ifndef LIB_VERBS_RDMA_PROVIDER_H_
#define LIB_VERBS_RDMA_PROVIDER_H_

#include <infiniband/verbs.h>

#include <cstdint>

#include "absl/status/status.h"

namespace baton::verbs::rdma {

// The doorbell of a send queue rings otherwise in a process that was forked from the one that
// opened the device.
//
// Soft-RoCE's provider puts work requests into a queue that it shares with the kernel. Then it
// writes an empty IB_USER_VERBS_CMD_POST_SEND to the uverbs file (rdma-core, providers/rxe,
// post_send_db). The kernel accepts this write() only with the credentials that opened the file. It
// compares pointers to them (ib_safe_file_access), and a forked process has a copy. So the write
// fails there, although the requests are in the queue. The kernel accepts ioctl() from any process
// that holds the file, and UVERBS_METHOD_INVOKE_WRITE gives the same command by ioctl().
//
// A provider whose doorbell is in mapped memory needs none of this.

// Does what ibv_post_send does, for Soft-RoCE in a forked process. Returns ENOMEM for any refused
// request *bad: the provider's errno is that of the doorbell, and the caller has checked everything
// but the room. REQUIRES: no other thread uses the device's context.
//
// The kernel would refuse the provider's own doorbell write. So it goes to no file, which costs a
// third of a refused write (Linux 6.1, emulated: 0.3 us; refused by uverbs 0.7 to 1.0 us; the
// doorbell itself 3.1 us by write and 3.9 us by ioctl).
int PostAndRing(ibv_qp* queue_pair, ibv_send_wr* chain, ibv_send_wr** bad);

struct Provider {
  // How long to wait for the last receive of a queue pair in error, if the device has not reported
  // it; milliseconds.
  uint32_t last_receive_ms;

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

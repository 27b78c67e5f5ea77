// The doorbell of a send queue in a process that was forked from the one that opened the device.
//
// Soft-RoCE's provider puts work requests into a queue that it shares with the kernel. Then it
// writes an empty IB_USER_VERBS_CMD_POST_SEND to the uverbs file (rdma-core, providers/rxe,
// post_send_db). The kernel accepts this write() only with the credentials that opened the file. It
// compares pointers to them (ib_safe_file_access), and a forked process has a copy. So the write
// fails there, although the requests are in the queue. The check protects privileged programs that
// can be made to write data that they do not know. No program makes an ioctl() unawares, so the
// kernel accepts ioctl() from any process that holds the file. UVERBS_METHOD_INVOKE_WRITE gives the
// same command by ioctl(). libibverbs gives all its other commands that way.
//
// A provider whose doorbell is in mapped memory needs none of this.
#ifndef LIB_VERBS_RDMA_DOORBELL_H_
#define LIB_VERBS_RDMA_DOORBELL_H_

#include <infiniband/verbs.h>

namespace baton::verbs::rdma {

// Does what ibv_post_send does, for Soft-RoCE in a forked process. Returns ENOMEM for any refused
// request *bad: the provider's errno is that of the doorbell, and the caller has checked everything
// but the room. REQUIRES: no other thread uses the device's context.
//
// The kernel would refuse the provider's own doorbell write. So it goes to no file, which costs a
// third of a refused write (Linux 6.1, emulated: 0.3 us; refused by uverbs 0.7 to 1.0 us; the
// doorbell itself 3.1 us by write and 3.9 us by ioctl).
int PostAndRing(ibv_qp* queue_pair, ibv_send_wr* chain, ibv_send_wr** bad);

// Returns 0 if the kernel has that ioctl, otherwise an errno.
int CheckDoorbell(const ibv_context& context);

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_DOORBELL_H_

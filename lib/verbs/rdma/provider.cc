#include "lib/verbs/rdma/provider.h"

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/verbs/rdma/uverbs_command.h"

namespace baton::verbs::rdma {
namespace {

int RingDoorbell(const ibv_qp& queue_pair) {
  ib_uverbs_post_send nothing = {};
  ib_uverbs_post_send_resp answer = {};
  nothing.qp_handle = queue_pair.handle;
  nothing.wqe_size = sizeof(ib_uverbs_send_wr);
  UverbsCommand<3> command(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
  command.Set(0, UVERBS_ATTR_WRITE_CMD, sizeof(uint64_t), IB_USER_VERBS_CMD_POST_SEND);
  command.SetPlace(1, UVERBS_ATTR_CORE_IN, sizeof(nothing), &nothing);
  command.SetPlace(2, UVERBS_ATTR_CORE_OUT, sizeof(answer), &answer);
  return command.Give(queue_pair.context->cmd_fd);
}

// Returns 0 if the kernel has the doorbell's ioctl, otherwise an errno. Without its command the
// ioctl fails with EINVAL if the kernel has it, and with another errno if not.
int CheckDoorbell(const ibv_context& context) {
  UverbsCommand<0> command(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
  const int error = command.Give(context.cmd_fd);
  return error == EINVAL ? 0 : error;
}

constexpr uint32_t kSoftRoceVendor = 0xffffff;  // RXE_VENDOR_ID

absl::Status CheckSoftRoceForkable(ibv_context* context) {
  const char* const device = ibv_get_device_name(context->device);
  if (const int error = CheckDoorbell(*context); error != 0) {
    return absl::UnimplementedError(
        absl::StrCat("device ", device,
                     ": the kernel takes its doorbell from the process that opened it alone "
                     "(UVERBS_METHOD_INVOKE_WRITE: ",
                     std::strerror(error), "): a newer one is needed"));
  }
  return absl::OkStatus();
}

// Reads the variable as libibverbs does (check_env).
bool IsSet(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && std::strcmp(value, "0") != 0;
}

constexpr Provider kGeneral = {
    .last_receive_ms = 1000,
    .invalidated_flags = IBV_WC_WITH_INV,
    .first_network_namespace_only = false,
    .post_send_forked = nullptr,
    .check_forkable = nullptr,
};

// The kernel's own IBV_WC_WITH_INV (IB_WC_WITH_INVALIDATE, ib_verbs.h). libibverbs has this number
// for IBV_WC_IP_CSUM_OK.
constexpr unsigned int kKernelsWithInvalidate = 1 << 2;

// Soft-RoCE never reports the last receive (Linux 6.1), and flushes in a tasklet that is due at
// once (rxe_qp_error). It writes completions for libibverbs with the kernel's flags (do_complete in
// rxe_resp.c), which rdma-core 44 passes on unchanged. IB_WC_WITH_INVALIDATE is the only one that
// it sets and that differs. Its UDP sockets and routes are init_net's (rxe_net_init and
// rxe_find_route4 in rxe_net.c).
constexpr Provider kSoftRoce = {
    .last_receive_ms = 100,
    .invalidated_flags = IBV_WC_WITH_INV | kKernelsWithInvalidate,
    .first_network_namespace_only = true,
    .post_send_forked = PostAndRing,
    .check_forkable = CheckSoftRoceForkable,
};

}  // namespace

int PostAndRing(ibv_qp* queue_pair, ibv_send_wr* chain, ibv_send_wr** bad) {
  *bad = nullptr;
  int& file = queue_pair->context->cmd_fd;
  const int uverbs = std::exchange(file, -1);
  const int error = ibv_post_send(queue_pair, chain, bad);
  file = uverbs;
  if (error != EBADF) return error;  // the provider rings in another way
  const int unheard = RingDoorbell(*queue_pair);
  if (unheard != 0) return unheard;
  return *bad == nullptr ? 0 : ENOMEM;
}

const Provider& ProviderOf(const ibv_device_attr& device) {
  return device.vendor_id == kSoftRoceVendor ? kSoftRoce : kGeneral;
}

// On Linux 5.13 and newer, ibv_is_fork_initialized says that fork support is not needed, although
// ibv_fork_init enables it all the same (rdma-core 44, memory.c). So this also looks at the
// variables that make libibverbs call ibv_fork_init.
absl::Status CheckMemoryForkable() {
  const bool wanted = IsSet("RDMAV_FORK_SAFE") || IsSet("IBV_FORK_SAFE");
  if (!wanted && ibv_is_fork_initialized() != IBV_FORK_ENABLED) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "libibverbs keeps registered memory from forked processes: unset RDMAV_FORK_SAFE and "
      "IBV_FORK_SAFE");
}

}  // namespace baton::verbs::rdma

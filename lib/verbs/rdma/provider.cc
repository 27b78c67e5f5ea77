#include "lib/verbs/rdma/provider.h"

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::verbs::rdma {
namespace {

constexpr uint16_t kAttributes = 3;

// ib_uverbs_ioctl_hdr with its attributes, which are a flexible array in C. C++ has no such arrays.
struct Command {
  alignas(ib_uverbs_ioctl_hdr) uint8_t header[sizeof(ib_uverbs_ioctl_hdr)];
  ib_uverbs_attr attributes[kAttributes];
};
static_assert(offsetof(Command, attributes) == sizeof(ib_uverbs_ioctl_hdr));
static_assert(offsetof(ib_uverbs_ioctl_hdr, attrs) == sizeof(ib_uverbs_ioctl_hdr));

int Invoke(int file, Command* command, uint16_t attributes) {
  ib_uverbs_ioctl_hdr header = {};
  header.length = static_cast<uint16_t>(sizeof(header) + attributes * sizeof(ib_uverbs_attr));
  header.object_id = UVERBS_OBJECT_DEVICE;
  header.method_id = UVERBS_METHOD_INVOKE_WRITE;
  header.num_attrs = attributes;
  header.driver_id = RDMA_DRIVER_RXE;  // the kernel refuses another device's
  std::memcpy(command->header, &header, sizeof(header));
  return ioctl(file, RDMA_VERBS_IOCTL, command) == 0 ? 0 : errno;
}

ib_uverbs_attr Attribute(uint16_t id, uint16_t length, uint64_t data) {
  ib_uverbs_attr attribute = {};
  attribute.attr_id = id;
  attribute.len = length;
  attribute.flags = UVERBS_ATTR_F_MANDATORY;
  attribute.data = data;
  return attribute;
}

uint64_t AddressOf(const void* data) { return reinterpret_cast<uintptr_t>(data); }

int RingDoorbell(const ibv_qp& queue_pair) {
  ib_uverbs_post_send nothing = {};
  ib_uverbs_post_send_resp answer = {};
  nothing.qp_handle = queue_pair.handle;
  nothing.wqe_size = sizeof(ib_uverbs_send_wr);
  Command command = {};
  command.attributes[0] =
      Attribute(UVERBS_ATTR_WRITE_CMD, sizeof(uint64_t), IB_USER_VERBS_CMD_POST_SEND);
  command.attributes[1] = Attribute(UVERBS_ATTR_CORE_IN, sizeof(nothing), AddressOf(&nothing));
  command.attributes[2] = Attribute(UVERBS_ATTR_CORE_OUT, sizeof(answer), AddressOf(&answer));
  return Invoke(queue_pair.context->cmd_fd, &command, kAttributes);
}

// Returns 0 if the kernel has the doorbell's ioctl, otherwise an errno. Without its command the
// ioctl fails with EINVAL if the kernel has it, and with another errno if not.
int CheckDoorbell(const ibv_context& context) {
  Command command = {};
  const int error = Invoke(context.cmd_fd, &command, 0);
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

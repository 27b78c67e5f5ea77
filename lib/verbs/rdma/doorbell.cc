#include "lib/verbs/rdma/doorbell.h"

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

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

// An ioctl without its command fails with EINVAL if the kernel has it, and with another errno if
// not.
int CheckDoorbell(const ibv_context& context) {
  Command command = {};
  const int error = Invoke(context.cmd_fd, &command, 0);
  return error == EINVAL ? 0 : error;
}

}  // namespace baton::verbs::rdma

// A command that a process gives to the uverbs file by ioctl, whoever has opened that.
#ifndef LIB_VERBS_RDMA_UVERBS_COMMAND_H_
#define LIB_VERBS_RDMA_UVERBS_COMMAND_H_

#include <infiniband/verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace baton::verbs::rdma {

// A command of the uverbs file with its attributes: ib_uverbs_ioctl_hdr has a flexible array in C,
// which C++ has not.
template <uint16_t kAttributes>
class UverbsCommand {
 public:
  UverbsCommand(uint16_t object, uint16_t method) {
    ib_uverbs_ioctl_hdr fields = {};
    fields.length = static_cast<uint16_t>(sizeof(fields) + kAttributes * sizeof(ib_uverbs_attr));
    fields.object_id = object;
    fields.method_id = method;
    fields.num_attrs = kAttributes;
    fields.driver_id = RDMA_DRIVER_RXE;  // the kernel refuses another device's
    std::memcpy(header_, &fields, sizeof(fields));
  }
  void Set(size_t index, uint16_t id, uint16_t bytes, uint64_t data) {
    attributes_[index].attr_id = id;
    attributes_[index].len = bytes;
    attributes_[index].flags = UVERBS_ATTR_F_MANDATORY;
    attributes_[index].data = data;
  }
  void SetPlace(size_t index, uint16_t id, uint16_t bytes, const void* place) {
    Set(index, id, bytes, reinterpret_cast<uintptr_t>(place));
  }
  // Returns 0 or an errno.
  int Give(int uverbs) { return ioctl(uverbs, RDMA_VERBS_IOCTL, this) == 0 ? 0 : errno; }

 private:
  alignas(ib_uverbs_ioctl_hdr) uint8_t header_[sizeof(ib_uverbs_ioctl_hdr)];
  std::array<ib_uverbs_attr, kAttributes> attributes_ = {};
};
static_assert(offsetof(ib_uverbs_ioctl_hdr, attrs) == sizeof(ib_uverbs_ioctl_hdr));

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_UVERBS_COMMAND_H_

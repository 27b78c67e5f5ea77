// Memory regions by their handles in a uverbs file. A process that holds the file can use them
// whoever has registered the memory. libibverbs has no such calls.
#ifndef LIB_VERBS_RDMA_REGION_HANDLE_H_
#define LIB_VERBS_RDMA_REGION_HANDLE_H_

#include <infiniband/verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace baton::verbs::rdma {

// A command of the uverbs file with its attributes: ib_uverbs_ioctl_hdr has a flexible array in C,
// which C++ has not.
template <uint16_t kAttributes>
class UverbsCommand {
 public:
  UverbsCommand(uint16_t object, uint16_t method) {
    ib_uverbs_ioctl_hdr fields = {};
    fields.length = sizeof(*this);
    fields.object_id = object;
    fields.method_id = method;
    fields.num_attrs = kAttributes;
    fields.driver_id = RDMA_DRIVER_RXE;  // the kernel refuses another device's
    std::memcpy(header_, &fields, sizeof(fields));
  }
  void Set(int index, uint16_t id, uint16_t bytes, uint64_t data) {
    attributes_[index].attr_id = id;
    attributes_[index].len = bytes;
    attributes_[index].flags = UVERBS_ATTR_F_MANDATORY;
    attributes_[index].data = data;
  }
  void SetPlace(int index, uint16_t id, uint16_t bytes, const void* place) {
    Set(index, id, bytes, reinterpret_cast<uintptr_t>(place));
  }
  // Returns 0 or an errno.
  int Give(int uverbs) { return ioctl(uverbs, RDMA_VERBS_IOCTL, this) == 0 ? 0 : errno; }

 private:
  alignas(ib_uverbs_ioctl_hdr) uint8_t header_[sizeof(ib_uverbs_ioctl_hdr)];
  ib_uverbs_attr attributes_[kAttributes] = {};
};
static_assert(offsetof(ib_uverbs_ioctl_hdr, attrs) == sizeof(ib_uverbs_ioctl_hdr));

struct Region {
  uint32_t handle = 0;
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  uint64_t address = 0;  // by which work requests name its first byte
  uint64_t bytes = 0;
};
// Fills all but the handle. Returns 0 or an errno. ENOENT: the handle is free. EINVAL: it is
// another kind of object's.
int QueryRegion(int uverbs, uint32_t handle, Region* region);
int DestroyRegion(int uverbs, uint32_t handle);

// Returns the handle of the region that has the key. The kernel gives the lowest free number to an
// object, so it looks no further than a long run of free ones.
std::optional<uint32_t> FindRegion(int uverbs, uint32_t remote_key);

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_REGION_HANDLE_H_

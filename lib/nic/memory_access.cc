#include "lib/nic/memory_access.h"

namespace baton::verbs::soft {

int MemoryAccess::Gather(const ScatterGather* sges, size_t count, uint64_t offset, uint64_t length,
                         uint32_t access, iovec* iovecs, int max) const {
  int used = 0;
  for (size_t index = 0; index < count && length > 0; ++index) {
    const ScatterGather& sge = sges[index];
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const uint64_t take = sge.length - offset < length ? sge.length - offset : length;
    if (used == max) return -1;
    uint8_t* const at = FindLocal(sge.lkey, sge.address, sge.length, access);
    if (at == nullptr) return -1;
    iovecs[used].iov_base = at + offset;
    iovecs[used++].iov_len = take;
    length -= take;
    offset = 0;
  }
  return length == 0 ? used : -1;
}

}  // namespace baton::verbs::soft

// Memory keys of a soft device, and the checks that every access goes through.
#ifndef LIB_VERBS_SOFT_MEMORY_TABLE_H_
#define LIB_VERBS_SOFT_MEMORY_TABLE_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

class MemoryTable;

class SoftMemoryRegion final : public MemoryRegion {
 public:
  SoftMemoryRegion(MemoryTable* table, uint64_t address, uint64_t length, uint32_t access,
                   uint32_t lkey, uint32_t rkey);
  ~SoftMemoryRegion() override;
  uint32_t lkey() const override { return lkey_; }
  uint32_t rkey() const override { return rkey_; }

  bool Covers(uint64_t address, uint64_t length) const {
    return address >= address_ && length <= length_ && address - address_ <= length_ - length;
  }
  bool Allows(uint32_t access) const { return (access_ & access) == access; }

 private:
  MemoryTable* const table_;
  const uint64_t address_;
  const uint64_t length_;
  const uint32_t access_;
  const uint32_t lkey_;
  const uint32_t rkey_;
};

class MemoryTable {
 public:
  explicit MemoryTable(uint64_t seed) : random_(seed) {}

  absl::StatusOr<std::unique_ptr<MemoryRegion>> Register(void* address, size_t length,
                                                         uint32_t access);

  // Whether [address, address + length) may be accessed so through the key. Nothing is looked up
  // for length 0, as InfiniBand has it.
  bool LocalAccess(uint32_t lkey, uint64_t address, uint64_t length, uint32_t access) const;
  bool RemoteAccess(uint32_t rkey, uint64_t address, uint64_t length, uint32_t access) const;

  // Makes `rkey` unusable; false when it is none that may be invalidated remotely.
  bool Invalidate(uint32_t rkey);

  // Bytes [offset, offset + length) of a scatter-gather list as at most `max` iovecs (one per sge
  // suffices). -1: a key, a bound or a right is wrong, or the list is shorter.
  int Gather(const ScatterGather* sges, size_t count, uint64_t offset, uint64_t length,
             uint32_t access, iovec* iovecs, int max) const;

 private:
  friend class SoftMemoryRegion;
  using Keys = absl::flat_hash_map<uint32_t, const SoftMemoryRegion*>;

  uint32_t NewKey(const Keys& taken);

  std::mt19937_64 random_;
  Keys local_;
  Keys remote_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_MEMORY_TABLE_H_

// Memory keys of a soft device, and the checks that every access goes through.
#ifndef LIB_VERBS_SOFT_MEMORY_TABLE_H_
#define LIB_VERBS_SOFT_MEMORY_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lib/verbs/soft/memory_access.h"
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

class MemoryTable final : public MemoryAccess {
 public:
  explicit MemoryTable(uint64_t seed) : random_(seed) {}

  absl::StatusOr<std::unique_ptr<MemoryRegion>> Register(void* address, size_t length,
                                                         uint32_t access);

  uint8_t* FindLocal(uint32_t lkey, uint64_t address, uint64_t length,
                     uint32_t access) const override {
    return Find(local_, lkey, address, length, access);
  }
  uint8_t* FindRemote(uint32_t rkey, uint64_t address, uint64_t length,
                      uint32_t access) const override {
    return Find(remote_, rkey, address, length, access);
  }
  bool Invalidate(uint32_t rkey) override;

 private:
  friend class SoftMemoryRegion;
  using Keys = absl::flat_hash_map<uint32_t, const SoftMemoryRegion*>;

  uint32_t NewKey(const Keys& taken);
  static uint8_t* Find(const Keys& keys, uint32_t key, uint64_t address, uint64_t length,
                       uint32_t access);

  std::mt19937_64 random_;
  Keys local_;
  Keys remote_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_MEMORY_TABLE_H_

#include "lib/verbs/soft/memory_table.h"

#include "absl/strings/str_cat.h"
#include "lib/verbs/soft/soft_device.h"

namespace baton::verbs::soft {

SoftMemoryRegion::SoftMemoryRegion(MemoryTable* table, uint64_t address, uint64_t length,
                                   uint32_t access, uint32_t lkey, uint32_t rkey)
    : table_(table),
      address_(address),
      length_(length),
      access_(access),
      lkey_(lkey),
      rkey_(rkey) {}

SoftMemoryRegion::~SoftMemoryRegion() {
  table_->local_.erase(lkey_);
  // After an invalidation the key is free and may by now be another region's.
  const auto remote = table_->remote_.find(rkey_);
  if (remote != table_->remote_.end() && remote->second == this) table_->remote_.erase(remote);
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> MemoryTable::Register(void* address, size_t length,
                                                                    uint32_t access) {
  constexpr uint32_t kKnown =
      kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic | kSoftRemoteInvalidate;
  const uint64_t start = reinterpret_cast<uintptr_t>(address);
  if (address == nullptr || length == 0 || start + length < start) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot register ", length, " bytes at ", start, ": no such range"));
  }
  if ((access & ~kKnown) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("unknown access bits ", access & ~kKnown));
  }
  if ((access & (kRemoteWrite | kRemoteAtomic)) != 0 && (access & kLocalWrite) == 0) {
    return absl::InvalidArgumentError(
        "remote write and remote atomic access need local write access: add kLocalWrite");
  }
  const uint32_t lkey = NewKey(local_);
  const uint32_t rkey = NewKey(remote_);
  auto region = std::make_unique<SoftMemoryRegion>(this, start, length, access, lkey, rkey);
  local_[lkey] = region.get();
  remote_[rkey] = region.get();
  return region;
}

uint32_t MemoryTable::NewKey(const Keys& taken) {
  for (;;) {
    const uint32_t key = static_cast<uint32_t>(random_());
    if (key != 0 && !taken.contains(key)) return key;
  }
}

uint8_t* MemoryTable::Find(const Keys& keys, uint32_t key, uint64_t address, uint64_t length,
                           uint32_t access) {
  const auto region = keys.find(key);
  const bool granted = region != keys.end() && region->second->Covers(address, length) &&
                       region->second->Allows(access);
  return granted ? reinterpret_cast<uint8_t*>(address) : nullptr;
}

bool MemoryTable::Invalidate(uint32_t rkey) {
  const auto region = remote_.find(rkey);
  if (region == remote_.end() || !region->second->Allows(kSoftRemoteInvalidate)) return false;
  remote_.erase(region);
  return true;
}

}  // namespace baton::verbs::soft

#include "worker/region_cache.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/layout.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"

namespace baton {
namespace {

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

absl::StatusOr<struct stat> Identify(int fd) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "fd: fstat");
  return info;
}

// Both regions are of the same memfd.
bool Contains(const Worker::Region& region, const Worker::Region& range) {
  return range.offset >= region.offset && range.length <= region.length &&
         range.offset - region.offset <= region.length - range.length;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RegionCache>> RegionCache::Create(Worker& worker,
                                                                 const Options& options) {
  if (options.most_bytes == 0) return Invalid("most_bytes: 0, at least 1");
  if (options.most_regions < 1 || options.most_regions > arena::kRegions) {
    return Invalid("most_regions: ", options.most_regions, ", 1 to ", arena::kRegions);
  }
  if ((options.access & ~uint32_t{verbs::kRemoteRead}) != 0) {
    return Invalid("access: a region is for sends and for READs of peers: 0 or kRemoteRead");
  }
  return std::unique_ptr<RegionCache>(new RegionCache(worker, options));
}

absl::StatusOr<RegionCache::Lease> RegionCache::Acquire(int fd, uint64_t offset, uint64_t length) {
  if (length == 0 || length > options_.most_bytes) {
    return Invalid("length: ", length, " bytes, 1 to ", options_.most_bytes, " (most_bytes)");
  }
  BATON_ASSIGN_OR_RETURN(const struct stat info, Identify(fd));
  Entry wanted;
  wanted.device = info.st_dev;
  wanted.inode = info.st_ino;
  wanted.region.offset = offset;
  wanted.region.length = length;
  for (auto found = Find(wanted); found != entries_.end(); found = Find(wanted)) {
    if (!IsRegistered((*found)->region)) {
      (*found)->is_invalid = true;  // others have unregistered it
      continue;
    }
    ++counts_.hits;
    entries_.splice(entries_.begin(), entries_, found);
    return Lease(entries_.front());
  }
  ++counts_.misses;
  EvictInvalid().IgnoreError();  // MakeRoom reports it if that matters
  BATON_RETURN_IF_ERROR(MakeRoom(length));
  BATON_ASSIGN_OR_RETURN(wanted.region, Register(fd, offset, length));
  entries_.push_front(std::make_shared<Entry>(wanted));
  return Lease(entries_.front());
}

RegionCache::Entries::iterator RegionCache::Find(const Entry& wanted) {
  return std::find_if(entries_.begin(), entries_.end(), [&](const std::shared_ptr<Entry>& entry) {
    return !entry->is_invalid && entry->device == wanted.device && entry->inode == wanted.inode &&
           Contains(entry->region, wanted.region);
  });
}

absl::StatusOr<Worker::Region> RegionCache::Register(int fd, uint64_t offset, uint64_t length) {
  // Other workers, and quotas, may leave less than the cache's own limits.
  absl::StatusOr<uint64_t> number = worker_.HoldDescriptor(fd, options_.tag);
  while (absl::IsResourceExhausted(number.status()) && EvictOne().ok()) {
    number = worker_.HoldDescriptor(fd, options_.tag);
  }
  BATON_RETURN_IF_ERROR(number.status());
  absl::StatusOr<Worker::Region> region =
      worker_.RegisterMemory(*number, offset, length, options_.access);
  while (absl::IsResourceExhausted(region.status()) && EvictOne().ok()) {
    region = worker_.RegisterMemory(*number, offset, length, options_.access);
  }
  if (region.ok()) return region;
  Entry failed;
  failed.region.descriptor = *number;
  failed.is_invalid = true;
  entries_.push_back(std::make_shared<Entry>(failed));
  // A keeper that did not answer would be waited for again.
  if (!absl::IsDeadlineExceeded(region.status())) EvictInvalid().IgnoreError();
  return region;
}

// The answer to a registration may have been lost. An answer to a later request comes when it is
// over, and then the region is there or never will be.
absl::Status RegionCache::Settle(Entry* failed) {
  BATON_RETURN_IF_ERROR(worker_.DropDescriptor(failed->region.descriptor));
  for (const Worker::Region& one : worker_.Regions()) {
    if (one.descriptor == failed->region.descriptor) failed->region = one;
  }
  return absl::OkStatus();
}

absl::Status RegionCache::MakeRoom(uint64_t more) {
  while (entries_.size() >= options_.most_regions || bytes() > options_.most_bytes - more) {
    BATON_RETURN_IF_ERROR(EvictOne());
  }
  return absl::OkStatus();
}

// Unregisters the region that was leased least recently and is not in use. kResourceExhausted:
// there is none, or none could be unregistered.
absl::Status RegionCache::EvictOne() {
  absl::Status last;
  for (auto entry = entries_.end(); entry != entries_.begin();) {
    --entry;
    if ((*entry)->leases != 0) continue;
    auto evicted = entry;
    absl::Status status = Unregister(&evicted);
    if (status.ok()) {
      ++counts_.evictions;
      return absl::OkStatus();
    }
    last = std::move(status);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("all ", entries_.size(), " regions of the cache are in use, ", bytes(),
                   " bytes: end leases, or wait until requests have completed",
                   last.ok() ? "" : "; ", std::string(last.message())));
}

absl::Status RegionCache::EvictInvalid() {
  std::erase_if(undropped_,
                [this](uint64_t number) { return worker_.DropDescriptor(number).ok(); });
  absl::Status first;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (!(*entry)->is_invalid) {
      ++entry;
      continue;
    }
    absl::Status status = absl::FailedPreconditionError("a region of the cache is in use");
    if ((*entry)->leases == 0) {
      status = Unregister(&entry);
    } else {
      ++entry;
    }
    if (first.ok()) first = std::move(status);
  }
  return first;
}

// Returns false if the region is gone, and its id is free or another region's. Descriptors' numbers
// are given once.
bool RegionCache::IsRegistered(const Worker::Region& region) const {
  const std::vector<Worker::Region> all = worker_.Regions();
  return std::any_of(all.begin(), all.end(), [&](const Worker::Region& one) {
    return one.id == region.id && one.descriptor == region.descriptor;
  });
}

// `*entry` becomes the next one. REQUIRES: it has no lease. An error: the region may be registered,
// and is still an entry.
absl::Status RegionCache::Unregister(Entries::iterator* entry) {
  const std::shared_ptr<Entry> one = **entry;
  absl::Status status = one->region.id == 0 ? Settle(one.get()) : absl::OkStatus();
  if (status.ok() && IsRegistered(one->region)) status = worker_.UnregisterMemory(one->region.id);
  if (!status.ok() && !absl::IsNotFound(status)) {
    // After any other error the region may be gone, or go yet, and must not be named any more.
    if (!absl::IsFailedPrecondition(status)) one->is_invalid = true;
    ++*entry;
    return status;
  }
  *entry = entries_.erase(*entry);
  const uint64_t descriptor = one->region.descriptor;
  if (!worker_.DropDescriptor(descriptor).ok()) undropped_.push_back(descriptor);
  return absl::OkStatus();
}

absl::Status RegionCache::InvalidateThose(absl::FunctionRef<bool(const Entry&)> are_meant) {
  for (const std::shared_ptr<Entry>& entry : entries_) {
    if (are_meant(*entry)) entry->is_invalid = true;
  }
  return EvictInvalid();
}

absl::Status RegionCache::Invalidate(int fd) {
  BATON_ASSIGN_OR_RETURN(const struct stat info, Identify(fd));
  return InvalidateThose([&](const Entry& entry) {
    return entry.device == info.st_dev && entry.inode == info.st_ino;
  });
}

absl::Status RegionCache::InvalidateAll() {
  return InvalidateThose([](const Entry&) { return true; });
}

absl::Status RegionCache::TakeOver() {
  for (const std::shared_ptr<Entry>& entry : entries_) {
    if (!IsRegistered(entry->region)) entry->is_invalid = true;
  }
  for (const Worker::Region& region : worker_.Regions()) {
    const bool is_known = std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
      return entry->region.id == region.id && entry->region.descriptor == region.descriptor;
    });
    if (is_known) continue;
    Entry entry;
    entry.region = region;
    const absl::StatusOr<int> taken = worker_.TakeDescriptor(region.descriptor);
    if (!taken.ok() && !absl::IsNotFound(taken.status())) return taken.status();
    entry.is_invalid = !taken.ok() || region.access != options_.access;
    if (taken.ok()) {
      const FileDescriptor memfd(*taken);
      BATON_ASSIGN_OR_RETURN(const struct stat info, Identify(memfd.get()));
      entry.device = info.st_dev;
      entry.inode = info.st_ino;
    }
    entries_.push_back(std::make_shared<Entry>(entry));
  }
  return options_.tag == 0 ? absl::OkStatus() : DropOrphans();
}

// A former worker may have died before it registered the memory of a descriptor, or after it
// unregistered it.
absl::Status RegionCache::DropOrphans() {
  BATON_ASSIGN_OR_RETURN(const std::vector<uint64_t> held, worker_.HeldDescriptors(options_.tag));
  const std::vector<Worker::Region> all = worker_.Regions();
  for (const uint64_t number : held) {
    const bool is_used = std::any_of(all.begin(), all.end(), [number](const auto& region) {
      return region.descriptor == number;
    });
    if (!is_used) BATON_RETURN_IF_ERROR(worker_.DropDescriptor(number));
  }
  return absl::OkStatus();
}

uint64_t RegionCache::bytes() const {
  uint64_t bytes = 0;
  for (const std::shared_ptr<Entry>& entry : entries_) bytes += entry->region.length;
  return bytes;
}

RegionCache::Statistics RegionCache::statistics() const {
  Statistics statistics = counts_;
  statistics.bytes = bytes();
  statistics.regions = static_cast<uint32_t>(entries_.size());
  return statistics;
}

}  // namespace baton

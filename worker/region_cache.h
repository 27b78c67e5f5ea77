// Keeps memfds of the application registered (Worker::RegisterMemory), so that bytes that are sent
// again are not registered again.
//
//   const RegionCache::Lease lease = …cache.Acquire(fd, 0, length)…;
//   const Buffer bytes = lease.At(0, length);
//   shard.Send(connection, {.opcode = verbs::Opcode::kWrite, .buffers = {&bytes, 1}, …});
//   // After the commit the lease may end, or earlier with Shard::Abandon.
//
// A region that has no lease stays registered until its room is needed. The one that was leased
// least recently goes first. The driver keeps a region while committed requests name it, so the
// cache passes over such regions.
//
// Regions are the service's, and outlive the cache and its worker. A successor finds them with
// TakeOver.
#ifndef WORKER_REGION_CACHE_H_
#define WORKER_REGION_CACHE_H_

#include <sys/types.h>

#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/worker.h"

namespace baton {

// One for a worker. It may be destroyed after the Worker, but nothing else may be called then. Only
// the thread that called Attach may use it and its leases. A call that registers or unregisters
// blocks, as Worker::RegisterMemory does.
class RegionCache {
 public:
  static constexpr uint64_t kTag = 0x736e6f69676572;  // "regions"

  struct Options {
    uint64_t most_bytes = uint64_t{256} << 20;  // registered at once
    uint32_t most_regions = 32;                 // 1 to 64, which is all that a service has
    uint32_t access = 0;                        // or verbs::kRemoteRead
    // For Worker::HoldDescriptor. TakeOver drops every descriptor with this tag that no region has.
    // 0: it drops none.
    uint64_t tag = kTag;
  };
  struct Statistics {
    uint64_t hits = 0;
    uint64_t misses = 0;  // registered anew, or failed to be
    uint64_t evictions = 0;
    uint64_t bytes = 0;  // registered now
    uint32_t regions = 0;
  };

 private:
  struct Entry {
    Worker::Region region;  // `id` is 0: its registration failed, or its answer was lost
    dev_t device = 0;
    ino_t inode = 0;
    uint32_t leases = 0;
    bool is_invalid = false;  // Acquire does not return it
  };

 public:
  // A region that the cache does not unregister as long as this lives. It may outlive the cache.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&& other) noexcept {
      Lease(std::move(other)).entry_.swap(entry_);
      return *this;
    }
    ~Lease() {
      if (entry_ != nullptr) --entry_->leases;
    }

    explicit operator bool() const { return entry_ != nullptr; }
    // REQUIRES for these: it holds a region.
    const Worker::Region& region() const { return entry_->region; }
    // Returns `bytes` at `offset` of the memfd, for SendWork::buffers. REQUIRES: they lie in the
    // range that was acquired.
    Buffer At(uint64_t offset, uint32_t bytes) const {
      return region().At(offset - region().offset, bytes);
    }
    // The same for a peer that READs, with Worker::Region::rkey.
    uint64_t RemoteAddress(uint64_t offset) const {
      return region().remote_address + (offset - region().offset);
    }

   private:
    friend class RegionCache;
    explicit Lease(std::shared_ptr<Entry> entry) : entry_(std::move(entry)) { ++entry_->leases; }

    std::shared_ptr<Entry> entry_;
  };

  // kInvalidArgument: the message names the wrong option.
  static absl::StatusOr<std::unique_ptr<RegionCache>> Create(Worker& worker,
                                                             const Options& options);

  // Returns a region with `length` bytes from `offset` of the memfd, which is sealed as
  // RegisterMemory asks. The caller may close `fd` afterwards. Hold the lease until the transaction
  // whose requests name the region is committed or abandoned. kResourceExhausted: there is no room
  // beside what is in use. Others: those of HoldDescriptor and RegisterMemory.
  absl::StatusOr<Lease> Acquire(int fd, uint64_t offset, uint64_t length);

  // No later Acquire returns a region of this memfd that is registered now. Unregisters those that
  // are not in use. The others are unregistered when they are not, by a later call or an Acquire
  // that registers. kFailedPrecondition: there are such. Others: the message says what failed; the
  // region is tried again, too.
  absl::Status Invalidate(int fd);
  absl::Status InvalidateAll();

  // Adds the service's regions that this cache does not know: those of former workers. Forgets
  // those that others have unregistered. REQUIRES: no other worker uses the regions, or a cache
  // with this tag: this one might unregister what the other is about to send from. So call it when
  // the last shard of the former owners has come, not with the first. An Acquire before it
  // registers anew.
  absl::Status TakeOver();

  Statistics statistics() const;

 private:
  using Entries = std::list<std::shared_ptr<Entry>>;

  RegionCache(Worker& worker, const Options& options) : worker_(worker), options_(options) {}

  Entries::iterator Find(const Entry& wanted);
  absl::Status MakeRoom(uint64_t bytes);
  absl::Status EvictOne();
  absl::Status EvictInvalid();
  absl::Status InvalidateThose(absl::FunctionRef<bool(const Entry&)> are_meant);
  absl::Status Unregister(Entries::iterator* entry);
  absl::StatusOr<Worker::Region> Register(int fd, uint64_t offset, uint64_t length);
  absl::Status Settle(Entry* failed);
  absl::Status DropOrphans();
  bool IsRegistered(const Worker::Region& region) const;
  uint64_t bytes() const;

  Worker& worker_;
  const Options options_;
  Entries entries_;  // the most recently leased first
  // Descriptors of regions that are gone, for which the keeper has not answered. They are dropped
  // before the next registration.
  std::vector<uint64_t> undropped_;
  Statistics counts_;
};

}  // namespace baton

#endif  // WORKER_REGION_CACHE_H_

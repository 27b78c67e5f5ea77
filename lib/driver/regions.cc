#include "lib/driver/regions.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/mapped_memory.h"
#include "lib/base/status.h"

namespace baton::driver {
namespace {

// Owns a region's mapping and its registration. A forked process has neither, unless it inherits
// the mapping to follow this one: what it has mapped in that place since is not this one's.
class RegionMemory final : public verbs::MemoryRegion {
 public:
  RegionMemory(verbs::Device* device, MappedMemory memory)
      : device_(device), process_(getpid()), memory_(std::move(memory)) {}
  ~RegionMemory() override {
    registered_.reset();
    if (getpid() == process_) {
      device_->ForgetMemory(memory_.get());
    } else {
      (void)memory_.release();
    }
  }

  absl::Status Register(const GrantRange& range) {
    BATON_RETURN_IF_ERROR(
        device_->NameMemory(memory_.get(), memory_.get_deleter().bytes, range.memfd->get()));
    begin_ = memory_.get() + range.offset;
    BATON_ASSIGN_OR_RETURN(registered_,
                           device_->RegisterMemory(begin_, range.length, range.access));
    return absl::OkStatus();
  }

  uint32_t lkey() const override { return registered_->lkey(); }
  uint32_t rkey() const override { return registered_->rkey(); }
  void SetInherited(bool inherited) const {
    const int advice = inherited ? MADV_DOFORK : MADV_DONTFORK;
    (void)madvise(memory_.get(), memory_.get_deleter().bytes, advice);
  }
  void TakeOver() { process_ = getpid(); }

  uint64_t address() const { return reinterpret_cast<uint64_t>(begin_); }

 private:
  verbs::Device* const device_;
  pid_t process_;        // that has the mapping
  MappedMemory memory_;  // of the whole file
  uint8_t* begin_ = nullptr;
  std::unique_ptr<verbs::MemoryRegion> registered_;
};

// Asks for the size only of a memfd: fstat of another file may wait for its file system.
absl::StatusOr<MappedMemory> MapAll(const GrantRange& range) {
  const int memfd = range.memfd->get();
  BATON_RETURN_IF_ERROR(CheckMemfd(memfd, range.descriptor));
  struct stat info = {};
  if (fstat(memfd, &info) != 0) {
    return ErrnoStatus(errno, absl::StrCat("fstat of descriptor ", range.descriptor));
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  if (range.offset > size || range.length > size - range.offset) {
    return absl::InvalidArgumentError(absl::StrCat("offset, length: ", range.length, " bytes at ",
                                                   range.offset, " are not within the ", size,
                                                   " bytes of descriptor ", range.descriptor));
  }
  if (size > arena::kMaxBufferBytes) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor: ", range.descriptor, " has ", size,
                                                   " bytes, at most ", arena::kMaxBufferBytes));
  }
  void* const begin = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  if (begin == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("mapping the ", size, " bytes of descriptor ",
                                           range.descriptor, " (see RLIMIT_AS)"));
  }
  // Neither call fails for memory that is mapped.
  (void)madvise(begin, size, MADV_DONTFORK);
  (void)madvise(begin, size, MADV_DONTDUMP);
  return MappedMemory(static_cast<uint8_t*>(begin), Unmap{size});
}

// Returns, by connection, the end of the sends that owners have published, applied or not.
std::map<uint32_t, uint64_t> PublishedSends(const arena::Arena& arena) {
  std::map<uint32_t, uint64_t> ends;
  for (uint32_t shard = 0; shard < arena.shape().shards; ++shard) {
    const arena::ShardRecord& record = arena.shard(shard);
    const uint64_t epoch = arena::OwnershipEpoch(arena::LoadAcquire(record.owner.ownership));
    const uint64_t tail = arena::LoadAcquire(arena.bank(shard, epoch).tail);
    const uint64_t head = arena::LoadAcquire(record.commit_head);
    if (!arena::CursorIsOf(tail, epoch) || !arena::CursorIsOf(head, epoch)) continue;
    const uint64_t first = arena::CursorIndex(head);
    const uint64_t last = std::min(arena::CursorIndex(tail), first + arena::kCommitLogEntries);
    for (uint64_t i = first; i < last; ++i) {
      const arena::CommitEntry entry = arena::CopyOnce(arena.commit_entry(shard, epoch, i));
      if (arena::CommitKind(entry.kind) != arena::CommitKind::kConnection) continue;
      if (entry.connection >= arena.shape().connections) continue;
      uint64_t& end = ends[entry.connection];
      end = std::max(end, entry.send_end);
    }
  }
  return ends;
}

bool Names(const arena::WorkRequest& request, uint32_t region) {
  const uint32_t count = std::min<uint32_t>(request.sge_count, arena::kMaxSges);
  for (uint32_t i = 0; i < count; ++i) {
    if (arena::RegionOf(arena::RangeOf(request, i).offset) == region) return true;
  }
  return false;
}

// Counts the sends of a connection that name the region: those that were committed and have not
// completed, and those before `published`.
uint64_t CountUses(const arena::Arena& arena, uint32_t connection, uint32_t region,
                   uint64_t published) {
  const arena::ConnectionRecord& record = arena.connection(connection);
  const auto state = arena::ConnectionState(arena::LoadAcquire(record.state));
  if (state == arena::ConnectionState::kFree) return 0;
  const uint64_t committed = arena::LoadRelaxed(record.send.committed);
  // The device has none of a connection that is over, and what was not posted will not be.
  const bool is_over = state == arena::ConnectionState::kClosed;
  const uint64_t from = is_over ? committed : arena::LoadRelaxed(record.send.completed);
  const uint64_t log = 2 * uint64_t{arena.shape().send_queue_depth};
  const uint64_t to = std::min(std::max(committed, published), from + log);
  uint64_t uses = 0;
  for (uint64_t i = from; i < to; ++i) {
    uses += Names(arena::CopyOnce(arena.send_request(connection, i)), region);
  }
  return uses;
}

}  // namespace

absl::Status CheckMemfd(int memfd, uint64_t number) {
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = fcntl(memfd, F_GET_SEALS);
  if (seals < 0) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor: ", number, " is no memfd"));
  }
  if ((seals & kNeeded) != kNeeded) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor: ", number,
                     " may still change its size: add F_SEAL_SHRINK and F_SEAL_GROW before"));
  }
  // Linux up to 6.1 pins memory for writing, whatever the device is to do with it.
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor: ", number,
                     " is sealed against writing, and devices need writable memory: leave out "
                     "F_SEAL_WRITE and F_SEAL_FUTURE_WRITE"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ReserveRegion(DeviceObjects* objects, const GrantRange& range) {
  if (range.length == 0 || range.length > arena::kMaxBufferBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "length: ", range.length, " bytes, it has to be 1 to ", arena::kMaxBufferBytes));
  }
  if ((range.access & ~verbs::kRemoteRead) != 0) {
    return absl::InvalidArgumentError(
        "access: a region is for sends and for READs of peers: none, or remote reading; grant a "
        "range of the buffers for anything else");
  }
  // A worker that still believes in a number would send from another region.
  const std::optional<uint32_t> region =
      objects->Reserve(arena::kGrants, arena::kRegions, &objects->next_region, range);
  if (region) return *region;
  return absl::ResourceExhaustedError(
      absl::StrCat("all ", arena::kRegions, " regions of the service are in use: unregister one"));
}

absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> RegisterRegion(verbs::Device* device,
                                                                    const GrantRange& range) {
  BATON_ASSIGN_OR_RETURN(MappedMemory memory, MapAll(range));
  auto region = std::make_unique<RegionMemory>(device, std::move(memory));
  BATON_RETURN_IF_ERROR(region->Register(range));
  return region;
}

namespace {

// The arena's word about a grant or a region, and the rkey of its registration.
struct Published {
  uint64_t* length;
  uint32_t rkey;
};
Published PublishedAt(const arena::Arena& arena, uint32_t grant) {
  if (const uint32_t region = arena::RegionOfGrant(grant); region != 0) {
    arena::RegionRecord& record = arena.region(region);
    return {&record.length, record.rkey};
  }
  arena::GrantRecord& record = arena.grant(grant);
  return {&record.length, record.rkey};
}

RegionMemory* MemoryOf(const DeviceObjects& objects, uint32_t grant) {
  if (arena::RegionOfGrant(grant) == 0) return nullptr;
  return static_cast<RegionMemory*>(objects.grants[grant].region.get());
}

}  // namespace

void SetRegionsInherited(const DeviceObjects& objects, bool inherited) {
  for (uint32_t i = 0; i < objects.grants.size(); ++i) {
    const RegionMemory* const memory = MemoryOf(objects, i);
    if (memory != nullptr) memory->SetInherited(inherited);
  }
}

void TakeOverGrants(const arena::Arena& arena, verbs::Device* device, DeviceObjects* objects) {
  for (uint32_t i = 0; i < objects->grants.size(); ++i) {
    DeviceObjects::Grant& grant = objects->grants[i];
    if (RegionMemory* const memory = MemoryOf(*objects, i)) memory->TakeOver();
    const Published published = PublishedAt(arena, i);
    const bool has_it =
        grant.region != nullptr && *published.length != 0 && grant.region->rkey() == published.rkey;
    if (has_it) continue;
    grant = {};
    if (*published.length == 0) continue;
    (void)device->AdoptRegion(published.rkey);  // and deregisters it
    arena::StoreRelease(*published.length, uint64_t{0});
  }
}

void PublishRegion(const arena::Arena& arena, uint32_t region, const DeviceObjects::Grant& grant) {
  arena::RegionRecord& record = arena.region(region);
  record.address = static_cast<const RegionMemory&>(*grant.region).address();
  record.lkey = grant.region->lkey();
  record.rkey = grant.region->rkey();
  record.access = grant.range.access;
  record.descriptor = grant.range.descriptor;
  record.offset = grant.range.offset;
  arena::StoreRelease(record.length, grant.range.length);
}

// Transactions that were published and are not applied count, too: their worker would be fenced for
// what was right when it committed. A native shard's driver goes on meanwhile, so its entries are
// read before the cursors that it moves when it applies them.
absl::Status WithdrawRegion(const arena::Arena& arena, uint32_t region) {
  const std::map<uint32_t, uint64_t> published = PublishedSends(arena);
  uint64_t uses = 0;
  for (uint32_t i = 0; i < arena.shape().connections; ++i) {
    const auto end = published.find(i);
    uses += CountUses(arena, i, region, end == published.end() ? 0 : end->second);
  }
  if (uses != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("region ", region, ": ", uses,
                     " work requests that name it have not completed: unregister it later"));
  }
  arena::StoreRelease(arena.region(region).length, uint64_t{0});
  return absl::OkStatus();
}

}  // namespace baton::driver

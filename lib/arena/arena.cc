#include "lib/arena/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1, not in Debian 12's headers
#endif

namespace baton::arena {
namespace {

absl::Status CheckRange(const char* field, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", value, " is not between ", low, " and ", high));
}

absl::Status CheckPowerOfTwo(const char* field, uint64_t value) {
  if (std::has_single_bit(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is not a power of two"));
}

// Returns the bytes that the kernel can provide; 0: unknown. The kernel takes a memfd's memory when
// it is first touched, and kills a process if there is none left. So a service that does not fit is
// refused in advance.
uint64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  uint64_t kilobytes = 0;
  while (file >> name >> kilobytes) {
    if (name == "MemAvailable:") return kilobytes * 1024;
    std::getline(file, unit);
  }
  return 0;
}

absl::Status CheckMemory(uint64_t needed, std::string_view service) {
  const uint64_t available = AvailableMemory();
  if (available == 0 || needed <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("service ", View(service), " needs ", needed >> 20, " MiB and ", available >> 20,
                   " MiB are available: lower buffer_bytes, shard_heap_bytes, max_connections or "
                   "the queue depths"));
}

// Returns the size of a memory's file: whole huge pages. With these a dying worker unmaps tens of
// megabytes in microseconds instead of a millisecond. Meanwhile a kernel that does not preempt
// itself keeps a processor from the successor.
uint64_t FileBytes(uint64_t bytes) { return AlignUp(bytes, kHugePageBytes); }

// `huge_page_bytes`: of pages from the kernel's pool; 0: ordinary ones.
absl::StatusOr<FileDescriptor> CreateMemory(const std::string& name, uint64_t bytes,
                                            uint64_t huge_page_bytes = 0) {
  constexpr int kHugeShift = 26;  // MFD_HUGE_SHIFT, not in every C library's headers
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (huge_page_bytes != 0) {
    flags |= MFD_HUGETLB | static_cast<unsigned>(std::countr_zero(huge_page_bytes)) << kHugeShift;
  }
  FileDescriptor fd(memfd_create(name.c_str(), flags));
  if (!fd) return ErrnoStatus(errno, absl::StrCat("memfd_create(", name, "), see RLIMIT_NOFILE"));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("no memory for ", name, ": ", bytes,
                                           " bytes needed; make the service smaller"));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) != 0) {
    return ErrnoStatus(errno, absl::StrCat("sealing the size of ", name));
  }
  return fd;
}

absl::Status NoRoom(uint64_t size, absl::string_view name) {
  return ErrnoStatus(errno, absl::StrCat("mapping ", size, " bytes of the ", name,
                                         " (see RLIMIT_AS and free memory)"));
}

// Page faults of a successor that takes over would prolong the blackout by a millisecond for 64
// connections. A kernel that does not know an advice refuses it, and only time is lost.
void FillPageTables(uint8_t* base, uint64_t size, bool writable) {
  if (writable) {  // huge pages serve every process that maps the file
    // MADV_COLLAPSE fails where no page is present, so each huge page first gets one.
    for (uint64_t at = 0; at < size; at += kHugePageBytes) {
      (void)madvise(base + at, kPageBytes, MADV_POPULATE_READ);
    }
    (void)madvise(base, size, MADV_COLLAPSE);
  }
  (void)madvise(base, size, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
}

absl::Status Seal(int fd, int seals, const char* what) {
  if (fcntl(fd, F_ADD_SEALS, seals) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("sealing the ", what));
}

}  // namespace

absl::Status ValidateShape(const Shape& shape) {
  BATON_RETURN_IF_ERROR(CheckRange("shards", shape.shards, 1, kMaxShards));
  BATON_RETURN_IF_ERROR(CheckRange("connections", shape.connections, 1, kMaxConnections));
  BATON_RETURN_IF_ERROR(CheckRange("workers", shape.workers, 1, kMaxWorkers));
  BATON_RETURN_IF_ERROR(CheckRange("send_queue_depth", shape.send_queue_depth, 1, kMaxQueueDepth));
  BATON_RETURN_IF_ERROR(CheckPowerOfTwo("send_queue_depth", shape.send_queue_depth));
  BATON_RETURN_IF_ERROR(
      CheckRange("receive_queue_depth", shape.receive_queue_depth, 1, kMaxQueueDepth));
  BATON_RETURN_IF_ERROR(CheckPowerOfTwo("receive_queue_depth", shape.receive_queue_depth));
  if (HasSharedReceives(shape)) {
    BATON_RETURN_IF_ERROR(CheckRange("shared_receive_queue_depth", shape.shared_receive_queue_depth,
                                     2, kMaxQueueDepth));
    BATON_RETURN_IF_ERROR(
        CheckPowerOfTwo("shared_receive_queue_depth", shape.shared_receive_queue_depth));
  }
  BATON_RETURN_IF_ERROR(
      CheckRange("connection_state_bytes", shape.connection_state_bytes, 64, kMaxStateBytes));
  BATON_RETURN_IF_ERROR(
      CheckRange("shard_state_bytes", shape.shard_state_bytes, 64, kMaxStateBytes));
  if (shape.connection_state_bytes % kLineBytes != 0 || shape.shard_state_bytes % kLineBytes != 0) {
    return absl::InvalidArgumentError(
        "connection_state_bytes, shard_state_bytes: not a multiple of 64");
  }
  BATON_RETURN_IF_ERROR(
      CheckRange("buffer_bytes", shape.buffer_bytes, kPageBytes, kMaxBufferBytes));
  if (shape.buffer_bytes % kPageBytes != 0) {
    return absl::InvalidArgumentError("buffer_bytes: not a multiple of 4096");
  }
  BATON_RETURN_IF_ERROR(CheckRange("heap_pages", shape.heap_pages, 0, kMaxHeapBytes / kPageBytes));
  if (shape.shards * HeapBytes(shape) >= shape.buffer_bytes) {
    return absl::InvalidArgumentError("heap_pages: the heaps leave nothing of buffer_bytes");
  }
  BATON_RETURN_IF_ERROR(CheckRange("max_inline_bytes", shape.max_inline_bytes, 0, kMaxInlineBytes));
  BATON_RETURN_IF_ERROR(
      CheckRange("pooled_queue_pairs", shape.pooled_queue_pairs, 0, kMaxConnections));
  BATON_RETURN_IF_ERROR(
      CheckRange("brokered_queue_pairs", shape.brokered_queue_pairs, 0, kMaxConnections));
  const uint64_t required = RequiredCompletionEntries(shape);
  if (required > uint64_t{1} << 30) {
    return absl::InvalidArgumentError(
        absl::StrCat("connections x queue depths: ", required,
                     " completions could be outstanding, at most 2^30 are possible"));
  }
  BATON_RETURN_IF_ERROR(CheckRange("completion_log_entries", shape.completion_log_entries, required,
                                   uint64_t{1} << 30));
  return CheckPowerOfTwo("completion_log_entries", shape.completion_log_entries);
}

absl::StatusOr<Mapping> Mapping::Map(int fd, uint64_t size, bool writable, const char* name) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, absl::StrCat("fstat of the ", name));
  if (static_cast<uint64_t>(info.st_size) != size) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ", name, " has ", info.st_size, " bytes, its header asks for ", size));
  }
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  // Huge pages need an address that is a multiple of their size. So this reserves one more than
  // needed, and unmaps the rest. st_blksize is the size of a page of the pool.
  const uint64_t page = std::max<uint64_t>(kHugePageBytes, static_cast<uint64_t>(info.st_blksize));
  void* const reserved = mmap(nullptr, size + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return NoRoom(size, name);
  uint8_t* const begin = static_cast<uint8_t*>(reserved);
  uint8_t* const place = begin + (AlignUp(reinterpret_cast<uint64_t>(begin), page) -
                                  reinterpret_cast<uint64_t>(begin));
  if (mmap(place, size, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const absl::Status status = NoRoom(size, name);
    munmap(begin, size + page);
    return status;
  }
  if (place > begin) munmap(begin, static_cast<size_t>(place - begin));
  munmap(place + size, static_cast<size_t>(begin + page - place));
  Mapping mapping;
  mapping.memory_ = MappedMemory(place, Unmap{size});
  // The kernel writes a core dump before it marks a dying thread's locks, for which heirs wait.
  (void)madvise(place, size, MADV_DONTDUMP);
  FillPageTables(place, size, writable);
  return mapping;
}

void Arena::DumpBuffersIfAsked() const {
  if (shape_.dump_buffers == 0) return;
  (void)madvise(buffers(), memories_[kBuffersMemory].size(), MADV_DODUMP);
}

// Each page is taken here. The kernel kills a process that touches one when there are none left.
absl::Status Arena::PutBuffersOn(uint64_t huge_page_bytes, const std::string& name) {
  const uint64_t bytes = FileBytes(shape_.buffer_bytes);
  if (bytes % huge_page_bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the buffers have ", bytes, " bytes, no multiple of ", huge_page_bytes));
  }
  BATON_ASSIGN_OR_RETURN(FileDescriptor fd, CreateMemory(name, bytes, huge_page_bytes));
  BATON_ASSIGN_OR_RETURN(Mapping mapping,
                         Mapping::Map(fd.get(), bytes, true, kMemoryTitles[kBuffersMemory]));
  if (madvise(mapping.base(), bytes, MADV_POPULATE_WRITE) != 0) {
    return ErrnoStatus(errno, absl::StrCat("taking ", bytes / huge_page_bytes, " pages of ",
                                           huge_page_bytes >> 20, " MiB"));
  }
  fds_[kBuffersMemory] = std::move(fd);
  memories_[kBuffersMemory] = std::move(mapping);
  return absl::OkStatus();
}

Mapping Mapping::Of(uint8_t* base, uint64_t size) {
  Mapping mapping;
  mapping.memory_ = MappedMemory(base, Unmap{size});
  return mapping;
}

absl::StatusOr<Arena> Arena::Create(const Shape& shape, std::string_view service,
                                    uint64_t huge_page_bytes) {
  BATON_RETURN_IF_ERROR(ValidateShape(shape));
  if (service.size() >= kServiceNameBytes) {
    return absl::InvalidArgumentError("service name: longer than 63 bytes");
  }
  Arena arena(WithPools(shape));
  const uint64_t start = MonotonicNanoseconds();
  const auto name_of = [&](size_t i) {
    return absl::StrCat(kMemoryNames[i], std::string(service), ".", start);
  };
  if (huge_page_bytes != 0) {
    arena.huge_pages_ = arena.PutBuffersOn(huge_page_bytes, name_of(kBuffersMemory));
  }
  const bool has_buffers = static_cast<bool>(arena.fds_[kBuffersMemory]);
  std::array<uint64_t, kMemoryNames.size()> bytes = arena.MemoryBytes();
  if (has_buffers) bytes[kBuffersMemory] = 0;
  BATON_RETURN_IF_ERROR(
      CheckMemory(std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}), service));
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0) continue;
    BATON_ASSIGN_OR_RETURN(arena.fds_[i], CreateMemory(name_of(i), bytes[i]));
    BATON_ASSIGN_OR_RETURN(arena.memories_[i],
                           Mapping::Map(arena.fds_[i].get(), bytes[i], true, kMemoryTitles[i]));
  }
  arena.DumpBuffersIfAsked();
  BATON_RETURN_IF_ERROR(Seal(arena.driver_log_fd(), F_SEAL_FUTURE_WRITE, "driver log memory"));
  for (const FileDescriptor& fd : arena.fds_) {
    BATON_RETURN_IF_ERROR(Seal(fd.get(), F_SEAL_SEAL, "arena"));
  }

  // Readers of version 1 map buffers at multiples of 2 MiB.
  const bool giant = has_buffers && huge_page_bytes > kHugePageBytes;
  const uint32_t oldest_reader = giant ? 2 : OldestReader(shape);
  *arena.At<WorkerMemoryHeader>(kWorkerLogMemory, 0) = {kMagic, oldest_reader, 0};
  DriverMemoryHeader& header = arena.header();
  header.magic = kMagic;
  header.shape = arena.shape();
  std::copy(service.begin(), service.end(), header.service);
  header.created_ns = start;
  header.regions = kRegions;
  for (uint32_t i = 0; i < shape.shards; ++i) {
    arena.shard(i).owner.ownership = PackOwnership(0, kNobody);
  }
  header.layout_version = kLayoutVersion;
  StoreRelease(header.oldest_reader, oldest_reader);
  return arena;
}

bool Arena::HasRegionWith(BufferRange range) const {
  const uint32_t number = RegionOf(range.offset);
  if (number == 0) return false;
  const uint64_t begin = range.offset - RegionOffset(number);
  const uint64_t length = LoadAcquire(region(number).length);
  return begin < length && range.length <= length - begin;
}

void Arena::ClearWorker(uint32_t slot) const {
  WorkerSlot& cleared = worker(slot);
  StoreRelaxed(cleared.heartbeat, uint64_t{0});
  StoreRelaxed(cleared.unhealthy, 0u);
  StoreRelaxed(cleared.sleeping, 0u);
  for (ThreadLock& lock : cleared.thread_locks) {
    StoreRelaxed(lock.futex, 0u);
    std::fill(std::begin(lock.rest), std::end(lock.rest), uint8_t{0});
  }
}

void Arena::KeepFromChildren() const {
  for (const Mapping& memory : memories_) {
    if (memory.size() != 0) (void)madvise(memory.base(), memory.size(), MADV_DONTFORK);
  }
}

std::array<uint64_t, kMemoryNames.size()> Arena::MemoryBytes() const {
  return {FileBytes(worker_map_.total), FileBytes(driver_map_.total),
          FileBytes(shape_.buffer_bytes), FileBytes(recovery_map_.total)};
}

Arena::Bases Arena::bases() const {
  Bases bases = {};
  for (size_t i = 0; i < bases.size(); ++i) bases[i] = memories_[i].base();
  return bases;
}

absl::StatusOr<Arena> Arena::Inherit(const Bases& bases) {
  const auto& header = *reinterpret_cast<const DriverMemoryHeader*>(bases[kDriverLogMemory]);
  if (header.magic != kMagic || header.layout_version != kLayoutVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the arena has layout version ", header.layout_version, ", and this code drives ",
        kLayoutVersion, " alone: it comes into use with the service's next start"));
  }
  // Workers of a native service can write it.
  const Shape shape = CopyOnce(header.shape);
  BATON_RETURN_IF_ERROR(ValidateShape(shape));
  Arena arena(shape);
  const std::array<uint64_t, kMemoryNames.size()> bytes = arena.MemoryBytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    arena.memories_[i] = Mapping::Of(bases[i], bytes[i]);
  }
  return arena;
}

absl::StatusOr<Arena> Arena::Map(FileDescriptor worker_log, FileDescriptor driver_log,
                                 FileDescriptor buffers) {
  struct stat info = {};
  if (fstat(driver_log.get(), &info) != 0)
    return ErrnoStatus(errno, "fstat of the driver log memory");
  if (info.st_size < static_cast<off_t>(kPageBytes)) {
    return absl::FailedPreconditionError("the driver log memory is too small for its header");
  }
  BATON_ASSIGN_OR_RETURN(Mapping driver,
                         Mapping::Map(driver_log.get(), static_cast<uint64_t>(info.st_size), false,
                                      "driver log memory"));
  const auto* header = reinterpret_cast<const DriverMemoryHeader*>(driver.base());
  const uint32_t oldest_reader = LoadAcquire(header->oldest_reader);
  if (header->magic != kMagic || oldest_reader == 0) {
    return absl::FailedPreconditionError("the driver log memory is not ready or not Baton's");
  }
  const uint32_t version = std::max(header->layout_version, oldest_reader);
  if (oldest_reader > kLayoutVersion || version < kOldestLayoutVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the arena has layout version ", version, ", readable from version ", oldest_reader,
        "; this worker library reads versions ", kOldestLayoutVersion, " to ", kLayoutVersion,
        ": build it with the supervisor's release or the one before"));
  }
  const Shape shape = CopyOnce(header->shape);
  BATON_RETURN_IF_ERROR(ValidateShape(shape));
  Arena arena(shape);
  arena.layout_version_ = std::min(version, kLayoutVersion);
  if (driver.size() != FileBytes(arena.driver_map_.total)) {
    return absl::FailedPreconditionError("the driver log memory has another size than its shape");
  }
  arena.fds_ = {std::move(worker_log), std::move(driver_log), std::move(buffers)};
  arena.memories_[kDriverLogMemory] = std::move(driver);
  BATON_ASSIGN_OR_RETURN(arena.memories_[kWorkerLogMemory],
                         Mapping::Map(arena.worker_log_fd(), FileBytes(arena.worker_map_.total),
                                      true, "worker log memory"));
  BATON_ASSIGN_OR_RETURN(
      arena.memories_[kBuffersMemory],
      Mapping::Map(arena.buffers_fd(), FileBytes(shape.buffer_bytes), true, "buffers"));
  arena.DumpBuffersIfAsked();
  arena.KeepFromChildren();
  return arena;
}

}  // namespace baton::arena

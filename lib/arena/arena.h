// The memories of a service. The driver creates them and workers map three of them. The fourth, the
// recovery memory, is for the driver's successors; brokered workers do not have it.
//
// All are memfds, sealed against growing, shrinking and further sealing. Once the driver has mapped
// the driver log memory, it seals it against further writable mappings, so a process that receives
// its descriptor can only read. Nothing here is freed while an Arena lives.
#ifndef LIB_ARENA_ARENA_H_
#define LIB_ARENA_ARENA_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/layout.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/mapped_memory.h"

namespace baton::arena {

// Operators find an arena's memories in /proc by their file names: the kind's name, the service,
// "." and DriverMemoryHeader::created_ns, which is the same for all memories of one arena.
enum MemoryKind : uint8_t {
  kWorkerLogMemory = 0,
  kDriverLogMemory = 1,
  kBuffersMemory = 2,
  kRecoveryMemory = 3,
};
inline constexpr std::array<const char*, 4> kMemoryNames = {
    "baton-worker-log-", "baton-driver-log-", "baton-buffers-", "baton-recovery-"};
inline constexpr std::array<const char*, 4> kMemoryTitles = {  // for people
    "worker log memory", "driver log memory", "buffers", "recovery memory"};

// kInvalidArgument names the field that is out of its range.
absl::Status ValidateShape(const Shape& shape);

// A shared mapping of a whole file, with its page tables filled, and in no core dump.
class Mapping {
 public:
  // Maps `size` bytes of `fd`. kFailedPrecondition: the file has another size.
  static absl::StatusOr<Mapping> Map(int fd, uint64_t size, bool writable, const char* name);
  // Owns what is mapped there already.
  static Mapping Of(uint8_t* base, uint64_t size);
  uint8_t* base() const { return memory_.get(); }
  uint64_t size() const { return memory_.get_deleter().bytes; }

 private:
  MappedMemory memory_;
};

class Arena {
 public:
  // The driver calls this. Creates memories of this shape, zeroed, with headers. The buffers are on
  // pages of `huge_page_bytes` from the kernel's pool if it has enough of them: see huge_pages().
  // 0: none are asked for.
  static absl::StatusOr<Arena> Create(const Shape& shape, std::string_view service,
                                      uint64_t huge_page_bytes = 0);
  // Returns why the buffers are not on the huge pages that Create() was asked for. OK: they are, or
  // it was asked for none.
  const absl::Status& huge_pages() const { return huge_pages_; }

  // A worker calls this. Maps the memories whose descriptors the keeper sent. kFailedPrecondition:
  // this build cannot read them; names both layout versions.
  static absl::StatusOr<Arena> Map(FileDescriptor worker_log, FileDescriptor driver_log,
                                   FileDescriptor buffers);

  // Where each memory is mapped, by MemoryKind.
  using Bases = std::array<uint8_t*, kMemoryNames.size()>;
  Bases bases() const;
  // Code of another release calls this in a process that was forked from the driver's: makes an
  // Arena of its own for the driver's mappings, without descriptors. kFailedPrecondition: the arena
  // has another layout than this build's; names both versions.
  static absl::StatusOr<Arena> Inherit(const Bases& bases);

  // Keeps the memories unmapped in processes forked from now on, so that only the worker can write
  // what it owns. Map() calls this.
  void KeepFromChildren() const;

  const Shape& shape() const { return shape_; }
  // Returns the older of the arena's layout version and this build's. Callers do not use fields of
  // later versions.
  uint32_t layout_version() const { return layout_version_; }
  const WorkerMemoryMap& worker_map() const { return worker_map_; }
  const DriverMemoryMap& driver_map() const { return driver_map_; }
  const RecoveryMemoryMap& recovery_map() const { return recovery_map_; }

  // The service's registered memory, shape().buffer_bytes.
  uint8_t* buffers() const { return memories_[kBuffersMemory].base(); }

  // Views. REQUIRES: valid indices.
  DriverMemoryHeader& header() const { return *At<DriverMemoryHeader>(kDriverLogMemory, 0); }
  ShardRecord& shard(uint32_t shard) const {
    return *At<ShardRecord>(kDriverLogMemory, driver_map_.Shard(shard));
  }
  ConnectionRecord& connection(uint32_t connection) const {
    return *At<ConnectionRecord>(kDriverLogMemory, driver_map_.Connection(connection));
  }
  GrantRecord& grant(uint32_t grant) const {
    return *At<GrantRecord>(kDriverLogMemory, driver_map_.Grant(grant));
  }
  // REQUIRES: region from 1 to kRegions.
  RegionRecord& region(uint32_t region) const {
    return *At<RegionRecord>(kDriverLogMemory, DriverMemoryMap::Region(region));
  }
  // Returns whether a region has the whole range.
  bool HasRegionWith(BufferRange range) const;
  CompletionEntry& completion(uint32_t shard, uint64_t index) const {
    return At<CompletionEntry>(
        kDriverLogMemory,
        driver_map_.CompletionLog(shard))[index & (shape_.completion_log_entries - 1)];
  }
  // Only drivers call these: a brokered worker has no recovery memory.
  PollSlot* poll_slots(uint32_t shard) const {
    return At<PollSlot>(kRecoveryMemory, recovery_map_.PollSlots(shard));
  }
  SpareRecord& spare(uint32_t shard, uint32_t spare) const {
    return *At<SpareRecord>(kRecoveryMemory, recovery_map_.Spare(shard, spare));
  }
  uint8_t* spare_buffer(uint32_t shard, uint32_t spare) const {
    return memories_[kRecoveryMemory].base() + recovery_map_.SpareBuffer(shard, spare);
  }

  // REQUIRES: PooledQueuePairs() != 0, as all below.
  SuccessionRecord& succession(uint32_t shard) const {
    return *At<SuccessionRecord>(kRecoveryMemory, recovery_map_.SuccessionOf(shard));
  }
  DeathsRecord& deaths(uint32_t shard, uint32_t copy) const {
    return At<DeathsRecord>(kRecoveryMemory, recovery_map_.DeathsOf(shard))[copy];
  }
  ReportRecord& report(uint32_t shard, uint64_t epoch) const {
    return At<ReportRecord>(kRecoveryMemory, recovery_map_.Reports(shard))[epoch % kReports];
  }
  MailCursors& notices(uint32_t shard) const {
    return *At<MailCursors>(kRecoveryMemory, recovery_map_.Notices(shard));
  }
  MailCursors& orders(uint32_t shard) const {
    return *At<MailCursors>(kRecoveryMemory, recovery_map_.Orders(shard));
  }
  PooledQueuePair& pooled(uint32_t shard, uint32_t index) const {
    return At<PooledQueuePair>(kRecoveryMemory, recovery_map_.Pool(shard))[index];
  }
  WorkerRecord& worker_record(uint32_t slot) const {
    return *At<WorkerRecord>(kRecoveryMemory, recovery_map_.WorkerRecordOf(slot));
  }
  ManagedConnection& managed_connection(uint32_t connection) const {
    return *At<ManagedConnection>(kRecoveryMemory, recovery_map_.ManagedConnectionOf(connection));
  }

  WorkerSlot& worker(uint32_t slot) const {
    return *At<WorkerSlot>(kWorkerLogMemory, worker_map_.Worker(slot));
  }
  // Clears the slot for its next worker. A watcher of the former worker's locks may still read
  // them.
  void ClearWorker(uint32_t slot) const;
  BankHeader& bank(uint32_t shard, uint64_t epoch) const {
    return *At<BankHeader>(kWorkerLogMemory, worker_map_.Bank(shard, epoch));
  }
  CommitEntry& commit_entry(uint32_t shard, uint64_t epoch, uint64_t index) const {
    return At<CommitEntry>(kWorkerLogMemory,
                           worker_map_.BankEntries(shard, epoch))[index & (kCommitLogEntries - 1)];
  }
  WorkRequest& send_request(uint32_t connection, uint64_t sequence) const {
    return At<WorkRequest>(
        kWorkerLogMemory,
        worker_map_.SendLog(connection))[sequence & (2 * uint64_t{shape_.send_queue_depth} - 1)];
  }
  WorkRequest& receive_request(uint32_t connection, uint64_t sequence) const {
    return At<WorkRequest>(
        kWorkerLogMemory,
        worker_map_.ReceiveLog(
            connection))[sequence & (2 * uint64_t{shape_.receive_queue_depth} - 1)];
  }
  // REQUIRES: a service with shared receives, and slot < SharedReceiveSlots(shape()).
  SharedReceive& shared_receive(uint32_t shard, uint32_t slot) const {
    return At<SharedReceive>(kDriverLogMemory, driver_map_.SharedReceives(shard))[slot];
  }
  // Returns the blocks of the shard's heap, by the page at which they begin. REQUIRES: it has one.
  HeapBlock* heap(uint32_t shard) const {
    return At<HeapBlock>(kDriverLogMemory, driver_map_.Heap(shard));
  }
  WorkRequest& shared_receive_request(uint32_t shard, uint32_t slot) const {
    return At<WorkRequest>(kWorkerLogMemory, worker_map_.SharedReceives(shard))[slot];
  }
  uint8_t* connection_state(uint32_t connection, uint32_t slot) const {
    return memories_[kWorkerLogMemory].base() + worker_map_.ConnectionState(connection, slot);
  }
  uint8_t* shard_state(uint32_t shard, uint32_t slot) const {
    return memories_[kWorkerLogMemory].base() + worker_map_.ShardState(shard, slot);
  }
  uint8_t* private_data(uint32_t connection) const {
    return memories_[kWorkerLogMemory].base() + worker_map_.PrivateData(connection);
  }

  int worker_log_fd() const { return fds_[kWorkerLogMemory].get(); }
  int driver_log_fd() const { return fds_[kDriverLogMemory].get(); }
  int buffers_fd() const { return fds_[kBuffersMemory].get(); }
  int recovery_fd() const { return fds_[kRecoveryMemory].get(); }

 private:
  std::array<uint64_t, kMemoryNames.size()> MemoryBytes() const;  // without huge pages
  void DumpBuffersIfAsked() const;
  absl::Status PutBuffersOn(uint64_t huge_page_bytes, const std::string& name);
  explicit Arena(const Shape& shape)
      : shape_(shape), worker_map_(shape), driver_map_(shape), recovery_map_(shape) {}

  template <typename T>
  T* At(MemoryKind kind, uint64_t offset) const {
    return reinterpret_cast<T*>(memories_[kind].base() + offset);
  }

  Shape shape_;
  uint32_t layout_version_ = kLayoutVersion;
  WorkerMemoryMap worker_map_;
  DriverMemoryMap driver_map_;
  RecoveryMemoryMap recovery_map_;
  // Both are indexed by MemoryKind.
  std::array<FileDescriptor, kMemoryNames.size()> fds_;
  std::array<Mapping, kMemoryNames.size()> memories_;
  absl::Status huge_pages_;
};

}  // namespace baton::arena

#endif  // LIB_ARENA_ARENA_H_

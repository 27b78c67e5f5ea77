// A shard's heap: registered memory from which its owner allocates buffers of any size.
//
//   BATON_ASSIGN_OR_RETURN(const Buffer value, shard.heap().Allocate(length));
//   std::memcpy(shard.heap().At(value), bytes, length);
//   shard.SetShardState(…the offset of `value`…);
//
// Allocate, Keep and Free are part of the open transaction, like SetState: memory that a dead
// worker allocated and did not commit is free again, and memory that it freed and did not commit is
// not. Scratch memory belongs to no transaction: it ends with the owner.
//
// Memory that is freed, in either way, is not given to anybody else while a work request of the
// shard, or a grant, refers to it. So a buffer may be freed in the transaction that sends it. A
// work request names the heap of its own shard only: another one's is refused with
// kInvalidArgument, and the driver does not post it. Receives that were posted here before their
// connection was accepted into another shard go on to use this heap.
#ifndef WORKER_HEAP_H_
#define WORKER_HEAP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory_resource>
#include <new>
#include <thread>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/heap_blocks.h"
#include "worker/worker.h"

namespace baton {

// The shard owns it, and it can be used while the shard can. Only the thread that called Attach may
// use it. A service whose other threads write into its memory has an outside effect: see
// Capacity::outside_effects.
//
// Functions return
//   kResourceExhausted: no room, in the heap or in the transaction. The message says which.
//   kInvalidArgument: the message names the wrong field.
//   kFailedPrecondition: another thread called.
//   kAborted: this worker does not own the shard.
//   kDataLoss: a former owner, or another native worker, has damaged the heap. Nothing can be
//     allocated until the service's driver is started anew.
class Heap {
 public:
  // Bytes. The sum of kept, scratch, held, free and rest is `bytes`.
  struct Statistics {
    uint64_t bytes = 0;
    uint64_t kept = 0;     // allocated, and committed or in the open transaction
    uint64_t scratch = 0;  // allocated as scratch memory
    uint64_t held = 0;     // freed, and maybe still in use by work requests or grants
    uint64_t free = 0;
    uint64_t largest_free = 0;
    uint64_t rest = 0;  // lost behind the last objects of blocks
    // Returns which part of the free memory lies outside the largest range: 0 to 1.
    double fragmentation() const {
      return free == 0 ? 0 : 1 - static_cast<double>(largest_free) / static_cast<double>(free);
    }
  };

  static constexpr uint32_t kAlignment = arena::kHeapUnitBytes;
  static constexpr uint32_t kMaxAlignment = HeapBlocks::kMaxAlignment;
  // Calls of Allocate, Keep and Free of kept memory in one transaction. Another one returns
  // kResourceExhausted. An Allocate leaves room for one Free. Each completion is delivered with
  // room for kStepsPerCompletion: delivery waits for the commit of a transaction that has less.
  static constexpr size_t kMaxTransactionSteps = 4096;
  static constexpr size_t kStepsPerCompletion = 512;

  // Allocates `bytes`, in one range. Buffer::length is `bytes`; what is beyond it up to the size
  // class is not used for anything else. `alignment`: a power of two, at most kMaxAlignment.
  absl::StatusOr<Buffer> Allocate(uint64_t bytes, uint32_t alignment = kAlignment);
  absl::StatusOr<Buffer> AllocateScratch(uint64_t bytes, uint32_t alignment = kAlignment);
  // Makes scratch memory part of the committed state, with the open transaction.
  absl::Status Keep(const Buffer& buffer);
  // Frees what begins where `buffer` does. Scratch memory is free at once, whatever becomes of the
  // transaction.
  absl::Status Free(const Buffer& buffer);

  uint8_t* At(const Buffer& buffer) const { return buffers_ + buffer.offset; }
  // Returns the buffer at an address that At() returned, or inside such memory.
  Buffer BufferAt(const void* address, uint32_t length) const {
    return {static_cast<uint64_t>(static_cast<const uint8_t*>(address) - buffers_), length};
  }

  // Calls `visit` for all memory that is allocated, with the length of its size class, in the order
  // of addresses. `visit` must not use the heap. An owner that finds memory here which its state
  // does not know may free it afterwards: what belonged to a connection that poison has ended, for
  // example.
  absl::Status ForEachAllocated(const std::function<void(const Buffer&, bool kept)>& visit);
  absl::StatusOr<Statistics> statistics();
  // Returns whether the open transaction allocates, keeps or frees memory.
  bool HasStaged() const { return !changed_.empty(); }

 private:
  friend class Shard;

  enum class Step : uint8_t { kAllocated, kKept, kFreed };
  struct Staged {
    HeapBlocks::Object object;
    Step step;
  };

  explicit Heap(Shard* shard);

  absl::Status Prepare();
  absl::StatusOr<HeapBlocks::Object> Take(uint64_t bytes, uint32_t alignment, bool kept);
  absl::StatusOr<HeapBlocks::Object> Find(const Buffer& buffer) const;
  void PlanReclaim();
  absl::Status EnterBlock(uint32_t block, size_t steps);
  void Stage(const HeapBlocks::Object& object, Step step);
  absl::Status NoRoom(uint64_t bytes) const;
  Buffer BufferOf(const HeapBlocks::Object& object, uint64_t length) const;
  void ForEachInUse(HeapBlocks::VisitRange visit) const;

  // For Shard: the open transaction.
  // Whether the totals have changed since the owner stored them. Then the shard knows it.
  bool has_untold() const { return untold_; }
  bool IsCrowded() const { return staged_.size() > kMaxTransactionSteps - kStepsPerCompletion; }
  size_t entries() const {
    return (changed_.size() + arena::kHeapChangesPerEntry - 1) / arena::kHeapChangesPerEntry;
  }
  void AddEntries(std::vector<arena::CommitEntry>* entries) const;
  void NoteCommitted();
  void Abandon();
  void ForgetStaged();
  void NoteChange();
  void TellTotals();

  Shard* shard_;
  uint8_t* buffers_;
  uint64_t begin_;  // in the buffers
  std::thread::id thread_;
  uint64_t loaded_epoch_ = 0;  // 0: not loaded
  absl::Status damage_;
  uint64_t reclaim_at_ = 0;  // held bytes
  bool untold_ = false;
  HeapBlocks blocks_;
  std::vector<Staged> staged_;
  std::vector<uint32_t> changed_;  // blocks
};

// Scratch memory of a shard's heap for containers: a std::pmr::vector whose bytes can be sent as
// they are. Make one for each epoch, in OnAdopt: what it allocated ends with the epoch, and is not
// given back twice when containers outlive it. Throws std::bad_alloc where the heap has no room.
//
// Destroy containers in OnRelease: the next owner writes over their elements. One that outlives the
// epoch must have elements without destructors in one piece (std::pmr::vector, std::pmr::string),
// because others read their memory when they are destroyed. None may outlive the Worker.
//
// Containers do not survive their process, which has its pointers. What a successor has to find
// belongs in memory of Allocate(), addressed by offset.
class HeapResource final : public std::pmr::memory_resource {
 public:
  explicit HeapResource(Shard* shard) : shard_(shard), epoch_(shard->epoch()) {}

 private:
  void* do_allocate(size_t bytes, size_t alignment) override {
    if (shard_->epoch() != epoch_) throw std::bad_alloc();
    const auto wanted =
        static_cast<uint32_t>(alignment < Heap::kAlignment ? Heap::kAlignment : alignment);
    const absl::StatusOr<Buffer> buffer =
        shard_->heap().AllocateScratch(bytes == 0 ? 1 : bytes, wanted);
    if (!buffer.ok()) throw std::bad_alloc();
    return shard_->heap().At(*buffer);
  }
  void do_deallocate(void* memory, size_t /*bytes*/, size_t /*alignment*/) override {
    if (shard_->epoch() != epoch_) return;
    shard_->heap().Free(shard_->heap().BufferAt(memory, 1)).IgnoreError();
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  Shard* shard_;
  uint64_t epoch_;
};

// The allocator of containers that lie in a shard's heap and nowhere else:
//
//   HeapResource resource(&shard);
//   std::vector<uint32_t, HeapAllocator<uint32_t>> numbers(&resource);
//
// The containers of std::pmr, which are of one type wherever they lie, take the HeapResource as
// well. But a copy of such a container lies in ordinary memory, and one of these in the heap. What
// HeapResource says of containers goes for these. The resource must outlive them.
template <typename T>
class HeapAllocator {
 public:
  using value_type = T;
  // Elements move with their memory.
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  HeapAllocator(HeapResource* resource) : resource_(resource) {}  // NOLINT: a container's argument
  template <typename U>
  HeapAllocator(const HeapAllocator<U>& other)  // NOLINT: containers convert it
      : resource_(other.resource()) {}

  T* allocate(size_t count) {
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(resource_->allocate(count * sizeof(T), alignof(T)));
  }
  void deallocate(T* memory, size_t count) {
    resource_->deallocate(memory, count * sizeof(T), alignof(T));
  }
  HeapResource* resource() const { return resource_; }

 private:
  HeapResource* resource_;
};
template <typename T, typename U>
bool operator==(const HeapAllocator<T>& one, const HeapAllocator<U>& other) {
  return one.resource() == other.resource();
}

}  // namespace baton

#endif  // WORKER_HEAP_H_

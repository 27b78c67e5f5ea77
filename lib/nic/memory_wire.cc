#include "lib/nic/memory_wire.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::nic {
namespace {

static_assert((kRingBytes & (kRingBytes - 1)) == 0);

// Returns whether `word` was set, and clears it. The other side sets it again for the next time.
bool TakeFlag(uint32_t* word) {
  std::atomic_ref<uint32_t> flag(*word);
  // This side stores its position before it reads the flag. The other side stores the flag before
  // it reads the position.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return flag.load(std::memory_order_relaxed) != 0 &&
         flag.exchange(0, std::memory_order_acq_rel) != 0;
}

void SetFlag(uint32_t* word) {
  std::atomic_ref<uint32_t>(*word).store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

size_t SizeOf(const iovec* iovecs, int count) {
  size_t size = 0;
  for (int i = 0; i < count; ++i) size += iovecs[i].iov_len;
  return size;
}

}  // namespace

// The reader's position grows, and never passes the writer's.
bool RingWriter::LoadHead() {
  const uint64_t head = std::atomic_ref(control_->head).load(std::memory_order_acquire);
  if (head - head_ > tail_ - head_) return false;
  head_ = head;
  return true;
}

void RingWriter::Copy(const uint8_t* from, size_t size) {
  const size_t at = tail_ % kRingBytes;
  const size_t first = std::min<size_t>(size, kRingBytes - at);
  std::memcpy(bytes_ + at, from, first);
  std::memcpy(bytes_, from + first, size - first);
  tail_ += size;
}

ssize_t RingWriter::Write(const iovec* iovecs, int count) {
  const size_t size = SizeOf(iovecs, count);
  if (size > room() && !LoadHead()) return -1;
  const size_t fits = std::min<size_t>(size, room());
  size_t left = fits;
  for (int i = 0; i < count && left > 0; ++i) {
    const size_t here = std::min(left, iovecs[i].iov_len);
    Copy(static_cast<const uint8_t*>(iovecs[i].iov_base), here);
    left -= here;
  }
  std::atomic_ref(control_->tail).store(tail_, std::memory_order_release);
  return static_cast<ssize_t>(fits);
}

bool RingWriter::ReaderSleeps() { return TakeFlag(&control_->sleeping); }

bool RingWriter::PrepareToWait() {
  SetFlag(&control_->waiting);
  if (!HasRoom()) return true;
  EndWait();
  return false;
}

void RingWriter::EndWait() {
  std::atomic_ref<uint32_t>(control_->waiting).store(0, std::memory_order_relaxed);
}

// The next Write() reports an invalid position of the reader.
bool RingWriter::HasRoom() { return !LoadHead() || room() > 0; }

uint64_t RingReader::LoadTail() const {
  return std::atomic_ref(control_->tail).load(std::memory_order_acquire);
}

ssize_t RingReader::Read(const iovec* iovecs, int count) {
  const uint64_t there = LoadTail() - head_;
  if (there > kRingBytes) return -1;
  size_t left = there;
  for (int i = 0; i < count && left > 0; ++i) {
    const size_t here = std::min(left, iovecs[i].iov_len);
    const size_t at = head_ % kRingBytes;
    const size_t first = std::min<size_t>(here, kRingBytes - at);
    auto* const to = static_cast<uint8_t*>(iovecs[i].iov_base);
    std::memcpy(to, bytes_ + at, first);
    std::memcpy(to + first, bytes_, here - first);
    head_ += here;
    left -= here;
  }
  if (left == there) return 0;
  std::atomic_ref(control_->head).store(head_, std::memory_order_release);
  return static_cast<ssize_t>(there - left);
}

bool RingReader::WriterWaits() { return TakeFlag(&control_->waiting); }

bool RingReader::PrepareToSleep() {
  SetFlag(&control_->sleeping);
  if (LoadTail() == head_) return true;
  Awake();
  return false;
}

void RingReader::Awake() {
  std::atomic_ref<uint32_t>(control_->sleeping).store(0, std::memory_order_relaxed);
}

absl::StatusOr<std::unique_ptr<MemoryWire>> MemoryWire::Make(FileDescriptor* memfd) {
  memfd->Reset(memfd_create("baton-wire", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!*memfd || ftruncate(memfd->get(), sizeof(MemoryWireLayout)) != 0 ||
      fcntl(memfd->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "memory between NICs (see RLIMIT_NOFILE)");
  }
  return Map(memfd->get(), /*maker=*/true);
}

absl::StatusOr<std::unique_ptr<MemoryWire>> MemoryWire::Map(int memfd, bool maker) {
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<MappedFile> file, MappedFile::Map(memfd));
  if (file->size() != sizeof(MemoryWireLayout)) {
    return absl::InvalidArgumentError(absl::StrCat("memory between NICs: ", file->size(),
                                                   " bytes, not ", sizeof(MemoryWireLayout)));
  }
  auto* const layout = reinterpret_cast<MemoryWireLayout*>(
      file->At(0, sizeof(MemoryWireLayout), alignof(MemoryWireLayout)));
  return std::unique_ptr<MemoryWire>(new MemoryWire(std::move(file), layout, maker));
}

// This side's reader sleeps at first, so the peer wakes it until it knows that frames come this
// way.
MemoryWire::MemoryWire(std::shared_ptr<MappedFile> file, MemoryWireLayout* layout, bool maker)
    : file_(std::move(file)),
      out_(maker ? &layout->to_peer : &layout->from_peer,
           maker ? layout->to_peer_bytes : layout->from_peer_bytes),
      in_(maker ? &layout->from_peer : &layout->to_peer,
          maker ? layout->from_peer_bytes : layout->to_peer_bytes) {
  (void)in_.PrepareToSleep();
}

}  // namespace baton::nic

#include "lib/nic/byte_ring.h"

#include <algorithm>
#include <atomic>
#include <cstring>

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

}  // namespace baton::nic

#include "lib/verbs/mlx5/fifo_doorbell.h"

#include <unistd.h>

#include <atomic>

namespace baton::verbs::mlx5 {
namespace {

template <typename Word>
Word Load(const Word& word) {
  return std::atomic_ref(const_cast<Word&>(word)).load(std::memory_order_acquire);
}

template <typename Word>
void Store(Word* word, Word value) {
  std::atomic_ref(*word).store(value, std::memory_order_release);
}

// Returns how far `tail` is ahead of `head`; negative if it is behind.
int32_t Ahead(uint32_t tail, uint32_t head) { return static_cast<int32_t>(tail - head); }

}  // namespace

FifoDoorbell::FifoDoorbell(DoorbellPage* page, int wake_fd)
    : page_(page),
      wake_fd_(wake_fd),
      sends_{page->sends, kSendPlaces, &page->sq_tail, &page->sq_head, false},
      arms_{page->arms, kArmPlaces, &page->cq_tail, &page->cq_head, false} {}

void FifoDoorbell::TakeOver() {
  sends_.settled = false;
  arms_.settled = false;
}

// Finds where the next value belongs. A predecessor that was killed between storing a value and
// storing the tail has left the tail one too low. The NIC stores its head before it clears a place.
// So a filled place at the tail has the predecessor's last value, unless the queue is full or one
// short of it. Then the NIC may be about to clear the place, or has not come to it. Returns false
// if that cannot be told yet.
bool FifoDoorbell::Settle(const Fifo& fifo) {
  const uint32_t head = Load(*fifo.head);
  uint32_t tail = Load(*fifo.tail);
  if (Ahead(tail, head) < 0) {
    tail = head;
  } else if (Load(fifo.places[tail % fifo.count]) != 0) {
    if (Ahead(tail, head) >= static_cast<int32_t>(fifo.count) - 1) return false;
    ++tail;
  } else if (const uint32_t now = Load(*fifo.head); Ahead(tail, now) < 0) {
    tail = now;  // a value was there, and the NIC has taken it meanwhile
  }
  Store(fifo.tail, tail);
  return true;
}

bool FifoDoorbell::Push(Fifo* fifo, uint64_t bytes) {
  if (!fifo->settled && !(fifo->settled = Settle(*fifo))) return false;
  const uint32_t tail = *fifo->tail;
  uint64_t& place = fifo->places[tail % fifo->count];
  if (Load(place) != 0) return false;
  Store(&place, bytes);
  Store(fifo->tail, tail + 1);
  return true;
}

void FifoDoorbell::PushOrOverflow(Fifo* fifo, uint64_t bytes) {
  if (!Push(fifo, bytes)) AskAttention(kOverflow);
  WakeIfAsleep();
}

void FifoDoorbell::Ring(uint64_t bytes) { PushOrOverflow(&sends_, bytes); }

void FifoDoorbell::Arm(uint64_t bytes) { PushOrOverflow(&arms_, bytes); }

// The NIC stores `failed`, fences, and looks at the record for the last time by itself. The driver
// has stored the record, fences here, and looks at `failed`. So one of the two sees what the other
// has stored.
void FifoDoorbell::ReceivesPosted(uint32_t qp_number, const uint32_t& failed) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (Load(failed) == 0) return;
  uint32_t wanted = kOverflow;
  for (uint32_t& place : page_->looks) {
    const uint32_t there = Load(place);
    if (there != 0 && there != qp_number) continue;
    Store(&place, qp_number);
    wanted = kLook;
    break;
  }
  AskAttention(wanted);
  WakeIfAsleep();
}

void FifoDoorbell::AskAttention(uint32_t bits) {
  std::atomic_ref(page_->attention).fetch_or(bits, std::memory_order_acq_rel);
}

// The NIC sets `sleeping`, fences, and looks at all places once more before it sleeps.
void FifoDoorbell::WakeIfAsleep() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (Load(page_->sleeping) == 0) return;
  const uint64_t one = 1;
  // write() fails only if the counter is full, and then the NIC is being woken.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

}  // namespace baton::verbs::mlx5

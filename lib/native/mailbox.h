// The two rings between the keeper of a native service and the driver of a shard (layout.md,
// "Native owners"). One writer and one reader, in different processes; each is bounded, and nothing
// waits here.
#ifndef LIB_NATIVE_MAILBOX_H_
#define LIB_NATIVE_MAILBOX_H_

#include <cstdint>
#include <deque>

#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"

namespace baton::native {

// One end of one ring; which of its functions are used says which end it is.
class Mailbox {
 public:
  static Mailbox Notices(const arena::Arena& arena, uint32_t shard) {
    return Mailbox(&arena.notices(shard), arena::kNotices);
  }
  static Mailbox Orders(const arena::Arena& arena, uint32_t shard) {
    return Mailbox(&arena.orders(shard), arena::OrdersOf(arena.shape()));
  }

  // The other end, or a dead one, has written what no ring can be: nobody is to go by it. It is
  // full and empty, and holds nothing.
  bool broken() const {
    const uint64_t head = arena::LoadAcquire(cursors_->head);
    return arena::LoadAcquire(cursors_->tail) - head > capacity_;
  }

  // ---- The writer's. What the entry speaks of is in memory before.
  bool full() const { return cursors_->tail - arena::LoadAcquire(cursors_->head) >= capacity_; }
  // One that is told and not done yet. For what may be told again.
  bool Holds(const arena::MailEntry& entry) const {
    const uint64_t head = arena::LoadAcquire(cursors_->head);
    const uint64_t tail = arena::LoadAcquire(cursors_->tail);
    for (uint64_t i = head; tail - head <= capacity_ && i != tail; ++i) {
      const arena::MailEntry& told = entries_[i & (capacity_ - 1)];
      if (told.kind == entry.kind && told.connection == entry.connection &&
          told.generation == entry.generation) {
        return true;
      }
    }
    return false;
  }
  void Put(const arena::MailEntry& entry) {  // not when full
    entries_[cursors_->tail & (capacity_ - 1)] = entry;
    arena::StoreRelease(cursors_->tail, cursors_->tail + 1);
  }

  // Puts as many of `waiting` as there is room for, in order, and returns whether there was one.
  // The entries are in the ring before the caller looks whom it has to wake. A reader that makes
  // itself known first, with a claim, and looks at the ring then, sees them or is woken.
  bool PutWaiting(std::deque<arena::MailEntry>* waiting) {
    bool put = false;
    for (; !waiting->empty() && !full(); waiting->pop_front(), put = true) Put(waiting->front());
    if (put) arena::FullFence();
    return put;
  }

  // ---- The reader's. An entry stays until it is passed: who comes after a dead reader sees it.
  bool empty() const {
    const uint64_t told = arena::LoadAcquire(cursors_->tail) - cursors_->head;
    return told == 0 || told > capacity_;
  }
  arena::MailEntry Next() const {
    return arena::CopyOnce(entries_[cursors_->head & (capacity_ - 1)]);
  }
  void Pass() { arena::StoreRelease(cursors_->head, cursors_->head + 1); }

 private:
  Mailbox(arena::MailCursors* cursors, uint64_t capacity)
      : cursors_(cursors),
        entries_(reinterpret_cast<arena::MailEntry*>(cursors + 1)),
        capacity_(capacity) {}

  arena::MailCursors* cursors_;
  arena::MailEntry* entries_;
  uint64_t capacity_;  // a power of two
};

}  // namespace baton::native

#endif  // LIB_NATIVE_MAILBOX_H_

// The two rings between `baton-driver`'s connection manager and the driver of a shard (layout.md,
// "Native owners"). Each has one writer and one reader, natively in different processes. Each is
// bounded, and nothing waits here.
#ifndef LIB_NATIVE_MAILBOX_H_
#define LIB_NATIVE_MAILBOX_H_

#include <cstdint>
#include <deque>

#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"

namespace baton::native {

// One end of a ring. The writer and the reader each use their own functions.
class Mailbox {
 public:
  static Mailbox Notices(const arena::Arena& arena, uint32_t shard) {
    return Mailbox(&arena.notices(shard), arena::kNotices);
  }
  static Mailbox Orders(const arena::Arena& arena, uint32_t shard) {
    return Mailbox(&arena.orders(shard), arena::OrdersOf(arena.shape()));
  }

  // Returns true if the cursors are inconsistent. A broken ring is both full and empty, and holds
  // nothing.
  bool broken() const {
    const uint64_t head = arena::LoadAcquire(cursors_->head);
    return arena::LoadAcquire(cursors_->tail) - head > capacity_;
  }

  // ---- For the writer, which stores everything that an entry refers to before it puts the entry.
  bool full() const { return cursors_->tail - arena::LoadAcquire(cursors_->head) >= capacity_; }
  uint64_t tail() const { return cursors_->tail; }
  // Returns true if such an entry was put before the cursor `end` and is not passed yet.
  bool Holds(const arena::MailEntry& entry, uint64_t end) const {
    const uint64_t head = arena::LoadAcquire(cursors_->head);
    for (uint64_t i = head; end - head <= capacity_ && i != end; ++i) {
      const arena::MailEntry& told = entries_[i & (capacity_ - 1)];
      if (told.kind == entry.kind && told.connection == entry.connection &&
          told.generation == entry.generation) {
        return true;
      }
    }
    return false;
  }
  void Put(const arena::MailEntry& entry) {  // REQUIRES: !full()
    entries_[cursors_->tail & (capacity_ - 1)] = entry;
    arena::StoreRelease(cursors_->tail, cursors_->tail + 1);
  }

  // Makes a broken ring an empty one.
  void Mend() { arena::StoreRelease(cursors_->tail, arena::LoadAcquire(cursors_->head)); }

  // Puts as many of `waiting` as fit, in order, and returns whether it put one. Calls `on_put` with
  // each. Ends with a fence: the caller then reads whom to wake. A reader that first claims and
  // then reads the ring sees the entries or is woken.
  template <typename OnPut>
  bool PutWaiting(std::deque<arena::MailEntry>* waiting, const OnPut& on_put) {
    bool put = false;
    for (; !waiting->empty() && !full(); waiting->pop_front(), put = true) {
      Put(waiting->front());
      on_put(waiting->front());
    }
    if (put) arena::FullFence();
    return put;
  }

  // ---- For the reader. An entry stays until it is passed, so a dead reader's successor sees it.
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

#include "worker/io_ring.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/status.h"

namespace baton {
namespace {

// A thread of the kernel copies so much, or more, beside this one, which has other things to do.
constexpr uint32_t kLeastAside = 128 << 10;

constexpr uint64_t kCancelTag = ~uint64_t{0};
// No completion is lost when the queue overflows; both queues are one mapping; reads without
// vectors are there.
constexpr uint32_t kNeededFeatures =
    IORING_FEAT_NODROP | IORING_FEAT_SINGLE_MMAP | IORING_FEAT_RW_CUR_POS;

int Enter(int ring, uint32_t submit, uint32_t complete, uint32_t flags) {
  return static_cast<int>(
      syscall(SYS_io_uring_enter, ring, submit, complete, flags, nullptr, size_t{0}));
}

absl::Status Refused(int error, const char* call) {
  return absl::UnimplementedError(ErrnoStatus(error, call).message());
}

uint32_t* FieldAt(const MappedMemory& memory, uint32_t offset) {
  return reinterpret_cast<uint32_t*>(memory.get() + offset);
}

// A child that the process forks must not share the queues.
MappedMemory MapRing(int ring, size_t bytes, off_t offset) {
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);
  if (mapped == MAP_FAILED) return MappedMemory(nullptr, Unmap{bytes});
  (void)madvise(mapped, bytes, MADV_DONTFORK);
  return MappedMemory(static_cast<uint8_t*>(mapped), Unmap{bytes});
}

}  // namespace

absl::StatusOr<std::unique_ptr<IoRing>> IoRing::Open(uint32_t entries, int event_fd) {
  io_uring_params parameters = {};
  // Each read may be cancelled once.
  const long fd = syscall(SYS_io_uring_setup, 2 * entries, &parameters);
  if (fd < 0) return Refused(errno, "io_uring_setup");
  FileDescriptor ring(static_cast<int>(fd));
  if ((parameters.features & kNeededFeatures) != kNeededFeatures) {
    return absl::UnimplementedError(absl::StrCat("the kernel's io_uring has features ",
                                                 parameters.features, ", and ", kNeededFeatures,
                                                 " are needed: Linux 5.6 has them"));
  }
  if (syscall(SYS_io_uring_register, ring.get(), IORING_REGISTER_EVENTFD, &event_fd, 1) != 0) {
    return Refused(errno, "io_uring_register");
  }
  std::unique_ptr<IoRing> made(new IoRing(std::move(ring), parameters));
  BATON_RETURN_IF_ERROR(made->Map(parameters));
  return made;
}

IoRing::IoRing(FileDescriptor ring, const io_uring_params& parameters)
    : ring_(std::move(ring)),
      submit_mask_(parameters.sq_entries - 1),
      complete_mask_(parameters.cq_entries - 1) {}

absl::Status IoRing::Map(const io_uring_params& parameters) {
  const io_sqring_offsets& submit = parameters.sq_off;
  const io_cqring_offsets& complete = parameters.cq_off;
  const size_t bytes =
      std::max<size_t>(submit.array + parameters.sq_entries * sizeof(uint32_t),
                       complete.cqes + parameters.cq_entries * sizeof(io_uring_cqe));
  rings_ = MapRing(ring_.get(), bytes, IORING_OFF_SQ_RING);
  entry_memory_ =
      MapRing(ring_.get(), parameters.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
  if (!rings_ || !entry_memory_) return Refused(errno, "mmap of the io_uring");
  entries_ = reinterpret_cast<io_uring_sqe*>(entry_memory_.get());
  completions_ = reinterpret_cast<const io_uring_cqe*>(rings_.get() + complete.cqes);
  submit_tail_ = FieldAt(rings_, submit.tail);
  complete_head_ = FieldAt(rings_, complete.head);
  complete_tail_ = FieldAt(rings_, complete.tail);
  if (complete.flags != 0) complete_flags_ = FieldAt(rings_, complete.flags);
  // Entries are used in turn.
  uint32_t* const order = FieldAt(rings_, submit.array);
  for (uint32_t i = 0; i < parameters.sq_entries; ++i) order[i] = i;
  return absl::OkStatus();
}

// There is room, because the queue has two entries for each read.
io_uring_sqe& IoRing::NextEntry() {
  const uint32_t tail = *submit_tail_;
  io_uring_sqe& entry = entries_[tail & submit_mask_];
  entry = {};
  arena::StoreRelease(*submit_tail_, tail + 1);
  ++pushed_;
  return entry;
}

// The kernel reads entries in Submit only, so they may be filled after the tail is stored.
void IoRing::PushRead(uint64_t tag, int fd, void* to, uint32_t length, uint64_t offset) {
  io_uring_sqe& entry = NextEntry();
  entry.opcode = IORING_OP_READ;
  entry.fd = fd;
  entry.addr = reinterpret_cast<uint64_t>(to);
  entry.len = length;
  entry.off = offset;
  entry.user_data = tag;
  if (length >= kLeastAside) entry.flags = IOSQE_ASYNC;
}

void IoRing::PushCancel(uint64_t tag) {
  if (pushed_ > submit_mask_) return;
  io_uring_sqe& entry = NextEntry();
  entry.opcode = IORING_OP_ASYNC_CANCEL;
  entry.fd = -1;
  entry.addr = tag;
  entry.user_data = kCancelTag;
}

// The caller of Submit calls Reap afterwards, so completions until then need no event.
void IoRing::Silence(bool silent) {
  if (complete_flags_ == nullptr) return;
  arena::StoreRelaxed(*complete_flags_, silent ? uint32_t{IORING_CQ_EVENTFD_DISABLED} : 0u);
  arena::FullFence();
}

void IoRing::Submit(absl::FunctionRef<void(uint64_t tag)> refused) {
  if (pushed_ == 0) return;
  Silence(true);
  while (pushed_ > 0) {
    const int taken = Enter(ring_.get(), pushed_, 0, 0);
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0) break;
    pushed_ -= static_cast<uint32_t>(taken);
  }
  Silence(false);
  if (pushed_ == 0) return;
  // The kernel looks at entries in Enter only, so these can be taken back.
  const uint32_t tail = *submit_tail_;
  const uint32_t begin = tail - std::exchange(pushed_, 0);
  arena::StoreRelease(*submit_tail_, begin);
  for (uint32_t i = begin; i != tail; ++i) {
    const io_uring_sqe entry = entries_[i & submit_mask_];
    if (entry.user_data != kCancelTag) refused(entry.user_data);
  }
}

void IoRing::Reap(absl::FunctionRef<void(uint64_t tag, int32_t result)> done) {
  for (;;) {
    const uint32_t head = *complete_head_;
    if (head == arena::LoadAcquire(*complete_tail_)) return;
    const io_uring_cqe& completion = completions_[head & complete_mask_];
    const uint64_t tag = completion.user_data;
    const int32_t result = completion.res;
    arena::StoreRelease(*complete_head_, head + 1);
    if (tag != kCancelTag) done(tag, result);
  }
}

void IoRing::Wait() { (void)Enter(ring_.get(), 0, 1, IORING_ENTER_GETEVENTS); }

}  // namespace baton

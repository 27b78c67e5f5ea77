// Inside the library file_sender: an io_uring, by the kernel's own interface (linux/io_uring.h).
#ifndef WORKER_IO_RING_H_
#define WORKER_IO_RING_H_

#include <linux/io_uring.h>

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/mapped_memory.h"

namespace baton {

// Thread-compatible. All memory is mapped at creation. A forked child does not have it.
class IoRing {
 public:
  // `event_fd` becomes readable when a request has completed outside of Submit. At most `entries`
  // reads may be pushed or under way. kUnimplemented: the kernel or the container refuses, and the
  // message says why.
  static absl::StatusOr<std::unique_ptr<IoRing>> Open(uint32_t entries, int event_fd);

  // Queue a request for Submit. REQUIRES: `tag` is no other read's that is under way.
  void PushRead(uint64_t tag, int fd, void* to, uint32_t length, uint64_t offset);
  // Cancels the read with this tag. It completes in any case.
  void PushCancel(uint64_t tag);

  // Gives the kernel what was pushed. Calls `refused` with the tag of each read that it does not
  // take now. Refused cancellations are forgotten.
  void Submit(absl::FunctionRef<void(uint64_t tag)> refused);
  // Calls `done` for each read that has completed, with the result of pread(2), or -errno. `done`
  // may push.
  void Reap(absl::FunctionRef<void(uint64_t tag, int32_t result)> done);
  bool has_pushed() const { return pushed_ > 0; }  // since the last Submit
  // Waits until Reap has something, or a signal comes.
  void Wait();

 private:
  IoRing(FileDescriptor ring, const io_uring_params& parameters);

  absl::Status Map(const io_uring_params& parameters);
  io_uring_sqe& NextEntry();
  void Silence(bool silent);

  FileDescriptor ring_;
  MappedMemory rings_, entry_memory_;
  io_uring_sqe* entries_ = nullptr;
  const io_uring_cqe* completions_ = nullptr;
  uint32_t* submit_tail_ = nullptr;
  uint32_t *complete_head_ = nullptr, *complete_tail_ = nullptr, *complete_flags_ = nullptr;
  uint32_t submit_mask_ = 0, complete_mask_ = 0;
  uint32_t pushed_ = 0;  // not given to the kernel
};

}  // namespace baton

#endif  // WORKER_IO_RING_H_

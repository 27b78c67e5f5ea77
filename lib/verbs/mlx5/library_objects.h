// Queue pairs that libmlx5 makes in memory that we provide, for our own driver.
#ifndef LIB_VERBS_MLX5_LIBRARY_OBJECTS_H_
#define LIB_VERBS_MLX5_LIBRARY_OBJECTS_H_

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/mlx5/receive_queue.h"
#include "lib/verbs/mlx5/send_queue.h"

namespace baton::verbs::mlx5 {

// Returns zeroed memory that outlives the process, or nullptr if none is left.
using AllocateShared = std::function<void*(size_t bytes, size_t alignment)>;

// A protection domain whose queues lie in shared memory, and have a doorbell register of their own.
// The opener makes it before it forks the processes that drive the queues. Thread-compatible.
class LibraryDomain {
 public:
  // `context` outlives the domain.
  static absl::StatusOr<std::unique_ptr<LibraryDomain>> Make(ibv_context* context,
                                                             AllocateShared allocate);
  LibraryDomain(const LibraryDomain&) = delete;
  LibraryDomain& operator=(const LibraryDomain&) = delete;
  ~LibraryDomain();

  ibv_context* context() const { return context_; }
  ibv_pd* for_regions() const { return domain_; }
  ibv_pd* for_queues() const { return parent_; }
  void* Allocate(size_t bytes, size_t alignment) const { return allocate_(bytes, alignment); }

 private:
  LibraryDomain(ibv_context* context, AllocateShared allocate)
      : context_(context), allocate_(std::move(allocate)) {}

  ibv_context* const context_;
  const AllocateShared allocate_;
  ibv_pd* domain_ = nullptr;
  ibv_td* thread_domain_ = nullptr;
  ibv_pd* parent_ = nullptr;
};

struct LibraryQueuePairOptions {
  uint32_t send_requests = 1;
  uint32_t receive_requests = 1;
  SendQueueLimits limits;  // of receives, too
  uint32_t entries = 1;    // of its completion queue
  ibv_comp_channel* channel = nullptr;
};

// A queue pair in RESET, with a completion queue of its own.
class LibraryQueuePair {
 public:
  // `domain` outlives it.
  static absl::StatusOr<std::unique_ptr<LibraryQueuePair>> Make(
      const LibraryDomain& domain, const LibraryQueuePairOptions& options);
  LibraryQueuePair(const LibraryQueuePair&) = delete;
  LibraryQueuePair& operator=(const LibraryQueuePair&) = delete;
  ~LibraryQueuePair();

  ibv_qp* get() const { return queue_pair_; }
  ibv_cq* completions() const { return completions_; }
  uint32_t number() const { return queue_pair_->qp_num; }
  uint32_t completion_queue_number() const { return found_completions_.cqn; }

  // A driver needs these, in any process that was forked from this one.
  const SendQueueLimits& limits() const { return limits_; }
  SendQueueMemory sends() const;
  ReceiveQueueMemory receives() const;
  CompletionQueueMemory completion_queue() const;
  CompletingQueuePair completing() const;
  void* send_register() const { return found_.bf.reg; }
  void* arm_register() const;

 private:
  explicit LibraryQueuePair(const SendQueueLimits& limits) : limits_(limits) {}
  absl::Status MakeObjects(const LibraryDomain& domain, const LibraryQueuePairOptions& options);
  absl::Status FindQueues();

  // Memory of our driver alone, beside the queues.
  struct Beside {
    QueueCursors cursors;
    uint64_t taken;
    uint32_t arming;
  };

  const SendQueueLimits limits_;
  ibv_cq* completions_ = nullptr;
  ibv_qp* queue_pair_ = nullptr;
  mlx5dv_qp found_ = {};
  mlx5dv_cq found_completions_ = {};
  Beside* beside_ = nullptr;
  SendNote* notes_ = nullptr;
  uint64_t* wr_ids_ = nullptr;
};

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_LIBRARY_OBJECTS_H_

#include "lib/verbs/mlx5/library_objects.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lib/base/status.h"
#include "lib/verbs/mlx5/doorbell.h"

namespace baton::verbs::mlx5 {
namespace {

constexpr size_t kLeastAlignment = 64;  // of doorbell records, so that no two share a line

// The records of a completion queue, which the public header does not name.
constexpr size_t kConsumedRecord = 0;
constexpr size_t kArmRecord = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<LibraryDomain>> LibraryDomain::Make(ibv_context* context,
                                                                   AllocateShared allocate) {
  auto made = std::unique_ptr<LibraryDomain>(new LibraryDomain(context, std::move(allocate)));
  made->domain_ = ibv_alloc_pd(context);
  if (made->domain_ == nullptr) return ErrnoStatus(errno, "ibv_alloc_pd");
  ibv_td_init_attr thread = {};
  made->thread_domain_ = ibv_alloc_td(context, &thread);
  if (made->thread_domain_ == nullptr) return ErrnoStatus(errno, "ibv_alloc_td");
  ibv_parent_domain_init_attr parent = {};
  parent.pd = made->domain_;
  parent.td = made->thread_domain_;
  parent.comp_mask =
      IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  parent.alloc = [](ibv_pd*, void* domain, size_t bytes, size_t alignment, uint64_t) {
    void* const memory =
        static_cast<LibraryDomain*>(domain)->Allocate(bytes, std::max(alignment, kLeastAlignment));
    if (memory == nullptr) errno = ENOMEM;  // libmlx5 sets none
    return memory;
  };
  parent.free = [](ibv_pd*, void*, void*, uint64_t) {};  // freed with all of the shared memory
  parent.pd_context = made.get();
  made->parent_ = ibv_alloc_parent_domain(context, &parent);
  if (made->parent_ == nullptr) return ErrnoStatus(errno, "ibv_alloc_parent_domain");
  return made;
}

LibraryDomain::~LibraryDomain() {
  if (parent_ != nullptr) ibv_dealloc_pd(parent_);
  if (thread_domain_ != nullptr) ibv_dealloc_td(thread_domain_);
  if (domain_ != nullptr) ibv_dealloc_pd(domain_);
}

absl::StatusOr<std::unique_ptr<LibraryQueuePair>> LibraryQueuePair::Make(
    const LibraryDomain& domain, const LibraryQueuePairOptions& options) {
  auto made = std::unique_ptr<LibraryQueuePair>(new LibraryQueuePair(options.limits));
  BATON_RETURN_IF_ERROR(made->MakeObjects(domain, options));
  BATON_RETURN_IF_ERROR(made->FindQueues());
  const auto allocate = [&domain](size_t bytes) { return domain.Allocate(bytes, kLeastAlignment); };
  made->beside_ = static_cast<Beside*>(allocate(sizeof(Beside)));
  made->notes_ = static_cast<SendNote*>(allocate(made->found_.sq.wqe_cnt * sizeof(SendNote)));
  made->wr_ids_ = static_cast<uint64_t*>(allocate(made->found_.rq.wqe_cnt * sizeof(uint64_t)));
  if (made->beside_ == nullptr || made->notes_ == nullptr || made->wr_ids_ == nullptr) {
    return absl::ResourceExhaustedError("no shared memory is left for a queue pair's driver");
  }
  return made;
}

absl::Status LibraryQueuePair::MakeObjects(const LibraryDomain& domain,
                                           const LibraryQueuePairOptions& options) {
  ibv_cq_init_attr_ex queue = {};
  queue.cqe = options.entries;
  queue.channel = options.channel;
  queue.wc_flags = IBV_WC_STANDARD_FLAGS;
  queue.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
  queue.parent_domain = domain.for_queues();
  mlx5dv_cq_init_attr entries = {};
  entries.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
  entries.cqe_size = sizeof(mlx5_cqe64);  // whatever the environment says
  ibv_cq_ex* const made = mlx5dv_create_cq(domain.context(), &queue, &entries);
  if (made == nullptr) return ErrnoStatus(errno, "mlx5dv_create_cq");
  completions_ = ibv_cq_ex_to_cq(made);

  ibv_qp_init_attr_ex pair = {};
  pair.send_cq = pair.recv_cq = completions_;
  pair.qp_type = IBV_QPT_RC;
  pair.sq_sig_all = 1;
  pair.cap = {options.send_requests, options.receive_requests, limits_.scatter_gather,
              limits_.scatter_gather, limits_.inline_bytes};
  pair.comp_mask = IBV_QP_INIT_ATTR_PD;
  pair.pd = domain.for_queues();
  mlx5dv_qp_init_attr more = {};
  more.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
  more.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
  queue_pair_ = mlx5dv_create_qp(domain.context(), &pair, &more);
  return queue_pair_ != nullptr ? absl::OkStatus() : ErrnoStatus(errno, "mlx5dv_create_qp");
}

// After this, libmlx5 leaves the completion queue alone when it resets the queue pair.
absl::Status LibraryQueuePair::FindQueues() {
  mlx5dv_obj objects = {};
  objects.qp = {queue_pair_, &found_};
  objects.cq = {completions_, &found_completions_};
  const int error = mlx5dv_init_obj(&objects, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ);
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "mlx5dv_init_obj");
}

LibraryQueuePair::~LibraryQueuePair() {
  if (queue_pair_ != nullptr) ibv_destroy_qp(queue_pair_);
  if (completions_ != nullptr) ibv_destroy_cq(completions_);
}

SendQueueMemory LibraryQueuePair::sends() const {
  return {static_cast<uint8_t*>(found_.sq.buf), &found_.dbrec[MLX5_SND_DBR], notes_,
          &beside_->cursors, found_.sq.wqe_cnt};
}

ReceiveQueueMemory LibraryQueuePair::receives() const {
  return {static_cast<uint8_t*>(found_.rq.buf),
          &found_.dbrec[MLX5_RCV_DBR],
          wr_ids_,
          &beside_->cursors,
          found_.rq.wqe_cnt,
          found_.rq.stride};
}

CompletionQueueMemory LibraryQueuePair::completion_queue() const {
  return {static_cast<const uint8_t*>(found_completions_.buf),
          &found_completions_.dbrec[kConsumedRecord],
          &beside_->taken,
          found_completions_.cqe_cnt,
          found_completions_.cqe_size,
          &found_completions_.dbrec[kArmRecord],
          &beside_->arming};
}

CompletingQueuePair LibraryQueuePair::completing() const {
  return {number(), 0, notes_, found_.sq.wqe_cnt, wr_ids_, found_.rq.wqe_cnt, &beside_->cursors};
}

void* LibraryQueuePair::arm_register() const {
  return static_cast<uint8_t*>(found_completions_.cq_uar) + kArmOffset;
}

}  // namespace baton::verbs::mlx5

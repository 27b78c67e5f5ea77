#include "tests/lib/nic/oracle/opened_device.h"

#include <infiniband/mlx5dv.h>

#include <algorithm>

#include "lib/base/check.h"
#include "lib/verbs/mlx5/queue_layout.h"

namespace baton::nic::oracle {

OpenedDevice::OpenedDevice(Client* client, uint64_t arena_bytes, size_t data_bytes, int access)
    : access_(access), arena_(arena_bytes), device_(client, &arena_) {
  context_ = device_.Open();
  protection_domain_ = ibv_alloc_pd(context_);
  ibv_td_init_attr thread = {};
  thread_domain_ = ibv_alloc_td(context_, &thread);
  ibv_parent_domain_init_attr parent = {};
  parent.pd = protection_domain_;
  parent.td = thread_domain_;
  parent.comp_mask =
      IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  parent.alloc = [](ibv_pd*, void* self, size_t size, size_t alignment, uint64_t) -> void* {
    return static_cast<OpenedDevice*>(self)->Allocate(size, alignment);
  };
  parent.free = [](ibv_pd*, void*, void*, uint64_t) {};
  parent.pd_context = this;
  domain_ = ibv_alloc_parent_domain(context_, &parent);
  data_ = Allocate(data_bytes, 4096);
  region_ = ibv_reg_mr(protection_domain_, data_, data_bytes, access_);
  BATON_CHECK(thread_domain_ != nullptr && domain_ != nullptr && region_ != nullptr);
}

OpenedDevice::~OpenedDevice() {
  BATON_CHECK(ibv_dereg_mr(region_) == 0 && ibv_dealloc_pd(domain_) == 0);
  BATON_CHECK(ibv_dealloc_td(thread_domain_) == 0 && ibv_dealloc_pd(protection_domain_) == 0);
  BATON_CHECK(ibv_close_device(context_) == 0);
}

uint8_t* OpenedDevice::Allocate(size_t size, size_t alignment) {
  const size_t at_least = std::max<size_t>(alignment, verbs::mlx5::kLineBytes);
  used_ = (used_ + at_least - 1) / at_least * at_least;
  uint8_t* const at = arena_.begin() + used_;
  used_ += size;
  BATON_CHECK(used_ <= arena_.bytes());
  return at;
}

ibv_cq* OpenedDevice::MakeCompletionQueue(uint32_t entries, uint16_t entry_bytes,
                                          ibv_comp_channel* channel) const {
  ibv_cq_init_attr_ex queue = {};
  queue.cqe = entries;
  queue.channel = channel;
  queue.wc_flags = IBV_WC_STANDARD_FLAGS;
  queue.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
  queue.parent_domain = domain_;
  mlx5dv_cq_init_attr more = {};
  more.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
  more.cqe_size = entry_bytes;
  ibv_cq_ex* const made = mlx5dv_create_cq(context_, &queue, &more);
  BATON_CHECK(made != nullptr);
  return ibv_cq_ex_to_cq(made);
}

ibv_qp* OpenedDevice::MakeQueuePair(ibv_cq* completions, const ibv_qp_cap& capacity) const {
  ibv_qp_init_attr_ex pair = {};
  pair.send_cq = pair.recv_cq = completions;
  pair.qp_type = IBV_QPT_RC;
  pair.sq_sig_all = 1;
  pair.cap = capacity;
  pair.comp_mask = IBV_QP_INIT_ATTR_PD;
  pair.pd = domain_;
  mlx5dv_qp_init_attr more = {};
  more.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
  more.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;  // the NIC does not
  ibv_qp* const made = mlx5dv_create_qp(context_, &pair, &more);
  BATON_CHECK(made != nullptr);
  return made;
}

void OpenedDevice::Init(ibv_qp* queue_pair) const {
  ibv_qp_attr init = {};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = 1;
  init.qp_access_flags = static_cast<unsigned int>(access_);
  BATON_CHECK(ibv_modify_qp(queue_pair, &init,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ==
              0);
}

void OpenedDevice::Connect(ibv_qp* queue_pair, uint32_t peer) {
  ibv_qp_attr receive = {};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = IBV_MTU_1024;
  receive.dest_qp_num = peer;
  receive.max_dest_rd_atomic = 1;
  receive.min_rnr_timer = 1;
  receive.ah_attr.is_global = 1;
  receive.ah_attr.port_num = 1;
  BATON_CHECK(ibv_modify_qp(queue_pair, &receive,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ==
              0);
  ibv_qp_attr send = {};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = 14;
  send.retry_cnt = send.rnr_retry = 7;
  send.max_rd_atomic = 1;
  BATON_CHECK(ibv_modify_qp(queue_pair, &send,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

}  // namespace baton::nic::oracle

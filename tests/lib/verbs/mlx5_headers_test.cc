// lib/verbs/rdma/mlx5.md builds on these structures, members, values and functions of the public
// headers. Most of this is checked by compiling it; a header that has changed does not compile.
#include <endian.h>
#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace {

template <typename Object, typename Member>
consteval size_t SizeOf(Member Object::*) {
  return sizeof(Member);
}

// ---------------------------------------------------------------- memory of ours for its queues

static_assert(std::is_same_v<decltype(ibv_parent_domain_init_attr::alloc),
                             void* (*)(ibv_pd*, void*, size_t, size_t, uint64_t)>);
static_assert(std::is_same_v<decltype(ibv_parent_domain_init_attr::td), ibv_td*>);
static_assert(std::is_same_v<decltype(ibv_parent_domain_init_attr::pd_context), void*>);
static_assert(std::is_same_v<decltype(ibv_cq_init_attr_ex::parent_domain), ibv_pd*>);
static_assert(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0 &&
              IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT != 0 && IBV_CQ_INIT_ATTR_MASK_PD != 0);
static_assert(std::is_same_v<decltype(mlx5dv_ctx_allocators::alloc), void* (*)(size_t, void*)>);
static_assert(std::is_same_v<decltype(&mlx5dv_set_context_attr),
                             int (*)(ibv_context*, mlx5dv_set_ctx_attr_type, void*)>);
static_assert(MLX5DV_CTX_ATTR_BUF_ALLOCATORS == 1);
static_assert(MLX5DV_RES_TYPE_QP != MLX5DV_RES_TYPE_CQ &&
              MLX5DV_RES_TYPE_SRQ != MLX5DV_RES_TYPE_DBR &&
              MLX5DV_RES_TYPE_QP >> 32 == RDMA_DRIVER_MLX5);

// ---------------------------------------------------------------- where its queues are

static_assert(
    std::is_same_v<decltype(&mlx5dv_init_obj), int (*)(mlx5dv_obj*, uint64_t object_types)>);
static_assert(std::is_same_v<decltype(&mlx5dv_is_supported), bool (*)(ibv_device*)>);
static_assert((MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ | MLX5DV_OBJ_SRQ) == 7);
static_assert(std::is_same_v<decltype(mlx5dv_qp::dbrec), __be32*>);
static_assert(std::is_same_v<decltype(mlx5dv_cq::dbrec), __be32*>);
static_assert(std::is_same_v<decltype(mlx5dv_srq::dbrec), __be32*>);
static_assert(sizeof(mlx5dv_qp::sq.buf) == sizeof(void*) && sizeof(mlx5dv_qp::sq.wqe_cnt) == 4 &&
              sizeof(mlx5dv_qp::sq.stride) == 4 && sizeof(mlx5dv_qp::rq.buf) == sizeof(void*) &&
              sizeof(mlx5dv_qp::rq.wqe_cnt) == 4 && sizeof(mlx5dv_qp::rq.stride) == 4 &&
              sizeof(mlx5dv_qp::bf.reg) == sizeof(void*) && sizeof(mlx5dv_qp::bf.size) == 4);
static_assert(SizeOf(&mlx5dv_qp::uar_mmap_offset) == sizeof(off_t) &&
              MLX5DV_QP_MASK_UAR_MMAP_OFFSET != 0);
static_assert(SizeOf(&mlx5dv_cq::buf) == sizeof(void*) && SizeOf(&mlx5dv_cq::cqe_cnt) == 4 &&
              SizeOf(&mlx5dv_cq::cqe_size) == 4 && SizeOf(&mlx5dv_cq::cqn) == 4 &&
              SizeOf(&mlx5dv_cq::cq_uar) == sizeof(void*));
static_assert(SizeOf(&mlx5dv_srq::head) == 4 && SizeOf(&mlx5dv_srq::tail) == 4 &&
              SizeOf(&mlx5dv_srq::stride) == 4);

// ---------------------------------------------------------------- doorbells

static_assert(MLX5_RCV_DBR == 0 && MLX5_SND_DBR == 1);
static_assert(MLX5_CQ_DOORBELL == 0x20);
static_assert(MLX5_CQ_DB_REQ_NOT == 0 && MLX5_CQ_DB_REQ_NOT_SOL == 1 << 24);

// ---------------------------------------------------------------- work requests

static_assert(MLX5_SEND_WQE_BB == 64 && 1 << MLX5_SEND_WQE_SHIFT == MLX5_SEND_WQE_BB);
static_assert(sizeof(mlx5_wqe_ctrl_seg) == 16 && sizeof(mlx5_wqe_raddr_seg) == 16 &&
              sizeof(mlx5_wqe_atomic_seg) == 16 && sizeof(mlx5_wqe_data_seg) == 16 &&
              sizeof(mlx5_wqe_inl_data_seg) == 4 && sizeof(mlx5_wqe_srq_next_seg) == 16);
// What the doorbell register is given is the first eight bytes of the WQE.
static_assert(offsetof(mlx5_wqe_ctrl_seg, opmod_idx_opcode) == 0 &&
              offsetof(mlx5_wqe_ctrl_seg, qpn_ds) == 4 &&
              offsetof(mlx5_wqe_ctrl_seg, fm_ce_se) == 11 &&
              offsetof(mlx5_wqe_ctrl_seg, imm) == 12);
static_assert(MLX5_WQE_CTRL_CQ_UPDATE == 8 && MLX5_WQE_CTRL_SOLICITED == 2 &&
              MLX5_WQE_CTRL_FENCE == 128);
static_assert(MLX5_INVALID_LKEY == 0x100 && MLX5_INLINE_SEG == 0x80000000U);
static_assert(SizeOf(&mlx5_wqe_srq_next_seg::next_wqe_index) == 2);
static_assert(MLX5_OPCODE_SEND != MLX5_OPCODE_SEND_IMM &&
              MLX5_OPCODE_SEND_INVAL != MLX5_OPCODE_RDMA_WRITE &&
              MLX5_OPCODE_RDMA_WRITE_IMM != MLX5_OPCODE_RDMA_READ &&
              MLX5_OPCODE_ATOMIC_CS != MLX5_OPCODE_ATOMIC_FA);
static_assert(
    std::is_same_v<decltype(&mlx5dv_create_qp),
                   ibv_qp* (*)(ibv_context*, ibv_qp_init_attr_ex*, mlx5dv_qp_init_attr*)>);
static_assert(SizeOf(&mlx5dv_qp_init_attr::create_flags) == 4 &&
              MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS != 0 &&
              MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE != 0);

// ---------------------------------------------------------------- completions

static_assert(sizeof(mlx5_cqe64) == 64 && sizeof(mlx5_err_cqe) == 64);
static_assert(offsetof(mlx5_cqe64, imm_inval_pkey) == 36 && offsetof(mlx5_cqe64, byte_cnt) == 44 &&
              offsetof(mlx5_cqe64, sop_drop_qpn) == 56 && offsetof(mlx5_cqe64, wqe_counter) == 60 &&
              offsetof(mlx5_cqe64, op_own) == 63);
static_assert(offsetof(mlx5_err_cqe, vendor_err_synd) == 54 &&
              offsetof(mlx5_err_cqe, syndrome) == 55 &&
              offsetof(mlx5_err_cqe, s_wqe_opcode_qpn) == offsetof(mlx5_cqe64, sop_drop_qpn) &&
              offsetof(mlx5_err_cqe, wqe_counter) == offsetof(mlx5_cqe64, wqe_counter) &&
              offsetof(mlx5_err_cqe, op_own) == offsetof(mlx5_cqe64, op_own));
static_assert(MLX5_CQE_OWNER_MASK == 1 && MLX5_CQE_REQ == 0 && MLX5_CQE_RESP_WR_IMM == 1 &&
              MLX5_CQE_RESP_SEND == 2 && MLX5_CQE_RESP_SEND_IMM == 3 &&
              MLX5_CQE_RESP_SEND_INV == 4 && MLX5_CQE_REQ_ERR == 13 && MLX5_CQE_RESP_ERR == 14 &&
              MLX5_CQE_INVALID == 15);
static_assert(MLX5_INLINE_SCATTER_32 == 4 && MLX5_INLINE_SCATTER_64 == 8);
static_assert(MLX5_CQE_SYNDROME_WR_FLUSH_ERR == 5);

TEST(Mlx5Headers, shouldHaveOpcodeAndOwnerInTheLastByteOfACompletion) {
  mlx5_cqe64 completion = {};
  completion.op_own = MLX5_CQE_RESP_SEND_IMM << 4 | MLX5_CQE_OWNER_MASK;
  EXPECT_EQ(mlx5dv_get_cqe_opcode(&completion), MLX5_CQE_RESP_SEND_IMM);
  EXPECT_EQ(mlx5dv_get_cqe_owner(&completion), 1);
  mlx5dv_set_cqe_owner(&completion, 0);
  EXPECT_EQ(mlx5dv_get_cqe_opcode(&completion), MLX5_CQE_RESP_SEND_IMM);
  EXPECT_EQ(mlx5dv_get_cqe_owner(&completion), 0);
}

// The doorbell names the queue pair and the WQE, so one of them covers all before it.
TEST(Mlx5Headers, shouldHaveQueuePairAndCounterInTheFirstEightBytesOfAWorkRequest) {
  mlx5_wqe_ctrl_seg control = {};
  mlx5dv_set_ctrl_seg(&control, /*pi=*/0x1234, MLX5_OPCODE_RDMA_WRITE, /*opmod=*/0,
                      /*qp_num=*/0xabcdef, MLX5_WQE_CTRL_CQ_UPDATE, /*ds=*/2, /*signature=*/0,
                      /*imm=*/0);
  EXPECT_EQ(be32toh(control.opmod_idx_opcode), 0x1234U << 8 | MLX5_OPCODE_RDMA_WRITE);
  EXPECT_EQ(be32toh(control.qpn_ds), 0xabcdefU << 8 | 2);
  EXPECT_EQ(control.fm_ce_se, MLX5_WQE_CTRL_CQ_UPDATE);
}

}  // namespace

#include "tests/lib/nic/oracle/end.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "lib/base/check.h"
#include "lib/verbs/rdma/completion.h"

namespace baton::nic::oracle {
namespace {

using verbs::Completion;
using verbs::CompletionStatus;
using verbs::Opcode;
using verbs::ReceiveRequest;
using verbs::ScatterGather;
using verbs::SendRequest;
using verbs::mlx5::LoadRecord;

constexpr uint32_t kRequests = 4;  // asked of libmlx5, whose queue is longer
constexpr uint32_t kReceives = 16;
constexpr int kEntries = 63;

ibv_wr_opcode WorkOf(Opcode opcode) {
  switch (opcode) {
    case Opcode::kSend:
      return IBV_WR_SEND;
    case Opcode::kSendWithImmediate:
      return IBV_WR_SEND_WITH_IMM;
    case Opcode::kSendWithInvalidate:
      return IBV_WR_SEND_WITH_INV;
    case Opcode::kWrite:
      return IBV_WR_RDMA_WRITE;
    case Opcode::kWriteWithImmediate:
      return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Opcode::kRead:
      return IBV_WR_RDMA_READ;
    case Opcode::kCompareAndSwap:
      return IBV_WR_ATOMIC_CMP_AND_SWP;
    case Opcode::kFetchAndAdd:
      return IBV_WR_ATOMIC_FETCH_AND_ADD;
  }
  return IBV_WR_SEND;
}

std::vector<ibv_sge> SgesOf(absl::Span<const ScatterGather> sges) {
  std::vector<ibv_sge> translated;
  for (const ScatterGather& sge : sges) translated.push_back({sge.address, sge.length, sge.lkey});
  return translated;
}

// Bytes of a ring from `at` on, around its end.
std::string RingBytes(const void* ring, size_t ring_bytes, size_t at, size_t length) {
  std::string bytes(length, 0);
  for (size_t i = 0; i < length; ++i) {
    bytes[i] = static_cast<const char*>(ring)[(at + i) % ring_bytes];
  }
  return bytes;
}

void Forget(size_t begin, size_t end, std::string* one, std::string* other) {
  for (size_t i = begin; i < end; ++i) (*one)[i] = (*other)[i] = 0;
}

}  // namespace

uint64_t LengthOf(absl::Span<const ScatterGather> sges) {
  return std::accumulate(sges.begin(), sges.end(), uint64_t{0},
                         [](uint64_t sum, const ScatterGather& sge) { return sum + sge.length; });
}

Opened::Opened() {
  context = device.Open();
  protection_domain = ibv_alloc_pd(context);
  ibv_td_init_attr thread = {};
  thread_domain = ibv_alloc_td(context, &thread);
  ibv_parent_domain_init_attr parent = {};
  parent.pd = protection_domain;
  parent.td = thread_domain;
  parent.comp_mask =
      IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  parent.alloc = [](ibv_pd*, void* self, size_t size, size_t alignment, uint64_t) -> void* {
    return static_cast<Opened*>(self)->Allocate(size, alignment);
  };
  parent.free = [](ibv_pd*, void*, void*, uint64_t) {};
  parent.pd_context = this;
  domain = ibv_alloc_parent_domain(context, &parent);
  data = Allocate(kDataBytes, 4096);
  region = ibv_reg_mr(protection_domain, data, kDataBytes, kAllAccess);
  BATON_CHECK(thread_domain != nullptr && domain != nullptr && region != nullptr);
}

Opened::~Opened() {
  EXPECT_EQ(ibv_dereg_mr(region), 0);
  EXPECT_EQ(ibv_dealloc_pd(domain), 0);
  EXPECT_EQ(ibv_dealloc_td(thread_domain), 0);
  EXPECT_EQ(ibv_dealloc_pd(protection_domain), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
}

uint8_t* Opened::Allocate(size_t size, size_t alignment) {
  const size_t at_least = std::max<size_t>(alignment, verbs::mlx5::kLineBytes);
  used = (used + at_least - 1) / at_least * at_least;
  uint8_t* const at = arena.begin() + used;
  used += size;
  BATON_CHECK(used <= arena.bytes());
  return at;
}

bool Opened::TurnUntil(const std::function<bool()>& done) {
  return nic.TurnUntil([&] {
    device.Scan();
    return done();
  });
}

End::End(Opened* opened, uint16_t entry_bytes, ibv_comp_channel* channel) : opened_(opened) {
  MakeCompletionQueue(entry_bytes, channel);
  MakeQueuePair();
  mlx5dv_obj objects = {};
  objects.qp = {queue_pair_, &theirs_};
  objects.cq = {completions_, &their_completions_};
  BATON_CHECK(mlx5dv_init_obj(&objects, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ) == 0);

  copied_sends_.resize(size_t{theirs_.sq.wqe_cnt} * theirs_.sq.stride);
  copied_receives_.resize(size_t{theirs_.rq.wqe_cnt} * theirs_.rq.stride);
  notes_.resize(theirs_.sq.wqe_cnt);
  wr_ids_.resize(theirs_.rq.wqe_cnt);
  Drive(copied_sends_.data(), copied_receives_.data(), copied_records_, copied_consumed_,
        &remembered_);
}

End::~End() {
  EXPECT_EQ(ibv_destroy_qp(queue_pair_), 0);
  EXPECT_EQ(ibv_destroy_cq(completions_), 0);
}

void End::MakeCompletionQueue(uint16_t entry_bytes, ibv_comp_channel* channel) {
  ibv_cq_init_attr_ex queue = {};
  queue.cqe = kEntries;
  queue.channel = channel;
  queue.wc_flags = IBV_WC_STANDARD_FLAGS;
  queue.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
  queue.parent_domain = opened_->domain;
  mlx5dv_cq_init_attr entries = {};
  entries.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
  entries.cqe_size = entry_bytes;
  ibv_cq_ex* const made = mlx5dv_create_cq(opened_->context, &queue, &entries);
  BATON_CHECK(made != nullptr);
  completions_ = ibv_cq_ex_to_cq(made);
}

void End::MakeQueuePair() {
  ibv_qp_init_attr_ex pair = {};
  pair.send_cq = pair.recv_cq = completions_;
  pair.qp_type = IBV_QPT_RC;
  pair.sq_sig_all = 1;
  pair.cap = {kRequests, kReceives, kSges, kSges, kInlineBytes};
  pair.comp_mask = IBV_QP_INIT_ATTR_PD;
  pair.pd = opened_->domain;
  mlx5dv_qp_init_attr more = {};
  more.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
  more.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
  queue_pair_ = mlx5dv_create_qp(opened_->context, &pair, &more);
  BATON_CHECK(queue_pair_ != nullptr);
}

void End::Connect(const End& peer) {
  ibv_qp_attr init = {};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = 1;
  init.qp_access_flags = kAllAccess;
  BATON_CHECK(ibv_modify_qp(queue_pair_, &init,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ==
              0);
  ibv_qp_attr receive = {};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = IBV_MTU_1024;
  receive.dest_qp_num = peer.queue_pair_->qp_num;
  receive.max_dest_rd_atomic = 1;
  receive.min_rnr_timer = 1;
  receive.ah_attr.is_global = 1;
  receive.ah_attr.port_num = 1;
  BATON_CHECK(ibv_modify_qp(queue_pair_, &receive,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ==
              0);
  ibv_qp_attr send = {};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = 14;
  send.retry_cnt = send.rnr_retry = 7;
  send.max_rd_atomic = 1;
  BATON_CHECK(ibv_modify_qp(queue_pair_, &send,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

void End::Send(const SendRequest& request) {
  const uint16_t before = sends_->queued();
  size_t posted = 0;
  const absl::Status status = sends_->Post({&request, 1}, &posted);
  ASSERT_TRUE(status.ok()) << status;
  if (ours_alone_) return;
  ASSERT_NO_FATAL_FAILURE(PostByLibrary(request));
  ASSERT_NO_FATAL_FAILURE(CompareSend(request, before));
  EXPECT_EQ(opened_->device.TakeRing(), remembered_.rung.back());
  remembered_.rung.clear();
}

void End::PostByLibrary(const SendRequest& request) {
  std::vector<ibv_sge> sges = SgesOf(request.sges);
  ibv_send_wr work = {};
  work.wr_id = request.wr_id;
  work.sg_list = sges.data();
  work.num_sge = static_cast<int>(sges.size());
  work.opcode = WorkOf(request.opcode);
  work.send_flags = (request.fence ? IBV_SEND_FENCE : 0u) |
                    (request.solicited ? IBV_SEND_SOLICITED : 0u) |
                    (request.inline_data ? IBV_SEND_INLINE : 0u);
  if (request.opcode == Opcode::kSendWithInvalidate) {
    work.invalidate_rkey = request.invalidate_rkey;
  } else {
    work.imm_data = htonl(request.immediate);
  }
  if (verbs::IsAtomic(request.opcode)) {
    work.wr.atomic = {request.remote_address, request.compare_add, request.swap, request.rkey};
  } else {
    work.wr.rdma = {request.remote_address, request.rkey};
  }
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(queue_pair_, &work, &bad), 0);
}

void End::CompareSend(const SendRequest& request, uint16_t before) {
  ASSERT_EQ(sends_->queued(), static_cast<uint16_t>(LoadRecord(&theirs_.dbrec[MLX5_SND_DBR])));
  const size_t at = size_t{before & (theirs_.sq.wqe_cnt - 1)} * theirs_.sq.stride;
  const size_t all = copied_sends_.size();
  mlx5_wqe_ctrl_seg control;
  std::memcpy(&control, copied_sends_.data() + at, sizeof(control));
  const size_t length = (be32toh(control.qpn_ds) & 0x3f) * size_t{16};
  std::string ours = RingBytes(copied_sends_.data(), all, at, length);
  std::string others = RingBytes(theirs_.sq.buf, all, at, length);
  const size_t address_end = verbs::mlx5::HasRemoteAddress(request.opcode) ? 32 : 16;
  if (request.opcode == Opcode::kFetchAndAdd) Forget(40, 48, &ours, &others);  // not compared
  if (request.inline_data && LengthOf(request.sges) > 0) {
    Forget(address_end + sizeof(mlx5_wqe_inl_data_seg) + LengthOf(request.sges), length, &ours,
           &others);
  }
  ASSERT_EQ(ours, others) << verbs::OpcodeName(request.opcode) << ", " << request.sges.size()
                          << " buffers at place " << before;
  if (request.opcode != Opcode::kSendWithInvalidate) return;
  // The NIC has no memory that could be invalidated.
  auto* const sent =
      reinterpret_cast<mlx5_wqe_ctrl_seg*>(static_cast<uint8_t*>(theirs_.sq.buf) + at);
  sent->opmod_idx_opcode = htobe32((be32toh(sent->opmod_idx_opcode) & ~0xffu) | MLX5_OPCODE_SEND);
}

void End::Receive(const ReceiveRequest& request) {
  const uint16_t before = receives_->queued();
  size_t posted = 0;
  const absl::Status status = receives_->Post({&request, 1}, &posted);
  ASSERT_TRUE(status.ok()) << status;
  if (ours_alone_) return;
  std::vector<ibv_sge> sges = SgesOf(request.sges);
  ibv_recv_wr work = {};
  work.wr_id = request.wr_id;
  work.sg_list = sges.data();
  work.num_sge = static_cast<int>(sges.size());
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(queue_pair_, &work, &bad), 0);
  EXPECT_EQ(receives_->queued(), LoadRecord(&theirs_.dbrec[MLX5_RCV_DBR]));
  CompareReceive(request, before);
}

void End::CompareReceive(const ReceiveRequest& request, uint16_t before) {
  const size_t at = size_t{before & (theirs_.rq.wqe_cnt - 1)} * theirs_.rq.stride;
  // Behind the buffer that ends the list nothing is read.
  size_t length = theirs_.rq.stride;
  const auto* const segments =
      reinterpret_cast<const mlx5_wqe_data_seg*>(copied_receives_.data() + at);
  for (size_t i = 0; i < theirs_.rq.stride / sizeof(segments[0]); ++i) {
    if (be32toh(segments[i].lkey) != MLX5_INVALID_LKEY) continue;
    length = (i + 1) * sizeof(segments[0]);
    break;
  }
  EXPECT_EQ(RingBytes(copied_receives_.data(), copied_receives_.size(), at, length),
            RingBytes(theirs_.rq.buf, copied_receives_.size(), at, length))
      << request.sges.size() << " buffers";
}

std::vector<Completion> End::Poll(size_t count) {
  std::vector<Completion> taken;
  EXPECT_TRUE(opened_->TurnUntil([&] {
    Completion one;
    const absl::StatusOr<int> found = queue_->Take({&one, 1});
    EXPECT_TRUE(found.ok()) << found.status();
    if (!found.ok()) return true;
    if (*found == 1) taken.push_back(one);
    return taken.size() == count;
  }));
  for (const Completion& ours : taken) {
    if (!ours_alone_) Compare(ours);
  }
  return taken;
}

void End::Compare(const Completion& ours) {
  ibv_wc work = {};
  ASSERT_EQ(ibv_poll_cq(completions_, 1, &work), 1);
  Completion other;
  verbs::rdma::TranslateCompletion(work, IBV_WC_WITH_INV, &other);
  EXPECT_EQ(ours.wr_id, other.wr_id);
  EXPECT_EQ(ours.status, other.status);
  EXPECT_EQ(ours.qp_number, other.qp_number);
  EXPECT_EQ(ours.vendor_error, other.vendor_error);
  if (ours.status != CompletionStatus::kSuccess) return;
  EXPECT_EQ(ours.opcode, other.opcode);
  EXPECT_EQ(ours.has_immediate, other.has_immediate);
  if (ours.has_immediate) EXPECT_EQ(ours.immediate, other.immediate);
  if (ours.opcode != verbs::CompletionOpcode::kSend &&
      ours.opcode != verbs::CompletionOpcode::kWrite) {
    EXPECT_EQ(ours.byte_len, other.byte_len);
  }
}

void End::Arm() {
  queue_->RequestNotification();
  if (ours_alone_) return;
  ASSERT_EQ(ibv_req_notify_cq(completions_, 0), 0);
  EXPECT_EQ(LoadRecord(&copied_consumed_[kArmRecord]),
            LoadRecord(&their_completions_.dbrec[kArmRecord]));
  ASSERT_EQ(remembered_.armed.size(), 1u);
  remembered_.armed.clear();
}

void End::TakeOver() {
  ours_alone_ = true;
  bell_.emplace(opened_->device.page(), opened_->device.wake());
  bell_->TakeOver();
  Drive(static_cast<uint8_t*>(theirs_.sq.buf), static_cast<uint8_t*>(theirs_.rq.buf), theirs_.dbrec,
        their_completions_.dbrec, &*bell_);
  queue_->TakeOver();
  sends_->RingAgain();
}

void End::Reset() {
  ibv_qp_attr reset = {};
  reset.qp_state = IBV_QPS_RESET;
  BATON_CHECK(ibv_modify_qp(queue_pair_, &reset, IBV_QP_STATE) == 0);
  EXPECT_EQ(sends_->queued(), 0);
  EXPECT_EQ(receives_->queued(), 0);
  cursors_ = {cursors_.use + 1, 0, 0};
}

// Our driver has memory of its own beside the queues, which are the copies or libmlx5's.
void End::Drive(uint8_t* sends, uint8_t* receives, __be32* records, __be32* consumed,
                verbs::mlx5::Doorbell* doorbell) {
  using verbs::mlx5::SendQueue;
  sends_.emplace(verbs::mlx5::SendQueueMemory{sends, &records[MLX5_SND_DBR], notes_.data(),
                                              &cursors_, theirs_.sq.wqe_cnt},
                 queue_pair_->qp_num, verbs::mlx5::SendQueueLimits{kSges, kInlineBytes}, doorbell);
  receives_.emplace(verbs::mlx5::ReceiveQueueMemory{receives, &records[MLX5_RCV_DBR],
                                                    wr_ids_.data(), &cursors_, theirs_.rq.wqe_cnt,
                                                    theirs_.rq.stride});
  queue_.emplace(
      verbs::mlx5::CompletionQueueMemory{
          static_cast<const uint8_t*>(their_completions_.buf), &consumed[kConsumedRecord], &taken_,
          their_completions_.cqe_cnt, their_completions_.cqe_size, &consumed[kArmRecord], &arming_},
      their_completions_.cqn, doorbell);
  queue_->Add({queue_pair_->qp_num, 0, notes_.data(), theirs_.sq.wqe_cnt, wr_ids_.data(),
               theirs_.rq.wqe_cnt, &cursors_});
}

}  // namespace baton::nic::oracle

#include "tests/lib/nic/oracle/end.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

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
constexpr uint32_t kEntries = 63;

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

bool Opened::TurnUntil(const std::function<bool()>& done) {
  return nic.TurnUntil([&] {
    device.device().Scan();
    return done();
  });
}

End::End(Opened* opened, uint16_t entry_bytes, ibv_comp_channel* channel)
    : opened_(opened),
      completions_(opened->device.MakeCompletionQueue(kEntries, entry_bytes, channel)),
      queue_pair_(opened->device.MakeQueuePair(
          completions_, {kRequests, kReceives, kSges, kSges, kInlineBytes})) {
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

void End::Connect(const End& peer) {
  opened_->device.Init(queue_pair_);
  OpenedDevice::Connect(queue_pair_, peer.queue_pair_->qp_num);
}

void End::Send(const SendRequest& request) {
  const uint16_t before = sends_->queued();
  size_t posted = 0;
  const absl::Status status = sends_->Post({&request, 1}, &posted);
  ASSERT_TRUE(status.ok()) << status;
  if (ours_alone_) return;
  ASSERT_NO_FATAL_FAILURE(PostByLibrary(request));
  ASSERT_NO_FATAL_FAILURE(CompareSend(request, before));
  EXPECT_EQ(opened_->device.device().TakeRing(), remembered_.rung.back());
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
  const UverbsDevice& device = opened_->device.device();
  bell_.emplace(device.page(), device.wake());
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

#include "lib/verbs/rdma/queue_pair.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/verbs/rdma/completion.h"
#include "lib/verbs/rdma/posting.h"
#include "lib/verbs/rdma/shared_receive_queue.h"

namespace baton::verbs::rdma {
namespace {

// The peer's wait after a message that found no receive: 0.48 ms (InfiniBand specification, table
// 45: RNR NAK timer). The peer usually retries for ever, because the connection manager carries our
// rnr_retry_count of 7 to it. So this is the shortest time that does not load the wire with retries
// during a change of owner. rdma_init_qp_attr has 0 here, which is 655 ms.
constexpr uint8_t kRnrTimer = 11;

// The most retries of our own messages, whatever the connecting side requested. Soft-RoCE retries
// for ever at 7 (rxe_comp.c), so a connection whose peer is gone would never end.
constexpr uint8_t kMaxRetries = 6;

ibv_wr_opcode OpcodeOf(Opcode opcode) {
  static constexpr std::array<ibv_wr_opcode, kOpcodeCount> kOpcodes = {IBV_WR_SEND,
                                                                       IBV_WR_SEND_WITH_IMM,
                                                                       IBV_WR_RDMA_WRITE,
                                                                       IBV_WR_RDMA_WRITE_WITH_IMM,
                                                                       IBV_WR_RDMA_READ,
                                                                       IBV_WR_ATOMIC_CMP_AND_SWP,
                                                                       IBV_WR_ATOMIC_FETCH_AND_ADD,
                                                                       IBV_WR_SEND_WITH_INV};
  return kOpcodes[static_cast<size_t>(opcode)];
}

// Indexed by QueuePairState.
constexpr ibv_qp_state kStates[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
                                    IBV_QPS_ERR};

ibv_qp_state StateOf(QueuePairState state) { return kStates[static_cast<size_t>(state)]; }

QueuePairState StateFrom(ibv_qp_state state) {
  const auto* const found = std::find(std::begin(kStates), std::end(kStates), state);
  if (found == std::end(kStates)) return QueuePairState::kError;
  return static_cast<QueuePairState>(found - std::begin(kStates));
}

// Leaves fields of other opcodes and kinds of queue pair unchanged.
void TranslateRequest(const SendRequest& from, ibv_send_wr* to) {
  to->wr_id = from.wr_id;
  to->sg_list = ListOf(from.sges);
  to->num_sge = static_cast<int>(from.sges.size());
  to->opcode = OpcodeOf(from.opcode);
  to->send_flags = IBV_SEND_SIGNALED;
  if (from.fence) to->send_flags |= IBV_SEND_FENCE;
  if (from.solicited) to->send_flags |= IBV_SEND_SOLICITED;
  if (from.inline_data) to->send_flags |= IBV_SEND_INLINE;
  if (from.opcode == Opcode::kSendWithInvalidate) {
    to->invalidate_rkey = from.invalidate_rkey;
  } else {
    to->imm_data = htonl(from.immediate);
  }
  if (IsAtomic(from.opcode)) {
    to->wr.atomic = {from.remote_address, from.compare_add, from.swap, from.rkey};
  } else {
    to->wr.rdma.remote_addr = from.remote_address;
    to->wr.rdma.rkey = from.rkey;
  }
}

}  // namespace

// ---------------------------------------------------------------- completion queue

absl::StatusOr<std::unique_ptr<RdmaCompletionQueue>> RdmaCompletionQueue::Create(DeviceCore* core,
                                                                                 uint32_t entries) {
  std::unique_ptr<RdmaCompletionQueue> queue(new RdmaCompletionQueue(core));
  queue->channel_.reset(ibv_create_comp_channel(core->context.get()));
  if (!queue->channel_) return ErrnoStatus(errno, "ibv_create_comp_channel");
  queue->queue_.reset(ibv_create_cq(core->context.get(), static_cast<int>(entries), queue.get(),
                                    queue->channel_.get(), /*comp_vector=*/0));
  if (!queue->queue_) {
    return ErrnoStatus(errno, absl::StrCat("making a completion queue of ", entries, " entries"));
  }
  core->completion_queues.insert(queue.get());
  return queue;
}

RdmaCompletionQueue::RdmaCompletionQueue(DeviceCore* core,
                                         const BatonInheritedCompletionQueue& described)
    : core_(core),
      channel_(static_cast<ibv_comp_channel*>(described.channel)),
      queue_(static_cast<ibv_cq*>(described.queue)) {
  AfterFork();
  core_->completion_queues.insert(this);
}

void RdmaCompletionQueue::Describe(BatonInheritedCompletionQueue* described) const {
  *described = {};
  described->queue = queue_.get();
  described->channel = channel_.get();
}

RdmaCompletionQueue::~RdmaCompletionQueue() {
  core_->completion_queues.erase(this);
  // Closing the descriptor does not end the watch, because a forked process may hold it, too.
  if (watched_) core_->Unwatch(channel_->fd);
  if (core_->MayDestroyQueues()) return;
  (void)queue_.release();  // it ends with the device
  (void)channel_.release();
}

// The former process's notifications may be in the channel, together with this process's own.
void RdmaCompletionQueue::TakeOver() {
  predecessors_notices_ = true;
  notice_ = Notice::kNone;
}

void RdmaCompletionQueue::ForgetNotification() {
  if (std::exchange(watched_, false)) core_->Unwatch(channel_->fd);
  notice_ = Notice::kNone;
  // The process that polls next awaits the last receives of its queue pairs.
  for (const auto& [number, queue_pair] : core_->queue_pairs) {
    if (queue_pair->CompletesIn(this)) queue_pair->ForgetLastReceive();
  }
}

void RdmaCompletionQueue::AfterFork() {
  predecessors_notices_ = true;
  notice_ = Notice::kNone;
  watched_ = false;
}

absl::StatusOr<int> RdmaCompletionQueue::Take(absl::Span<Completion> taken) {
  if (unusable_) return absl::DataLossError("the completion queue was overrun and is unusable");
  const int count = ibv_poll_cq(queue_.get(), static_cast<int>(taken.size()),
                                reinterpret_cast<ibv_wc*>(taken.data()));
  if (count < 0) return absl::DataLossError("polling: the completion queue is unusable");
  if (count > 0 && notice_ == Notice::kAsked) notice_ = Notice::kDue;
  // The notification is taken after the completions. Later completions are notified only after
  // another request, whose caller polls after it.
  if (notice_ == Notice::kDue && TakeNotification()) notice_ = Notice::kNone;
  return count;
}

void RdmaCompletionQueue::Tell(const ibv_wc& taken, Completion* completion) {
  TranslateCompletion(taken, core_->provider->invalidated_flags, completion);
  if (taken.status != IBV_WC_SUCCESS) OnFailed(taken.qp_num);
}

void RdmaCompletionQueue::Read(absl::Span<const Completion> taken, Completion* completions) {
  for (const Completion& one : taken) Tell(reinterpret_cast<const ibv_wc&>(one), completions++);
}

absl::StatusOr<int> RdmaCompletionQueue::Poll(absl::Span<Completion> completions) {
  BATON_ASSIGN_OR_RETURN(const int count, Take(completions));
  for (Completion& completion : completions.first(static_cast<size_t>(count))) {
    ibv_wc taken;
    std::memcpy(&taken, &completion, sizeof(taken));
    Tell(taken, &completion);
  }
  return count;
}

bool RdmaCompletionQueue::TakeNotification() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  if (ibv_get_cq_event(channel_.get(), &queue, &context) != 0) return false;
  // ibv_destroy_cq waits for this (ibv_ack_cq_events(3)).
  ibv_ack_cq_events(queue_.get(), 1);
  return true;
}

void RdmaCompletionQueue::OnFailed(uint32_t queue_pair_number) {
  const auto found = core_->queue_pairs.find(queue_pair_number);
  if (found != core_->queue_pairs.end()) found->second->NoteFailed();
}

absl::Status RdmaCompletionQueue::RequestNotification() {
  core_->look = true;
  if (!watched_) BATON_RETURN_IF_ERROR(core_->Watch(channel_->fd));
  watched_ = true;
  // A notification that was asked for is still to come, unless it came without a completion for us
  // (of a queue pair that no longer exists). One that is due never comes if its completion was
  // there before it was asked for. So this asks again, and if both come, one of them wakes in vain.
  // Earlier processes may have left notifications, which nobody else would take.
  if (std::exchange(predecessors_notices_, false)) {
    while (TakeNotification()) continue;
  }
  const bool taken = notice_ != Notice::kNone && TakeNotification();
  if (notice_ == Notice::kAsked && !taken) return absl::OkStatus();
  notice_ = Notice::kAsked;
  const int error = ibv_req_notify_cq(queue_.get(), /*solicited_only=*/0);
  if (error == 0) return absl::OkStatus();
  notice_ = Notice::kNone;
  return ErrnoStatus(error, "ibv_req_notify_cq");
}

void RdmaCompletionQueue::SetUnusable() {
  unusable_ = true;
  for (const auto& [number, queue_pair] : core_->queue_pairs) {
    if (queue_pair->CompletesIn(this)) (void)queue_pair->SetError();
  }
}

// ---------------------------------------------------------------- queue pair

absl::StatusOr<std::unique_ptr<RdmaQueuePair>> RdmaQueuePair::Create(
    DeviceCore* core, const QueuePairOptions& options) {
  if (options.send_queue == nullptr || options.receive_queue == nullptr) {
    return absl::InvalidArgumentError("a queue pair needs a send and a receive completion queue");
  }
  std::unique_ptr<RdmaQueuePair> queue_pair(new RdmaQueuePair(core, options));
  ibv_qp_init_attr wanted = {};
  wanted.qp_context = queue_pair.get();
  wanted.send_cq = static_cast<RdmaCompletionQueue*>(options.send_queue)->queue();
  wanted.recv_cq = static_cast<RdmaCompletionQueue*>(options.receive_queue)->queue();
  wanted.qp_type = IBV_QPT_RC;
  wanted.sq_sig_all = 1;
  const bool shared = options.shared_receive_queue != nullptr;
  if (shared) {
    wanted.srq = static_cast<RdmaSharedReceiveQueue*>(options.shared_receive_queue)->queue();
  }
  wanted.cap = {options.max_send_requests, shared ? 0 : options.max_receive_requests,
                options.max_scatter_gather, shared ? 0 : options.max_scatter_gather,
                options.max_inline_data};
  queue_pair->queue_pair_.reset(ibv_create_qp(core->domain.get(), &wanted));
  if (!queue_pair->queue_pair_) {
    return ErrnoStatus(
        errno,
        absl::StrCat("ibv_create_qp with ", options.max_send_requests, " sends and ",
                     options.max_receive_requests, " receives of ", options.max_scatter_gather,
                     " scatter-gather entries and ", options.max_inline_data, " bytes inline"));
  }
  queue_pair->max_inline_data_ = wanted.cap.max_inline_data;
  BATON_RETURN_IF_ERROR(queue_pair->MakeReady());
  core->queue_pairs.emplace(queue_pair->number(), queue_pair.get());
  return queue_pair;
}

RdmaQueuePair::RdmaQueuePair(DeviceCore* core, const BatonInheritedQueuePair& described,
                             const QueuePairOptions& options)
    : core_(core),
      options_(options),
      queue_pair_(static_cast<ibv_qp*>(described.queue_pair)),
      max_inline_data_(described.max_inline_data) {
  core_->queue_pairs.emplace(number(), this);
}

void RdmaQueuePair::Describe(BatonInheritedQueuePair* described) const {
  *described = {};
  described->queue_pair = queue_pair_.get();
  described->number = number();
  described->max_scatter_gather = options_.max_scatter_gather;
  described->max_inline_data = max_inline_data_;
}

RdmaQueuePair::~RdmaQueuePair() {
  if (queue_pair_) {
    core_->queue_pairs.erase(number());
    core_->ForgetLastReceive(this);
  }
  if (!core_->forked && link_ != nullptr) link_->QueuePairGone();
  if (core_->leaves_objects()) (void)queue_pair_.release();  // it ends with the device
}

absl::Status RdmaQueuePair::Modify(ibv_qp_state to, const char* name, ibv_qp_attr attributes,
                                   int mask) {
  attributes.qp_state = to;
  const int error = ibv_modify_qp(queue_pair_.get(), &attributes, IBV_QP_STATE | mask);
  return error == 0 ? absl::OkStatus()
                    : ErrnoStatus(error, absl::StrCat("ibv_modify_qp to ", name));
}

absl::Status RdmaQueuePair::MakeReady() {
  ibv_qp_attr attributes = {};
  attributes.port_num = core_->port;
  attributes.qp_access_flags = core_->peer_rights;
  return Modify(IBV_QPS_INIT, "INIT", attributes,
                IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

bool RdmaQueuePair::Query(int mask, ibv_qp_attr* attributes) const {
  ibv_qp_init_attr made_with = {};
  return ibv_query_qp(queue_pair_.get(), attributes, mask, &made_with) == 0;
}

QueuePairState RdmaQueuePair::state() const {
  if (core_->forked || core_->processes->forked.load() != 0) return AskState();
  if (state_ != QueuePairState::kReadyToReceive && state_ != QueuePairState::kReadyToSend) {
    return state_;
  }
  ibv_qp_attr attributes = {};
  if (!Query(IBV_QP_STATE, &attributes)) return state_;
  return attributes.qp_state == IBV_QPS_ERR ? QueuePairState::kError : state_;
}

// Another process may have connected the queue pair since, or reset it for reuse.
QueuePairState RdmaQueuePair::AskState() const {
  ibv_qp_attr attributes = {};
  if (!Query(IBV_QP_STATE | IBV_QP_MAX_QP_RD_ATOMIC, &attributes)) return state_;
  state_ = StateFrom(attributes.qp_state);
  reads_ = attributes.max_rd_atomic > 0;
  if (state_ != QueuePairState::kError) ForgetLastReceive();
  return state_;
}

ReadDepths RdmaQueuePair::AskDepths() const {
  ibv_qp_attr attributes = {};
  if (!Query(IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC, &attributes)) return {};
  return {attributes.max_rd_atomic, attributes.max_dest_rd_atomic};
}

// The event of its last receive may have been read, so the wait begins again.
void RdmaQueuePair::OnFormer() {
  link_ = nullptr;
  holds_no_receive_ = last_receive_awaited_ = false;
  if (AskState() == QueuePairState::kError) AwaitLastReceive();
}

// If the queue pair is in the error state by now, its completions say so.
void RdmaQueuePair::NoteConnected(bool reads) {
  state_ = QueuePairState::kReadyToSend;
  reads_ = reads;
  ForgetLastReceive();
}

absl::Status RdmaQueuePair::Bind(QueuePairLink* link) {
  if (state_ != QueuePairState::kInit || link_ != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("queue pair ", number(),
                     link_ != nullptr ? " has a connection" : " is not in INIT: make a new one"));
  }
  link_ = link;
  return absl::OkStatus();
}

absl::Status RdmaQueuePair::Advance(uint32_t id, QueuePairState state, const ReadDepths& depths) {
  BATON_ASSIGN_OR_RETURN(const CmQueuePairAttributes known,
                         core_->cm->QueuePairAttributes(id, StateOf(state)));
  ibv_qp_attr attributes = known.attributes;
  // The connection manager grants atomics even if the device has none (cm_init_qp_init_attr).
  attributes.qp_access_flags &= core_->peer_rights;
  if (state == QueuePairState::kReadyToReceive) {
    attributes.min_rnr_timer = kRnrTimer;
    attributes.max_dest_rd_atomic = depths.theirs;
  }
  if (state == QueuePairState::kReadyToSend) {
    attributes.max_rd_atomic = depths.ours;
    attributes.retry_cnt = std::min(attributes.retry_cnt, kMaxRetries);
  }
  const int error = ibv_modify_qp(queue_pair_.get(), &attributes, known.mask);
  if (error != 0) {
    return ErrnoStatus(error, absl::StrCat("ibv_modify_qp to state ", attributes.qp_state));
  }
  reads_ = depths.ours > 0;
  state_ = state;
  return absl::OkStatus();
}

// In the opener, later receives were flushed by PostReceive. A forked process may have posted
// without knowing of an error that another process caused, so it flushes again.
absl::Status RdmaQueuePair::SetError() {
  if (state_ == QueuePairState::kError && !core_->forked) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(FlushQueues());
  state_ = QueuePairState::kError;
  AwaitLastReceive();
  return absl::OkStatus();
}

// A failed completion means that the queue pair is in the error state. But a forked process may
// read a completion of a former use of the queue pair, so it asks the device.
void RdmaQueuePair::NoteFailed() {
  if (state_ == QueuePairState::kError) return;
  if (core_->forked && AskState() != QueuePairState::kError) return;
  (void)SetError();
}

// The queue pair may have entered the error state by itself, without SetError().
bool RdmaQueuePair::holds_no_receive() const {
  if (!holds_no_receive_ && state() == QueuePairState::kError) AwaitLastReceive();
  return holds_no_receive_;
}

void RdmaQueuePair::AwaitLastReceive() const {
  if (options_.shared_receive_queue == nullptr || last_receive_awaited_) return;
  last_receive_awaited_ = true;
  core_->awaiting_last_receive.Add(const_cast<RdmaQueuePair*>(this));
}

void RdmaQueuePair::OnLastReceive(const char* how) {
  if (options_.shared_receive_queue == nullptr || std::exchange(holds_no_receive_, true)) return;
  last_receive_awaited_ = true;
  core_->ForgetLastReceive(this);
  core_->PushDeviceEvent(
      {.type = DeviceEventType::kLastWorkRequestReached, .qp_number = number(), .text = how});
}

void RdmaQueuePair::ForgetLastReceive() const {
  if (!last_receive_awaited_) return;
  core_->ForgetLastReceive(this);
  holds_no_receive_ = last_receive_awaited_ = false;
}

absl::Status RdmaQueuePair::SetReset() {
  BATON_RETURN_IF_ERROR(Modify(IBV_QPS_RESET, "RESET"));
  ForgetLastReceive();
  state_ = QueuePairState::kReset;
  return absl::OkStatus();
}

absl::Status RdmaQueuePair::SetInit() {
  BATON_RETURN_IF_ERROR(MakeReady());
  ForgetLastReceive();
  reads_ = false;
  state_ = QueuePairState::kInit;
  return absl::OkStatus();
}

// Moves to the error state, even from the error state: every state allows this ibv_modify_qp.
absl::Status RdmaQueuePair::FlushQueues() { return Modify(IBV_QPS_ERR, "ERR"); }

// READs, atomics and inline sends have limits of their own.
absl::Status RdmaQueuePair::CheckSend(const SendRequest& request) const {
  if (IsAnswered(request.opcode) || request.inline_data) return CheckSpecial(request);
  return CheckSges(request.sges.size(), options_.max_scatter_gather);
}

absl::Status RdmaQueuePair::CheckSpecial(const SendRequest& request) const {
  // A provider would keep such a request for ever.
  if (IsAnswered(request.opcode) && !reads_ && state_ == QueuePairState::kReadyToSend) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(OpcodeName(request.opcode)),
        ": the peer answers no READs and atomics (its responder_resources, or our initiator_depth, "
        "is 0)"));
  }
  if (request.inline_data) BATON_RETURN_IF_ERROR(CheckInline(request, max_inline_data_));
  return CheckSges(request.sges.size(), options_.max_scatter_gather);
}

absl::Status RdmaQueuePair::PostSend(absl::Span<const SendRequest> requests, size_t* posted) {
  *posted = 0;
  const auto takes_sends = [](QueuePairState state) {
    return state == QueuePairState::kReadyToSend || state == QueuePairState::kError;
  };
  if (!takes_sends(state_) && !(core_->forked && takes_sends(AskState()))) {
    return absl::FailedPreconditionError("the queue pair is not connected yet: sends have to wait");
  }
  return PostInChains<ibv_send_wr>(
      requests, posted, [this](const SendRequest& request) { return CheckSend(request); },
      TranslateRequest,
      [this](ibv_send_wr* chain, size_t count, size_t* taken) {
        ibv_send_wr* bad = nullptr;
        const int error = core_->forked
                              ? core_->provider->post_send_forked(queue_pair_.get(), chain, &bad)
                              : ibv_post_send(queue_pair_.get(), chain, &bad);
        *taken = TakenOf(chain, bad, count);
        return error == 0 ? absl::OkStatus() : CannotPost(error, "send");
      });
}

absl::Status RdmaQueuePair::PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) {
  *posted = 0;
  if (options_.shared_receive_queue != nullptr) {
    return absl::FailedPreconditionError(
        "the queue pair takes its receives from a shared queue: post them there");
  }
  absl::Status status = PostInChains<ibv_recv_wr>(
      requests, posted,
      [this](const ReceiveRequest& request) {
        return CheckSges(request.sges.size(), options_.max_scatter_gather);
      },
      TranslateReceive,
      [this](ibv_recv_wr* chain, size_t count, size_t* taken) {
        ibv_recv_wr* bad = nullptr;
        const int error = ibv_post_recv(queue_pair_.get(), chain, &bad);
        *taken = TakenOf(chain, bad, count);
        return error == 0 ? absl::OkStatus() : CannotPost(error, "receive");
      });
  // A provider that rings no doorbell for a receive (Soft-RoCE) would leave it there unflushed.
  if (state_ == QueuePairState::kError && *posted > 0) BATON_RETURN_IF_ERROR(FlushQueues());
  return status;
}

}  // namespace baton::verbs::rdma

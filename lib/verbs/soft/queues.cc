#include "lib/verbs/soft/queues.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/nic/control_format.h"

namespace baton::verbs::soft {
namespace {

using nic::control::Kind;

bool IsReceive(const Completion& completion) {
  return completion.opcode == CompletionOpcode::kReceive ||
         completion.opcode == CompletionOpcode::kReceiveWithImmediate;
}

absl::Status TooMany(absl::string_view what, size_t count, uint32_t limit) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, " with ", count, " scatter-gather entries; the queue was made for ", limit));
}

// The memory of a former process's object. That process's QueueMemory owns it.
QueueMemory::Block BlockAt(void* begin) {
  return {nullptr, {.begin = static_cast<uint8_t*>(begin), .bytes = 0, .place = {}}};
}

// The queues of a queue pair that BatonInheritedQueuePair describes.
QueuePairOptions OptionsOf(const BatonInheritedQueuePair& described, CompletionQueue* completes,
                           SharedReceiveQueue* shared) {
  QueuePairOptions options;
  options.send_queue = options.receive_queue = completes;
  options.shared_receive_queue = shared;
  options.max_scatter_gather = described.max_scatter_gather;
  options.max_inline_data = described.max_inline_data;
  return options;
}

// Posts to `queue` up to the first receive that has more than `limit` entries.
template <typename Queue>
absl::Status PostReceivesTo(Queue* queue, uint32_t limit, absl::Span<const ReceiveRequest> requests,
                            size_t* posted) {
  const auto wrong = std::find_if(requests.begin(), requests.end(), [limit](const auto& request) {
    return request.sges.size() > limit;
  });
  const auto fine = static_cast<size_t>(wrong - requests.begin());
  absl::Status status = queue->PostReceive(requests.first(fine), posted);
  if (!status.ok() || wrong == requests.end()) return status;
  return TooMany("receive", wrong->sges.size(), limit);
}

}  // namespace

// ---------------------------------------------------------------- register

absl::StatusOr<std::unique_ptr<SoftRegister>> SoftRegister::Make(SoftHost* host) {
  constexpr uint64_t kBytes = sizeof(mlx5::DoorbellPage);
  BATON_ASSIGN_OR_RETURN(QueueMemory::Block page, host->memory->Allocate(kBytes, kBytes));
  BATON_ASSIGN_OR_RETURN(nic::Client::Made made, host->client->AddRegister(page.place));
  return std::unique_ptr<SoftRegister>(new SoftRegister(host, std::move(page), std::move(made)));
}

SoftRegister::SoftRegister(SoftHost* host, QueueMemory::Block page, nic::Client::Made made)
    : host_(host),
      page_(std::move(page)),
      made_(std::move(made)),
      fifo_(reinterpret_cast<mlx5::DoorbellPage*>(page_.begin), made_.descriptor.get()) {}

SoftRegister::SoftRegister(SoftHost* host, const BatonInheritedCompletionQueue& described)
    : SoftRegister(host, BlockAt(described.channel),
                   {described.reg, FileDescriptor(described.reg_wake)}) {}

SoftRegister::~SoftRegister() { (void)host_->client->Destroy(Kind::kRegister, made_.number); }

void SoftRegister::Ring(uint64_t bytes) {
  fifo_.Ring(bytes);
  if (host_->rung) host_->rung();
}

void SoftRegister::Arm(uint64_t bytes) {
  fifo_.Arm(bytes);
  if (host_->rung) host_->rung();
}

void SoftRegister::ReceivesPosted(uint32_t qp_number, const uint32_t& failed) {
  fifo_.ReceivesPosted(qp_number, failed);
  if (host_->rung) host_->rung();
}

// ---------------------------------------------------------------- completion queue

absl::StatusOr<std::unique_ptr<CompletionQueue>> SoftCompletionQueue::Make(SoftHost* host,
                                                                           uint32_t entries) {
  const mlx5::CompletionQueueLayout layout = {std::bit_ceil(entries)};
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<SoftRegister> reg, SoftRegister::Make(host));
  BATON_ASSIGN_OR_RETURN(QueueMemory::Block block,
                         host->memory->Allocate(layout.bytes(), mlx5::kLineBytes));
  BATON_ASSIGN_OR_RETURN(nic::Client::Made channel, host->client->AddChannel());
  const absl::StatusOr<uint32_t> number =
      host->client->AddCompletionQueue(block.place, layout, reg->number(), channel.number);
  if (number.ok()) {
    return std::unique_ptr<CompletionQueue>(
        new SoftCompletionQueue(host, {.block = std::move(block),
                                       .layout = layout,
                                       .number = *number,
                                       .reg = std::move(reg),
                                       .channel = std::move(channel)}));
  }
  (void)host->client->Destroy(Kind::kChannel, channel.number);
  return number.status();
}

SoftCompletionQueue::SoftCompletionQueue(SoftHost* host, Parts parts)
    : host_(host),
      block_(std::move(parts.block)),
      layout_(parts.layout),
      number_(parts.number),
      reg_(std::move(parts.reg)),
      channel_(std::move(parts.channel)),
      queue_(parts.layout.At(block_.begin), number_, reg_.get()) {
  host_->completion_queues.insert(this);
}

SoftCompletionQueue::SoftCompletionQueue(SoftHost* host,
                                         const BatonInheritedCompletionQueue& described)
    : SoftCompletionQueue(
          host, {.block = BlockAt(described.queue),
                 .layout = {described.entry_count},
                 .number = described.number,
                 .reg = std::make_unique<SoftRegister>(host, described),
                 .channel = {described.channel_number, FileDescriptor(described.channel_socket)}}) {
}

void SoftCompletionQueue::Describe(BatonInheritedCompletionQueue* described) const {
  *described = {.queue = block_.begin,
                .channel = reg_->page(),
                .entry_count = layout_.entry_count,
                .number = number_,
                .reg = reg_->number(),
                .channel_number = channel_.number,
                .reg_wake = reg_->wake_fd(),
                .channel_socket = channel_fd()};
}

SoftCompletionQueue::~SoftCompletionQueue() {
  host_->completion_queues.erase(this);
  ForgetNotification();
  (void)host_->client->Destroy(Kind::kCompletionQueue, number_);
  (void)host_->client->Destroy(Kind::kChannel, channel_.number);
}

bool SoftCompletionQueue::overrun() const {
  auto* const failed =
      reinterpret_cast<uint32_t*>(block_.begin + mlx5::CompletionQueueLayout::kFailed);
  return std::atomic_ref(*failed).load(std::memory_order_acquire) != 0;
}

// An event may come after the poll that has found its completion. So the channel is read before
// each poll until an event was found there.
void SoftCompletionQueue::ClearEvents() {
  uint8_t bytes[64];
  while (recv(channel_.descriptor.get(), bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
    notified_ = false;
  }
}

bool SoftCompletionQueue::needs_care() const {
  return lost_ || armed_ || notified_ || !kept_.empty() || overrun();
}

absl::StatusOr<int> SoftCompletionQueue::Poll(absl::Span<Completion> completions) {
  polls_ = true;
  return needs_care() ? PollWithCare(completions) : queue_.Take(completions);
}

mlx5::CompletionQueue* SoftCompletionQueue::DirectQueue() {
  polls_ = true;
  return needs_care() ? nullptr : &queue_;
}

absl::StatusOr<int> SoftCompletionQueue::PollWithCare(absl::Span<Completion> completions) {
  if (lost_) return absl::DataLossError("the NIC is lost, and its completion queues with it");
  // If an event is taken before the poll, the poll finds the completion that it announces.
  if (notified_) ClearEvents();
  absl::StatusOr<int> count = PollAll(completions);
  if (armed_ && (!count.ok() || *count > 0)) {
    armed_ = false;
    notified_ = true;
  }
  return count;
}

// Returns fewer than `completions` has room for only if the queue is empty.
absl::StatusOr<int> SoftCompletionQueue::PollAll(absl::Span<Completion> completions) {
  if (overrun()) {
    return absl::DataLossError(
        absl::StrCat("completion queue ", number_,
                     " was overrun and is unusable: make it as large as all that can be "
                     "outstanding on its queue pairs"));
  }
  if (kept_.empty()) return queue_.Take(completions);
  const size_t count = std::min(completions.size(), kept_.size());
  std::copy_n(kept_.begin(), count, completions.begin());
  kept_.erase(kept_.begin(), kept_.begin() + static_cast<ptrdiff_t>(count));
  return static_cast<int>(count) + queue_.Take(completions.subspan(count)).value_or(0);
}

// queue_.TakeOver() also settles the shared receive queues, because all queue pairs that take from
// them complete here.
void SoftCompletionQueue::TakeOver() {
  armed_ = notified_ = false;
  reg_->TakeOver();
  queue_.TakeOver();
  for (SoftQueuePair* const queue_pair : places_) {
    if (queue_pair != nullptr && queue_pair->send_queue() == this) queue_pair->TakeOver();
  }
}

void SoftCompletionQueue::AfterFork() {
  watched_ = armed_ = notified_ = polls_ = false;
  kept_.clear();
}

void SoftCompletionQueue::SetLost() {
  lost_ = true;
  ForgetNotification();
}

// Drops an event that another process has asked for, or that came in vain. The caller's next poll
// finds the completion that it announced.
absl::Status SoftCompletionQueue::RequestNotification() {
  ClearEvents();
  if (!watched_ && !lost_) {
    BATON_RETURN_IF_ERROR(AddToEpoll(host_->epoll_fd, channel_.descriptor.get(), {EPOLLIN, {}}));
    watched_ = true;
  }
  armed_ = true;
  queue_.RequestNotification();
  return absl::OkStatus();
}

void SoftCompletionQueue::ForgetNotification() {
  if (!std::exchange(watched_, false)) return;
  epoll_ctl(host_->epoll_fd, EPOLL_CTL_DEL, channel_.descriptor.get(), nullptr);
}

void SoftCompletionQueue::Add(SoftQueuePair* queue_pair, const mlx5::QueuePairLayout& layout,
                              uint8_t* begin, mlx5::SharedReceiveQueue* shared,
                              std::optional<uint32_t> place) {
  const auto free = std::find(places_.begin(), places_.end(), nullptr);
  const size_t at = place.value_or(static_cast<uint32_t>(free - places_.begin()));
  if (at >= places_.size()) places_.resize(at + 1);
  places_[at] = queue_pair;
  mlx5::CompletingQueuePair completing =
      layout.CompletingAt(begin, queue_pair->number(), static_cast<uint16_t>(at));
  completing.shared = shared;
  completing.sends_here = queue_pair->send_queue() == this;
  completing.receives_here = queue_pair->receive_queue() == this;
  queue_.Add(completing);
}

uint16_t SoftCompletionQueue::PlaceOf(const SoftQueuePair* queue_pair) const {
  const auto found = std::find(places_.begin(), places_.end(), queue_pair);
  return static_cast<uint16_t>(found - places_.begin());
}

void SoftCompletionQueue::Remove(SoftQueuePair* queue_pair) {
  *std::find(places_.begin(), places_.end(), queue_pair) = nullptr;
  queue_.Remove(queue_pair->number());
}

absl::Status SoftCompletionQueue::NoteReset(const SoftQueuePair& queue_pair) {
  return queue_.NoteReset(queue_pair.number());
}

void SoftCompletionQueue::Keep() {
  const bool embedded = host_->rung != nullptr;
  if (!embedded && (!polls_ || host_->client->calls().forked())) return;
  Completion completion;
  while (queue_.Take({&completion, 1}).value_or(0) == 1) kept_.push_back(completion);
}

std::optional<uint64_t> SoftCompletionQueue::LastKept(uint32_t qp_number, bool receive) const {
  const auto last = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Completion& one) {
    return one.qp_number == qp_number && IsReceive(one) == receive;
  });
  return last == kept_.rend() ? std::nullopt : std::optional(last->wr_id);
}

bool SoftCompletionQueue::Keeps(uint64_t wr_id) const {
  return std::any_of(kept_.begin(), kept_.end(), [wr_id](const Completion& one) {
    return one.wr_id == wr_id && IsReceive(one);
  });
}

// ---------------------------------------------------------------- shared receive queue

absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> SoftSharedReceiveQueue::Make(
    SoftHost* host, uint32_t entries, uint32_t max_scatter_gather) {
  BATON_ASSIGN_OR_RETURN(const mlx5::SharedReceiveQueueLayout layout,
                         mlx5::LayOutShared(entries, max_scatter_gather));
  BATON_ASSIGN_OR_RETURN(QueueMemory::Block block,
                         host->memory->Allocate(layout.bytes(), mlx5::kLineBytes));
  const nic::control::SharedReceiveQueue message = {
      .slots = block.place.Behind(mlx5::SharedReceiveQueueLayout::kSlots),
      .record = block.place.Behind(mlx5::SharedReceiveQueueLayout::kRecord),
      .slot_count = layout.slot_count,
      .slot_bytes = layout.slot_bytes};
  BATON_ASSIGN_OR_RETURN(const uint32_t number, host->client->Add(message));
  return std::unique_ptr<SharedReceiveQueue>(
      new SoftSharedReceiveQueue(host, std::move(block), layout, number,
                                 {.entries = entries, .max_scatter_gather = max_scatter_gather}));
}

SoftSharedReceiveQueue::SoftSharedReceiveQueue(SoftHost* host, QueueMemory::Block block,
                                               const mlx5::SharedReceiveQueueLayout& layout,
                                               uint32_t number, Capacity capacity)
    : host_(host),
      block_(std::move(block)),
      layout_(layout),
      capacity_(capacity),
      queue_(layout.At(block_.begin), number, host->client) {
  host_->shared_receive_queues[number] = this;
}

SoftSharedReceiveQueue::SoftSharedReceiveQueue(SoftHost* host,
                                               const BatonInheritedSharedReceiveQueue& described)
    : SoftSharedReceiveQueue(host, BlockAt(described.queue),
                             {described.slot_count, described.slot_bytes}, described.number,
                             {described.entries, described.max_scatter_gather}) {}

void SoftSharedReceiveQueue::Describe(BatonInheritedSharedReceiveQueue* described) const {
  *described = {.queue = block_.begin,
                .entries = capacity_.entries,
                .max_scatter_gather = capacity_.max_scatter_gather,
                .number = queue_.number(),
                .slot_count = layout_.slot_count,
                .slot_bytes = layout_.slot_bytes,
                .reserved = 0};
}

SoftSharedReceiveQueue::~SoftSharedReceiveQueue() {
  host_->shared_receive_queues.erase(queue_.number());
  (void)host_->client->Destroy(Kind::kSharedReceiveQueue, queue_.number());
}

absl::Status SoftSharedReceiveQueue::PostReceive(absl::Span<const ReceiveRequest> requests,
                                                 size_t* posted) {
  return PostReceivesTo(&queue_, capacity_.max_scatter_gather, requests, posted);
}

absl::Status SoftSharedReceiveQueue::ArmLimit(uint32_t limit) {
  if (limit <= capacity_.entries) return queue_.ArmLimit(limit);
  return absl::InvalidArgumentError(
      absl::StrCat("limit ", limit, " of a shared receive queue of ", capacity_.entries));
}

absl::StatusOr<bool> SoftSharedReceiveQueue::IsQueued(uint64_t wr_id) const {
  for (const SoftCompletionQueue* const completes : host_->completion_queues) {
    if (completes->Keeps(wr_id)) return true;
  }
  return queue_.IsQueued(wr_id);
}

// ---------------------------------------------------------------- queue pair

absl::StatusOr<std::unique_ptr<QueuePair>> SoftQueuePair::Make(SoftHost* host,
                                                               const QueuePairOptions& options) {
  auto* const shared = static_cast<SoftSharedReceiveQueue*>(options.shared_receive_queue);
  BATON_ASSIGN_OR_RETURN(const mlx5::QueuePairLayout layout, mlx5::LayOut(options));
  BATON_ASSIGN_OR_RETURN(QueueMemory::Block block,
                         host->memory->Allocate(layout.bytes(), mlx5::kLineBytes));
  const auto* const send_queue = static_cast<SoftCompletionQueue*>(options.send_queue);
  const mlx5::SendQueueLimits limits = mlx5::LimitsOf(options);
  nic::control::QueuePair message;
  message.send_sges = limits.scatter_gather;
  message.send_inline = limits.inline_bytes;
  message.reg = send_queue->reg().number();
  message.send_queue = send_queue->number();
  message.receive_queue = static_cast<SoftCompletionQueue*>(options.receive_queue)->number();
  message.shared_receive_queue = shared == nullptr ? 0 : shared->queue().number();
  BATON_ASSIGN_OR_RETURN(const uint32_t number,
                         host->client->AddQueuePair(block.place, layout, message));
  return std::unique_ptr<QueuePair>(
      new SoftQueuePair(host, std::move(block), layout, options, number));
}

SoftQueuePair::SoftQueuePair(SoftHost* host, QueueMemory::Block block,
                             const mlx5::QueuePairLayout& layout, const QueuePairOptions& options,
                             uint32_t number, std::optional<uint32_t> place)
    : host_(host),
      block_(std::move(block)),
      layout_(layout),
      number_(number),
      send_queue_(static_cast<SoftCompletionQueue*>(options.send_queue)),
      receive_queue_(static_cast<SoftCompletionQueue*>(options.receive_queue)),
      max_scatter_gather_(options.max_scatter_gather),
      shared_(options.shared_receive_queue == nullptr
                  ? nullptr
                  : &static_cast<SoftSharedReceiveQueue*>(options.shared_receive_queue)->queue()),
      queue_pair_(std::make_unique<mlx5::QueuePair>(layout.MemoryAt(block_.begin), number,
                                                    mlx5::LimitsOf(options), host->client,
                                                    &send_queue_->reg())) {
  send_queue_->Add(this, layout, block_.begin, shared_, place);
  if (receive_queue_ != send_queue_) {
    receive_queue_->Add(this, layout, block_.begin, shared_, place);
  }
}

SoftQueuePair::SoftQueuePair(SoftHost* host, const BatonInheritedQueuePair& described,
                             SoftCompletionQueue* completes, SoftSharedReceiveQueue* shared)
    : SoftQueuePair(host, BlockAt(described.queue_pair),
                    {described.send_slots, described.receive_slots, described.receive_bytes},
                    OptionsOf(described, completes, shared), described.number, described.place) {}

void SoftQueuePair::Describe(BatonInheritedQueuePair* described) const {
  *described = {.queue_pair = block_.begin,
                .number = number_,
                .max_scatter_gather = max_scatter_gather_,
                .max_inline_data = max_inline_data(),
                .place = send_queue_->PlaceOf(this),
                .send_slots = layout_.send_slots,
                .receive_slots = layout_.receive_slots,
                .receive_bytes = layout_.receive_bytes,
                .reserved = 0};
}

// The NIC forgets the queue pair before its completions are kept, so none comes after them.
SoftQueuePair::~SoftQueuePair() {
  queue_pair_.reset();
  KeepCompletions();
  send_queue_->Remove(this);
  if (receive_queue_ != send_queue_) receive_queue_->Remove(this);
}

void SoftQueuePair::KeepCompletions() {
  send_queue_->Keep();
  if (receive_queue_ != send_queue_) receive_queue_->Keep();
}

absl::Status SoftQueuePair::PostSend(absl::Span<const SendRequest> requests, size_t* posted) {
  size_t fine = 0;
  absl::Status refused;
  for (; fine < requests.size() && refused.ok(); ++fine) {
    const SendRequest& request = requests[fine];
    if (request.sges.size() > max_scatter_gather_) {
      refused =
          TooMany(OpcodeName(request.opcode).data(), request.sges.size(), max_scatter_gather_);
    } else if (IsAnswered(request.opcode) && !queue_pair_->may_read()) {
      refused = absl::InvalidArgumentError(
          absl::StrCat(std::string(OpcodeName(request.opcode)),
                       ": the peer answers no READs and atomics (its responder_resources, or our "
                       "initiator_depth, is 0)"));
    }
  }
  if (!refused.ok()) --fine;
  const absl::Status status = queue_pair_->PostSend(requests.first(fine), posted);
  return status.ok() ? refused : status;
}

absl::Status SoftQueuePair::PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) {
  if (shared_ != nullptr) {
    *posted = 0;
    return absl::FailedPreconditionError(
        "the queue pair takes its receives from a shared queue: post them there");
  }
  return PostReceivesTo(queue_pair_.get(), max_scatter_gather_, requests, posted);
}

// Kept completions are older than everything that is still queued.
absl::StatusOr<std::optional<uint64_t>> SoftQueuePair::LastQueued(bool receive) const {
  absl::StatusOr<std::optional<uint64_t>> last = queue_pair_->LastQueued(receive);
  if (!last.ok() || last->has_value()) return last;
  return (receive ? receive_queue_ : send_queue_)->LastKept(number_, receive);
}

absl::Status SoftQueuePair::SetReset() {
  BATON_RETURN_IF_ERROR(host_->client->Modify(number_, QueuePairState::kReset));
  KeepCompletions();
  BATON_RETURN_IF_ERROR(send_queue_->NoteReset(*this));
  if (receive_queue_ != send_queue_) BATON_RETURN_IF_ERROR(receive_queue_->NoteReset(*this));
  return queue_pair_->SetReset();
}

}  // namespace baton::verbs::soft

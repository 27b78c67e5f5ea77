#include "lib/native/native_device.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/arena/text_field.h"
#include "lib/base/check.h"
#include "lib/base/status.h"
#include "lib/driver/connection_state.h"
#include "lib/native/mailbox.h"

namespace baton::native {
namespace {

using arena::ConnectionState;
using arena::MailEntry;
using arena::NoticeKind;
using arena::OrderKind;
using arena::PooledState;

bool IsKind(uint8_t kind) {
  return kind != 0 && kind <= static_cast<uint8_t>(arena::kLastNoticeKind);
}

// Returns whether the notice begins a connection that the driver does not know yet.
bool IsBeginning(const MailEntry& notice) {
  return NoticeKind(notice.kind) == NoticeKind::kRequested ||
         NoticeKind(notice.kind) == NoticeKind::kConnecting;
}

std::string PrivateDataOf(const arena::ConnectionRecord& connection) {
  return {reinterpret_cast<const char*>(connection.private_data),
          std::min(arena::LoadRelaxed(connection.private_data_length), arena::kPrivateDataBytes)};
}

MailEntry OrderOf(uint32_t connection, uint32_t generation, OrderKind kind) {
  MailEntry order = {};
  order.kind = static_cast<uint8_t>(kind);
  order.connection = connection;
  order.generation = generation;
  return order;
}

// Returns whether the queue pair is in INIT, like all free ones of the pool. The device is asked,
// because each worker of the service can write the arena's state.
bool IsNew(const verbs::QueuePair& pooled) {
  return pooled.state() == verbs::QueuePairState::kInit;
}

}  // namespace

// A queue pair of the pool that a connection has. In the connection manager's process its
// destructor has it destroyed. Elsewhere it leaves it in the error state until `baton-driver` makes
// it new. A reset in this process would not wait for a packet that the device is still processing,
// and Soft-RoCE would then lose count of the queue pair's users (rdma.md, "Reset").
class NativeQueuePair final : public verbs::QueuePair {
 public:
  NativeQueuePair(NativeDevice* device, uint32_t shard, verbs::QueuePair* inherited)
      : device_(device), shard_(shard), inherited_(inherited) {
    device_->queue_pairs_.insert(this);
  }
  ~NativeQueuePair() override {
    if (device_ == nullptr) return;
    NativeDevice* const device = device_;
    device->queue_pairs_.erase(this);
    Leave();
    if (device->destroy_ != nullptr) {
      device->destroy_(shard_, inherited_->number());
    } else if (inherited_->state() != verbs::QueuePairState::kError) {
      (void)inherited_->SetError();
    }
  }
  // Leaves the queue pair to the shard's next driver: its state stays when this is destroyed.
  void Leave() {
    if (awaiting_last_receive_) --device_->awaiting_last_receive_;
    device_ = nullptr;
  }
  uint32_t shard() const { return shard_; }
  // `baton-driver` has received the device's event, and put a notice of it.
  void TellLastReceive() { holds_no_receive_ = true; }

  uint32_t number() const override { return inherited_->number(); }
  verbs::QueuePairState state() const override { return inherited_->state(); }
  uint32_t max_inline_data() const override { return inherited_->max_inline_data(); }
  absl::Status PostSend(absl::Span<const verbs::SendRequest> requests, size_t* posted) override {
    return inherited_->PostSend(requests, posted);
  }
  absl::Status PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                           size_t* posted) override {
    return inherited_->PostReceive(requests, posted);
  }
  verbs::mlx5::QueuePair* DirectQueues() override { return inherited_->DirectQueues(); }
  absl::StatusOr<std::optional<uint64_t>> LastQueued(bool receive) const override {
    return inherited_->LastQueued(receive);
  }
  absl::Status SetError() override { return inherited_->SetError(); }
  bool holds_no_receive() const override {
    if (holds_no_receive_ || inherited_->holds_no_receive()) return true;
    if (!std::exchange(awaiting_last_receive_, true)) ++device_->awaiting_last_receive_;
    return false;
  }

 private:
  NativeDevice* device_;
  const uint32_t shard_;
  verbs::QueuePair* const inherited_;
  bool holds_no_receive_ = false;
  mutable bool awaiting_last_receive_ = false;  // a caller waits for it
};

// Sends the driver's orders about a connection to `baton-driver`.
class NativeConnectionId final : public verbs::ConnectionId {
 public:
  NativeConnectionId(NativeDevice* device, uint32_t shard, uint32_t connection, uint32_t generation)
      : device_(device), connection_(connection), generation_(generation) {
    context = reinterpret_cast<void*>(uintptr_t{connection} + 1);
    device_->ids_[connection] = this;
    device_->shard_of_[connection] = shard;
  }
  // Orders a disconnect. `baton-driver` keeps the connection manager's id until the slot is free.
  ~NativeConnectionId() override {
    if (device_ == nullptr) return;
    device_->ids_[connection_] = nullptr;
    if (!ended_) (void)Order(OrderKind::kDisconnect);  // if refused, FreeSlot() will be, too
  }
  void Leave() { device_ = nullptr; }
  uint32_t generation() const { return generation_; }

  // `baton-driver` stores them in the record.
  verbs::Address local_address() const override { return {}; }
  verbs::Address peer_address() const override { return {}; }
  verbs::ReadDepths depths() const override {
    const arena::ManagedConnection& told = device_->arena_->managed_connection(connection_);
    return {told.initiator_depth, told.responder_resources};
  }

  // A failed accept is reported later, as the end of the connection.
  absl::Status Accept(verbs::QueuePair* queue_pair,
                      const verbs::ConnectionParameters& parameters) override {
    device_->shard_of_[connection_] = static_cast<NativeQueuePair*>(queue_pair)->shard();
    if (queue_pair->number() != arena::LoadRelaxed(device_->record(connection_).qp_number)) {
      return absl::InternalError("another worker of the service has written over its record");
    }
    return Answer(parameters.private_data, OrderKind::kAccept);
  }
  absl::Status Reject(std::string_view private_data) override {
    ended_ = true;
    return Answer(private_data, OrderKind::kReject);
  }
  absl::Status Disconnect() override {
    if (std::exchange(ended_, true)) return absl::OkStatus();
    return Order(OrderKind::kDisconnect);
  }

 private:
  absl::Status Answer(std::string_view private_data, OrderKind kind) {
    arena::ManagedConnection& told = device_->arena_->managed_connection(connection_);
    if (private_data.size() > arena::kPrivateDataBytes) {
      return absl::InvalidArgumentError(absl::StrCat("private_data: ", private_data.size(),
                                                     " bytes, at most ", arena::kPrivateDataBytes));
    }
    // An answer that `baton-driver` has not read stays: a successor that ends the connection
    // rejects it, and knows no answer.
    if (!IsOrdered(OrderKind::kAccept) && !IsOrdered(OrderKind::kReject)) {
      std::copy(private_data.begin(), private_data.end(),
                device_->arena_->private_data(connection_));
      told.answer_length = static_cast<uint32_t>(private_data.size());
    }
    return Order(kind);
  }
  bool IsOrdered(OrderKind kind) const {
    return device_->HoldsOrder(device_->record(connection_).shard, connection_, generation_, kind);
  }
  // Puts the order into the ring of the shard that the record names: after an accept, the new one.
  absl::Status Order(OrderKind kind) {
    return device_->Order(device_->record(connection_).shard, connection_, generation_, kind);
  }

  NativeDevice* device_;
  const uint32_t connection_;
  const uint32_t generation_;
  bool ended_ = false;
};

NativeDevice::NativeDevice(Context context)
    : arena_(context.arena),
      device_(context.device),
      pool_(context.pool),
      objects_(context.objects),
      wake_driver_(std::move(context.wake_driver)),
      tell_(std::move(context.tell)),
      destroy_(std::move(context.destroy)),
      ids_(arena_->shape().connections, nullptr),
      shard_of_(arena_->shape().connections, 0),
      orders_inherited_(arena_->shape().shards, 0) {}

NativeDevice::~NativeDevice() {
  const std::vector<uint32_t> shards = shards_;
  for (const uint32_t shard : shards) Forget(shard);
}

// ---------------------------------------------------------------- shards come and go

void NativeDevice::Restore(absl::Span<const uint32_t> shards,
                           absl::Span<const uint32_t> connections) {
  for (const uint32_t shard : shards) {
    BATON_CHECK(std::find(shards_.begin(), shards_.end(), shard) == shards_.end());
    // The notices of these shards come first, however many the others have.
    shards_.insert(shards_.begin(), shard);
    // The orders of a broken ring are lost, and the adoption repeats those that count.
    Mailbox orders = Mailbox::Orders(*arena_, shard);
    if (orders.broken()) orders.Mend();
    orders_inherited_[shard] = orders.tail();
    for (const uint32_t i : connections) {
      // The shard is read before the generation: `baton-driver` may be giving the slot to another
      // connection at this moment.
      if (arena::LoadAcquire(record(i).shard) == shard) RestoreConnection(shard, i);
    }
    RestorePool(shard, connections);
  }
}

void NativeDevice::RestoreConnection(uint32_t shard, uint32_t index) {
  DropFormer(index);
  // The connection has objects here for another shard, whatever its record says by now.
  if (ids_[index] != nullptr) return;
  const ConnectionState state = driver::StateOf(record(index));
  if (state == ConnectionState::kFree) {
    // A dead driver may not have ordered the kFree. A slot whose request was not handled yet is
    // kFree, too, and must not be freed.
    const arena::ManagedConnection& told = arena_->managed_connection(index);
    const uint32_t generation = arena::LoadRelaxed(told.handled_generation);
    if (arena::LoadRelaxed(record(index).generation) == generation &&
        arena::LoadAcquire(told.freed_generation) != generation) {
      (void)Order(shard, index, generation, OrderKind::kFree);  // if refused, the slot stays unused
    }
    return;
  }
  driver::DeviceObjects::Connection& device = objects_->connections[index];
  device.id = std::make_unique<NativeConnectionId>(this, shard, index, record(index).generation);
  const int place = pool_->Find(shard, record(index).qp_number);
  if (place < 0) return;
  verbs::QueuePair* const inherited = pool_->at(shard, static_cast<uint32_t>(place));
  // The kernel is not asked for the state of established queue pairs, so that an heir of many
  // connections answers its first request soon.
  if (state == ConnectionState::kEstablished) {
    inherited->NoteConnected(record(index).initiator_depth != 0);
    device.queue_pair = std::make_unique<NativeQueuePair>(this, shard, inherited);
  } else {
    device.queue_pair = Hand(shard, inherited);
  }
}

// Returns true if the queue pair that the record names may be another connection's by now:
// `baton-driver` puts it back before it stores that the slot is free.
bool NativeDevice::IsGivenBack(uint32_t index) const {
  const uint32_t freed = arena::LoadAcquire(arena_->managed_connection(index).freed_generation);
  return driver::StateOf(record(index)) == ConnectionState::kFree &&
         arena::LoadAcquire(record(index).generation) == freed;
}

// Frees the queue pairs that a driver took and did not record before it died. A slot that
// `baton-driver` has given to the shard since `connections` were collected has no queue pair that
// is kTaken.
void NativeDevice::RestorePool(uint32_t shard, absl::Span<const uint32_t> connections) {
  const uint32_t count = arena::PooledQueuePairs(arena_->shape());
  std::vector<bool> used(count);
  for (const uint32_t i : connections) {
    if (record(i).shard != shard || IsGivenBack(i)) continue;
    const int place = pool_->Find(shard, record(i).qp_number);
    if (place >= 0) used[static_cast<size_t>(place)] = true;
  }
  for (uint32_t i = 0; i < count; ++i) {
    arena::PooledQueuePair& pooled = arena_->pooled(shard, i);
    if (used[i] || PooledState(pooled.state) != PooledState::kTaken) continue;
    // A record that was overwritten may have named it. `baton-driver` knows which connections have
    // queue pairs, and puts unusable ones back.
    verbs::QueuePair* const inherited = pool_->at(shard, i);
    if (inherited == nullptr || !IsNew(*inherited)) continue;
    pool_->NoteFree(shard, i);
    arena::StoreRelease(pooled.state, static_cast<uint32_t>(PooledState::kFree));
  }
}

void NativeDevice::Forget(uint32_t shard) {
  std::erase(shards_, shard);
  if (given_from_ == static_cast<int>(shard)) given_from_ = -1;
  for (uint32_t i = 0; i < ids_.size(); ++i) {
    if (shard_of_[i] == shard) Drop(i);
  }
}

// Drops the objects of a connection that another driver has now, or had, and orders nothing.
void NativeDevice::Drop(uint32_t index) {
  driver::DeviceObjects::Connection& device = objects_->connections[index];
  if (ids_[index] != nullptr) std::exchange(ids_[index], nullptr)->Leave();
  if (auto* const left = static_cast<NativeQueuePair*>(device.queue_pair.get())) {
    queue_pairs_.erase(left);
    left->Leave();
  }
  device.id.reset();
  device.queue_pair.reset();
}

// An accept into another shard that fails leaves the connection's objects here, and that shard may
// go before its end is acknowledged. Its slot has another connection by now.
void NativeDevice::DropFormer(uint32_t index) {
  if (ids_[index] != nullptr && ids_[index]->generation() != record(index).generation) Drop(index);
}

// ---------------------------------------------------------------- orders

// The ring has room for four orders per connection, which is all there can be. A full ring was not
// filled by this driver or its predecessors.
absl::Status NativeDevice::Order(uint32_t shard, uint32_t connection, uint32_t generation,
                                 OrderKind kind) {
  if (shard >= arena_->shape().shards) {
    return absl::InternalError(absl::StrCat("its record says shard ", shard,
                                            ", which does not exist: another worker of "
                                            "the service has written over it"));
  }
  // A driver gives each order once, and repeats those of its dead predecessors. The ring keeps one,
  // however many die.
  if (HoldsOrder(shard, connection, generation, kind)) return absl::OkStatus();
  Mailbox orders = Mailbox::Orders(*arena_, shard);
  if (orders.full()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the ring of orders of shard ", shard,
                     orders.broken() ? " is spoilt" : " is full, of what its drivers did not order",
                     ": another worker of the service has written to it"));
  }
  orders.Put(OrderOf(connection, generation, kind));
  wake_driver_();
  return absl::OkStatus();
}

// Returns whether `baton-driver` has yet to carry out such an order of a predecessor.
bool NativeDevice::HoldsOrder(uint32_t shard, uint32_t connection, uint32_t generation,
                              OrderKind kind) const {
  return shard < arena_->shape().shards &&
         Mailbox::Orders(*arena_, shard)
             .Holds(OrderOf(connection, generation, kind), orders_inherited_[shard]);
}

absl::Status NativeDevice::FreeSlot(uint32_t connection) {
  const arena::ConnectionRecord& ended = record(connection);
  return Order(ended.shard, connection, ended.generation, OrderKind::kFree);
}

absl::StatusOr<std::unique_ptr<verbs::QueuePair>> NativeDevice::CreateQueuePair(
    const verbs::QueuePairOptions& options) {
  const auto& queues = objects_->completion_queues;
  const auto found = std::find_if(queues.begin(), queues.end(), [&](const auto& queue) {
    return queue.get() == options.send_queue;
  });
  BATON_CHECK(found != queues.end());
  const auto shard = static_cast<uint32_t>(found - queues.begin());
  for (uint32_t place = 0;; ++place) {
    BATON_ASSIGN_OR_RETURN(place, pool_->Take(*arena_, shard, PooledState::kTaken, place));
    verbs::QueuePair* const inherited = pool_->at(shard, place);
    if (IsNew(*inherited)) return std::make_unique<NativeQueuePair>(this, shard, inherited);
    // It is in use, so it stays kTaken until `baton-driver` has made it new.
    tell_(absl::StrCat("queue pair ", inherited->number(), " of shard ", shard,
                       " is said to be free and is not new: another worker of the service has "
                       "written over what is said of it; it is left alone"));
  }
}

std::unique_ptr<verbs::QueuePair> NativeDevice::Hand(uint32_t shard, verbs::QueuePair* inherited) {
  // The state from before the fork, or of its last connection, is stale (Device::AfterFork).
  inherited->ForgetState();
  return std::make_unique<NativeQueuePair>(this, shard, inherited);
}

// The record names the queue pair that `baton-driver` connects.
void NativeDevice::LendQueuePair(uint32_t shard, uint32_t connection) {
  const int place = pool_->Find(shard, record(connection).qp_number);
  if (place < 0) return;
  objects_->connections[connection].queue_pair =
      Hand(shard, pool_->at(shard, static_cast<uint32_t>(place)));
}

// ---------------------------------------------------------------- notices

void NativeDevice::ServeAnotherFirst() {
  if (!shards_.empty()) std::rotate(shards_.begin(), shards_.begin() + 1, shards_.end());
}

void NativeDevice::Pass() {
  if (given_from_ < 0) return;
  const auto shard = static_cast<uint32_t>(std::exchange(given_from_, -1));
  Mailbox notices = Mailbox::Notices(*arena_, shard);
  if (IsBeginning(notice_)) {
    arena::StoreRelaxed(arena_->managed_connection(notice_.connection).handled_generation,
                        notice_.generation);
    arena::OrderForCrash();
  }
  notices.Pass();
}

bool NativeDevice::HasNotice() const {
  // NextEvent() passes the last notice, and this process's own device reports the last receive of a
  // queue pair.
  if (given_from_ >= 0 || awaiting_last_receive_ != 0) return true;
  return std::any_of(shards_.begin(), shards_.end(),
                     [this](uint32_t shard) { return !Mailbox::Notices(*arena_, shard).empty(); });
}

// Returns the first notice that counts, and leaves it in its ring. Passes over those before it,
// which are out of date, or which `baton-driver` cannot have put.
const MailEntry* NativeDevice::NextNotice(uint32_t* shard) {
  Pass();
  for (const uint32_t candidate : shards_) {
    Mailbox notices = Mailbox::Notices(*arena_, candidate);
    for (; !notices.empty(); notices.Pass()) {
      notice_ = notices.Next();
      if (notice_.connection >= ids_.size() || !IsKind(notice_.kind)) continue;
      const arena::ConnectionRecord& connection = record(notice_.connection);
      if (connection.generation != notice_.generation || connection.shard != candidate) continue;
      const arena::ManagedConnection& told = arena_->managed_connection(notice_.connection);
      const bool handled = told.handled_generation == notice_.generation ||
                           told.freed_generation == notice_.generation;
      DropFormer(notice_.connection);
      if (IsBeginning(notice_) ? handled : ids_[notice_.connection] == nullptr) continue;
      *shard = candidate;
      return &notice_;
    }
  }
  return nullptr;
}

bool NativeDevice::NextEvent(verbs::CmEvent* event) {
  uint32_t shard = 0;
  const MailEntry* const notice = NextNotice(&shard);
  if (notice == nullptr || !ToEvent(shard, *notice, event)) return false;
  given_from_ = static_cast<int>(shard);
  return true;
}

// Returns false if the notice is an event of the device.
bool NativeDevice::ToEvent(uint32_t shard, const MailEntry& notice, verbs::CmEvent* event) {
  *event = {};
  const arena::ConnectionRecord& connection = record(notice.connection);
  event->id = ids_[notice.connection];
  switch (NoticeKind(notice.kind)) {
    case NoticeKind::kRequested:
    case NoticeKind::kConnecting:
      event->type = verbs::CmEventType::kConnectRequest;
      // A driver died while handling this notice: the slot is in use, and Restore() made its id.
      if (event->id != nullptr) return true;
      event->new_id =
          std::make_unique<NativeConnectionId>(this, shard, notice.connection, notice.generation);
      event->private_data = PrivateDataOf(connection);
      if (NoticeKind(notice.kind) == NoticeKind::kConnecting)
        LendQueuePair(shard, notice.connection);
      return true;
    case NoticeKind::kEstablished:
      event->type = verbs::CmEventType::kEstablished;
      return true;
    case NoticeKind::kRejected:
      event->type = verbs::CmEventType::kRejected;
      event->status = absl::AbortedError(
          arena::TextOf(arena_->managed_connection(notice.connection).end_reason));
      return true;
    case NoticeKind::kEnded:
      SetEnd(notice, event);
      return true;
    default:
      return false;
  }
}

void NativeDevice::SetEnd(const MailEntry& notice, verbs::CmEvent* event) const {
  const auto status = verbs::CompletionStatus(notice.status);
  const std::string why = arena::TextOf(arena_->managed_connection(notice.connection).end_reason);
  event->type = status == verbs::CompletionStatus::kRetryExceeded
                    ? verbs::CmEventType::kUnreachable
                    : verbs::CmEventType::kDisconnected;
  if (status == verbs::CompletionStatus::kSuccess) {
    event->private_data = why;
  } else if (status == verbs::CompletionStatus::kGeneralError) {
    event->status = absl::InternalError(why);
  } else {
    event->status = absl::UnavailableError(why);
  }
}

// Reports the events that this process itself waits for. `baton-driver` handles the device's other
// events.
bool NativeDevice::NextDeviceEvent(verbs::DeviceEvent* event) {
  if (NextToldEvent(event)) return true;
  if (destroy_ != nullptr) return false;
  while (device_->NextDeviceEvent(event)) {
    if (event->type == verbs::DeviceEventType::kLastWorkRequestReached) return true;
  }
  return false;
}

bool NativeDevice::NextToldEvent(verbs::DeviceEvent* event) {
  uint32_t shard = 0;
  const MailEntry* const notice = NextNotice(&shard);
  if (notice == nullptr) return false;
  const NoticeKind kind = NoticeKind(notice->kind);
  const bool failed = kind == NoticeKind::kQueuePairFailed;
  if (!failed && kind != NoticeKind::kHoldsNoReceive) return false;
  const auto& queue_pair = objects_->connections[notice->connection].queue_pair;
  if (!failed && queue_pair) static_cast<NativeQueuePair*>(queue_pair.get())->TellLastReceive();
  *event = {};
  event->type = failed ? verbs::DeviceEventType::kQueuePairFailed
                       : verbs::DeviceEventType::kLastWorkRequestReached;
  event->qp_number = record(notice->connection).qp_number;
  event->text = arena::TextOf(arena_->managed_connection(notice->connection).end_reason);
  given_from_ = static_cast<int>(shard);
  return true;
}

}  // namespace baton::native

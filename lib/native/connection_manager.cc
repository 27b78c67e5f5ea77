#include "lib/native/connection_manager.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/arena/text_field.h"
#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/driver/driver_state.h"
#include "lib/native/mailbox.h"

namespace baton::native {
namespace {

using arena::MailEntry;
using arena::NoticeKind;
using arena::OrderKind;
using arena::PooledState;
using verbs::CompletionStatus;

constexpr uint32_t kNoConnection = driver::DriverObserver::kNoConnection;
constexpr int kPerTurn = 64;  // events, orders of each shard, queue pairs made new
// After this time no packet of a queue pair's former connection is on the way: it is twice the
// packet lifetime of rdma_cm (CMA_IBOE_PACKET_LIFETIME 18: 4.096 us * 2^18 = 1.07 s). The queue
// pair is in the error state all that time, so that a reset is safe (rdma.md, "Reset").
constexpr uint64_t kTimeWaitNs = 2'147'483'648;
// The least time between two reports that a queue is low.
constexpr uint64_t kLowPauseNs = 10'000'000'000;
// The most notices that wait for each connection before DropWaiting(), which leaves at most one of
// each kind and so drops at least half.
constexpr size_t kMostWaiting = 2 * static_cast<size_t>(arena::kLastNoticeKind);

uint8_t Bit(NoticeKind kind) { return static_cast<uint8_t>(1u << static_cast<uint8_t>(kind)); }

}  // namespace

ConnectionManager::ConnectionManager(arena::Arena* arena, verbs::Device* device,
                                     ConnectionObserver* observer,
                                     std::function<void(uint32_t shard)> wake_driver,
                                     ConnectionTable table)
    : arena_(arena),
      device_(device),
      observer_(observer),
      wake_driver_(std::move(wake_driver)),
      table_(std::move(table)),
      ids_(arena->shape().connections),
      used_(arena->shape().shards, 0),
      resting_(arena->shape().shards, 0),
      low_ns_(arena->shape().shards, 0),
      waiting_(arena->shape().shards) {
  for (uint32_t i = 0; i < connections_.size(); ++i) free_.push_back(i);
}

ConnectionManager::~ConnectionManager() {
  for (auto& id : ids_) id.reset();
}

absl::StatusOr<std::unique_ptr<ConnectionManager>> ConnectionManager::Create(
    arena::Arena* arena, verbs::Device* device, ConnectionObserver* observer, Pools pools,
    std::function<void(uint32_t shard)> wake_driver) {
  BATON_CHECK(arena::PooledQueuePairs(arena->shape()) != 0);
  BATON_ASSIGN_OR_RETURN(ConnectionTable table, ConnectionTable::Make(arena->shape()));
  std::unique_ptr<ConnectionManager> manager(
      new ConnectionManager(arena, device, observer, std::move(wake_driver), std::move(table)));
  BATON_ASSIGN_OR_RETURN(manager->objects_,
                         driver::CreateDeviceObjects(arena, device, pools == Pools::kInAdvance));
  BATON_RETURN_IF_ERROR(manager->FillPool(pools));
  return manager;
}

absl::Status ConnectionManager::FillPool(Pools pools) {
  const arena::Shape& shape = arena_->shape();
  pool_ = QueuePairPool(shape.shards);
  occupied_.assign(shape.shards, std::vector<uint32_t>(arena::PooledQueuePairs(shape)));
  const auto make = [this](uint32_t shard) {
    return device_->CreateQueuePair(objects_->QueuePairOptionsOf(arena_->shape(), shard));
  };
  if (pools == Pools::kOnDemand) {
    pool_.MakeOnDemand(make);
    return absl::OkStatus();
  }
  for (uint32_t shard = 0; shard < shape.shards; ++shard) {
    for (uint32_t i = 0; i < arena::PooledQueuePairs(shape); ++i) {
      BATON_ASSIGN_OR_RETURN(auto queue_pair, make(shard));
      arena_->pooled(shard, i).number = queue_pair->number();
      pool_.Add(shard, std::move(queue_pair));
    }
  }
  return absl::OkStatus();
}

driver::ObjectCounts ConnectionManager::Count() const {
  driver::ObjectCounts counts = objects_->Count();
  // Those of brokers that no connection has are no use of the service's.
  const bool in_use = !arena::IsNative(arena_->shape()) && !pool_.makes();
  counts.queue_pairs = in_use ? connection_count() : pool_.count();
  return counts;
}

bool ConnectionManager::Turn(bool ordered) {
  device_->Progress();
  bool worked = false;
  for (int i = 0; i < kPerTurn && device_->NextEvent(&event_); ++i) {
    OnEvent(std::exchange(event_, {}));
    worked = true;
  }
  for (int i = 0; i < kPerTurn && device_->NextDeviceEvent(&device_event_); ++i) {
    OnDeviceEvent(std::exchange(device_event_, {}));
    worked = true;
  }
  if (!ordered && !pending_ && !worked) return false;
  worked |= TurnShards();
  const auto waits = [](const auto& of_shard) { return !of_shard.empty(); };
  pending_ = worked || !unfreed_.empty() || !spent_.empty() ||
             std::any_of(waiting_.begin(), waiting_.end(), waits) ||
             std::any_of(low_ns_.begin(), low_ns_.end(), [](uint64_t ns) { return ns != 0; });
  return worked;
}

void ConnectionManager::CarryOutOrders() {
  pending_ = true;
  for (uint32_t shard = 0; shard < used_.size(); ++shard) {
    while (HandleOrder(shard)) {
    }
  }
}

void ConnectionManager::DestroyQueuePair(uint32_t shard, uint32_t number) {
  const int found = pool_.Find(shard, number);
  if (found < 0) return;
  const auto place = static_cast<uint32_t>(found);
  const uint32_t index = std::exchange(occupied_[shard][place], 0) - 1;
  if (index < connections_.size()) {
    Disconnect(index);
    DestroyId(index);  // it refers to the queue pair
    connections_[index].pooled = -1;
  }
  GiveBack(shard, place);
}

void ConnectionManager::GiveBack(uint32_t shard, uint32_t place) {
  pool_.NoteFree(shard, place);
  StoreState({shard, place, 0}, PooledState::kFree);
}

bool ConnectionManager::TurnShards() {
  bool worked = false;
  for (uint32_t shard = 0; shard < used_.size(); ++shard) {
    for (int i = 0; i < kPerTurn && HandleOrder(shard); ++i) worked = true;
    worked |= SendWaiting(shard);
  }
  ArmLimits();
  worked |= FreeSlots();
  if (std::exchange(freed_, false) && !pool_.makes()) SpendForgotten();
  return RenewQueuePairs() || worked;
}

// ---------------------------------------------------------------- events

void ConnectionManager::OnEvent(verbs::CmEvent event) {
  if (event.type == verbs::CmEventType::kConnectRequest) {
    OnRequest(event);
  } else if (const auto context = reinterpret_cast<uintptr_t>(event.id->context)) {
    OnEvent(static_cast<uint32_t>(context - 1), event);
  }  // else an id that was refused before it had a slot
}

// Returns kUnavailable if as many notices wait as there can be connections: the driver does not
// read them, and so frees no slots.
absl::Status ConnectionManager::CheckHears(uint32_t shard) const {
  if (waiting_[shard].size() < connections_.size()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "the owner of shard ", shard, " does not take notice of its connections: ",
      waiting_[shard].size(), " notices wait beside the ", arena::kNotices, " of its ring"));
}

// The flag may be set by a driver, or by OnSharedReceiveQueueFailed.
absl::Status ConnectionManager::CheckReceives(uint32_t shard) const {
  if (arena::LoadRelaxed(arena_->shard(shard).shared_receives_refused) == 0) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("the shared receive queue of shard ", shard, " is broken"));
}

// Considers only shards that can accept connections, if there are any. Queue pairs in their
// time-wait count, too: a shard to which all short connections went would run out of them.
uint32_t ConnectionManager::LeastUsedShard() const {
  uint32_t best = 0;
  const auto broken = [this](uint32_t shard) {
    return !CheckReceives(shard).ok() || !CheckHears(shard).ok();
  };
  const auto taken = [this](uint32_t shard) { return used_[shard] + resting_[shard]; };
  for (uint32_t i = 1; i < used_.size(); ++i) {
    if (!broken(i) && (broken(best) || taken(i) < taken(best))) best = i;
  }
  return best;
}

uint32_t ConnectionManager::DisconnectAll(std::string_view why) {
  uint32_t count = 0;
  for (uint32_t index = 0; index < connections_.size(); ++index) {
    if (!IsUsed(index) || connections_[index].phase() == Phase::kEnded) continue;
    Owe(index, NoticeKind::kEnded, CompletionStatus::kSuccess);
    // A worker that drives may never order it. Another driver is sure to do so.
    if (arena::IsNative(arena_->shape())) Disconnect(index);
    Tell(index, NoticeKind::kEnded, CompletionStatus::kSuccess, why);
    ++count;
  }
  return count;
}

void ConnectionManager::OnRequest(verbs::CmEvent& event) {
  if (const absl::Status may = driver::AdmitRequest(gate_, connection_count(), &event); !may.ok()) {
    return observer_->OnRefusedConnection(MessageOf(may));
  }
  if (free_.empty()) {
    driver::Refuse(&event, "baton: no connection slot is free");
    observer_->OnRefusedConnection(MessageOf(driver::NoSlotFree(connections_.size())));
    return;
  }
  const uint32_t shard = LeastUsedShard();
  SendWaiting(shard);
  if (const absl::Status hears = CheckHears(shard); !hears.ok()) {
    driver::Refuse(&event, "baton: the service does not answer");
    observer_->OnRefusedConnection(MessageOf(hears));
    return;
  }
  arena::ConnectionRecord fresh = {};
  driver::FillPrivateData(event.private_data, &fresh);
  fresh.listener_port = event.listener ? event.listener->address().port : 0;
  driver::FillAddresses(*event.new_id, &fresh);
  const uint32_t index = GiveSlot(shard, Phase::kRequested, fresh, std::move(event.new_id));
  Tell(index, NoticeKind::kRequested);
}

// Gives the connection a free slot. The caller then puts a notice, after which the record is the
// driver's.
uint32_t ConnectionManager::GiveSlot(uint32_t shard, Phase phase, arena::ConnectionRecord fresh,
                                     std::unique_ptr<verbs::ConnectionId> id) {
  const uint32_t index = free_.front();
  free_.pop_front();
  arena::ConnectionRecord& record = arena_->connection(index);
  fresh.generation = record.generation;
  fresh.shard = record.shard;
  // Other threads read the state of a free slot, and nothing else of it.
  static_assert(offsetof(arena::ConnectionRecord, state) == 0);
  std::memcpy(&record.state + 1, &fresh.state + 1, sizeof(record) - sizeof(record.state));
  arena_->managed_connection(index).answer_length = 0;
  arena_->managed_connection(index).end_reason[0] = 0;
  // Drivers that look for free slots of their shards read these two in the reverse order: a driver
  // that finds the slot in its shard sees the new generation.
  arena::StoreRelease(record.generation, fresh.generation + 1);
  arena::StoreRelease(record.shard, shard);
  id->context = reinterpret_cast<void*>(uintptr_t{index} + 1);
  Connection& connection = connections_[index];
  connection = Connection{};
  connection.generation = fresh.generation + 1;
  connection.shard = connection.first_shard = shard;
  connection.pooled = Occupy(index, shard, fresh.qp_number);
  connection.pooled_shard = shard;
  connection.id = id->number();
  connection.owed =
      Bit(phase == Phase::kRequested ? NoticeKind::kRequested : NoticeKind::kConnecting);
  BATON_CRASH_POINT("manager-slot-filled");
  if (phase == Phase::kConnecting) connection.asker = std::exchange(asker_, {});
  connection.SetPhase(phase);
  ids_[index] = std::move(id);
  ++used_[shard];
  return index;
}

// ---------------------------------------------------------------- connecting to a peer

// The owner looks for the connection once it has the answer, so the ring needs room for the notice.
absl::Status ConnectionManager::CheckCanConnect(uint32_t shard) {
  if (free_.empty()) return driver::NoSlotFree(connections_.size());
  BATON_RETURN_IF_ERROR(CheckReceives(shard));
  SendWaiting(shard);
  if (!waiting_[shard].empty() || Mailbox::Notices(*arena_, shard).full()) {
    return absl::UnavailableError(absl::StrCat("shard ", shard, ": what has become of ",
                                               arena::kNotices,
                                               " connections is to be dealt with first"));
  }
  return absl::OkStatus();
}

std::optional<uint32_t> ConnectionManager::BeginFor(const Asker& asker) {
  asker_ = asker;
  if (asker.request == 0) return std::nullopt;
  for (uint32_t i = 0; i < connections_.size(); ++i) {
    if (IsUsed(i) && connections_[i].asker == asker) return i;
  }
  return std::nullopt;
}

// The driver's notice follows the start of the connection. If the owner that asked has died since,
// its heir receives the notice.
absl::StatusOr<uint32_t> ConnectionManager::Connect(uint32_t shard, const verbs::Address& address,
                                                    std::string_view private_data, uint64_t tag) {
  BATON_RETURN_IF_ERROR(CheckCanConnect(shard));
  uint32_t place = 0;
  for (;; ++place) {  // one that the arena wrongly calls free stays kLent
    BATON_ASSIGN_OR_RETURN(place, pool_.Take(*arena_, shard, PooledState::kLent, place));
    if (occupied_[shard][place] != 0) continue;
    if (pool_.at(shard, place)->state() == verbs::QueuePairState::kInit) break;
  }
  verbs::QueuePair* const queue_pair = pool_.at(shard, place);
  verbs::ConnectionParameters parameters;
  parameters.private_data = std::string(private_data);
  parameters.check_route = driver::RouteCheckOf(gate_);
  auto id = device_->Connect(address, queue_pair, parameters);
  if (!id.ok()) {
    GiveBack(shard, place);
    return id.status();
  }
  arena::ConnectionRecord fresh = {};
  fresh.tag = tag;
  fresh.qp_number = queue_pair->number();  // workers can write the arena's copy of it
  arena::SetText(fresh.peer_address, absl::StrCat(address.host, ":", address.port));
  const uint32_t index = GiveSlot(shard, Phase::kConnecting, fresh, *std::move(id));
  Tell(index, NoticeKind::kConnecting);
  return index;
}

// ---------------------------------------------------------------- what becomes of connections

verbs::QueuePair* ConnectionManager::QueuePairOf(const Connection& connection) const {
  return pool_.at(connection.pooled_shard, static_cast<uint32_t>(connection.pooled));
}

// Reserves the queue pair for one connection. Returns its place; -1: not the shard's, or not new.
int ConnectionManager::Occupy(uint32_t index, uint32_t shard, uint32_t number) {
  const int place = pool_.Find(shard, number);
  if (place < 0 || occupied_[shard][static_cast<size_t>(place)] != 0) return -1;
  occupied_[shard][static_cast<size_t>(place)] = index + 1;
  return place;
}

void ConnectionManager::OnEstablished(uint32_t index, const verbs::CmEvent& event) {
  Connection& connection = connections_[index];
  // A former `baton-driver` may have noted it before it died.
  if (connection.established_ns == 0) connection.established_ns = MonotonicNanoseconds();
  const verbs::ReadDepths depths = ids_[index]->depths();
  arena::ManagedConnection& told = arena_->managed_connection(index);
  told.initiator_depth = depths.ours;
  told.responder_resources = depths.theirs;
  Owe(index, NoticeKind::kEstablished);
  if (connection.phase() == Phase::kConnecting) {
    driver::FillPrivateData(event.private_data, &arena_->connection(index));
    driver::FillAddresses(*ids_[index], &arena_->connection(index));
    connection.SetPhase(Phase::kAccepted);
  }
  Tell(index, NoticeKind::kEstablished);
}

void ConnectionManager::OnEvent(uint32_t index, const verbs::CmEvent& event) {
  Connection& connection = connections_[index];
  if (event.type == verbs::CmEventType::kEstablished) return OnEstablished(index, event);
  const bool rejected = event.type == verbs::CmEventType::kRejected;
  const NoticeKind kind = rejected ? NoticeKind::kRejected : NoticeKind::kEnded;
  const CompletionStatus status = event.type == verbs::CmEventType::kUnreachable
                                      ? CompletionStatus::kRetryExceeded
                                  : rejected || event.status.ok() ? CompletionStatus::kSuccess
                                                                  : CompletionStatus::kFatalError;
  Owe(index, kind, status, MessageOf(event.status));
  BATON_CRASH_POINT("manager-end-owed");
  connection.SetPhase(Phase::kEnded);
  Tell(index, kind, status, MessageOf(event.status));
}

uint32_t ConnectionManager::FindQueuePair(uint32_t number) const {
  for (uint32_t shard = 0; shard < used_.size(); ++shard) {
    const int place = pool_.Find(shard, number);
    if (place < 0) continue;
    const uint32_t index = occupied_[shard][static_cast<size_t>(place)] - 1;
    if (index >= connections_.size()) return kNoConnection;
    const Connection& connection = connections_[index];
    const bool has =
        IsUsed(index) && connection.pooled == place && connection.pooled_shard == shard;
    return has ? index : kNoConnection;
  }
  return kNoConnection;
}

// Returns the connection, but not `except`, whose record names the queue pair: its driver has
// taken it, or may accept with it.
uint32_t ConnectionManager::FindNaming(uint32_t number, uint32_t except) const {
  for (uint32_t i = 0; i < connections_.size(); ++i) {
    if (i == except || !IsUsed(i)) continue;
    if (arena::LoadRelaxed(arena_->connection(i).qp_number) == number) return i;
  }
  return kNoConnection;
}

// Like SharedReceives::Refuse: the flag keeps drivers from posting and accepting.
void ConnectionManager::OnSharedReceiveQueueFailed(uint32_t shard, std::string_view why) {
  arena::StoreRelaxed(arena_->shard(shard).shared_receives_refused, 1u);
  for (uint32_t i = 0; i < connections_.size(); ++i) {
    const Connection& connection = connections_[i];
    const bool lives =
        connection.phase() == Phase::kAccepted || connection.phase() == Phase::kConnecting;
    // The queue pair identifies the shard. Workers can write the record's shard.
    if (!lives || connection.pooled < 0 || connection.pooled_shard != shard) continue;
    Tell(i, NoticeKind::kQueuePairFailed, CompletionStatus::kGeneralError, why);
  }
}

// A driver arms the limit once (SharedReceives::ArmLimit). Only `baton-driver` learns that it was
// reached, and arms it again.
void ConnectionManager::ArmLimits() {
  const uint32_t depth = arena_->shape().shared_receive_queue_depth;
  for (uint32_t shard = 0; shard < low_ns_.size(); ++shard) {
    if (low_ns_[shard] == 0 || MonotonicNanoseconds() - low_ns_[shard] < kLowPauseNs) continue;
    if (arena::LoadRelaxed(arena_->shard(shard).shared_receives_posted) <= depth / 2) continue;
    low_ns_[shard] = 0;
    (void)objects_->shared_receive_queues[shard]->ArmLimit(depth / 4);
  }
}

void ConnectionManager::OnDeviceEvent(verbs::DeviceEvent event) {
  uint32_t index = event.qp_number == 0 ? kNoConnection : FindQueuePair(event.qp_number);
  if (event.type == verbs::DeviceEventType::kLastWorkRequestReached) {
    if (index == kNoConnection && pool_.makes()) index = FindNaming(event.qp_number, kNoConnection);
    if (index != kNoConnection) Tell(index, NoticeKind::kHoldsNoReceive);
    return;
  }
  if (event.type == verbs::DeviceEventType::kQueuePairFailed && index != kNoConnection) {
    Tell(index, NoticeKind::kQueuePairFailed, CompletionStatus::kGeneralError, event.text);
  }
  if (const uint32_t shard = objects_->ShardOf(event.shared_receive_queue);
      shard != driver::DeviceObjects::kNoShard) {
    event.text = absl::StrCat("of shard ", shard, ": ", event.text);
    if (event.type == verbs::DeviceEventType::kSharedReceiveQueueLow) {
      low_ns_[shard] = MonotonicNanoseconds();
    } else {
      OnSharedReceiveQueueFailed(shard, event.text);
    }
  }
  observer_->OnDeviceEvent(event, index);
}

// ---------------------------------------------------------------- notices

// Notices of a shard are in order: those that wait go first.
void ConnectionManager::Tell(uint32_t index, NoticeKind kind, CompletionStatus status,
                             std::string_view reason) {
  pending_ = true;
  Connection& connection = connections_[index];
  MailEntry entry = {};
  entry.kind = static_cast<uint8_t>(kind);
  entry.status = static_cast<uint8_t>(status);
  entry.connection = index;
  entry.generation = connection.generation;
  auto& waiting = waiting_[connection.shard];
  if (waiting.size() >= kMostWaiting * connections_.size()) DropWaiting(connection.shard);
  Owe(index, kind, status, reason);
  BATON_CRASH_POINT("manager-notice-owed");
  waiting.push_back(entry);
  SendWaiting(connection.shard);
}

// Called before the connection's phase or shard says that the notice is told: a follower tells it
// then, if Tell() was not reached.
void ConnectionManager::Owe(uint32_t index, NoticeKind kind, CompletionStatus status,
                            std::string_view reason) {
  Connection& connection = connections_[index];
  if (kind == NoticeKind::kEnded) connection.end = status;
  if (!reason.empty()) arena::SetText(arena_->managed_connection(index).end_reason, reason);
  connection.owed |= Bit(kind);
  arena::OrderForCrash();
}

// Drops waiting notices of connections that are gone, and duplicates.
void ConnectionManager::DropWaiting(uint32_t shard) {
  std::vector<uint32_t> told(connections_.size());  // kinds, as bits
  std::erase_if(waiting_[shard], [&](const MailEntry& entry) {
    const Connection& connection = connections_[entry.connection];
    const bool counts = IsUsed(entry.connection) && connection.shard == shard &&
                        connection.generation == entry.generation;
    uint32_t& before = told[entry.connection];
    const bool again = (before >> entry.kind & 1) != 0;
    if (counts) before |= 1u << entry.kind;
    return !counts || again;
  });
}

bool ConnectionManager::SendWaiting(uint32_t shard) {
  const auto on_put = [this](const MailEntry& entry) {
    arena::OrderForCrash();
    BATON_CRASH_POINT("manager-notice-put");
    Connection& connection = connections_[entry.connection];
    if (connection.generation == entry.generation) connection.owed &= ~Bit(NoticeKind(entry.kind));
  };
  const bool sent = Mailbox::Notices(*arena_, shard).PutWaiting(&waiting_[shard], on_put);
  BATON_CRASH_POINT("keeper-notice-told");
  if (sent) wake_driver_(shard);
  return sent;
}

// ---------------------------------------------------------------- orders

// The successor of a dead driver may repeat an order. An order counts only for the connection that
// has the slot now.
bool ConnectionManager::HandleOrder(uint32_t shard) {
  Mailbox orders = Mailbox::Orders(*arena_, shard);
  // If a worker overwrites the ring, only its own shard's connections suffer.
  if (orders.empty()) return false;
  const MailEntry order = orders.Next();
  const uint32_t index = order.connection;
  const bool known = index < connections_.size() && IsUsed(index) &&
                     connections_[index].generation == order.generation;
  if (known && connections_[index].shard != shard) FollowMove(index, shard);
  if (known && connections_[index].shard == shard) {
    switch (OrderKind(order.kind)) {
      case OrderKind::kAccept:
        Accept(index);
        break;
      case OrderKind::kReject:
        Reject(index);
        break;
      case OrderKind::kDisconnect:
        Disconnect(index);
        break;
      case OrderKind::kFree:
        Free(index);
        break;
    }
  }
  BATON_CRASH_POINT("manager-order-done");
  orders.Pass();
  return true;
}

// The driver has accepted the connection into another shard, and puts its orders there from then
// on. Notices of its end in the first shard were not read. A connection that has a queue pair stays
// in the queue pair's shard, whatever its record says.
void ConnectionManager::FollowMove(uint32_t index, uint32_t shard) {
  if (arena::LoadAcquire(arena_->connection(index).shard) != shard) return;
  Connection& connection = connections_[index];
  if (connection.pooled >= 0) return;
  --used_[connection.shard];
  ++used_[shard];
  if (connection.phase() == Phase::kEnded) Owe(index, NoticeKind::kEnded, connection.end);
  connection.shard = shard;
  BATON_CRASH_POINT("manager-moved");
  if (connection.phase() == Phase::kEnded) Tell(index, NoticeKind::kEnded, connection.end);
}

std::string ConnectionManager::AnswerOf(uint32_t index) const {
  const arena::ManagedConnection& told = arena_->managed_connection(index);
  const uint32_t length =
      std::min(arena::LoadRelaxed(told.answer_length), arena::kPrivateDataBytes);
  return std::string(reinterpret_cast<const char*>(arena_->private_data(index)), length);
}

void ConnectionManager::Accept(uint32_t index) {
  Connection& connection = connections_[index];
  if (connection.phase() != Phase::kRequested) return;
  connection.pooled =
      Occupy(index, connection.shard, arena::LoadRelaxed(arena_->connection(index).qp_number));
  connection.pooled_shard = connection.shard;
  connection.SetPhase(Phase::kAccepting);
  BATON_CRASH_POINT("manager-accepting");
  absl::Status status = CheckReceives(connection.shard);
  if (connection.pooled < 0) {
    status = absl::InternalError("its queue pair is none of the shard's, or another connection's");
  } else if (status.ok()) {
    verbs::ConnectionParameters parameters;
    parameters.private_data = AnswerOf(index);
    status = ids_[index]->Accept(QueuePairOf(connection), parameters);
  }
  BATON_CRASH_POINT("manager-accepted");
  if (status.ok()) return connection.SetPhase(Phase::kAccepted);
  Owe(index, NoticeKind::kEnded, CompletionStatus::kGeneralError);
  connection.SetPhase(Phase::kEnded);
  BATON_CRASH_POINT("manager-not-accepted");
  Tell(index, NoticeKind::kEnded, CompletionStatus::kGeneralError, MessageOf(status));
  DestroyId(index);  // tells the peer
}

void ConnectionManager::Reject(uint32_t index) {
  Connection& connection = connections_[index];
  // A dead driver had accepted it.
  if (connection.phase() == Phase::kAccepted || connection.phase() == Phase::kConnecting) {
    return Disconnect(index);
  }
  if (connection.phase() != Phase::kRequested) return;
  (void)ids_[index]->Reject(AnswerOf(index));
  BATON_CRASH_POINT("manager-rejected");
  connection.SetPhase(Phase::kEnded);
}

void ConnectionManager::Disconnect(uint32_t index) {
  Connection& connection = connections_[index];
  const Phase phase = connection.phase();
  if (phase == Phase::kRequested) return Reject(index);
  if (phase != Phase::kAccepted && phase != Phase::kConnecting) return;
  if (phase == Phase::kConnecting) {
    DestroyId(index);
  } else {
    (void)ids_[index]->Disconnect();
  }
  BATON_CRASH_POINT("manager-disconnected");
  connection.SetPhase(Phase::kEnded);
}

// Another connection may get the id's number, so the table forgets it first.
void ConnectionManager::DestroyId(uint32_t index) {
  connections_[index].id = 0;
  arena::OrderForCrash();
  BATON_CRASH_POINT("manager-id-forgotten");
  ids_[index].reset();
}

void ConnectionManager::Free(uint32_t index) {
  observer_->OnFree(index);
  Connection& connection = connections_[index];
  DestroyId(index);
  --used_[connection.shard];
  BATON_CRASH_POINT("manager-id-freed");
  // The device may still have completions of an abandoned connection.
  const bool abandoned = arena::LoadRelaxed(arena_->connection(index).abandoned) != 0;
  if (pool_.makes()) {
    if (connection.pooled >= 0) {
      DestroyQueuePair(connection.pooled_shard, QueuePairOf(connection)->number());
    }
  } else if (connection.pooled < 0) {
    SpendNeverConnected(index, /*rests=*/abandoned);
  } else {
    Spend(connection.pooled_shard, static_cast<uint32_t>(connection.pooled),
          /*rests=*/abandoned || device_->has_time_wait());
  }
  arena::StoreRelease(arena_->managed_connection(index).freed_generation, connection.generation);
  freed_ = true;
  const bool is_free = connection.shard == connection.first_shard;
  const arena::ShardRecord& first = arena_->shard(connection.first_shard);
  connection.acknowledged = arena::LoadAcquire(first.completion_tail);
  BATON_CRASH_POINT("manager-slot-freed");
  connection.SetPhase(is_free ? Phase::kNone : Phase::kUnfreed);
  if (is_free) return free_.push_back(index);
  unfreed_.push_back({index, connection.first_shard, connection.acknowledged});
}

// `rests`: the queue pair's time-wait begins now. Otherwise it serves again at once.
void ConnectionManager::Spend(uint32_t shard, uint32_t place, bool rests) {
  const Spent spent = {shard, place, MonotonicNanoseconds() + (rests ? kTimeWaitNs : 0)};
  RestedNs(shard, place) = spent.not_before_ns;
  StoreState(spent, PooledState::kSpent);
  rests ? spent_.push_back(spent) : spent_.push_front(spent);
  ++resting_[shard];
}

// Spends the queue pair that a driver may have taken for a connection that was never accepted. The
// device never connected it. Only the connection's record names it, and a worker can write another
// connection's number there.
void ConnectionManager::SpendNeverConnected(uint32_t index, bool rests) {
  const uint32_t shard = connections_[index].shard;
  const uint32_t number = arena::LoadRelaxed(arena_->connection(index).qp_number);
  const int found = pool_.Find(shard, number);
  if (found < 0) return;
  const auto place = static_cast<uint32_t>(found);
  const uint32_t state = arena::LoadAcquire(arena_->pooled(shard, place).state);
  // Another connection whose record names the queue pair may be accepted with it.
  if (PooledState(state) != PooledState::kTaken || FindNaming(number, index) != kNoConnection) {
    return;
  }
  if (Occupy(index, shard, number) >= 0) Spend(shard, place, rests);
}

// Spends queue pairs that ended connections had from their drivers and that no record names any
// more. No connection has or claims them, and a driver has set them to the error state. Nobody
// knows which completions of theirs were taken, so they rest on every device.
void ConnectionManager::SpendForgotten() {
  for (uint32_t shard = 0; shard < occupied_.size(); ++shard) {
    for (uint32_t place = 0; place < pool_.places(shard); ++place) {
      const auto state = PooledState(arena::LoadAcquire(arena_->pooled(shard, place).state));
      if (state != PooledState::kTaken && state != PooledState::kLent) continue;
      if (occupied_[shard][place] != 0) continue;
      const verbs::QueuePair& queue_pair = *pool_.at(shard, place);
      if (queue_pair.state() != verbs::QueuePairState::kError) continue;
      if (FindNaming(queue_pair.number(), kNoConnection) != kNoConnection) continue;
      occupied_[shard][place] = kOutOfUse;
      Spend(shard, place, /*rests=*/true);
    }
  }
}

void ConnectionManager::StoreState(const Spent& spent, PooledState state) {
  arena::StoreRelease(arena_->pooled(spent.shard, spent.place).state, static_cast<uint32_t>(state));
}

// Frees slots once the first shard has acknowledged their requests. Until then a request takes
// room in that shard's log, which could overflow if the slot were used again.
bool ConnectionManager::FreeSlots() {
  return std::erase_if(unfreed_, [this](const Unfreed& slot) {
           const arena::ShardRecord& first = arena_->shard(slot.shard);
           if (arena::LoadAcquire(first.acknowledged) < slot.acknowledged) return false;
           connections_[slot.connection].SetPhase(Phase::kNone);
           free_.push_back(slot.connection);
           return true;
         }) != 0;
}

// A queue pair that cannot be reset stays out of use. If the device says that one is still
// connected, its time-wait begins now.
bool ConnectionManager::RenewQueuePairs() {
  bool worked = false;
  for (int i = 0; i < kPerTurn && !spent_.empty(); ++i) {
    const Spent spent = spent_.front();
    if (MonotonicNanoseconds() < spent.not_before_ns) break;
    worked = true;
    spent_.pop_front();
    if (!Renew(spent)) continue;
    occupied_[spent.shard][spent.place] = 0;
    --resting_[spent.shard];
    StoreState(spent, PooledState::kFree);
  }
  return worked;
}

// Returns whether the queue pair is new.
bool ConnectionManager::Renew(const Spent& spent) {
  verbs::QueuePair& queue_pair = *pool_.at(spent.shard, spent.place);
  const verbs::QueuePairState state = queue_pair.state();
  if (state == verbs::QueuePairState::kReadyToReceive ||
      state == verbs::QueuePairState::kReadyToSend) {
    if (queue_pair.SetError().ok()) {
      spent_.push_back({spent.shard, spent.place, MonotonicNanoseconds() + kTimeWaitNs});
    }
    return false;
  }
  return queue_pair.SetReset().ok() && queue_pair.SetInit().ok();
}

}  // namespace baton::native

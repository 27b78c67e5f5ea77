#include "supervisor/driver/engine/order_executor.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/channel/carried_status.h"
#include "lib/driver/device_needs.h"
#include "lib/verbs/port_owner.h"
#include "supervisor/driver/engine/death_watcher.h"
#include "supervisor/driver/engine/describe.h"
#include "supervisor/driver/engine/roster.h"

namespace baton::driver_process {
namespace {

constexpr uint64_t kCountsLastNs = 1'000'000'000;
constexpr uint64_t kBetweenOwnerSearchesNs = 1'000'000'000;
constexpr uint32_t kConnectionsPerAnswer = 1000;
// Connections whose state is checked in one turn of the engine, so that shards do not wait for
// long.
constexpr uint32_t kConnectionsPerLook = 512;

template <typename Order>
verbs::Address AddressIn(const Order& order) {
  return {order.host(), static_cast<uint16_t>(order.port())};
}

absl::Status CheckState(const StateVersions& reader, const char* what, uint32_t index,
                        uint32_t length, uint32_t version) {
  if (length == 0 || reader.Reads(version)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " ", index, " has state of version ", version,
                   ", which the new program does not read (", reader.reads_min, " to ",
                   reader.reads_max, "): upgrade to one that does, and converts it, first"));
}

// An order gets this answer if no turn of the engine executes it.
absl::Status EngineHasStopped() {
  return absl::UnavailableError("the engine has stopped: the device is lost");
}

}  // namespace

OrderExecutor::OrderExecutor(const v1::ServiceConfig& service, ServiceEngine& engine,
                             NewsQueue& news, WorkerForks* forks)
    : service_(service),
      engine_(engine),
      news_(news),
      forks_(forks),
      not_ready_(engine.arena().shape().workers, 0),
      looked_at_(engine.arena().shape().workers, 0),
      admission_(driver::NeedsOf(engine.arena().shape()).registered_bytes),
      grants_(engine, admission_, held_descriptors_, news) {
  engine_.Run([this] { engine_.SetGate(&admission_); });
}

internal::DriverAnswer OrderExecutor::Execute(const internal::DriverOrder& order,
                                              std::vector<FileDescriptor> descriptors,
                                              std::vector<FileDescriptor>* sent) {
  internal::DriverAnswer answer;
  absl::Status status = EngineHasStopped();
  if (order.has_check_stored_state()) {  // in several turns
    status = CheckStoredState(order.check_stored_state());
  } else if (order.has_list_shard_moves()) {  // takes long, and needs no engine
    status = absl::OkStatus();
    for (v1::ShardMove& move : news_.ListShardMoves(order.list_shard_moves().shard())) {
      *answer.add_shard_moves() = std::move(move);
    }
  } else {
    engine_.Run([&] { status = ExecuteOnWorkers(order, std::move(descriptors), &answer, sent); });
  }
  if (order.has_describe_queues()) AddToDescription(answer.mutable_description());
  if (order.has_listen_at() && !status.ok()) status = NameOwner(order.listen_at(), status);
  SetStatus(status, &answer);
  return answer;
}

absl::Status OrderExecutor::ExecuteOnWorkers(const internal::DriverOrder& order,
                                             std::vector<FileDescriptor> descriptors,
                                             internal::DriverAnswer* answer,
                                             std::vector<FileDescriptor>* sent) {
  using internal::DriverOrder;
  switch (order.order_case()) {
    case DriverOrder::kAddWorker:
      return AddWorker(order.add_worker(), std::move(descriptors));
    case DriverOrder::kChangeWorker:
      ChangeWorker(order.change_worker());
      return absl::OkStatus();
    case DriverOrder::kDetachWorker:
      return Detach(order.detach_worker().worker(), answer);
    case DriverOrder::kRetireWorkers:
      answer->set_yes(Retire(order.retire_workers()));
      return absl::OkStatus();
    case DriverOrder::kPromoteWorkers:
      answer->set_yes(Promote(order.promote_workers()));
      return absl::OkStatus();
    case DriverOrder::kHandOver:
      HandOver(order.hand_over());
      return absl::OkStatus();
    case DriverOrder::kCancelHandOver:
      CancelHandOver(order.cancel_hand_over());
      return absl::OkStatus();
    case DriverOrder::kLookAtShards:
      LookAtShards(answer->mutable_shards());
      return absl::OkStatus();
    case DriverOrder::kForkWorker:
    case DriverOrder::kReapWorker:
    case DriverOrder::kNextFork:
      return ExecuteOnForks(order, answer, sent);
    case DriverOrder::kHoldDescriptor:
    case DriverOrder::kTakeDescriptor:
    case DriverOrder::kDropDescriptor:
    case DriverOrder::kListDescriptors:
      return ExecuteOnDescriptors(order, std::move(descriptors), answer, sent);
    default:
      return ExecuteOnConnections(order, answer);
  }
}

absl::Status OrderExecutor::ExecuteOnConnections(const internal::DriverOrder& order,
                                                 internal::DriverAnswer* answer) {
  using internal::DriverOrder;
  switch (order.order_case()) {
    case DriverOrder::kListenAt:
      return ExecuteOnce(order.listen_at(), answer,
                         [&] { return ListenAt(order.listen_at(), answer->mutable_listening()); });
    case DriverOrder::kStopListening:
      engine_.StopListening(AddressIn(order.stop_listening()));
      admission_.KeepListeners(engine_.listeners());
      return absl::OkStatus();
    case DriverOrder::kConnectTo:
      return ExecuteOnce(order.connect_to(), answer,
                         [&] { return Connect(order.connect_to(), answer->mutable_connecting()); });
    case DriverOrder::kReserveGrant:
      return grants_.Grant(order.reserve_grant());
    case DriverOrder::kRevokeGrant:
      grants_.Revoke(order.revoke_grant());
      return absl::OkStatus();
    case DriverOrder::kDisconnectAll:
      answer->set_count(engine_.DisconnectAll(order.disconnect_all().why()));
      return absl::OkStatus();
    case DriverOrder::kCountConnections:
      answer->set_count(engine_.connection_count());
      answer->set_refused(admission_.refused_while_closed());
      return absl::OkStatus();
    case DriverOrder::kListConnections:
      ListConnections(order.list_connections(), answer->mutable_connections());
      return absl::OkStatus();
    default:
      return ExecuteOnService(order, answer);
  }
}

absl::Status OrderExecutor::ExecuteOnService(const internal::DriverOrder& order,
                                             internal::DriverAnswer* answer) {
  using internal::DriverOrder;
  switch (order.order_case()) {
    case DriverOrder::kPutPolicyInForce:
      PutPolicyInForce(order.put_policy_in_force().policy());
      return absl::OkStatus();
    case DriverOrder::kCloseAdmission:
      admission_.Close(order.close_admission().why());
      return absl::OkStatus();
    case DriverOrder::kOpenAdmission:
      admission_.Open();
      return absl::OkStatus();
    case DriverOrder::kAccount:
      Account(order.account(), answer->mutable_accounts());
      return absl::OkStatus();
    case DriverOrder::kSetPoisonDeaths:
      engine_.SetPoisonDeaths(order.set_poison_deaths().deaths());
      return absl::OkStatus();
    case DriverOrder::kTakeDriverCode:
      return ReplaceDriverCode(std::chrono::milliseconds(order.take_driver_code().probation_ms()));
    case DriverOrder::kDescribeQueues:
      Describe(answer->mutable_description());
      return absl::OkStatus();
    case DriverOrder::kHold:
    case DriverOrder::kDrop:
    case DriverOrder::kTakeNextHeld:
    case DriverOrder::kShowLife:
    case DriverOrder::kNoteReady:
    case DriverOrder::kNoteService:
      return absl::OkStatus();  // these are for the driver's process
    default:
      return absl::UnimplementedError("an order that this driver does not know");
  }
}

// ---------------------------------------------------------------- workers

absl::Status OrderExecutor::ExecuteOnForks(const internal::DriverOrder& order,
                                           internal::DriverAnswer* answer,
                                           std::vector<FileDescriptor>* sent) {
  if (forks_ == nullptr) return absl::FailedPreconditionError("the service is not native");
  if (order.has_reap_worker()) {
    *answer->mutable_reaped() = forks_->Reap(order.reap_worker().pid());
    return absl::OkStatus();
  }
  if (sent == nullptr) return absl::InvalidArgumentError("descriptors cannot go with the answer");
  if (order.has_fork_worker()) {
    return forks_->Fork(order.fork_worker(), answer->mutable_forked(), sent);
  }
  return forks_->Next(order.next_fork().after(), answer->mutable_forked(), sent);
}

absl::Status OrderExecutor::AddWorker(const internal::AddWorker& worker,
                                      std::vector<FileDescriptor> descriptors) {
  if (worker.slot() >= not_ready_.size() || descriptors.size() > 1) {
    return absl::InvalidArgumentError("add_worker: no such slot, or not one descriptor");
  }
  if (descriptors.empty()) {
    return absl::ResourceExhaustedError(
        "add_worker: its descriptor has not arrived: raise RLIMIT_NOFILE of the driver");
  }
  const StateVersions versions = {worker.reads_state_version_min(),
                                  worker.reads_state_version_max(), worker.writes_state_version()};
  BATON_RETURN_IF_ERROR(engine_.CheckPlace(worker.slot()));
  engine_.arena().ClearWorker(worker.slot());
  engine_.AddWorker(
      worker.slot(), worker.id(), std::move(descriptors[0]), versions,
      worker.standing() == internal::STANDING_FIRST ? Standing::kFirst : Standing::kLast);
  if (forks_ != nullptr) forks_->NoteAttached(worker.id());
  looked_at_[worker.slot()] = worker.id();
  // The worker has no lock yet, but the watcher has to know its process.
  engine_.WatchWorker(worker.slot(), worker.id(), worker.pid());
  not_ready_[worker.slot()] = worker.pid();
  return absl::OkStatus();
}

void OrderExecutor::LookAtLocks() {
  for (uint32_t slot = 0; slot < looked_at_.size(); ++slot) {
    if (looked_at_[slot] == 0 || !DeathWatcher::IsMarked(arena(), slot)) continue;
    news_.OnThreadEnded(slot, std::exchange(looked_at_[slot], 0));
  }
}

void OrderExecutor::ChangeWorker(const internal::ChangeWorker& order) {
  const uint32_t slot = order.worker().slot();
  if (slot >= not_ready_.size()) return;
  const uint64_t id = order.worker().id();
  Succession& succession = engine_.succession();
  using Change = internal::ChangeWorker;
  switch (order.change()) {
    case Change::READY: {
      // The worker has its locks now.
      const pid_t pid = std::exchange(not_ready_[slot], 0);
      if (pid != 0) engine_.WatchWorker(slot, id, pid);
      return succession.SetReady(slot);
    }
    case Change::ASK_TO_STOP:
      return succession.AskToStop(slot, id);
    case Change::STALLED:
      return succession.SetSilent(slot, id, true);
    case Change::NOT_STALLED:
      return succession.SetSilent(slot, id, false);
    case Change::STANDS_FIRST:
      return succession.SetStanding(slot, id, Standing::kFirst);
    case Change::STANDS_LAST:
      return succession.SetStanding(slot, id, Standing::kLast);
    case Change::PARDON_DEATH:
      return succession.PardonDeath(slot, id);
    case Change::DEATH_BY_HANG:
      return succession.ExplainDeath(slot, id, "hang");
    case Change::DEAD:
      return succession.WorkerDead(slot, id);
    case Change::PLACE_LEFT:
      engine_.ForgetWorker(slot);
      looked_at_[slot] = 0;
      last_requests_.erase(id);
      grants_.Forget(id);
      held_descriptors_.Forget(id);
      return admission_.Forget(id);
    default:
      return;
  }
}

absl::Status OrderExecutor::Detach(const internal::WorkerPlace& worker,
                                   internal::DriverAnswer* answer) {
  Succession& succession = engine_.succession();
  if (succession.IsFenced(worker.slot())) return absl::OkStatus();  // what it says is not believed
  succession.WorkerEnded(worker.slot(), worker.id(), "detached");
  if (!succession.Settle()) {
    return absl::UnavailableError("the broker has not let go of the worker yet: try again soon");
  }
  // Drivers elsewhere may have fenced it meanwhile.
  if (succession.IsFenced(worker.slot())) return absl::OkStatus();
  succession.WorkerDead(worker.slot(), worker.id());
  answer->set_yes(true);
  return absl::OkStatus();
}

bool OrderExecutor::Retire(const internal::RetireWorkers& order) {
  Succession& succession = engine_.succession();
  const auto are_idle = [&] {
    return std::all_of(order.workers().begin(), order.workers().end(), [&](const auto& worker) {
      return succession.IsIdle(worker.slot(), worker.id());
    });
  };
  if (!are_idle()) return false;
  for (const auto& worker : order.workers()) {
    succession.Retire(worker.slot(), worker.id(), /*retired=*/true);
  }
  // Drivers elsewhere may have given one a shard meanwhile.
  if (succession.Settle() && are_idle()) return true;
  for (const auto& worker : order.workers()) {
    succession.Retire(worker.slot(), worker.id(), /*retired=*/false);
  }
  return false;
}

bool OrderExecutor::Promote(const internal::PromoteWorkers& order) {
  Succession& succession = engine_.succession();
  for (uint32_t shard = 0; shard < arena().shape().shards; ++shard) {
    const uint64_t owner = succession.owner(shard).worker_id;
    const bool is_new =
        std::any_of(order.new_workers().begin(), order.new_workers().end(),
                    [owner](const internal::WorkerPlace& worker) { return worker.id() == owner; });
    if (!is_new) return false;
  }
  for (const auto& worker : order.new_workers()) {
    succession.SetStanding(worker.slot(), worker.id(), Standing::kFirst);
  }
  for (const auto& worker : order.old_workers()) {
    succession.SetStanding(worker.slot(), worker.id(), Standing::kLast);
  }
  return true;
}

// ---------------------------------------------------------------- shards

void OrderExecutor::HandOver(const internal::HandOver& order) {
  moving_[order.move()] = order.shard();
  const auto done = [this, move = order.move()](const absl::Status& status, double blackout_us) {
    moving_.erase(move);
    internal::DriverNews news;
    news.mutable_moved()->set_move(move);
    SetStatus(status, news.mutable_moved());
    news.mutable_moved()->set_blackout_us(blackout_us);
    news_.Push(std::move(news));
  };
  engine_.succession().Handoff(order.shard(), order.slot(), done);
}

// Checks the number, because the shard may be in another handoff by now.
void OrderExecutor::CancelHandOver(const internal::CancelHandOver& order) {
  if (moving_.count(order.move()) == 0) return;
  engine_.succession().CancelHandoff(order.shard(), absl::DeadlineExceededError(order.why()));
}

void OrderExecutor::CancelHandovers() {
  engine_.Run([&] {
    const std::map<uint64_t, uint32_t> moving = moving_;  // each handoff that ends erases its entry
    for (const auto& [move, shard] : moving) {
      engine_.succession().CancelHandoff(
          shard, absl::AbortedError("the keeper that ordered it has ended"));
    }
  });
}

void OrderExecutor::LookAtShards(internal::ShardsSeen* seen) {
  const Succession& succession = engine_.succession();
  for (uint32_t shard = 0; shard < arena().shape().shards; ++shard) {
    internal::ShardSeen* const one = seen->add_shards();
    one->set_owner_worker_id(succession.owner(shard).worker_id);
    one->set_acknowledged(arena().shard(shard).acknowledged);
  }
  for (uint32_t slot = 0; slot < arena().shape().workers; ++slot) {
    if (succession.IsReady(slot)) seen->add_ready_slots(slot);
    if (succession.IsFenced(slot)) seen->add_fenced_slots(slot);
  }
}

// Checks all stored state, because that of quiet connections can have an older version than the
// present owner writes. kFailedPrecondition names the state that `order` does not read, and the
// cure. Blocks for several turns of the engine.
absl::Status OrderExecutor::CheckStoredState(const internal::CheckStoredState& order) {
  const StateVersions reader = {order.reads_min(), order.reads_max(), order.writes()};
  absl::Status status = EngineHasStopped();
  engine_.Run([&] {
    status = absl::OkStatus();
    for (uint32_t i = 0; i < arena().shape().shards && status.ok(); ++i) {
      const arena::ShardRecord& record = arena().shard(i);
      status = CheckState(reader, "shard", i, record.state_length, record.state_version);
    }
  });
  for (uint32_t start = 0; start < arena().shape().connections && status.ok();
       start += kConnectionsPerLook) {
    status = EngineHasStopped();
    engine_.Run([&] {
      status = absl::OkStatus();
      const uint32_t end = std::min(arena().shape().connections, start + kConnectionsPerLook);
      for (uint32_t i = start; i < end && status.ok(); ++i) {
        const arena::ConnectionRecord& record = arena().connection(i);
        if (record.state == static_cast<uint32_t>(arena::ConnectionState::kFree)) continue;
        status = CheckState(reader, "connection", i, record.state_length, record.state_version);
      }
    });
  }
  return status;
}

// ---------------------------------------------------------------- listeners and connections

template <typename Order, typename Execute>
absl::Status OrderExecutor::ExecuteOnce(const Order& order, internal::DriverAnswer* answer,
                                        Execute execute) {
  if (order.number() == 0) return execute();
  LastRequest& last = last_requests_[order.worker_id()];
  if (last.number != order.number()) {
    last.status = execute();
    last.number = order.number();
    last.answer = *answer;
  }
  *answer = last.answer;
  return last.status;
}

absl::Status OrderExecutor::ExecuteOnDescriptors(const internal::DriverOrder& order,
                                                 std::vector<FileDescriptor> descriptors,
                                                 internal::DriverAnswer* answer,
                                                 std::vector<FileDescriptor>* sent) {
  if (!order.has_hold_descriptor()) return descriptor_orders_.Execute(order, answer, sent);
  return ExecuteOnce(order.hold_descriptor(), answer, [&] {
    return descriptor_orders_.Hold(order.hold_descriptor(), std::move(descriptors), answer);
  });
}

absl::Status OrderExecutor::ListenAt(const internal::ListenAt& order,
                                     internal::Listening* listening) {
  const verbs::Address asked = AddressIn(order);
  const bool is_new = order.worker_id() != 0 && !engine_.IsListening(asked);
  if (is_new) BATON_RETURN_IF_ERROR(CheckListen(order, asked));
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, engine_.Listen(asked));
  if (is_new) admission_.NoteListener(order.worker_id(), address);
  listening->set_port(address.port);
  return absl::OkStatus();
}

// The search for a port's owner takes long. Its rate is limited, so that a worker that asks again
// and again does not delay the requests of others.
absl::Status OrderExecutor::NameOwner(const internal::ListenAt& order,
                                      const absl::Status& refused) {
  if (order.worker_id() == 0) return verbs::NamePortOwner(refused);
  if (MonotonicNanoseconds() < next_owner_search_ns_) return refused;
  absl::Status named = verbs::NamePortOwner(refused);
  next_owner_search_ns_ = MonotonicNanoseconds() + kBetweenOwnerSearchesNs;
  return named;
}

absl::Status OrderExecutor::CheckListen(const internal::ListenAt& order,
                                        const verbs::Address& address) const {
  const size_t existing = engine_.listeners().size();
  if (existing >= order.max_listeners()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the service has ", existing, " listeners: raise max_listeners"));
  }
  return admission_.CheckListen(order.worker_id(), address, existing,
                                !engine_.device_info().gid.empty());
}

absl::Status OrderExecutor::Connect(const internal::ConnectTo& order,
                                    internal::Connecting* connecting) {
  const internal::ConnectRequest& request = order.request();
  if (engine_.succession().owner(request.shard()).worker_id != order.worker_id()) {
    return absl::FailedPreconditionError(
        absl::StrCat("shard: ", request.shard(), " is not owned by this worker"));
  }
  BATON_RETURN_IF_ERROR(admission_.CheckConnect(request.port(), engine_.connection_count(),
                                                ConnectionsOf(order.worker_id())));
  BATON_ASSIGN_OR_RETURN(
      const uint32_t connection,
      engine_.ConnectFor({order.worker_id(), order.number()}, request.shard(), AddressIn(request),
                         request.private_data(), request.tag()));
  connecting->set_connection(connection);
  connecting->set_generation(arena().connection(connection).generation);
  return absl::OkStatus();
}

uint32_t OrderExecutor::ConnectionsOf(uint64_t worker_id) const {
  uint32_t count = 0;
  for (uint32_t shard = 0; shard < arena().shape().shards; ++shard) {
    if (engine_.succession().owner(shard).worker_id == worker_id)
      count += engine_.connections_of(shard);
  }
  return count;
}

// ---------------------------------------------------------------- admission

void OrderExecutor::PutPolicyInForce(v1::Policy policy) {
  const uint32_t of_service = policy.service().posts_per_second();
  const uint32_t of_worker = policy.worker().posts_per_second();
  // A native service makes all its queue pairs at its start, so it has no limit for them.
  if (service_.mode() == v1::NATIVE) policy.mutable_service()->clear_queue_pairs();
  admission_.SetPolicy(std::move(policy));
  engine_.SetPostRates(of_service, of_worker);
}

// Counts again if the number of connections or grants has changed, and after a while: a connection
// that is accepted gets a queue pair, but does not change these numbers.
const driver::ObjectCounts& OrderExecutor::CountObjects(uint32_t grants) {
  const uint64_t now = MonotonicNanoseconds();
  const uint32_t connections = engine_.connection_count();
  if (objects_.counted_ns == 0 || now - objects_.counted_ns >= kCountsLastNs ||
      objects_.connections != connections || objects_.grants != grants) {
    objects_ = {engine_.device_objects(), connections, grants, now};
  }
  return objects_.counts;
}

void OrderExecutor::Account(const internal::Account& order, internal::ServiceAccounts* answer) {
  v1::Accounts& accounts = *answer->mutable_accounts();
  const Holdings all = admission_.OfService();
  const driver::ObjectCounts& objects = CountObjects(all.grants);
  accounts.set_connections(engine_.connection_count());
  accounts.set_queue_pairs(objects.queue_pairs);
  accounts.set_completion_queues(objects.completion_queues);
  accounts.set_shared_receive_queues(objects.shared_receive_queues);
  accounts.set_memory_regions(objects.memory_regions);
  accounts.set_registered_bytes(driver::NeedsOf(arena().shape()).registered_bytes +
                                all.granted_bytes);
  accounts.set_grants(all.grants);
  accounts.set_granted_bytes(all.granted_bytes);
  accounts.set_listeners(static_cast<uint32_t>(engine_.listeners().size()));
  accounts.set_descriptors(held_descriptors_.count());
  for (const uint64_t id : order.worker_ids()) {
    const Holdings holdings = admission_.OfWorker(id);
    internal::WorkerUse* const use = answer->add_workers();
    use->set_worker_id(id);
    use->set_connections(ConnectionsOf(id));
    use->set_listeners(holdings.listeners);
    use->set_grants(holdings.grants);
    use->set_granted_bytes(holdings.granted_bytes);
    use->set_descriptors(held_descriptors_.CountOf(id));
  }
}

// ---------------------------------------------------------------- for operators

absl::Status OrderExecutor::ReplaceDriverCode(std::chrono::milliseconds probation) {
  return forks_ != nullptr ? forks_->ReplaceCode(probation) : engine_.ReplaceDriverCode(probation);
}

void OrderExecutor::Describe(internal::Description* description) {
  v1::Service* const service = description->mutable_service();
  service->set_driver_pid(getpid());
  service->set_broker_pid(engine_.broker());
  service->set_twin_pid(engine_.twin());
  service->set_native(forks_ != nullptr);
  service->set_driver_code_release(forks_ != nullptr ? forks_->code_release()
                                                     : engine_.driver_code_release());
  service->set_driver_code_given_up(forks_ != nullptr ? forks_->code_given_up()
                                                      : engine_.driver_code_given_up());
  service->set_driver_uptime_seconds(static_cast<double>(MonotonicNanoseconds() - started_ns_) /
                                     1e9);
  LatencyHistogram handoffs, failovers;
  for (uint32_t i = 0; i < arena().shape().shards; ++i) {
    const driver::ShardCounters counters = engine_.counters(i);
    *description->add_shards() = DescribeShard(engine_, i, counters);
    *description->add_shard_loads() = DescribeShardLoad(counters);
    handoffs.Merge(engine_.succession().handoff_blackout(i));
    failovers.Merge(engine_.succession().failover_blackout(i));
  }
  if (const std::optional<EngineLoad> load = engine_.load()) {
    *description->mutable_engine() = DescribeLoad(*load);
  }
  *service->mutable_device_state() = DescribeDevice(engine_.device_info());
  service->set_connection_count(engine_.connection_count());
  for (const verbs::Address& address : engine_.listeners()) {
    v1::Listener* listener = service->add_listeners();
    listener->set_host(address.host);
    listener->set_port(address.port);
  }
  *service->mutable_handoff_blackout() = Summarize(handoffs);
  *service->mutable_failover_blackout() = Summarize(failovers);
}

// Adds what takes long and does not need the engine's thread.
void OrderExecutor::AddToDescription(internal::Description* description) const {
  AddReceiveWindows(arena(), description->mutable_shard_loads());
  AddHeaps(arena(), description->mutable_shard_loads());
  for (const auto& [cause, blackout] : news_.blackouts()) {
    AddBlackout(cause, blackout, description);
  }
}

void OrderExecutor::ListConnections(const internal::ListConnections& order,
                                    internal::Connections* connections) {
  const uint32_t limit =
      order.limit() == 0 ? kConnectionsPerAnswer : std::min(order.limit(), kConnectionsPerAnswer);
  ConnectionDescriber describer(engine_);
  for (uint32_t i = order.start(); i < arena().shape().connections; ++i) {
    const arena::ConnectionRecord& record = arena().connection(i);
    if (record.state == static_cast<uint32_t>(arena::ConnectionState::kFree)) continue;
    if (order.shard() >= 0 && record.shard != static_cast<uint32_t>(order.shard())) continue;
    if (connections->connections_size() == static_cast<int>(limit)) {
      connections->set_next(i);
      return;
    }
    *connections->add_connections() = describer.Describe(i);
  }
}

}  // namespace baton::driver_process

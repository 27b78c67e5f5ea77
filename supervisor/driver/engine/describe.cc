#include "supervisor/driver/engine/describe.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/arena/atomic_access.h"
#include "lib/arena/text_field.h"
#include "lib/base/clock.h"
#include "lib/base/utf8.h"

namespace baton::driver_process {
namespace {

constexpr double kNanosecondsPerSecond = 1e9;
// In seconds: all the times that a change of owner may take, in steps that operators can tell
// apart.
constexpr double kHistogramBounds[] = {10e-6,  25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3,
                                       2.5e-3, 5e-3,  10e-3, 25e-3,  50e-3,  0.1,    0.25,
                                       0.5,    1,     2.5,   5,      10};

void DescribePoisoning(const Poisoning& poisoned, v1::PoisonedConnection* out) {
  out->set_connection(poisoned.connection);
  out->set_generation(poisoned.generation);
  out->set_completion(poisoned.completion);
  out->set_kind(std::string(CompletionKindName(poisoned.kind)));
  out->set_sequence(poisoned.sequence);
  out->set_guessed(poisoned.guessed);
  out->set_deaths(poisoned.deaths);
  for (const uint64_t id : poisoned.worker_ids) out->add_worker_ids(id);
}

// Native workers write the records: text may be anything, and may lack its end.
template <size_t size>
std::string TextFor(const char (&field)[size]) {
  return ValidUtf8(arena::TextOf(field), size);
}

internal::Histogram DescribeHistogram(const LatencyHistogram& histogram) {
  internal::Histogram out;
  for (const double bound : kHistogramBounds) {
    out.add_bounds_seconds(bound);
    out.add_counts(histogram.CountUpTo(static_cast<uint64_t>(bound * kNanosecondsPerSecond)));
  }
  out.set_count(histogram.count());
  out.set_sum_seconds(static_cast<double>(histogram.sum()) / kNanosecondsPerSecond);
  return out;
}

}  // namespace

v1::ReconciliationReport DescribeReport(const ReconciliationReport& report, size_t max_requests) {
  v1::ReconciliationReport out;
  out.set_epoch(report.epoch);
  out.set_cause(report.cause);
  out.set_former_worker_id(report.former_worker_id);
  out.set_successor_worker_id(report.successor_worker_id);
  out.set_transactions_recovered(report.recovered);
  out.set_never_submitted(report.never_submitted);
  out.set_in_flight(report.in_flight);
  out.set_completed_undelivered(report.completed_undelivered);
  out.set_delivered_uncommitted(report.delivered_uncommitted);
  out.set_ambiguous(report.ambiguous);
  out.set_unix_micros(report.unix_micros);
  if (report.poisoned) DescribePoisoning(*report.poisoned, out.mutable_poisoned());
  for (size_t i = 0; i < std::min(report.requests.size(), max_requests); ++i) {
    const arena::ReportedRequest& request = report.requests[i];
    v1::WorkRequestOutcome* item = out.add_work_requests();
    item->set_connection(request.connection);
    item->set_send(request.send != 0);
    item->set_sequence(request.sequence);
    item->set_opcode(request.send != 0
                         ? std::string(verbs::OpcodeName(verbs::Opcode(request.opcode)))
                         : "RECEIVE");
    item->set_outcome(std::string(RequestOutcomeName(request.outcome)));
  }
  return out;
}

v1::BlackoutSummary Summarize(const LatencyHistogram& histogram) {
  v1::BlackoutSummary summary;
  summary.set_count(histogram.count());
  summary.set_p50_us(static_cast<double>(histogram.Quantile(0.5)) / 1000);
  summary.set_p99_us(static_cast<double>(histogram.Quantile(0.99)) / 1000);
  summary.set_max_us(static_cast<double>(histogram.max()) / 1000);
  return summary;
}

void AddBlackout(const std::string& cause, const LatencyHistogram& histogram,
                 internal::Description* description) {
  v1::CausedBlackout* const blackout = description->mutable_service()->add_blackouts();
  blackout->set_cause(cause);
  *blackout->mutable_blackout() = Summarize(histogram);
  *description->add_blackouts() = DescribeHistogram(histogram);
}

internal::EngineLoad DescribeLoad(const EngineLoad& load) {
  internal::EngineLoad out;
  out.set_busy_seconds(static_cast<double>(load.busy_ns) / kNanosecondsPerSecond);
  out.set_turns(load.turns);
  *out.mutable_turn() = DescribeHistogram(load.turn);
  return out;
}

internal::ShardLoad DescribeShardLoad(const driver::ShardCounters& counters) {
  internal::ShardLoad out;
  out.set_bytes_sent(counters.bytes_sent);
  out.set_bytes_received(counters.bytes_received);
  return out;
}

void AddReceiveWindows(const arena::Arena& arena,
                       google::protobuf::RepeatedPtrField<internal::ShardLoad>* loads) {
  const arena::Shape& shape = arena.shape();
  for (uint32_t i = 0; i < shape.connections; ++i) {
    const arena::ConnectionRecord& record = arena.connection(i);
    if (arena::ConnectionState(arena::LoadAcquire(record.state)) !=
        arena::ConnectionState::kEstablished) {
      continue;
    }
    // Native workers write the records: the shard may be anything.
    const uint32_t shard = arena::LoadRelaxed(record.shard);
    if (shard >= static_cast<uint32_t>(loads->size())) continue;
    internal::ShardLoad& load = *loads->Mutable(static_cast<int>(shard));
    if (arena::HasSharedReceives(shape)) {
      load.set_receive_window(arena::LoadRelaxed(arena.shard(shard).shared_receives_posted));
      continue;
    }
    // `completed` is read first: `posted` only grows, so it is never less.
    const uint64_t completed = arena::LoadAcquire(record.receive.completed);
    const auto left = static_cast<uint32_t>(arena::LoadRelaxed(record.receive.posted) - completed);
    if (!load.has_receive_window() || left < load.receive_window()) load.set_receive_window(left);
  }
}

void AddHeaps(const arena::Arena& arena,
              google::protobuf::RepeatedPtrField<internal::ShardLoad>* loads) {
  const uint64_t bytes = arena::HeapBytes(arena.shape());
  if (bytes == 0) return;
  for (uint32_t i = 0; i < arena.shape().shards; ++i) {
    internal::ShardHeap& heap = *loads->Mutable(static_cast<int>(i))->mutable_heap();
    heap.set_bytes(bytes);
    const uint64_t word = arena::LoadAcquire(arena.shard(i).owner.ownership);
    const arena::BankHeader& bank = arena.bank(i, arena::OwnershipEpoch(word));
    // A worker writes these.
    const auto hint = [bytes](const uint64_t& told) {
      return std::min(arena::LoadRelaxed(told), bytes);
    };
    internal::ShardHeap::Use use;
    use.set_kept(hint(bank.heap_kept));
    use.set_scratch(hint(bank.heap_scratch));
    use.set_held(hint(bank.heap_held));
    use.set_largest_free(hint(bank.heap_largest));
    const uint64_t free = hint(bank.heap_free), rest = hint(bank.heap_rest);
    // The parts add up to the heap, unless the owner's release does not tell these two.
    if ((free | rest) != 0 || use.kept() + use.scratch() + use.held() >= bytes) {
      use.set_free(free);
      use.set_rest(rest);
    }
    const bool told =
        (use.kept() | use.scratch() | use.held() | use.largest_free() | free | rest) != 0;
    if (told) *heap.mutable_use() = std::move(use);
  }
}

v1::DeviceState DescribeDevice(const verbs::DeviceInfo& device) {
  v1::DeviceState out;
  out.set_name(device.name);
  out.set_transport(device.transport);
  out.set_port(device.port);
  out.set_port_state(std::string(verbs::PortStateName(device.port_state)));
  out.set_active_mtu(device.active_mtu);
  out.set_network_interface(device.network_interface);
  for (const std::string& gid : device.gids) out.add_gids(gid);
  out.set_gid(device.gid);
  return out;
}

v1::Shard DescribeShard(const ServiceEngine& engine, uint32_t shard,
                        const driver::ShardCounters& counters) {
  const arena::ShardRecord& record = engine.arena().shard(shard);
  const ShardOwner owner = engine.succession().owner(shard);
  v1::Shard out;
  out.set_index(shard);
  out.set_epoch(owner.epoch);
  out.set_owner_worker_id(owner.worker_id);
  out.set_heir_worker_id(owner.heir_id);
  out.set_connections(record.connections);
  out.set_commits(counters.transactions);
  out.set_sends_posted(counters.sends_posted);
  out.set_receives_posted(counters.receives_posted);
  out.set_completions(record.completion_tail);
  out.set_completions_unacknowledged(record.completion_tail - record.acknowledged);
  out.set_send_requests_in_flight(
      static_cast<uint32_t>(counters.sends_posted - counters.sends_completed));
  out.set_waiting_reason(engine.succession().waiting_reason(shard));
  out.set_poisoned_connections(engine.succession().poisoned_connections(shard));
  *out.mutable_handoff_blackout() = Summarize(engine.succession().handoff_blackout(shard));
  *out.mutable_failover_blackout() = Summarize(engine.succession().failover_blackout(shard));
  if (engine.succession().last_report(shard).epoch != 0) {
    *out.mutable_last_report() = DescribeReport(engine.succession().last_report(shard));
  }
  return out;
}

// Describes how much a peer can send while no worker serves its connection. This depends on the
// connection's posted receives or, if receives are shared, on its shard's.
void ConnectionDescriber::DescribeWindow(const arena::ConnectionRecord& record, uint32_t connection,
                                         v1::Connection* out) {
  uint64_t receives = record.receive.posted - record.receive.completed;
  uint64_t completed = record.receive.completed;
  uint64_t since_ns = engine_.established_ns(connection);
  if (arena::HasSharedReceives(engine_.arena().shape())) {
    if (record.shard >= engine_.arena().shape().shards) return;
    receives = engine_.arena().shard(record.shard).shared_receives_posted;
    const auto [known, asks] = receives_completed_.try_emplace(record.shard);
    if (asks) known->second = engine_.counters(record.shard).receives_completed;
    completed = known->second;
    since_ns = engine_.arena().header().created_ns;
    out->set_receive_window_shared(true);
  }
  out->set_receive_window(static_cast<uint32_t>(receives));
  // Nobody knows how long the receives last before the first has completed.
  if (since_ns == 0 || completed == 0) return;
  const auto elapsed_ns = static_cast<double>(MonotonicNanoseconds() - since_ns);
  out->set_receive_window_us(static_cast<double>(receives) * elapsed_ns /
                             static_cast<double>(completed) / 1000);
}

v1::Connection ConnectionDescriber::Describe(uint32_t connection) {
  const arena::ConnectionRecord record = arena::CopyOnce(engine_.arena().connection(connection));
  v1::Connection out;
  out.set_index(connection);
  out.set_generation(record.generation);
  out.set_shard(record.shard);
  out.set_state(static_cast<v1::ConnectionState>(record.state));
  out.set_qp_number(record.qp_number);
  out.set_local_address(TextFor(record.local_address));
  out.set_peer_address(TextFor(record.peer_address));
  out.set_sends_committed(record.send.committed);
  out.set_sends_posted(record.send.posted);
  out.set_sends_completed(record.send.completed);
  out.set_receives_committed(record.receive.committed);
  out.set_receives_posted(record.receive.posted);
  out.set_receives_completed(record.receive.completed);
  out.set_bytes_received(record.bytes_received);
  out.set_state_length(record.state_length);
  out.set_state_version(record.state_version);
  if (arena::HasSharedReceives(engine_.arena().shape())) {
    out.set_receives_committed(record.receive.completed);
    out.set_receives_posted(record.receive.completed);
  }
  if (arena::ConnectionState(record.state) == arena::ConnectionState::kEstablished) {
    DescribeWindow(record, connection, &out);
  }
  if (record.was_established != 0) {
    out.set_initiator_depth(record.initiator_depth);
    out.set_responder_resources(record.responder_resources);
  }
  const auto status = verbs::CompletionStatus(record.last_status);
  if (record.poison != 0) {
    out.set_last_error("poisoned: owners died on it");
  } else if (status != verbs::CompletionStatus::kSuccess) {
    out.set_last_error(std::string(verbs::CompletionStatusName(status)));
  }
  return out;
}

}  // namespace baton::driver_process

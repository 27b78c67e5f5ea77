#include "supervisor/driver/engine/reconciliation.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"

namespace baton::driver_process {
namespace {

// A report searches at most this many connections for requests without a completion. Its counters
// are exact anyway.
constexpr uint32_t kReportedConnections = 1024;

// Completions that no owner has acknowledged. The owner says that it has read those before `read`.
struct Unacknowledged {
  uint64_t begin, read, end;
};

// Returns no completions if another process of a native service has written impossible values.
Unacknowledged UnacknowledgedOf(const arena::Arena& arena, uint32_t shard, uint64_t epoch) {
  const arena::ShardRecord& record = arena.shard(shard);
  const uint64_t end = arena::LoadRelaxed(record.completion_tail);
  uint64_t begin = arena::LoadRelaxed(record.acknowledged);
  if (begin > end || end - begin > arena.shape().completion_log_entries) begin = end;
  // Nothing but this report relies on it, because a worker writes it.
  const uint64_t read = arena::LoadRelaxed(arena.bank(shard, epoch).read_cursor);
  return {begin, std::clamp(read, begin, end), end};
}

void ListCompleted(const arena::Arena& arena, uint32_t shard, const Unacknowledged& completions,
                   ReconciliationReport* report) {
  for (uint64_t i = completions.begin;
       i < completions.end && report->requests.size() < arena::kReportedRequests; ++i) {
    const arena::CompletionEntry entry = arena::CopyOnce(arena.completion(shard, i));
    if (entry.connection >= arena.shape().connections) continue;
    const auto kind = arena::CompletionKind(entry.kind);
    if (kind != arena::CompletionKind::kSend && kind != arena::CompletionKind::kReceive) continue;
    const bool send = kind == arena::CompletionKind::kSend;
    report->requests.push_back(
        {.connection = entry.connection,
         .send = send,
         .opcode = send ? arena.send_request(entry.connection, entry.sequence).opcode : uint8_t{0},
         .outcome = (entry.flags & arena::kCompletionPoisoned) != 0 ? RequestOutcome::kPoisoned
                    : i < completions.read ? RequestOutcome::kDeliveredUncommitted
                                           : RequestOutcome::kCompletedUndelivered,
         .pad0 = 0,
         .sequence = entry.sequence});
  }
}

// Lists requests without a completion, in the order of connections.
void ListOutstanding(const arena::Arena& arena, uint32_t shard, const EndedOwnership& ended,
                     ReconciliationReport* report) {
  const size_t there =
      ended.connections ? ended.connections->size() : size_t{arena.shape().connections};
  const auto looked_at = static_cast<uint32_t>(std::min<size_t>(there, kReportedConnections));
  for (uint32_t i = 0; i < looked_at; ++i) {
    const uint32_t index = ended.connections ? (*ended.connections)[i] : i;
    const arena::ConnectionRecord& connection = arena.connection(index);
    if (connection.shard != shard ||
        connection.state == static_cast<uint32_t>(arena::ConnectionState::kFree)) {
      continue;
    }
    for (const bool send : {true, false}) {
      const arena::QueueCursors& cursors = send ? connection.send : connection.receive;
      for (uint64_t at = cursors.completed; at < cursors.committed; ++at) {
        if (report->requests.size() == arena::kReportedRequests) return;
        report->requests.push_back(
            {.connection = index,
             .send = send,
             .opcode = send ? arena.send_request(index, at).opcode : uint8_t{0},
             .outcome =
                 at < cursors.posted ? RequestOutcome::kInFlight : RequestOutcome::kNeverSubmitted,
             .pad0 = 0,
             .sequence = at});
      }
    }
  }
}

}  // namespace

std::string_view CompletionKindName(arena::CompletionKind kind) {
  static constexpr std::string_view kNames[] = {"unknown",         "send",        "receive",
                                                "connect_request", "established", "disconnected",
                                                "connect_failed"};
  static_assert(std::size(kNames) ==
                static_cast<size_t>(arena::CompletionKind::kConnectFailed) + 1);
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

std::string_view RequestOutcomeName(RequestOutcome outcome) {
  static constexpr std::string_view kNames[] = {
      "never_submitted",       "in_flight", "completed_undelivered",
      "delivered_uncommitted", "poisoned",  "ambiguous"};
  static_assert(std::size(kNames) == static_cast<size_t>(RequestOutcome::kAmbiguous) + 1);
  const auto index = static_cast<size_t>(outcome);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

std::string DescribePoisoning(uint32_t shard, const Poisoning& poisoned) {
  std::string what(CompletionKindName(poisoned.kind));
  if (poisoned.kind == arena::CompletionKind::kSend ||
      poisoned.kind == arena::CompletionKind::kReceive) {
    absl::StrAppend(&what, " ", poisoned.sequence);
  }
  return absl::StrCat(
      "connection ", poisoned.connection, " is failed: ", poisoned.deaths, " workers (",
      absl::StrJoin(poisoned.worker_ids, ", "), ") died on its ", what, ", completion ",
      poisoned.completion, " of shard ", shard,
      poisoned.guessed ? ", the oldest that was not dealt with: which one it was they did not tell"
                       : "");
}

ReconciliationReport Reconcile(const arena::Arena& arena, uint32_t shard,
                               const driver::ShardCounters& counters, const EndedOwnership& ended) {
  const arena::ShardRecord& record = arena.shard(shard);
  ReconciliationReport report;
  report.epoch = ended.epoch;
  report.cause = std::string(ended.cause);
  report.former_worker_id = ended.owner_id;
  report.successor_worker_id = record.owner.owner_worker_id;
  report.recovered = ended.recovered;
  report.never_submitted = counters.sends_committed - counters.sends_posted +
                           counters.receives_committed - counters.receives_posted;
  report.in_flight = counters.sends_posted - counters.sends_completed + counters.receives_posted -
                     counters.receives_completed;
  const Unacknowledged completions = UnacknowledgedOf(arena, shard, report.epoch);
  report.delivered_uncommitted = completions.read - completions.begin;
  report.completed_undelivered = completions.end - completions.read;
  report.unix_micros = UnixMicroseconds();
  report.poisoned = ended.poisoned;
  ListCompleted(arena, shard, completions, &report);
  ListOutstanding(arena, shard, ended, &report);
  return report;
}

}  // namespace baton::driver_process

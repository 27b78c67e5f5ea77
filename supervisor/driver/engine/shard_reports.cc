#include "supervisor/driver/engine/shard_reports.h"

#include <algorithm>
#include <utility>

#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/driver/connection_state.h"

namespace baton::driver_process {
namespace {

using arena::ReportRecord;

// Keeps the report's version odd as long as this lives. A report that a dead writer left odd is
// written again.
class Writing {
 public:
  explicit Writing(ReportRecord& report) : report_(report) {
    arena::StoreRelaxed(report_.version, report_.version | 1);
    arena::FullFence();
  }
  ~Writing() { arena::StoreRelease(report_.version, report_.version + 1); }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  ReportRecord& report_;
};

void FillPoisoning(const Poisoning& poisoned, ReportRecord* out) {
  out->poisoned_connection = poisoned.connection;
  out->poisoned_generation = poisoned.generation;
  out->poisoned_kind = static_cast<uint8_t>(poisoned.kind);
  out->poison_guessed = poisoned.guessed ? 1 : 0;
  out->poisoned_completion = poisoned.completion;
  out->poisoned_sequence = poisoned.sequence;
  const size_t remembered = std::min<size_t>(poisoned.worker_ids.size(), arena::kRememberedDeaths);
  out->poison_remembered = static_cast<uint8_t>(remembered);
  std::copy_n(poisoned.worker_ids.begin(), remembered, out->poisoned_workers);
  arena::OrderForCrash();
  out->poison_deaths = poisoned.deaths;
}

std::optional<Poisoning> PoisoningOf(const ReportRecord& report) {
  if (report.poison_deaths == 0) return std::nullopt;
  Poisoning poisoned;
  poisoned.deaths = report.poison_deaths;
  poisoned.connection = report.poisoned_connection;
  poisoned.generation = report.poisoned_generation;
  poisoned.kind = arena::CompletionKind(report.poisoned_kind);
  poisoned.guessed = report.poison_guessed != 0;
  poisoned.completion = report.poisoned_completion;
  poisoned.sequence = report.poisoned_sequence;
  poisoned.worker_ids.assign(
      report.poisoned_workers,
      report.poisoned_workers +
          std::min<uint32_t>(report.poison_remembered, arena::kRememberedDeaths));
  return poisoned;
}

void SetOutcome(uint32_t connection, bool receive, uint64_t begin, uint64_t end,
                RequestOutcome outcome, absl::Span<arena::ReportedRequest> requests) {
  for (arena::ReportedRequest& request : requests) {
    if (request.connection == connection && (request.send != 0) != receive &&
        request.sequence >= begin && request.sequence < end) {
      request.outcome = outcome;
    }
  }
}

}  // namespace

void ShardReports::FindAmbiguous(uint32_t shard, absl::Span<const uint32_t> connections,
                                 ReconciliationReport* report) {
  std::erase_if(ambiguous_, [&](const Ambiguous& old) { return old.shard == shard; });
  for (const uint32_t i : connections) {
    const arena::ConnectionRecord& connection = arena_->connection(i);
    if (connection.shard != shard || !driver::IsLive(connection)) continue;
    for (const bool receive : {true, false}) {
      const uint32_t count = driver::MaybePosted(connection, receive);
      if (count == 0) continue;
      const uint64_t begin = receive ? connection.receive.posted : connection.send.posted;
      ambiguous_.push_back({shard, report->epoch, i, receive, begin, begin + count});
      report->never_submitted -= count;
      report->ambiguous += count;
      SetOutcome(i, receive, begin, begin + count, RequestOutcome::kAmbiguous,
                 absl::MakeSpan(report->requests));
    }
  }
}

// Counts requests as never submitted that the dead driver did not post. They look in flight,
// because its successor has posted them meanwhile.
void ShardReports::CorrectSettled(uint32_t shard, ReconciliationReport* report) {
  std::erase_if(never_posted_, [&](const Ambiguous& settled) {
    if (settled.shard != shard) return false;
    const arena::ConnectionRecord& connection = arena_->connection(settled.connection);
    const arena::QueueCursors& cursors = settled.receive ? connection.receive : connection.send;
    const uint64_t begin = std::max(settled.begin, cursors.completed);
    const uint64_t end = std::min(settled.end, cursors.posted);
    if (begin >= end) return true;
    report->in_flight -= end - begin;
    report->never_submitted += end - begin;
    SetOutcome(settled.connection, settled.receive, begin, end, RequestOutcome::kNeverSubmitted,
               absl::MakeSpan(report->requests));
    return true;
  });
}

void ShardReports::Write(uint32_t shard, absl::Span<const uint32_t> connections,
                         ReconciliationReport report) {
  CorrectSettled(shard, &report);
  FindAmbiguous(shard, connections, &report);
  ReportRecord& out = arena_->report(shard, report.epoch);
  const Writing writing(out);
  // A dead claimant's report of this epoch keeps its poisoning, because nothing is blamed any more.
  if (out.head.epoch != report.epoch) out.poison_deaths = 0;
  arena::OrderForCrash();
  out.head = report;
  BATON_CRASH_POINT("change-report-half");
  out.cause = static_cast<uint32_t>(report.released ? arena::ChangeCause::kRelease
                                                    : arena::ChangeCause::kDeath);
  if (report.poisoned) FillPoisoning(*report.poisoned, &out);
  const auto listed =
      static_cast<uint32_t>(std::min<size_t>(report.requests.size(), arena::kReportedRequests));
  out.listed = listed;
  std::copy_n(report.requests.begin(), listed, out.requests);
}

bool ShardReports::OnSettled(uint32_t connection, bool receive, uint64_t end) {
  const arena::ConnectionRecord& record = arena_->connection(connection);
  const uint32_t shard = arena::LoadRelaxed(record.shard);
  if (shard >= arena_->shape().shards) return false;  // another process has written that
  const bool owned = !arena::IsClaim(
      arena::OwnershipSlot(arena::LoadAcquire(arena_->shard(shard).owner.ownership)));
  const uint32_t attempted = receive ? record.receive_attempted : record.send_attempted;
  const auto never = static_cast<int32_t>(attempted - static_cast<uint32_t>(end));
  if (!owned && never > 0) {
    never_posted_.push_back(
        {shard, 0, connection, receive, end, end + static_cast<uint64_t>(never)});
  }
  bool said = false;
  std::erase_if(ambiguous_, [&](const Ambiguous& open) {
    if (open.connection != connection || open.receive != receive) return false;
    ReportRecord& out = arena_->report(open.shard, open.epoch);
    if (out.head.epoch != open.epoch) return true;  // a later report has the place
    const uint64_t submitted_end = std::clamp(end, open.begin, open.end);
    const Writing writing(out);
    out.head.ambiguous -= open.end - open.begin;
    out.head.in_flight += submitted_end - open.begin;
    out.head.never_submitted += open.end - submitted_end;
    // FindAmbiguous made all of these ambiguous, and no others of this queue.
    const absl::Span<arena::ReportedRequest> listed(
        out.requests, std::min(arena::LoadRelaxed(out.listed), arena::kReportedRequests));
    SetOutcome(connection, receive, open.begin, submitted_end, RequestOutcome::kInFlight, listed);
    SetOutcome(connection, receive, submitted_end, open.end, RequestOutcome::kNeverSubmitted,
               listed);
    said = true;
    return true;
  });
  return said;
}

std::optional<ReconciliationReport> ReadShardReport(const arena::Arena& arena, uint32_t shard,
                                                    uint64_t epoch, uint64_t* version) {
  const ReportRecord& shared = arena.report(shard, epoch);
  *version = arena::LoadAcquire(shared.version);
  const ReportRecord in = arena::CopyOnce(shared);
  arena::FullFence();
  if ((*version & 1) != 0 || arena::LoadRelaxed(shared.version) != *version ||
      in.head.epoch != epoch) {
    return std::nullopt;
  }
  ReconciliationReport report;
  static_cast<arena::ReportHead&>(report) = in.head;
  report.released = arena::ChangeCause(in.cause) == arena::ChangeCause::kRelease;
  report.poisoned = PoisoningOf(in);
  report.requests.assign(in.requests, in.requests + std::min(in.listed, arena::kReportedRequests));
  return report;
}

}  // namespace baton::driver_process

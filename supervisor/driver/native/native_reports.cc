#include "supervisor/driver/native/native_reports.h"

#include <algorithm>

#include "lib/arena/atomic_access.h"
#include "lib/driver/connection_state.h"

namespace baton::driver_process {
namespace {

using arena::NativeReport;

static_assert(static_cast<int>(RequestOutcome::kNeverSubmitted) ==
              static_cast<int>(arena::NativeOutcome::kNeverSubmitted));
static_assert(static_cast<int>(RequestOutcome::kDeliveredUncommitted) ==
              static_cast<int>(arena::NativeOutcome::kDeliveredUncommitted));
static_assert(static_cast<int>(RequestOutcome::kAmbiguous) ==
              static_cast<int>(arena::NativeOutcome::kAmbiguous));

// Odd as long as this lives. One that a dead writer left odd is written again.
class Writing {
 public:
  explicit Writing(NativeReport& report) : report_(report) {
    arena::StoreRelaxed(report_.version, report_.version | 1);
    arena::FullFence();
  }
  ~Writing() { arena::StoreRelease(report_.version, report_.version + 1); }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  NativeReport& report_;
};

void FillPoisoning(const Poisoning& poisoned, NativeReport* out) {
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

std::optional<Poisoning> PoisoningOf(const NativeReport& report) {
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
                RequestOutcome outcome, ReconciliationReport* report) {
  for (ReportedRequest& request : report->requests) {
    if (request.connection == connection && request.send != receive && request.sequence >= begin &&
        request.sequence < end) {
      request.outcome = outcome;
    }
  }
}

}  // namespace

void NativeReports::FindAmbiguous(uint32_t shard, absl::Span<const uint32_t> connections,
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
      SetOutcome(i, receive, begin, begin + count, RequestOutcome::kAmbiguous, report);
    }
  }
}

// Counts requests as never submitted that the dead driver did not post. They look in flight,
// because its successor has posted them meanwhile.
void NativeReports::CorrectSettled(uint32_t shard, ReconciliationReport* report) {
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
               report);
    return true;
  });
}

void NativeReports::Write(uint32_t shard, absl::Span<const uint32_t> connections,
                          ReconciliationReport report) {
  CorrectSettled(shard, &report);
  FindAmbiguous(shard, connections, &report);
  NativeReport& out = arena_->native_report(shard, report.epoch);
  const Writing writing(out);
  // One that a dead claimant has written keeps its poisoning: nothing is blamed any more.
  if (out.epoch != report.epoch) out.poison_deaths = 0;
  arena::OrderForCrash();
  out.epoch = report.epoch;
  out.former_worker_id = report.former_worker_id;
  out.successor_worker_id = report.successor_worker_id;
  out.recovered = report.transactions_recovered;
  out.unix_micros = report.unix_micros;
  out.never_submitted = report.never_submitted;
  out.in_flight = report.in_flight;
  out.completed_undelivered = report.completed_undelivered;
  out.delivered_uncommitted = report.delivered_uncommitted;
  out.ambiguous = report.ambiguous;
  out.cause = static_cast<uint32_t>(report.released ? arena::ChangeCause::kRelease
                                                    : arena::ChangeCause::kDeath);
  if (report.poisoned) FillPoisoning(*report.poisoned, &out);
  out.listed =
      static_cast<uint32_t>(std::min<size_t>(report.requests.size(), arena::kReportedRequests));
  for (uint32_t i = 0; i < out.listed; ++i) {
    const ReportedRequest& request = report.requests[i];
    out.requests[i] = {request.connection,
                       static_cast<uint8_t>(request.send ? 1 : 0),
                       request.opcode,
                       static_cast<uint8_t>(request.outcome),
                       0,
                       request.sequence};
  }
}

bool NativeReports::OnSettled(uint32_t connection, bool receive, uint64_t end) {
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
    NativeReport& out = arena_->native_report(open.shard, open.epoch);
    if (out.epoch != open.epoch) return true;  // the place is a later one's
    const uint64_t submitted_end = std::clamp(end, open.begin, open.end);
    const Writing writing(out);
    out.ambiguous -= open.end - open.begin;
    out.in_flight += submitted_end - open.begin;
    out.never_submitted += open.end - submitted_end;
    for (uint32_t i = 0; i < std::min(out.listed, arena::kReportedRequests); ++i) {
      arena::NativeRequest& request = out.requests[i];
      if (request.connection == connection && (request.send != 0) != receive &&
          request.outcome == static_cast<uint8_t>(RequestOutcome::kAmbiguous)) {
        request.outcome = static_cast<uint8_t>(request.sequence < submitted_end
                                                   ? RequestOutcome::kInFlight
                                                   : RequestOutcome::kNeverSubmitted);
      }
    }
    said = true;
    return true;
  });
  return said;
}

std::optional<ReconciliationReport> ReadNativeReport(const arena::Arena& arena, uint32_t shard,
                                                     uint64_t epoch, uint64_t* version) {
  const NativeReport& shared = arena.native_report(shard, epoch);
  *version = arena::LoadAcquire(shared.version);
  const NativeReport in = arena::CopyOnce(shared);
  arena::FullFence();
  if ((*version & 1) != 0 || arena::LoadRelaxed(shared.version) != *version || in.epoch != epoch) {
    return std::nullopt;
  }
  ReconciliationReport report;
  report.epoch = in.epoch;
  report.released = arena::ChangeCause(in.cause) == arena::ChangeCause::kRelease;
  report.former_worker_id = in.former_worker_id;
  report.successor_worker_id = in.successor_worker_id;
  report.transactions_recovered = in.recovered;
  report.unix_micros = in.unix_micros;
  report.never_submitted = in.never_submitted;
  report.in_flight = in.in_flight;
  report.completed_undelivered = in.completed_undelivered;
  report.delivered_uncommitted = in.delivered_uncommitted;
  report.ambiguous = in.ambiguous;
  report.poisoned = PoisoningOf(in);
  for (uint32_t i = 0; i < std::min(in.listed, arena::kReportedRequests); ++i) {
    const arena::NativeRequest& request = in.requests[i];
    report.requests.push_back({request.connection, request.send != 0, request.sequence,
                               request.opcode, RequestOutcome(request.outcome)});
  }
  return report;
}

}  // namespace baton::driver_process

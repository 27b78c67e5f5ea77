#include "supervisor/driver/engine/broker.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "lib/base/status.h"

namespace baton::driver_process {
namespace {

// Transactions of one shard in one turn, so that no shard starves another.
constexpr int kTransactionsPerTurn = 32;
// Soft-RoCE sends what it is told of before the call returns. Without this limit, an owner that
// always has more to send would not see for long what has completed, and so have no memory to send
// from.
constexpr uint64_t kSentBytesPerTurn = 1 << 20;
// An owner with fewer pending entries in its commit log does not wait for room there: the largest
// transaction fits, even when the driver is in the middle of one.
constexpr uint64_t kCrowdedEntries = arena::kCommitLogEntries / 4;
static_assert(kCrowdedEntries + 2 * arena::kMaxTransactionEntries < arena::kCommitLogEntries);
// How long a lost device may take to complete what is outstanding, as failed. A device that works
// up to its removal does so at once, or with shared receives within a second.
constexpr uint64_t kLossNs = 2'000'000'000;
constexpr int kLossPauseMs = 5;
constexpr int kAbandonedPauseMs = 100;

}  // namespace

Broker::Broker(arena::Arena* arena, EngineListener* listener, WorkerWakes* wakes,
               const BrokerOptions& options)
    : arena_(*arena),
      wakes_(*wakes),
      options_(options),
      shards_(arena, listener, wakes, options,
              [this](uint32_t shard, absl::Status* error) { return ApplyNext(shard, error); }),
      unreadable_(arena->shape().shards, 0) {}

void Broker::SetDriver(driver::QueueDriver* driver) {
  driver_ = driver;
  shards_.SetDriver(driver);
}

bool Broker::IsLeftToOwner(uint32_t shard) const {
  return options_.owners_drive && shards_.ownership(shard).owned();
}

void Broker::NotifyOwner(uint32_t shard) {
  const uint32_t slot = shards_.ownership(shard).owner_slot();
  if (slot != arena::kNobody) wakes_.Notify(slot);
}

bool Broker::TurnShards() {
  bool worked = false;
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    if (IsLeftToOwner(shard)) continue;
    // Commits come first, so that the poll finds what a quick device completes at once.
    worked |= ApplyCommits(shard);
    worked |= PollShard(shard);
  }
  return worked;
}

void Broker::Drive(uint32_t shard) {
  PollShard(shard);
  while (ApplyCommits(shard)) {
  }
}

driver::CommitOutcome Broker::ApplyNext(uint32_t shard, absl::Status* error) {
  const driver::CommitOutcome outcome = driver_->ApplyNext(shard, error);
  if (budget_ != nullptr && (outcome == driver::CommitOutcome::kApplied ||
                             outcome == driver::CommitOutcome::kReleased)) [[unlikely]] {
    budget_->Take(shards_.ownership(shard).owner_slot(), driver_->requests_applied());
  }
  return outcome;
}

bool Broker::ApplyCommits(uint32_t shard) {
  const driver::Ownership& ownership = shards_.ownership(shard);
  bool worked = false, crowded = false;
  const auto sent = [&] { return driver_->counters(shard).bytes_sent; };
  const uint64_t limit = sent() + kSentBytesPerTurn;
  for (int i = 0; i < kTransactionsPerTurn && sent() < limit && ownership.owned(); ++i) {
    // Checked each time, because the owner fills the log meanwhile.
    crowded |= driver_->PendingEntries(shard) >= kCrowdedEntries;
    if (budget_ != nullptr && NanosecondsToWait(shard) != 0) [[unlikely]]
      break;
    absl::Status error;
    const driver::CommitOutcome outcome = ApplyNext(shard, &error);
    if (outcome == driver::CommitOutcome::kIdle) break;
    worked = true;
    if (outcome == driver::CommitOutcome::kInvalid) {
      shards_.OnInvalidCommit(shard, error);
      break;
    }
    const bool released = outcome == driver::CommitOutcome::kReleased;
    if (released || shards_.AwaitsFirstCommit(shard)) shards_.OnCommit(shard, released);
    if (released) break;  // the next owner's turn
  }
  if (worked && crowded) NotifyOwner(shard);  // there is room again
  return worked;
}

// Returns how long the owner's committed transactions have to wait. They do not wait when the owner
// was asked to release, nor at the cut, because the successor would wait, too.
uint64_t Broker::NanosecondsToWait(uint32_t shard) {
  const driver::Ownership& ownership = shards_.ownership(shard);
  if (ownership.release_asked() || driver_->PendingEntries(shard) == 0) return 0;
  // A new owner's first transaction does not wait, nor does an owner that was asked to end.
  if (shards_.AwaitsFirstCommit(shard)) return 0;
  if ((arena_.header().stop_requested >> ownership.owner_slot() & 1) != 0) return 0;
  return budget_->NanosecondsToWait(ownership.owner_slot(), options_.nanoseconds());
}

void Broker::SetPostRates(uint32_t of_service, uint32_t of_worker) {
  budget_.reset();
  if (of_service == 0 && of_worker == 0) return;
  budget_ = std::make_unique<PostBudget>(of_service, of_worker, arena_.shape().workers,
                                         options_.nanoseconds());
}

void Broker::RefillBudget(uint32_t slot) {
  if (budget_ != nullptr) budget_->Refill(slot, options_.nanoseconds());
}

bool Broker::PollShard(uint32_t shard) {
  if (unreadable_[shard]) return false;
  const absl::StatusOr<bool> news = driver_->PollCompletions(shard);
  if (!news.ok()) {
    // P6: from now on, nobody can know what became of this shard's requests. The connections of the
    // other shards end in order. Then the driver ends, and batond starts another.
    unreadable_[shard] = true;
    BeginLoss(news.status());
    driver_->GiveUp(shard, MessageOf(news.status()));
    NotifyOwner(shard);
    return true;
  }
  if (*news) NotifyOwner(shard);
  return *news;
}

// ---------------------------------------------------------------- sleeping

bool Broker::HasCommitsToApply(uint32_t shard) {
  if (!shards_.ownership(shard).owned() || driver_->PendingEntries(shard) == 0) return false;
  return budget_ == nullptr || NanosecondsToWait(shard) == 0;
}

bool Broker::MaySleep() {
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    if (IsLeftToOwner(shard)) continue;
    if (!unreadable_[shard] && !driver_->RequestNotification(shard).ok()) return false;
    if (HasCommitsToApply(shard)) return false;
  }
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    if (!IsLeftToOwner(shard) && PollShard(shard)) return false;
  }
  return true;
}

int Broker::LongestSleepMs() {
  if (loss_) return kLossPauseMs;
  const int otherwise = driver_->HasAbandoned() ? kAbandonedPauseMs : -1;
  if (budget_ == nullptr) return otherwise;
  constexpr uint64_t kMillisecondNs = 1'000'000;
  uint64_t longest = ~uint64_t{0};
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    if (!shards_.ownership(shard).owned() || driver_->PendingEntries(shard) == 0) continue;
    longest = std::min(longest, NanosecondsToWait(shard));
  }
  if (longest == ~uint64_t{0}) return otherwise;
  return static_cast<int>(longest / kMillisecondNs + 1);
}

// ---------------------------------------------------------------- the device is lost

void Broker::BeginLoss(absl::Status why) {
  if (loss_) return;
  loss_ = Loss{std::move(why), options_.nanoseconds() + kLossNs};
  driver_->EndAll(MessageOf(loss_->why));
  for (uint32_t shard = 0; shard < shard_count(); ++shard) NotifyOwner(shard);
}

bool Broker::ContinueLoss() {
  if (!driver_->AllEnded() && options_.nanoseconds() < loss_->deadline_ns) return false;
  for (uint32_t shard = 0; shard < shard_count() && !driver_->AllEnded(); ++shard) {
    driver_->GiveUp(shard, "the device does not complete what is outstanding");
    NotifyOwner(shard);
  }
  return true;
}

}  // namespace baton::driver_process

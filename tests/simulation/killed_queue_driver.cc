#include "tests/simulation/killed_queue_driver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::simulation {

KilledQueueDriver::KilledQueueDriver(native::LocalDriver* local, Context* context,
                                     SimDevice* device, arena::Arena* arena,
                                     const Mortality& mortality)
    : QueueDriver(std::move(local->driver())),
      context_(context),
      sim_device_(device),
      memory_(arena),
      local_(local),
      deaths_(context, arena, mortality),
      news_(arena->shape().shards) {
  context_->driver_dies = [this](const char* where) { return Dies(where); };
}

KilledQueueDriver::~KilledQueueDriver() {
  context_->driver_dies = [](const char*) { return false; };
}

bool KilledQueueDriver::Dies(const char* where) {
  return running_ != 0 && !local_->is_carrying_out() && deaths_.IsDue(where);
}

template <typename Call>
auto KilledQueueDriver::Survive(const Call& call) {
  if (outlived_) return call();
  for (;;) {
    ++running_;
    try {
      auto result = call();
      --running_;
      return result;
    } catch (const DriverKilled&) {
      --running_;
    }
    Follow();
  }
}

void KilledQueueDriver::Outlive(const std::function<void()>& work,
                                const std::function<void()>& go_on) {
  if (outlived_) return work();
  for (bool died = false;; died = true) {
    outlived_ = true;
    ++running_;
    try {
      died ? go_on() : work();
      if (died) CheckGoneOn(go_on);
      --running_;
      outlived_ = false;
      return;
    } catch (const DriverKilled&) {
      --running_;
      outlived_ = false;
    }
    Follow();
  }
}

// P5: who follows once more has nothing to do.
void KilledQueueDriver::CheckGoneOn(const std::function<void()>& go_on) {
  const auto interleave = std::exchange(context_->interleave, [] {});
  deaths_.Suspend(true);
  const std::string before = Snapshot();
  go_on();
  deaths_.Suspend(false);
  context_->interleave = interleave;
  if (Snapshot() != before) context_->Break("P5: going on a second time has changed the memory");
}

void KilledQueueDriver::Follow() {
  const auto interleave = context_->interleave;
  const bool check = context_->dice.OneIn(2);
  if (check) context_->interleave = [] {};
  std::unique_ptr<QueueDriver> next = Recovered();
  if (!next) return;
  const driver::RecoveryCounters one = next->recovery();
  if (check && !context_->broken()) next = RecoveredOnceMore();
  context_->interleave = interleave;
  news_.assign(news_.size(), true);
  sum_.recoveries += 1;
  sum_.transactions_resumed += one.transactions_resumed;
  sum_.sends_ambiguous += one.sends_ambiguous;
  sum_.receives_ambiguous += one.receives_ambiguous;
  sum_.answers += one.answers;
  sum_.markers += one.markers;
  sum_.spares += one.spares;
  if (next) QueueDriver::operator=(std::move(*next));
}

// By the first that survives it.
std::unique_ptr<driver::QueueDriver> KilledQueueDriver::Recovered() {
  for (;;) {
    sim_device_->SetAnswers(deaths_.may_answer());
    ++running_;
    try {
      auto next = local_->MakeSuccessor();
      --running_;
      if (next.ok()) return *std::move(next);
      context_->Break(absl::StrCat("adoption: ", next.status().message()));
      return nullptr;
    } catch (const DriverKilled&) {
      --running_;
      context_->Note("driver: died recovering");
    }
  }
}

// Without the rings: a recovery gives orders again, which no longer count.
std::string KilledQueueDriver::Snapshot() const {
  const auto* const driver_log = reinterpret_cast<const char*>(&memory_->header());
  const auto* const recovery = reinterpret_cast<const char*>(memory_->poll_slots(0));
  const arena::RecoveryMemoryMap& map = memory_->recovery_map();
  std::string all =
      std::string(driver_log, memory_->driver_map().total) +
      std::string(recovery, map.spare_buffers) +
      std::string(recovery + map.managed_connections, map.total - map.managed_connections);
  for (uint32_t shard = 0; shard < memory_->shape().shards; ++shard) {
    all += std::string(recovery + map.SuccessionOf(shard),
                       map.Notices(shard) - map.SuccessionOf(shard));
    all += std::string(recovery + map.Pool(shard), map.pool_bytes);
  }
  return all;
}

// P5: one more recovery changes nothing, and asks nothing of the device.
std::unique_ptr<driver::QueueDriver> KilledQueueDriver::RecoveredOnceMore() {
  const std::string before = Snapshot();
  const uint64_t posts = sim_device_->posts();
  auto again = local_->MakeSuccessor();
  if (!again.ok()) {
    context_->Break(absl::StrCat("P5: a second recovery: ", again.status().message()));
    return nullptr;
  }
  const std::string after = Snapshot();
  const auto differs = std::mismatch(before.begin(), before.end(), after.begin());
  if (after != before || sim_device_->posts() != posts) {
    context_->Break(absl::StrCat("P5: a second recovery posted ", sim_device_->posts() - posts,
                                 " requests, and has changed the memory from byte ",
                                 differs.first - before.begin(), " of ", before.size()));
  }
  return *std::move(again);
}

driver::CommitOutcome KilledQueueDriver::ApplyNext(uint32_t shard, absl::Status* error) {
  const uint64_t head = memory_->shard(shard).commit_head;
  const driver::CommitOutcome outcome =
      Survive([&] { return QueueDriver::ApplyNext(shard, error); });
  // A recovery has finished what was begun.
  const bool moved = memory_->shard(shard).commit_head != head;
  return moved && outcome == driver::CommitOutcome::kIdle ? driver::CommitOutcome::kApplied
                                                          : outcome;
}

absl::StatusOr<bool> KilledQueueDriver::PollCompletions(uint32_t shard) {
  absl::StatusOr<bool> news = Survive([&] { return QueueDriver::PollCompletions(shard); });
  if (!news.ok()) return news;
  const bool missed = news_[shard];
  news_[shard] = false;
  return missed || *news;
}

bool KilledQueueDriver::HandleEvent(uint32_t* shard) {
  return Survive([&] { return QueueDriver::HandleEvent(shard); });
}

}  // namespace baton::simulation

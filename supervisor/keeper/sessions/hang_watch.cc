#include "supervisor/keeper/sessions/hang_watch.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/loop/timers.h"

namespace baton::keeper {

using Change = internal::ChangeWorker;

// Limits how late a hang is noticed.
constexpr uint32_t kMostBetweenLooksMs = 100;

uint32_t LooksUntilHung(uint32_t heartbeat_ms, uint32_t hang_timeout_ms,
                        uint32_t between_looks_ms) {
  const uint32_t silence_ms = std::max(2 * heartbeat_ms, hang_timeout_ms);
  return (silence_ms - 1) / between_looks_ms + 1;
}

HangWatch::HangWatch(boost::asio::io_context& loop, const internal::KeeperConfig& config,
                     ServiceDriver& driver, Policies& policies, EventLog& events,
                     const Sessions& sessions, Kill kill)
    : config_(config),
      driver_(driver),
      policies_(policies),
      events_(events),
      heartbeat_ms_(std::max(1u, config.service().heartbeat_ms())),
      between_looks_ms_(std::min(heartbeat_ms_, kMostBetweenLooksMs)),
      timer_(loop),
      sessions_(sessions),
      kill_(std::move(kill)) {
  Every(timer_, std::chrono::milliseconds(between_looks_ms_), [this] {
    for (const auto& session : sessions_) {
      if (session) LookAt(*session);
    }
    shards_.reset();
  });
}

void HangWatch::LookAt(WorkerSession& session) {
  if (session.IsProcessDead()) return;  // a dead worker does not hang, even if its lock is held
  const bool was_stalled = session.heartbeat.IsSilent(looks());
  session.heartbeat.Look(arena::LoadRelaxed(driver_.arena().worker(session.slot).heartbeat),
                         looks());
  const bool stalled = session.heartbeat.IsSilent(looks());
  if (session.state != v1::WORKER_STATE_READY || !(stalled || was_stalled)) return;
  if (stalled != was_stalled) {
    driver_.ChangeWorker(session.slot, session.id, stalled ? Change::STALLED : Change::NOT_STALLED);
  }
  if (!stalled || !OwnsShards(session.id)) {
    session.hangs = false;
    session.silent_owner_looks = 0;
    return;
  }
  // A worker that was silent before it got shards has the full time, too.
  if (!was_stalled || ++session.silent_owner_looks >= looks()) OnHang(session);
}

uint32_t HangWatch::looks() const {
  return LooksUntilHung(heartbeat_ms_, config_.service().hang_timeout_ms(), between_looks_ms_);
}

bool HangWatch::OwnsShards(uint64_t worker_id) {
  if (!shards_) shards_ = driver_.LookAtShards();
  return absl::c_any_of(shards_->shards(),
                        [&](const auto& shard) { return shard.owner_worker_id() == worker_id; });
}

// Called again and again while the worker hangs, because the policy may change meanwhile.
void HangWatch::OnHang(WorkerSession& session) {
  const std::string what = absl::StrCat("it owns shards and has shown no sign of life for ",
                                        config_.service().hang_timeout_ms(), " ms");
  const bool known = std::exchange(session.hangs, true);
  if (policies_.policy().on_hang() == v1::ON_HANG_REPORT) {
    if (known) return;
    events_.Add("worker_hangs",
                absl::StrCat("worker ", session.id, " (pid ", session.peer.pid, ") hangs: ", what,
                             "; its shards stay with it, as the policy's on_hang says"),
                session.id);
    return;
  }
  driver_.ChangeWorker(session.slot, session.id, Change::DEATH_BY_HANG);
  kill_(session.id, what);
}

}  // namespace baton::keeper

#include "worker/wait_loop.h"

#include <sched.h>

#include <algorithm>

#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"

namespace baton {
namespace {

// A native worker looks several times before it yields, because it waits for the device, which does
// not need its processor.
constexpr int kLooksPerYield = 4;
constexpr uint32_t kRealtimeYieldMicroseconds = 20;
constexpr uint64_t kNsPerMs = 1'000'000;
// The device completes a send that is under way soon, and by itself. If the worker slept until
// then, the device would have nothing to do while the worker wakes up. On Soft-RoCE, where a list
// of sends completes as a whole, that costs a fifth of the bandwidth at 4 KiB.
constexpr uint32_t kDeviceYieldFactor = 200;
constexpr uint64_t kMostDeviceYieldMicroseconds = 20'000;
constexpr uint64_t kDeviceSoon = 1;
constexpr uint64_t kNothingCame = ~uint64_t{0};  // also after a short time-out of the caller

YieldBudget DeviceYieldBudget(uint32_t most, bool is_realtime) {
  if (is_realtime) return YieldBudget(most);
  const uint64_t longer =
      std::min(uint64_t{most} * kDeviceYieldFactor, kMostDeviceYieldMicroseconds);
  return YieldBudget(std::max(most, static_cast<uint32_t>(longer)), kDeviceSoon);
}

}  // namespace

WaitLoop::WaitLoop(const WorkerOptions& options, WorkerShards* shards,
                   const OwnershipChanges* ownership, WorkerNotices* notices,
                   const KeeperWatch* keeper)
    : shards_(shards),
      ownership_(ownership),
      notices_(notices),
      keeper_(keeper),
      is_realtime_(options.realtime_priority > 0),
      yield_microseconds_(is_realtime_
                              ? std::min(options.yield_microseconds, kRealtimeYieldMicroseconds)
                              : options.yield_microseconds),
      yield_budget_(yield_microseconds_),
      device_yield_budget_(DeviceYieldBudget(yield_microseconds_, is_realtime_)) {}

void WaitLoop::YieldAtMost(uint32_t microseconds) {
  if (microseconds >= yield_microseconds_) return;
  yield_microseconds_ = microseconds;
  yield_budget_ = YieldBudget(microseconds);
  device_yield_budget_ = DeviceYieldBudget(microseconds, is_realtime_);
}

// A native worker drives its queues first, so that what they have is in the logs. An idle worker
// acknowledges. Returns whether Poll has something to do.
bool WaitLoop::Advance() {
  if (shards_->native()) shards_->RecoverAndPoll();
  driven_ = HasWork();
  if (!driven_) shards_->NoteIdleLook();
  return driven_;
}

// Returns whether Poll has something to do.
bool WaitLoop::HasWork() const {
  const NativeHost* const native = shards_->native();
  if (native && !native->status().ok()) return true;  // Poll returns the error
  if (notices_->stopped() || notices_->shutdown_asked()) return true;
  return ownership_->pending() || shards_->HasCompletions();
}

bool WaitLoop::Arm() {
  shards_->AcknowledgeDelivered();
  arena::StoreRelaxed(slot_->sleeping, 1u);
  // Orders the flag before the last look; Engine::WakeNotified has the other half.
  arena::FullFence();
  armed_ = true;
  if (shards_->native()) shards_->RequestNotifications();
  BATON_CRASH_POINT("arm-before-last-look");
  if (!Advance()) return true;
  arena::StoreRelaxed(slot_->sleeping, 0u);
  return false;
}

absl::Status WaitLoop::Wait(int timeout_ms) {
  absl::Status status = Await(timeout_ms);
  // The caller finds what Wake was called for by now.
  notices_->ForgetWake();
  return status;
}

absl::Status WaitLoop::Await(int timeout_ms) {
  const bool native = shards_->native() != nullptr;
  if (yield_microseconds_ > 0) {
    // A native worker's looks are polls of the device, and it has more of them below.
    for (uint32_t i = native ? kLooksBeforeYield : 0; i < kLooksBeforeYield; ++i) {
      if (Advance()) return absl::OkStatus();
      Pause();
    }
  }
  YieldBudget& budget = shards_->awaits_device() ? device_yield_budget_ : yield_budget_;
  const uint64_t began = MonotonicNanoseconds();
  // The worker has to show a sign of life as often as a sleeping one.
  uint64_t limit = std::min(budget.nanoseconds(), uint64_t{heartbeat_ms_} * kNsPerMs / 2);
  if (timeout_ms >= 0) limit = std::min(limit, static_cast<uint64_t>(timeout_ms) * kNsPerMs);
  uint64_t now = began;
  for (; now - began < limit; now = MonotonicNanoseconds()) {
    for (int i = native ? kLooksPerYield : 1; i > 0; --i) {
      if (Advance() || notices_->woken()) {
        budget.NoteWait(now - began);
        return absl::OkStatus();
      }
    }
    if (keeper_->SeesWatched()) {
      watched_ = true;
      return absl::OkStatus();
    }
    sched_yield();
  }
  if (timeout_ms > 0) timeout_ms -= static_cast<int>(std::min(now - began, limit) / kNsPerMs);
  BATON_ASSIGN_OR_RETURN(const bool came, Sleep(timeout_ms));
  budget.NoteWait(came ? MonotonicNanoseconds() - began : kNothingCame);
  return absl::OkStatus();
}

// Returns whether something came.
absl::StatusOr<bool> WaitLoop::Sleep(int timeout_ms) {
  if (!Arm()) return true;
  return keeper_->Sleep(timeout_ms);
}

}  // namespace baton

#include "supervisor/keeper/event_log.h"

#include <chrono>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "lib/channel/waits.h"

namespace baton::keeper {
namespace {

// Events that somebody should look at.
constexpr std::string_view kTroubles[] = {
    "completion_queue_failed",
    "connection_poisoned",
    "device_event",
    "device_lost",
    "drain_overdue",
    "driver_code_given_up",
    "events_dropped",
    "invalid_transaction",
    "keeper_entry_set_aside",
    "keeper_program_given_up",
    "keeper_request_refused",
    "keeper_settings_dropped",
    "limit_near",
    "native_driver_failed",
    "native_worker_ended",
    "native_worker_failed",
    "nic_killed",
    "no_huge_pages",
    "no_placement",
    "no_realtime_priority",
    "not_listening",
    "not_poisoned",
    "ownership_broken",
    "port_down",
    "queue_pair_failed",
    "queue_pair_not_free",
    "shared_receive_queue_failed",
    "slot_not_freed",
    "standby_failed",
    "standbys_missing",
    "upgrade_failed",
    "upgrade_rolled_back",
    "worker_dead",
    "worker_fenced",
    "worker_forked",
    "worker_hangs",
    "worker_not_killed",
    "worker_thread_ended",
};

spdlog::level::level_enum LevelOfKind(std::string_view kind) {
  return absl::c_linear_search(kTroubles, kind) ? spdlog::level::warn : spdlog::level::info;
}

}  // namespace

void EventLines::Write(const v1::Event& event, std::string_view trace_parent) {
  if (limit_.Take(event.kind(), MonotonicNanoseconds())) {
    return log::Write(LevelOfKind(event.kind()),
                      {.kind = event.kind(),
                       .trace_parent = trace_parent,
                       .worker_id = event.worker_id(),
                       .shard = event.shard(),
                       .connection = event.connection()},
                      event.message());
  }
  if (std::exchange(waits_, true)) return;
  After(timer_, std::chrono::seconds(1), [this] {
    waits_ = false;
    limit_.TakeLeftOut([](const std::string& kind, uint64_t lines) {
      log::Write(
          spdlog::level::warn, {.kind = "lines_left_out"},
          absl::StrCat(lines, " events \"", kind,
                       "\" in a second have no line here: `baton events` has the last of them"));
    });
  });
}

}  // namespace baton::keeper

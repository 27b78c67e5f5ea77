#include "supervisor/keeper/event_lines.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/log/log.h"

namespace baton::keeper {

void EventLines::Write(const v1::Event& event, std::string_view trace_parent) {
  if (limit_.Take(event.kind(), MonotonicNanoseconds())) {
    log::Write(spdlog::level::info,
               {.kind = event.kind(),
                .trace_parent = trace_parent,
                .worker_id = event.worker_id(),
                .shard = event.shard(),
                .connection = event.connection()},
               event.message());
    return;
  }
  if (waits_) return;
  waits_ = true;
  timer_.expires_after(std::chrono::seconds(1));
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) TellLeftOut();
  });
}

void EventLines::TellLeftOut() {
  waits_ = false;
  limit_.TakeLeftOut([](const std::string& kind, uint64_t lines) {
    log::Write(
        spdlog::level::warn, {.kind = "lines_left_out"},
        absl::StrCat(lines, " events \"", kind,
                     "\" in a second have no line here: `baton events` has the last of them"));
  });
}

}  // namespace baton::keeper

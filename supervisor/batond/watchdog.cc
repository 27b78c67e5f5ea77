#include "supervisor/batond/watchdog.h"

#include <systemd/sd-daemon.h>

#include <cstdint>

namespace baton {

Watchdog::Watchdog(boost::asio::io_context& io) : timer_(io) {
  uint64_t microseconds = 0;
  if (sd_watchdog_enabled(/*unset_environment=*/1, &microseconds) > 0) {
    interval_ = std::chrono::microseconds(microseconds / 2);
  }
}

void Watchdog::Start() {
  if (interval_.count() == 0) return;
  sd_notify(/*unset_environment=*/0, "WATCHDOG=1");
  timer_.expires_after(interval_);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) Start();
  });
}

}  // namespace baton

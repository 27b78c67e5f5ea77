#ifndef SUPERVISOR_BATOND_WATCHDOG_H_
#define SUPERVISOR_BATOND_WATCHDOG_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>

namespace baton {

// Shows the service manager that `io` turns: WATCHDOG=1 twice in each of the spans that it asks for
// (WatchdogSec=, sd_watchdog_enabled(3)), sent from that loop, so that a loop that hangs sends
// none. Does nothing where nobody asks this process, and then has no timer.
class Watchdog {
 public:
  // Takes WATCHDOG_USEC and WATCHDOG_PID out of the environment: they are not the children's.
  explicit Watchdog(boost::asio::io_context& io);

  // From now on, for as long as this lives.
  void Start();

 private:
  boost::asio::steady_timer timer_;
  std::chrono::microseconds interval_{};  // zero: nobody asks
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_WATCHDOG_H_

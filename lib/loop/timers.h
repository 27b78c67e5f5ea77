// Timers of an Asio loop.
#ifndef LIB_LOOP_TIMERS_H_
#define LIB_LOOP_TIMERS_H_

#include <boost/asio/steady_timer.hpp>
#include <utility>

namespace baton {

// Calls `done` from the loop after `delay`, unless the timer is cancelled, set anew or destroyed
// before.
template <typename Done>
void After(boost::asio::steady_timer& timer, boost::asio::steady_timer::duration delay, Done done) {
  timer.expires_after(delay);
  timer.async_wait([done = std::move(done)](const boost::system::error_code& error) mutable {
    if (!error) done();
  });
}

// Calls `turn` from the loop after each `interval`, until the timer is cancelled, set anew or
// destroyed. `turn` does none of these.
template <typename Turn>
void Every(boost::asio::steady_timer& timer, boost::asio::steady_timer::duration interval,
           Turn turn) {
  After(timer, interval, [&timer, interval, turn = std::move(turn)]() mutable {
    turn();
    Every(timer, interval, std::move(turn));
  });
}

}  // namespace baton

#endif  // LIB_LOOP_TIMERS_H_

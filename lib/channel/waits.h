// These functions wait in an Asio loop: for a time, or until a descriptor is readable.
#ifndef LIB_CHANNEL_WAITS_H_
#define LIB_CHANNEL_WAITS_H_

#include <poll.h>

#include <boost/asio/posix/stream_descriptor.hpp>
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

// Calls `done` from the loop when poll(2) says that the descriptor is readable, or at its end. Does
// not read the descriptor, which may be a pidfd, for example. Asio's async_wait alone completes too
// early now and then: when a descriptor is closed, an event of its own that Asio has yet to handle
// goes to the descriptor that is registered next. This does not call `done` when the wait is
// cancelled or the descriptor is closed. The loop has one thread, and the caller destroys the
// descriptor on it.
template <typename Done>
void AwaitReadable(boost::asio::posix::stream_descriptor& descriptor, Done done) {
  descriptor.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [&descriptor, done = std::move(done)](const boost::system::error_code& error) mutable {
        if (error) return;
        pollfd entry = {descriptor.native_handle(), POLLIN, 0};
        if (poll(&entry, 1, /*timeout=*/0) > 0) return done();
        AwaitReadable(descriptor, std::move(done));
      });
}

}  // namespace baton

#endif  // LIB_CHANNEL_WAITS_H_

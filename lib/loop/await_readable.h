// Waits in an Asio loop until a descriptor is readable, and does not read it: a pidfd, for example.
#ifndef LIB_LOOP_AWAIT_READABLE_H_
#define LIB_LOOP_AWAIT_READABLE_H_

#include <poll.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <utility>

namespace baton {

// Calls `done` from the loop when poll(2) says that the descriptor is readable, or at its end.
// Asio's async_wait alone completes too early now and then: when a descriptor is closed, an event
// of its own that Asio has yet to handle goes to the descriptor that is registered next. This does
// not call `done` when the wait is cancelled or the descriptor is closed. The loop has one thread,
// and the caller destroys the descriptor on it.
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

#endif  // LIB_LOOP_AWAIT_READABLE_H_

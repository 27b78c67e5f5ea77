// Accepts the clients of a listening socket, on an Asio loop.
#ifndef LIB_CHANNEL_ACCEPTOR_H_
#define LIB_CHANNEL_ACCEPTOR_H_

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <functional>
#include <utility>

#include "lib/base/file_descriptor.h"
#include "lib/channel/waits.h"

namespace baton {

// The loop has one thread. REQUIRES: it has ended when this is destroyed.
class Acceptor {
 public:
  struct Callbacks {
    // Gets a connected socket that does not block.
    std::function<void(FileDescriptor)> on_client;
    // Gets the errno of a client that could not be accepted, because no descriptor is free. Null:
    // failures are not reported.
    std::function<void(int)> on_failure;
  };

  // Call it on any thread. REQUIRES: `listening` does not block. After a failure it tries again
  // after `pause`, because the client goes on waiting and the socket stays readable.
  Acceptor(boost::asio::io_context& loop, FileDescriptor listening, std::chrono::milliseconds pause,
           Callbacks callbacks)
      : listening_(loop, listening.Release()),
        length_(pause),
        pause_(loop),
        callbacks_(std::move(callbacks)) {
    boost::asio::post(loop, [this] { Await(); });
  }

 private:
  void Await() {
    AwaitReadable(listening_, [this] {
      FileDescriptor client(
          accept4(listening_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (client) {
        callbacks_.on_client(std::move(client));
      } else if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
        if (callbacks_.on_failure) callbacks_.on_failure(errno);
        return After(pause_, length_, [this] { Await(); });
      }
      Await();
    });
  }

  boost::asio::posix::stream_descriptor listening_;
  const std::chrono::milliseconds length_;
  boost::asio::steady_timer pause_;
  const Callbacks callbacks_;
};

}  // namespace baton

#endif  // LIB_CHANNEL_ACCEPTOR_H_

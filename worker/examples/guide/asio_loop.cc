// Chapter 9: one io_context waits for the worker, a timer, signals and a UNIX socket. No thread.
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/system/error_code.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/guide/reply_service.h"

namespace baton::guide {
namespace {

using boost::asio::local::stream_protocol;
using ErrorCode = boost::system::error_code;

class Clock final : public ReplyService {
 public:
  void Tick() { ++ticks_; }
  uint64_t messages() const { return messages_; }
  bool asked_to_end() const { return asked_to_end_; }

 private:
  absl::StatusOr<std::string> Reply(Shard&, Connection&, const std::string& message) override {
    ++messages_;
    return absl::StrCat(message, " at tick ", ticks_);
  }
  void OnShutdown(std::string_view) override { asked_to_end_ = true; }

  uint64_t ticks_ = 0, messages_ = 0;
  bool asked_to_end_ = false;
};

class AsioLoop {
 public:
  // `path`: of a UNIX socket, which tells how many messages were answered.
  AsioLoop(Worker& worker, Clock& clock, const std::string& path)
      : worker_(worker),
        clock_(clock),
        event_(context_, CopyOf(worker.event_fd()).Release()),
        timer_(context_),
        signals_(context_, SIGTERM, SIGINT),
        acceptor_(context_, stream_protocol::endpoint(path)) {}

  // Returns when the worker is asked to end, by a signal or by Baton, or has an error.
  absl::Status Run() {
    Turn();
    Tick();
    Accept();
    signals_.async_wait([this](const ErrorCode&, int) { context_.stop(); });
    context_.run();
    return status_;
  }

 private:
  void Turn() {
    status_ = worker_.Poll().status();
    if (!status_.ok() || clock_.asked_to_end()) return context_.stop();
    // False: Poll has something to do. What else is due comes first.
    if (!worker_.ArmEvent()) return boost::asio::post(context_, [this] { Turn(); });
    event_.async_wait(event_.wait_read, [this](const ErrorCode&) { Turn(); });
  }
  void Tick() {
    timer_.expires_after(std::chrono::milliseconds(500));
    timer_.async_wait([this](const ErrorCode&) {
      clock_.Tick();
      Tick();
    });
  }
  void Accept() {
    acceptor_.async_accept([this](const ErrorCode& error, stream_protocol::socket socket) {
      ErrorCode ignored;
      const std::string text = absl::StrCat(clock_.messages(), " messages\n");
      if (!error) boost::asio::write(socket, boost::asio::buffer(text), ignored);
      Accept();
    });
  }

  Worker& worker_;
  Clock& clock_;
  boost::asio::io_context context_{1};
  boost::asio::posix::stream_descriptor event_;
  boost::asio::steady_timer timer_;
  boost::asio::signal_set signals_;
  stream_protocol::acceptor acceptor_;
  absl::Status status_;
};

absl::Status RunClock(const char* socket, const char* listen, const char* path) {
  Clock clock;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker,
                         Worker::Attach({.socket = socket, .service = "counter"}, &clock));
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, examples::ParseAddress(listen));
  BATON_RETURN_IF_ERROR(worker->Listen(address.host, address.port).status());
  (void)unlink(path);
  AsioLoop loop(*worker, clock, path);
  BATON_RETURN_IF_ERROR(worker->Ready());
  return loop.Run();
}  // the end of the worker releases its shards

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: asio_loop SOCKET HOST:PORT PATH" << std::endl;
    return 2;
  }
  const absl::Status status = baton::guide::RunClock(argv[1], argv[2], argv[3]);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}

// An Asio loop and the one thread that runs it.
#ifndef SUPERVISOR_CONTROL_LOOP_THREAD_H_
#define SUPERVISOR_CONTROL_LOOP_THREAD_H_

#include <pthread.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <thread>

namespace baton {

// Thread-compatible. Posting to the loop is thread-safe.
class LoopThread {
 public:
  // Debuggers and `top -H` show the thread by this name.
  static constexpr char kName[] = "baton-loop";

  LoopThread() : thread_([this] { Run(); }) {}
  ~LoopThread() { Stop(); }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  boost::asio::io_context& loop() { return loop_; }

  // Waits until the loop's present handler has returned. Nothing runs in the loop afterwards, not
  // even what was posted.
  void Stop() {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    (void)pthread_setname_np(pthread_self(), kName);
    loop_.run();
  }

  boost::asio::io_context loop_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      loop_.get_executor()};
  std::thread thread_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_LOOP_THREAD_H_

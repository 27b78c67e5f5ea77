#include "lib/log/standard_error.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/async.h"
#include "spdlog/details/null_mutex.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace baton::log {
namespace {

constexpr size_t kLines = 2048;  // that wait for the thread
constexpr unsigned kEndSeconds = 2;

class PatientSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (lost_ > 0) {
      const std::string text =
          absl::StrCat(lost_, " lines were lost: nobody took them from standard error");
      const spdlog::details::log_msg notice(message.logger_name, spdlog::level::warn, text);
      if (!Write(notice)) {
        ++lost_;
        return;
      }
      lost_ = 0;
    }
    lost_ += !Write(message);
  }
  void flush_() override {}

  // Cuts a line that is too long.
  bool Write(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (line.size() > PIPE_BUF) {
      line.resize(PIPE_BUF);
      line[PIPE_BUF - 1] = '\n';
    }
    return writer_.Write({line.data(), line.size()});
  }

  PatientWriter writer_{STDERR_FILENO};
  uint64_t lost_ = 0;
};

}  // namespace

PatientWriter::PatientWriter(int descriptor) : descriptor_(descriptor) {
  struct stat file = {};
  if (fstat(descriptor, &file) != 0) return;
  is_socket_ = S_ISSOCK(file.st_mode);
  if (!S_ISFIFO(file.st_mode) && !S_ISCHR(file.st_mode)) return;
  const std::string path = absl::StrCat("/proc/self/fd/", descriptor);
  own_.Reset(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

bool PatientWriter::Write(std::string_view bytes) {
  ssize_t written;
  if (is_socket_) {
    written = send(descriptor_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  } else if (own_) {
    written = write(own_.get(), bytes.data(), bytes.size());
  } else {
    // A pipe that is writable takes PIPE_BUF bytes whole (pipe(7)).
    pollfd reader = {descriptor_, POLLOUT, 0};
    if (poll(&reader, 1, 0) != 1 || (reader.revents & POLLOUT) == 0) return false;
    written = write(descriptor_, bytes.data(), bytes.size());
  }
  return written == static_cast<ssize_t>(bytes.size());
}

void LogToStandardError(const std::string& name, LogThread thread, const std::string& pattern) {
  (void)signal(SIGPIPE, SIG_IGN);
  std::shared_ptr<spdlog::logger> logger;
  if (thread == LogThread::kNone) {
    logger = std::make_shared<spdlog::logger>(name, std::make_shared<PatientSink>());
  } else {
    spdlog::init_thread_pool(kLines, 1);
    logger = spdlog::create_async_nb<spdlog::sinks::stderr_sink_mt>(name);
  }
  if (!pattern.empty()) logger->set_pattern(pattern);
  spdlog::set_default_logger(std::move(logger));
}

void EndLog() {
  alarm(kEndSeconds);
  spdlog::shutdown();
}

}  // namespace baton::log

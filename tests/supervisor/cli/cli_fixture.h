// `baton` in this process, against a control with fake keepers.
#ifndef TESTS_SUPERVISOR_CLI_CLI_FIXTURE_H_
#define TESTS_SUPERVISOR_CLI_CLI_FIXTURE_H_

#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

#include "supervisor/cli/cli.h"
#include "supervisor/control/config.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/control/control_fixture.h"
#include "worker/control_stream.h"

namespace baton {

struct CliResult {
  int code;
  std::string out;
  std::string err;
};

// What a command that has not ended yet has printed.
class SharedText : public std::streambuf {
 public:
  std::string text() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return text_;
  }

 private:
  int overflow(int c) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (c != traits_type::eof()) text_.push_back(static_cast<char>(c));
    return 0;
  }
  std::streamsize xsputn(const char* data, std::streamsize count) override {
    std::lock_guard<std::mutex> lock(mutex_);
    text_.append(data, static_cast<size_t>(count));
    return count;
  }

  mutable std::mutex mutex_;
  std::string text_;  // guarded by mutex_
};

inline bool WaitFor(const SharedText& text, const std::string& part) {
  return harness::WaitUntil(part, [&] { return text.text().find(part) != std::string::npos; }).ok();
}

class CliFixture : public ControlFixture {
 protected:
  void SetUp() override {
    unsetenv("BATON_SOCKET");
    ControlFixture::SetUp();
  }

  CliResult Run(std::vector<std::string> arguments, const std::string& typed = "") {
    arguments.insert(arguments.begin(), {"--state-dir", state_dir_});
    return RunBare(std::move(arguments), typed);
  }

  static CliResult RunBare(std::vector<std::string> arguments, const std::string& typed = "") {
    std::istringstream in(typed);
    std::ostringstream out, err;
    const int code =
        RunCli(std::move(arguments),
               Console{.in = in, .out = out, .err = err, .interactive = !typed.empty()});
    return {code, out.str(), err.str()};
  }

  // Opens the stream of a worker that ends only when a test says so.
  std::unique_ptr<ControlStream> OpenStream(uint64_t worker_id) {
    ControlStreamOptions options;
    options.control_socket = ControlSocketPath(state_dir_);
    options.service = "kv";
    options.first_token = WorkerToken("token");
    options.on_shutdown = [this](const std::string&) {
      if (on_shutdown_) on_shutdown_();
    };
    keeper_->AddToken(WorkerToken("token"), worker_id);
    auto stream = ControlStream::Start(std::move(options));
    EXPECT_TRUE(stream.ok()) << stream.status();
    EXPECT_TRUE(harness::WaitUntil("the stream", [&] { return (*stream)->status().ok(); }).ok());
    return *std::move(stream);
  }

  std::function<void()> on_shutdown_;
};

}  // namespace baton

#endif  // TESTS_SUPERVISOR_CLI_CLI_FIXTURE_H_

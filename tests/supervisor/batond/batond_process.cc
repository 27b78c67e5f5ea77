#include "tests/supervisor/batond/batond_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

#include "lib/base/check.h"

namespace baton {
namespace {

std::string Runfile(const std::string& path) {
  const char* sources = std::getenv("TEST_SRCDIR");
  BATON_CHECK(sources != nullptr);
  return std::string(sources) + "/baton/" + path;
}

void GiveBack(const std::vector<std::pair<std::string, FileDescriptor>>& given) {
  constexpr int kFirst = 3;
  std::vector<int> high;
  std::string names;
  for (const auto& [name, descriptor] : given) {
    high.push_back(fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 512));
    names += (names.empty() ? "" : ":") + name;
  }
  for (size_t i = 0; i < high.size(); ++i) dup2(high[i], kFirst + static_cast<int>(i));
  setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
  setenv("LISTEN_FDS", std::to_string(high.size()).c_str(), 1);
  setenv("LISTEN_FDNAMES", names.c_str(), 1);
}

}  // namespace

bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path);
  // An iterator would throw where a file of /proc cannot be read to its end any more.
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TemporaryDirectory::TemporaryDirectory() : path_("/tmp/batond-test-XXXXXX") {
  BATON_CHECK(mkdtemp(path_.data()) != nullptr);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Stage::Stage() {
  std::filesystem::create_directory(libexec());
  for (const char* name : {"/baton-driver", "/baton-keeper", "/baton-control"}) {
    std::filesystem::copy_file(Runfile("tests/supervisor/batond/fake_child"), libexec() + name);
  }
}

std::vector<Life> Stage::lives(const std::string& role) const {
  std::vector<Life> lives;
  std::ifstream log(log_path());
  for (std::string line; std::getline(log, line);) {
    std::istringstream words(line);
    Life life;
    words >> life.role >> life.pid >> life.note;
    if (life.role == role) lives.push_back(life);
  }
  return lives;
}

BatondProcess::BatondProcess(const Stage& stage, Options options) {
  std::vector<std::string> arguments = {options.program.empty() ? BuiltBatond() : options.program};
  if (options.arguments.empty()) {
    options.arguments = {"--dev", "--state-dir", stage.state_dir(), "--libexec", stage.libexec()};
  }
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const std::string out = output_.path() + "/out";
  const std::string err = output_.path() + "/err";

  pid_ = fork();
  BATON_CHECK(pid_ >= 0);
  if (pid_ != 0) return;
  setenv("FAKE_LOG", stage.log_path().c_str(), 1);
  for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
  dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644), STDOUT_FILENO);
  dup2(options.standard_error >= 0 ? options.standard_error
                                   : open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644),
       STDERR_FILENO);
  if (!options.given_back.empty()) GiveBack(options.given_back);
  if (options.run_as != 0 && geteuid() == 0 && setuid(options.run_as) != 0) _exit(126);
  execv(pointers[0], pointers.data());
  _exit(127);
}

BatondProcess::~BatondProcess() {
  if (exit_code_ >= 0) return;
  Signal(SIGKILL);
  Wait();
}

bool BatondProcess::Reap() {
  if (exit_code_ >= 0) return true;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return true;
}

bool BatondProcess::WaitUntilReady() {
  bool ready = false;
  Eventually([&] {
    const bool ended = Reap();
    ready = standard_output().starts_with("batond ready: ") && standard_output().ends_with("\n");
    return ready || ended;
  });
  return ready;
}

std::string BatondProcess::standard_output() const {
  return ReadWholeFile(output_.path() + "/out");
}
std::string BatondProcess::standard_error() const { return ReadWholeFile(output_.path() + "/err"); }

bool BatondProcess::Tells(const std::string& text) const {
  return Eventually([&] { return standard_error().find(text) != std::string::npos; });
}

int BatondProcess::Wait() {
  Eventually([&] { return Reap(); });
  return exit_code_;
}

void BatondProcess::Signal(int signal) const { kill(pid_, signal); }

BatondProcess::Options WithEnvironment(const std::string& name, const std::string& value) {
  BatondProcess::Options options;
  options.environment[name] = value;
  return options;
}

BatondProcess::Options WithArguments(std::vector<std::string> arguments) {
  BatondProcess::Options options;
  options.arguments = std::move(arguments);
  return options;
}

bool HasInEnvironment(pid_t pid, const std::string& variable) {
  const std::string environment = ReadWholeFile("/proc/" + std::to_string(pid) + "/environ");
  return environment.find('\0' + variable + "=") != std::string::npos ||
         environment.starts_with(variable + "=");
}

bool IsDead(pid_t pid) {
  if (kill(pid, 0) != 0 && errno == ESRCH) return true;
  // "PID (name) STATE ..."
  const std::string stat = ReadWholeFile("/proc/" + std::to_string(pid) + "/stat");
  const size_t end_of_name = stat.rfind(") ");
  return end_of_name == std::string::npos || stat[end_of_name + 2] == 'Z';
}

std::string BuiltBatond() { return Runfile("supervisor/batond/batond"); }

}  // namespace baton

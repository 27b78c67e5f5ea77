#include "supervisor/inspect/state_decoder.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"
#include "lib/text/text.h"

namespace baton::inspect {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxComplaintBytes = 512;  // kept of its standard error

// An output stream of the program. At most `limit` bytes are kept. The rest is read, so that the
// program does not wait for a reader, and dropped.
struct Output {
  FileDescriptor reading;
  size_t limit;
  std::string text = {};
  bool cut = false;

  void Take() {
    char buffer[4096];
    const ssize_t got = read(reading.get(), buffer, sizeof(buffer));
    if (got < 0) return;
    const auto count = static_cast<size_t>(got);
    text.append(buffer, std::min(count, limit - text.size()));
    cut = cut || text.size() == limit;
    if (got == 0) reading.Reset();
  }
};

std::vector<std::string> EnvironmentFor(const std::string& service, const CommittedState& state) {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!absl::StartsWith(*variable, "BATON_")) environment.emplace_back(*variable);
  }
  environment.push_back(absl::StrCat("BATON_SERVICE=", service));
  environment.push_back(absl::StrCat("BATON_STATE_KIND=", state.of_shard ? "shard" : "connection"));
  environment.push_back(absl::StrCat("BATON_STATE_INDEX=", state.index));
  environment.push_back(absl::StrCat("BATON_STATE_VERSION=", state.version));
  environment.push_back(absl::StrCat("BATON_STATE_LENGTH=", state.bytes.size()));
  return environment;
}

// A process in a group of its own. The whole group is killed, and the process is always reaped.
class Program {
 public:
  static absl::StatusOr<Program> Start(const v1::StateDecoder& decoder, const std::string& service,
                                       const CommittedState& state) {
    const auto* bytes = reinterpret_cast<const char*>(state.bytes.data());
    BATON_ASSIGN_OR_RETURN(const FileDescriptor input,
                           MemoryFileWith(std::string_view(bytes, state.bytes.size())));
    BATON_ASSIGN_OR_RETURN(Pipe out, MakePipe());
    BATON_ASSIGN_OR_RETURN(Pipe err, MakePipe());
    Program program;
    BATON_RETURN_IF_ERROR(program.Spawn(decoder, EnvironmentFor(service, state),
                                        {input.get(), out.writing.get(), err.writing.get()}));
    program.out_ = {std::move(out.reading), kMaxDecodedBytes};
    program.err_ = {std::move(err.reading), kMaxComplaintBytes};
    return program;
  }
  Program(Program&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        out_(std::move(other.out_)),
        err_(std::move(other.err_)) {}
  ~Program() {
    if (pid_ <= 0) return;
    kill(-pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  // Reads until both streams have ended. Returns false if the time is over, or the output is too
  // long.
  bool ReadAll(Clock::time_point deadline) {
    while (out_.reading || err_.reading) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      pollfd entries[2] = {{out_.reading.get(), POLLIN, 0}, {err_.reading.get(), POLLIN, 0}};
      if (left.count() <= 0 || out_.cut) return false;
      if (poll(entries, 2, static_cast<int>(left.count())) <= 0) continue;
      if (entries[0].revents != 0) out_.Take();
      if (entries[1].revents != 0) err_.Take();
    }
    return true;
  }
  // Returns the status with which the process has ended by itself; -1: it has not ended in time.
  int AwaitEnd(Clock::time_point deadline) {
    for (;;) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return status;
      }
      if (Clock::now() >= deadline) return -1;
      poll(nullptr, 0, 1);
    }
  }

  const Output& out() const { return out_; }
  const Output& err() const { return err_; }

 private:
  Program() = default;

  absl::Status Spawn(const v1::StateDecoder& decoder, std::vector<std::string> environment,
                     const std::array<int, 3>& streams) {
    std::vector<std::string> arguments = {decoder.program()};
    arguments.insert(arguments.end(), decoder.arguments().begin(), decoder.arguments().end());
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (int i = 0; i < 3; ++i) {
      posix_spawn_file_actions_adddup2(&actions, streams[static_cast<size_t>(i)], i);
    }
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const int error = posix_spawn(&pid_, decoder.program().c_str(), &actions, &attributes,
                                  PointersTo(arguments).data(), PointersTo(environment).data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (error == 0) return absl::OkStatus();
    pid_ = -1;
    return ErrnoStatus(error, absl::StrCat("cannot run ", decoder.program()));
  }

  pid_t pid_ = -1;
  Output out_ = {{}, 0};
  Output err_ = {{}, 0};
};

// Returns the lines of `text`, with '?' for control characters.
std::string PrintableLines(std::string_view text) {
  std::string printable;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of("\n\t", begin), text.size());
    printable += OneLine(text.substr(begin, end - begin), end - begin);
    if (end < text.size()) printable += text[end];
    begin = end + 1;
  }
  return printable;
}

}  // namespace

absl::StatusOr<std::string> RunStateDecoder(const v1::StateDecoder& decoder,
                                            const std::string& service, const CommittedState& state,
                                            std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  BATON_ASSIGN_OR_RETURN(Program program, Program::Start(decoder, service, state));
  const auto failure = [&](const std::string& how) {
    std::string said = PrintableLines(program.err().text);
    std::replace(said.begin(), said.end(), '\n', ' ');
    return absl::FailedPreconditionError(
        absl::StrCat(decoder.program(), " ", how, said.empty() ? "" : ": ", said));
  };
  const bool ended = program.ReadAll(deadline);
  if (program.out().cut) {
    return failure(absl::StrCat("prints more than ", kMaxDecodedBytes >> 10, " KiB"));
  }
  const int status = ended ? program.AwaitEnd(deadline) : -1;
  if (status < 0) {
    return failure(absl::StrCat("did not end within ", timeout.count(), " ms"));
  }
  if (WIFSIGNALED(status)) {
    return failure(absl::StrCat("was killed by signal ", WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) != 0) {
    return failure(absl::StrCat("has ended with status ", WEXITSTATUS(status)));
  }
  return PrintableLines(program.out().text);
}

}  // namespace baton::inspect

#include "tests/lib/native/forked_object.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "lib/native/native_object.h"

namespace baton::native::testing {
namespace {

[[noreturn]] void BecomeObject(const std::string& path, const std::vector<std::string>& arguments) {
  auto object = NativeObject::Load(path);
  if (object.ok()) object->Run(arguments);
  const std::string why(object.status().message());
  (void)!write(STDOUT_FILENO, why.data(), why.size());
  _exit(kNotLoaded);
}

}  // namespace

std::string PathOf(const std::string& object) {
  const char* sources = std::getenv("TEST_SRCDIR");
  return std::string(sources != nullptr ? sources : ".") + "/baton/tests/lib/native/" + object;
}

Ended RunObject(const std::string& path, const std::vector<std::string>& arguments) {
  std::array<int, 2> pipe_ends;
  if (pipe(pipe_ends.data()) != 0) return {};
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_ends[1], STDOUT_FILENO);
    dup2(pipe_ends[1], STDERR_FILENO);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    BecomeObject(path, arguments);
  }
  close(pipe_ends[1]);
  Ended ended;
  std::array<char, 4096> part;
  for (;;) {
    const ssize_t got = read(pipe_ends[0], part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    ended.output.append(part.data(), static_cast<size_t>(got));
  }
  close(pipe_ends[0]);
  while (waitpid(child, &ended.status, 0) < 0 && errno == EINTR) {
  }
  return ended;
}

}  // namespace baton::native::testing

#ifndef TESTS_SUPERVISOR_CLI_RUN_PROGRAM_H_
#define TESTS_SUPERVISOR_CLI_RUN_PROGRAM_H_

#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace baton {

struct ProgramResult {
  int code = -1;     // 127: there is no such program
  std::string text;  // of both of its streams
};

// `command` as a shell takes it.
inline ProgramResult RunProgram(const std::string& command) {
  ProgramResult result;
  FILE* const pipe = popen(("{ " + command + "\n} 2>&1").c_str(), "r");
  if (pipe == nullptr) return result;
  char part[4096];
  while (const size_t size = fread(part, 1, sizeof(part), pipe)) result.text.append(part, size);
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

// For a message about code 127.
inline constexpr char kInstall[] = "; deploy/scripts/install_packages.sh build installs it";

}  // namespace baton

#endif  // TESTS_SUPERVISOR_CLI_RUN_PROGRAM_H_

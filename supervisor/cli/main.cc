// baton: the operator's command line.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "supervisor/cli/cli.h"

namespace {

// Returns `fd`, or -1 if it is no terminal with cursor movement.
int Terminal(int fd) {
  const char* const type = std::getenv("TERM");
  const bool dumb = type == nullptr || std::string(type).empty() || std::string(type) == "dumb";
  return isatty(fd) == 1 && !dumb ? fd : -1;
}

}  // namespace

int main(int argc, char** argv) {
  // Each line is written at once: other processes write to the same terminal or file.
  std::setvbuf(stderr, nullptr, _IOLBF, BUFSIZ);
  std::cerr.unsetf(std::ios::unitbuf);
  return baton::RunCli(std::vector<std::string>(argv + 1, argv + argc),
                       {.in = std::cin,
                        .out = std::cout,
                        .err = std::cerr,
                        .interactive = isatty(STDIN_FILENO) == 1,
                        .terminal_in = Terminal(STDIN_FILENO),
                        .terminal_out = Terminal(STDOUT_FILENO),
                        .terminal_err = Terminal(STDERR_FILENO)});
}

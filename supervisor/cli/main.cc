// baton: the operator's command line.
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "supervisor/cli/cli.h"

int main(int argc, char** argv) {
  const bool in = isatty(STDIN_FILENO) == 1;
  const bool out = isatty(STDOUT_FILENO) == 1;
  return baton::RunCli(std::vector<std::string>(argv + 1, argv + argc),
                       {.in = std::cin,
                        .out = std::cout,
                        .err = std::cerr,
                        .interactive = in,
                        .terminal_in = in ? STDIN_FILENO : -1,
                        .terminal_out = out ? STDOUT_FILENO : -1});
}

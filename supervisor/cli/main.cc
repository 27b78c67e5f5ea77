// baton: the operator's command line.
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "supervisor/cli/cli.h"

int main(int argc, char** argv) {
  return baton::RunCli(std::vector<std::string>(argv + 1, argv + argc), std::cin,
                       isatty(STDIN_FILENO) == 1, std::cout, std::cerr);
}

// Writes the manual pages into the directory that its argument names.
#include <fstream>
#include <iostream>

#include "supervisor/cli/command_line.h"
#include "supervisor/cli/man_page.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make-man-pages DIRECTORY\n";
    return 2;
  }
  const baton::Console console{.in = std::cin, .out = std::cout, .err = std::cerr};
  baton::Invocation invocation{.console = console};
  for (const baton::ManPage& page : baton::MakeManPages(*baton::MakeCommandLine(&invocation))) {
    std::ofstream file(std::string(argv[1]) + "/" + page.file);
    file << page.text;
    file.close();
    if (!file) {
      std::cerr << "cannot write " << argv[1] << "/" << page.file << "\n";
      return 1;
    }
  }
  return 0;
}

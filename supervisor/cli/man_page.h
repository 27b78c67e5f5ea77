// Manual pages, made from the description of the command line.
#ifndef SUPERVISOR_CLI_MAN_PAGE_H_
#define SUPERVISOR_CLI_MAN_PAGE_H_

#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace baton {

struct ManPage {
  std::string file;  // "baton-service.1"
  std::string text;  // roff, with man(7)'s macros
};

// Returns baton(1), and a page for each of its commands.
std::vector<ManPage> MakeManPages(const CLI::App& root);

}  // namespace baton

#endif  // SUPERVISOR_CLI_MAN_PAGE_H_

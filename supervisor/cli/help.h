// The --help of every command: at most a screen of 24 lines with 80 columns, and a prompt.
#ifndef SUPERVISOR_CLI_HELP_H_
#define SUPERVISOR_CLI_HELP_H_

#include <string>

#include "CLI/CLI.hpp"

namespace baton {

class Help final : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
};

}  // namespace baton

#endif  // SUPERVISOR_CLI_HELP_H_

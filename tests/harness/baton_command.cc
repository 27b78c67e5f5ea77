#include "tests/harness/baton_command.h"

#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/wait_until.h"

namespace baton::harness {

CommandResult RunBaton(const Cluster& cluster, const std::vector<std::string>& arguments,
                       const std::vector<std::pair<std::string, std::string>>& environment) {
  constexpr std::chrono::seconds kTimeout{60};
  static std::atomic<int> commands = 0;
  CommandResult result;
  ChildOptions baton;
  const auto program = Binaries().Find("baton");
  EXPECT_TRUE(program.ok()) << program.status();
  if (!program.ok()) return result;
  baton.program = *program;
  baton.environment = environment;
  baton.log_path = absl::StrCat(cluster.directory(), "/baton-", ++commands, ".log");
  baton.arguments = {"--socket", cluster.OperatorSocketPath()};
  baton.arguments.insert(baton.arguments.end(), arguments.begin(), arguments.end());
  const auto process = ChildProcess::Start(baton);
  EXPECT_TRUE(process.ok()) << process.status();
  if (!process.ok()) return result;
  for (auto line = (*process)->ReadLine(kTimeout); line.ok();
       line = (*process)->ReadLine(kTimeout)) {
    absl::StrAppend(&result.out, *line, "\n");
  }
  const auto end = (*process)->WaitEnd(kTimeout);
  EXPECT_TRUE(end.ok()) << end.status();
  result.status = end.ok() && WIFEXITED(*end) ? WEXITSTATUS(*end) : -1;
  std::ifstream messages(baton.log_path);
  result.err.assign(std::istreambuf_iterator<char>(messages), {});
  return result;
}

CommandResult SetPolicy(const Cluster& cluster, const std::string& policy,
                        const std::vector<std::string>& more) {
  const std::string path = absl::StrCat(cluster.directory(), "/policy");
  std::ofstream(path) << policy;
  std::vector<std::string> arguments = {"service", "policy", "ledger", "--set", path};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunBaton(cluster, arguments);
}

absl::Status WaitForEvent(const Cluster& cluster, const std::vector<std::string>& parts) {
  CommandResult events;
  const absl::Status came = WaitUntil(absl::StrCat("an event: ", absl::StrJoin(parts, ", ")), [&] {
    events = RunBaton(cluster, {"--timeout", absl::StrCat(10 * Slowness()), "events", "ledger"});
    std::istringstream lines(events.out);
    for (std::string line; std::getline(lines, line);) {
      if (std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
            return line.find(part) != std::string::npos;
          })) {
        return true;
      }
    }
    return false;
  });
  if (came.ok()) return came;
  return absl::Status(came.code(),
                      absl::StrCat(came.message(), "; there are:\n", events.out, events.err));
}

}  // namespace baton::harness

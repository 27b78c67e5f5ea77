// The CLI, as an operator of a cluster types it.
#ifndef TESTS_HARNESS_BATON_COMMAND_H_
#define TESTS_HARNESS_BATON_COMMAND_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/harness/cluster.h"

namespace baton::harness {

struct CommandResult {
  int status = -1;  // exit status; -1: it did not exit
  std::string out, err;
};

// Fails the test when it cannot be started or does not end within a minute.
CommandResult RunBaton(const Cluster& cluster, const std::vector<std::string>& arguments,
                       const std::vector<std::pair<std::string, std::string>>& environment = {});

// Sets the policy of service ledger: `baton service policy ledger --set FILE`, with `more`.
CommandResult SetPolicy(const Cluster& cluster, const std::string& policy,
                        const std::vector<std::string>& more = {});

// Waits until `baton events ledger` prints a line that contains all of `parts`. Peers and workers
// are answered before the keeper has the event, so a test that looks once may look too early.
absl::Status WaitForEvent(const Cluster& cluster, const std::vector<std::string>& parts);

}  // namespace baton::harness

#endif  // TESTS_HARNESS_BATON_COMMAND_H_

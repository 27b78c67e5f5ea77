// The servers that are compared, and our connections with them.
#ifndef TESTS_BENCH_SIDE_H_
#define TESTS_BENCH_SIDE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/client.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster.h"

namespace baton::bench {

struct SideOptions {
  std::string device = "rdma";
  std::string host;
  std::string binary_directory;
  std::vector<std::string> worker_arguments;
};

// A server, running, and the client that is connected with it.
class Side {
 public:
  static absl::StatusOr<std::unique_ptr<Side>> StartRaw(const SideOptions& options, bool polls);
  static absl::StatusOr<std::unique_ptr<Side>> StartBrokered(const SideOptions& options);
  static absl::StatusOr<std::unique_ptr<Side>> StartNative(const SideOptions& options);

  Client& client() { return *client_; }
  // Those that serve: not those that manage.
  const std::vector<pid_t>& processes() const { return processes_; }
  void DumpLogs() const;

 private:
  absl::Status Start(harness::ChildOptions program, const std::string& host);
  absl::Status StartCluster(const SideOptions& options, std::vector<std::string> batond_arguments);

  std::unique_ptr<harness::Cluster> cluster_;
  std::unique_ptr<harness::ChildProcess> server_;
  std::unique_ptr<Client> client_;
  std::vector<pid_t> processes_;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_SIDE_H_

// A server of each kind, and our connection with it.
#ifndef TESTS_BENCH_SIDE_H_
#define TESTS_BENCH_SIDE_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "tests/bench/client.h"
#include "tests/bench/server.h"
#include "tests/bench/workloads.h"

namespace baton::bench {

class Side {
 public:
  static absl::StatusOr<std::unique_ptr<Side>> Start(SideName name, const ServerOptions& options);

  Client& client() { return *client_; }
  const Server& server() const { return *server_; }

 private:
  Side(std::unique_ptr<Server> server, std::unique_ptr<Client> client)
      : server_(std::move(server)), client_(std::move(client)) {}

  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_SIDE_H_

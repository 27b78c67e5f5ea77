#include "tests/bench/side.h"

#include "lib/base/status_macros.h"

namespace baton::bench {

absl::StatusOr<std::unique_ptr<Side>> Side::Start(SideName name, const ServerOptions& options) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Start(name, options));
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options.host, server->port());
  if (!client.ok()) {
    server->DumpLogs();
    return client.status();
  }
  return std::unique_ptr<Side>(new Side(std::move(server), *std::move(client)));
}

}  // namespace baton::bench

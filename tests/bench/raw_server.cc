// bench-raw-server: what Baton is compared with, a server of one connection on raw verbs.
#include <sched.h>

#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "lib/base/status_macros.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/raw_connection.h"
#include "tests/bench/raw_relay.h"

namespace baton::bench {
namespace {

struct Flags {
  std::string host;
  bool polls = false;
  bool relays = false;
};

absl::Status Handle(BenchServer& server, const ibv_wc& done) {
  if (done.opcode == IBV_WC_RECV) return server.OnReceived(static_cast<uint32_t>(done.wr_id));
  return done.opcode == IBV_WC_SEND ? server.OnSent() : server.OnRemoteDone();
}

absl::Status Serve(const Flags& flags) {
  BATON_ASSIGN_OR_RETURN(const auto listener, RawListener::Create(flags.host));
  std::printf("bench server ready port=%u\n", unsigned{listener->port()});
  std::fflush(stdout);
  BATON_ASSIGN_OR_RETURN(CmId request, listener->NextRequest());
  BATON_ASSIGN_OR_RETURN(const auto connection, RawConnection::Take(std::move(request)));
  if (flags.relays) return ServeThroughRelay(*connection);
  BenchServer server(connection->slab(), connection.get());
  BATON_RETURN_IF_ERROR(server.Start());
  BATON_RETURN_IF_ERROR(connection->Flush());
  BATON_RETURN_IF_ERROR(connection->Accept());
  for (;;) {
    BATON_ASSIGN_OR_RETURN(absl::Span<const ibv_wc> taken, connection->Poll());
    if (taken.empty() && flags.polls && !server.resting()) {
      sched_yield();
      continue;
    }
    if (taken.empty()) {
      BATON_ASSIGN_OR_RETURN(taken, connection->Await());
    }
    for (const ibv_wc& done : taken) BATON_RETURN_IF_ERROR(Handle(server, done));
    BATON_RETURN_IF_ERROR(connection->Flush());
  }
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app{
      "The server that `./run bench rdma` compares Baton with: raw verbs, one connection."};
  app.add_option("--host", flags.host, "IPv4 address of the device")->required();
  app.add_flag("--poll", flags.polls, "poll and yield, instead of waiting for events");
  app.add_flag("--relay", flags.relays, "in two processes: one polls and posts, the other serves");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = Serve(flags);
  std::fprintf(stderr, "bench-raw-server: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }

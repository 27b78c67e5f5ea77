// Many connections of which few are busy, on a real RDMA device: how fast they are made, and what
// those that are idle cost the others; Baton, brokered and native, beside raw verbs. `./run bench
// connections` starts it.
#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "tests/bench/echo_client.h"
#include "tests/bench/server.h"
#include "tests/bench/suite.h"

namespace baton::bench {
namespace {

constexpr uint32_t kActive = 4;
constexpr uint32_t kEchoes = 2000;
constexpr uint32_t kUnderWay = 16;
constexpr uint32_t kFewestForRate = 100;  // of those that a rate of connections is told of

struct Options {
  SuiteOptions suite;
  ServerOptions server;
  std::vector<uint32_t> connections = {1, 16, 256, 4096};

  uint32_t most() const { return *std::max_element(connections.begin(), connections.end()); }
  uint32_t fewest() const { return *std::min_element(connections.begin(), connections.end()); }
};

std::string EchoName(uint32_t connections, SideName side) {
  return absl::StrCat("echo_", connections, "_", NameOf(side));
}
std::string ConnectName(uint32_t connections, SideName side) {
  return absl::StrCat("connect_", connections, "_", NameOf(side));
}

void Compare(const Options& options, Suite* suite) {
  for (const SideName side : kSides) {
    suite->Compare(
        {absl::StrCat("echo_", options.most(), "_to_", options.fewest(), "_", NameOf(side)),
         EchoName(options.most(), side), EchoName(options.fewest(), side), Better::kLess});
  }
  for (const SideName side : {SideName::kBrokered, SideName::kNative}) {
    for (const uint32_t connections : options.connections) {
      suite->Compare({EchoName(connections, side) + "_to_polling", EchoName(connections, side),
                      EchoName(connections, SideName::kPolling), Better::kLess});
    }
    for (const uint32_t connections : options.connections) {
      if (connections < kFewestForRate) continue;
      // It looks for connections when it sleeps: as one that listens does.
      suite->Compare({ConnectName(connections, side) + "_to_events", ConnectName(connections, side),
                      ConnectName(connections, SideName::kEvents), Better::kMore});
    }
  }
}

void Draw(const Options& options, Suite* suite) {
  Plot plot{"idle", "64 bytes and back on 4 of many connections", "connections", "us, p50", {}};
  for (const SideName side : kSides) {
    Line line{NameOf(side), {}};
    for (const uint32_t n : options.connections) line.points.emplace_back(n, EchoName(n, side));
    plot.lines.push_back(std::move(line));
  }
  suite->Draw(std::move(plot));
}

class Connections {
 public:
  Connections(const Options& options, Suite* suite) : options_(options), suite_(*suite) {
    Compare(options, suite);
    Draw(options, suite);
  }

  absl::Status Run() {
    return suite_.Run([this](Round& round) {
      for (size_t i = 0; i < kSides.size(); ++i) {
        const SideName side = kSides[(i + round.number()) % kSides.size()];  // none always first
        const absl::Status status = Measure(side, round);
        if (!status.ok()) {
          return absl::Status(status.code(),
                              absl::StrCat(NameOf(side), ": ", std::string(status.message())));
        }
      }
      return absl::OkStatus();
    });
  }

 private:
  // Of a server that is new: what is connected then has not been before.
  absl::Status Measure(SideName side, Round& round) {
    BATON_ASSIGN_OR_RETURN(const auto server, Server::Start(side, options_.server));
    BATON_ASSIGN_OR_RETURN(const auto client, EchoClient::Create(options_.server.host,
                                                                 server->port(), options_.most()));
    uint32_t before = 0;
    for (const uint32_t connections : options_.connections) {
      absl::Status status = MeasureOne(*client, side, before, connections, round);
      if (!status.ok()) {
        server->DumpLogs();
        return status;
      }
      before = connections;
    }
    return absl::OkStatus();
  }

  absl::Status MeasureOne(EchoClient& client, SideName side, uint32_t before, uint32_t connections,
                          Round& round) {
    const uint64_t began = MonotonicNanoseconds();
    BATON_RETURN_IF_ERROR(client.Connect(connections, kUnderWay));
    const double seconds = static_cast<double>(MonotonicNanoseconds() - began) * 1e-9;
    if (connections >= kFewestForRate) {
      round.Set(ConnectName(connections, side), (connections - before) / seconds, "per second");
    }
    const uint32_t active = std::min(kActive, connections);
    const uint32_t count = suite_.Scaled(kEchoes, 2 * active);
    BATON_RETURN_IF_ERROR(client.Echo(std::max(active, count / 10), active).status());
    BATON_ASSIGN_OR_RETURN(const Timing timing, client.Echo(count, active));
    const std::string figure = EchoName(connections, side);
    round.Set(figure, timing.p50_us, "us, p50");
    round.Set(figure + "_p99", timing.p99_us, "us");
    std::fprintf(stderr, "connections: %-22s %8.1f us, made in %.3f s\n", figure.c_str(),
                 timing.p50_us, seconds);
    return absl::OkStatus();
  }

  const Options& options_;
  Suite& suite_;
};

absl::Status RunAndReport(Options options) {
  std::sort(options.connections.begin(), options.connections.end());
  options.server.max_connections = options.most();
  options.server.queue_depth = kEchoDepth;
  options.server.raw_arguments = {"--max-connections", absl::StrCat(options.most())};
  Suite suite("connections", options.suite);
  BATON_RETURN_IF_ERROR(Connections(options, &suite).Run());
  return suite.Report();
}

int Main(int argc, char** argv) {
  Options options;
  options.server.raw_program = "bench-raw-echo";
  options.server.worker_program = "bench-echo-worker";
  CLI::App app{
      "Making many connections over RDMA, and messages on a few of them: workers of Baton beside "
      "raw verbs."};
  AddSuiteOptions(app, &options.suite);
  app.add_option("--device", options.server.device, "rdma, or rdma:NAME [rdma]");
  app.add_option("--address", options.server.host, "IPv4 address of the device")->required();
  app.add_option("--connections", options.connections, "numbers of them [1,16,256,4096]")
      ->delimiter(',')
      ->check(CLI::Range(1, 8000));
  app.add_option("--bin", options.server.binary_directory, "where the programs are [$BATON_BIN]");
  CLI11_PARSE(app, argc, argv);
  return ExitCode("connections", RunAndReport(options));
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }

// baton-peer: loads a ledger service over RDMA, and proves or refutes that nothing was lost.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/realtime.h"
#include "lib/base/status_macros.h"
#include "worker/examples/common/address.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/peer/load_generator.h"
#include "worker/examples/peer/session.h"

namespace baton::peer {
namespace {

constexpr int kMaxDefectLines = 50;
constexpr uint32_t kPatienceMs = 5000;

struct Flags {
  std::string connect;
  std::string standby;
  std::string device = "soft";
  std::string timeline;
  int realtime_priority = 0;
  LoadOptions load;
  SessionOptions session;
};

// Different peers, and one peer started twice, get different accounts.
uint64_t RandomClientBase() {
  std::random_device random;
  return (uint64_t{random()} << 32 | uint64_t{random()} << 24) + 1;
}

absl::StatusOr<bool> Run(Flags flags) {
  BATON_ASSIGN_OR_RETURN(flags.load.address, examples::ParseAddress(flags.connect));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device, examples::OpenDevice(flags.device));
  if (!flags.standby.empty()) {
    BATON_ASSIGN_OR_RETURN(flags.load.standby, examples::ParseAddress(flags.standby));
    flags.load.reconnect = true;
  }
  flags.load.client_base = RandomClientBase();
  flags.session.reconnect = flags.load.reconnect;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<LoadGenerator> generator,
                         LoadGenerator::Create(std::move(device), flags.load));
  generator->SetDefectSink([lines = 0](const std::string& line) mutable {
    if (++lines <= kMaxDefectLines) std::fprintf(stderr, "%s\n", line.c_str());
    if (lines == kMaxDefectLines) std::fprintf(stderr, "further defects are only counted\n");
  });
  if (!flags.timeline.empty()) {
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<Timeline> timeline,
                           Timeline::Create(flags.timeline, MonotonicNanoseconds()));
    generator->SetTimeline(std::move(timeline));
  }
  if (flags.realtime_priority > 0) {
    BATON_RETURN_IF_ERROR(UseRealtimePriority(flags.realtime_priority));
  }
  return Session(generator.get(), flags.session).Run();
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app{
      "Keeps ledger accounts at a service over RDMA and checks every reply. Exit status 0: nothing "
      "was lost, duplicated, reordered, corrupt or disconnected; 1: something was; 2: no test."};
  app.add_option("--connect", flags.connect, "HOST:PORT of the service")->required();
  app.add_option("--device", flags.device, "soft, rdma, or rdma:NAME [soft]");
  app.add_option("--connections", flags.load.connections, "accounts, a connection each [1]");
  app.add_option("--active", flags.load.active,
                 "connections that carry load, spread over all; the others are asked at a settle "
                 "only [0: all]");
  app.add_option("--window", flags.load.window, "requests open per connection, at most [8]");
  app.add_option("--rate", flags.load.rate, "requests per second in all; 0: as fast as possible");
  app.add_option("--message-size", flags.load.message_bytes, "bytes of a request [64]");
  app.add_option("--reply-timeout-ms", flags.load.reply_timeout_ms,
                 "a request without a reply for so long is lost [10000]");
  app.add_option("--drain-timeout-ms", flags.session.drain_timeout_ms,
                 "how long the last replies are waited for [10000]");
  app.add_flag("--reconnect", flags.load.reconnect,
               "connect again at once when disconnected, and resume (a service without Baton)");
  app.add_option("--standby", flags.standby,
                 "HOST:PORT of another service: each connection has a spare one to it, which takes "
                 "over (services without Baton; implies --reconnect)");
  app.add_option(
      "--duration", flags.session.seconds,
      "seconds; then stop. A service that does not listen yet is waited for, 5 s at most");
  app.add_flag("--until-stdin-closes", flags.session.read_commands,
               "take commands on standard input, until its end: mark NAME, settle, settle active, "
               "rate N, stop");
  app.add_flag("--json", flags.session.json, "print the result as JSON");
  app.add_option("--realtime-priority", flags.realtime_priority,
                 "so that it measures the service and not its own waits for a core [0: none]");
  app.add_option("--timeline", flags.timeline,
                 "CSV file for replies, silences and defects per 5 ms");
  CLI11_PARSE(app, argc, argv);
  if (!flags.session.read_commands && flags.session.seconds <= 0) {
    std::fprintf(stderr, "baton-peer: give --duration or --until-stdin-closes\n");
    return 2;
  }
  // A person who types commands may start the service a moment later.
  if (!flags.session.read_commands) flags.load.first_connect_patience_ms = kPatienceMs;
  signal(SIGPIPE, SIG_IGN);
  flags.session.command_fd = STDIN_FILENO;
  const absl::StatusOr<bool> clean = Run(flags);
  if (clean.ok()) return *clean ? 0 : 1;
  std::fprintf(stderr, "baton-peer: %s\n", std::string(clean.status().message()).c_str());
  return 2;
}

}  // namespace
}  // namespace baton::peer

int main(int argc, char** argv) { return baton::peer::Main(argc, argv); }

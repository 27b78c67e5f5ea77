// A worker of service "kv" that does nothing but own shards, and has the fault that it is told to.
// Its identity is in its options, as that of a program is in its file.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "worker/worker.h"

namespace baton {
namespace {

volatile sig_atomic_t g_terminated = 0;

struct Flags {
  WorkerOptions worker;
  std::string fault;
  std::string fault_file;   // without which it has none
  std::string refuse_file;  // while it is there, shards are given back
  bool deaf = false;        // to every wish that it should end
  bool take_over = false;
  std::vector<uint32_t> shards;  // that it takes over [all]
};

class IdleService final : public Service {
 public:
  explicit IdleService(const Flags& flags) : flags_(flags) {}

  absl::Status OnAdopt(Shard&) override {
    const bool refuses =
        !flags_.refuse_file.empty() && access(flags_.refuse_file.c_str(), F_OK) == 0;
    if (refuses || flags_.fault == "refuse") return absl::UnimplementedError("not this one");
    owns = true;
    return absl::OkStatus();
  }
  void OnCompletion(Shard&, const Completion&) override {}
  void OnShutdown(std::string_view) override { shutdown = true; }

  bool owns = false;
  bool shutdown = false;

 private:
  const Flags& flags_;
};

// Once it owns a shard and has said so.
void HaveFault(const std::string& fault, Worker& worker) {
  if (fault == "crash") std::abort();
  if (fault == "hang") {
    for (;;) pause();
  }
  if (fault == "turn-unhealthy") worker.ReportHealth(false, "asked for");
}

int Serve(const Flags& flags) {
  if (flags.fault == "exit") return 3;
  IdleService service(flags);
  auto worker = Worker::Attach(flags.worker, &service);
  if (!worker.ok()) {
    std::fprintf(stderr, "%s\n", std::string(worker.status().message()).c_str());
    return 1;
  }
  if (flags.fault == "unhealthy") (*worker)->ReportHealth(false, "asked for");
  if (flags.fault == "never-ready") {
    for (;;) pause();
  }
  if (!(*worker)->Ready().ok()) return 1;
  if (flags.take_over) {
    const absl::Status begun = (*worker)->TakeOver(flags.shards);
    std::printf("take over: %s\n", begun.ToString().c_str());
    std::fflush(stdout);
  }
  while (flags.deaf || (!service.shutdown && g_terminated == 0)) {
    if (!(*worker)->Poll().ok()) return 1;
    if (service.owns) HaveFault(flags.fault, **worker);
    if (!(*worker)->Wait(10).ok()) return 1;
  }
  return 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  flags.worker.service = "kv";
  flags.worker.control_stream = false;
  CLI::App app{"A worker that owns shards and has faults."};
  app.add_option("--socket", flags.worker.socket)->required();
  app.add_option("--program-version", flags.worker.version);
  app.add_option("--reads-min", flags.worker.reads_state_version_min);
  app.add_option("--reads-max", flags.worker.reads_state_version_max);
  app.add_option("--writes", flags.worker.writes_state_version);
  app.add_option("--fault", flags.fault);
  app.add_option("--fault-file", flags.fault_file, "it has the fault only if it starts with this");
  app.add_option("--refuse-file", flags.refuse_file);
  app.add_flag("--deaf", flags.deaf);
  app.add_flag("--take-over", flags.take_over);
  app.add_option("--shard", flags.shards, "it takes over; may be repeated");
  CLI11_PARSE(app, argc, argv);
  if (!flags.fault_file.empty() && access(flags.fault_file.c_str(), F_OK) != 0) flags.fault.clear();
  struct sigaction action = {};
  action.sa_handler = [](int) { g_terminated = 1; };
  sigaction(SIGTERM, &action, nullptr);
  return Serve(flags);
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }

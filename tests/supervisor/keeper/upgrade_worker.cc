// A worker of service "kv" that does nothing but own shards, and has the fault that it is told to.
// Its identity is in its options, as that of a program is in its file.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "worker/examples/common/flags.h"
#include "worker/worker.h"

namespace baton {
namespace {

volatile sig_atomic_t g_terminated = 0;

struct Arguments {
  WorkerOptions worker;
  std::string fault;
  std::string fault_file;   // without which it has none
  std::string refuse_file;  // while it is there, shards are given back
  bool deaf = false;        // to every wish that it should end
  bool take_over = false;
  uint32_t threads = 1;          // each of which is a worker
  std::vector<uint32_t> shards;  // that it takes over [all]
};

class IdleService final : public Service {
 public:
  explicit IdleService(const Arguments& arguments) : arguments_(arguments) {}

  absl::Status OnAdopt(Shard&) override {
    const bool refuses =
        !arguments_.refuse_file.empty() && access(arguments_.refuse_file.c_str(), F_OK) == 0;
    if (refuses || arguments_.fault == "refuse") return absl::UnimplementedError("not this one");
    owns = true;
    return absl::OkStatus();
  }
  void OnCompletion(Shard&, const Completion&) override {}
  void OnShutdown(std::string_view) override { shutdown = true; }

  bool owns = false;
  bool shutdown = false;

 private:
  const Arguments& arguments_;
};

// Once it owns a shard and has said so.
void HaveFault(const std::string& fault, Worker& worker) {
  if (fault == "crash") std::abort();
  if (fault == "hang") {
    for (;;) pause();
  }
  if (fault == "turn-unhealthy") worker.ReportHealth(false, "asked for");
}

int Serve(const Arguments& arguments) {
  if (arguments.fault == "exit") return 3;
  IdleService service(arguments);
  auto worker = Worker::Attach(arguments.worker, &service);
  if (!worker.ok()) {
    std::fprintf(stderr, "%s\n", std::string(worker.status().message()).c_str());
    return 1;
  }
  if (arguments.fault == "unhealthy") (*worker)->ReportHealth(false, "asked for");
  if (arguments.fault == "never-ready") {
    for (;;) pause();
  }
  if (!(*worker)->Ready().ok()) return 1;
  if (arguments.take_over) {
    const absl::Status begun = (*worker)->TakeOver(arguments.shards);
    std::printf("take over: %s\n", begun.ToString().c_str());
    std::fflush(stdout);
  }
  while (arguments.deaf || (!service.shutdown && g_terminated == 0)) {
    if (!(*worker)->Poll().ok()) return 1;
    if (service.owns) HaveFault(arguments.fault, **worker);
    if (!(*worker)->Wait(10).ok()) return 1;
  }
  return 0;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  arguments.worker.service = "kv";
  arguments.worker.control_stream = false;
  examples::Flags flags("A worker that owns shards and has faults.");
  flags.Add("--socket", &arguments.worker.socket).Required();
  flags.Add("--program-version", &arguments.worker.version);
  flags.Add("--reads-min", &arguments.worker.reads_state_version_min);
  flags.Add("--reads-max", &arguments.worker.reads_state_version_max);
  flags.Add("--writes", &arguments.worker.writes_state_version);
  flags.Add("--fault", &arguments.fault);
  flags.Add("--fault-file", &arguments.fault_file, "it has the fault only if it starts with this");
  flags.Add("--refuse-file", &arguments.refuse_file);
  flags.Switch("--deaf", &arguments.deaf);
  flags.Add("--threads", &arguments.threads, "each is a worker");
  flags.Switch("--take-over", &arguments.take_over);
  flags.Add("--shard", &arguments.shards, "it takes over; may be repeated");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  if (!arguments.fault_file.empty() && access(arguments.fault_file.c_str(), F_OK) != 0) {
    arguments.fault.clear();
  }
  struct sigaction action = {};
  action.sa_handler = [](int) { g_terminated = 1; };
  sigaction(SIGTERM, &action, nullptr);
  std::vector<std::thread> others;
  for (uint32_t i = 1; i < arguments.threads; ++i) others.emplace_back([&] { Serve(arguments); });
  const int exit_status = Serve(arguments);
  for (std::thread& other : others) other.join();
  return exit_status;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }

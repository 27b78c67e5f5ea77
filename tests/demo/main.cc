// The demonstration: a service over RDMA is upgraded and killed again and again under verified
// traffic, with Baton and then without.
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/process_limits.h"
#include "lib/base/status.h"
#include "tests/demo/live_view.h"
#include "tests/demo/report.h"
#include "tests/demo/scenario.h"
#include "worker/examples/common/flags.h"

namespace baton::demo {
namespace {

struct Output {
  std::string directory = "out/demo";
  bool json = false;
  bool html = false;
  bool no_live = false;
};

void AddFlags(examples::Flags& flags, DemoOptions& options, Output& output) {
  flags.Switch("--json", &output.json, "print one JSON object instead of the table");
  flags.Switch("--html", &output.html,
               "write demo.html, too: a page with the table and figures to zoom into");
  flags.Switch("--no-live", &output.no_live,
               "print a line for each event, in a terminal, too, where there is a live picture");
  flags.Add("--output", &output.directory, "directory for the picture and its data [out/demo]");
  flags.Add("--connections", &options.connections, "connections of the peer [64]").Within(1, 4096);
  flags.Add(
      "--mode", &options.mode,
      {{ModeName(Mode::kBrokered), Mode::kBrokered}, {ModeName(Mode::kNative), Mode::kNative}},
      "of the workers: brokered, programs whose queues the driver operates; native, which "
      "operate them themselves [brokered]");
  flags.Add("--device", &options.fabric.device, "soft, rdma, or rdma:NAME [soft]");
  flags.Add("--address", &options.fabric.host, "IPv4 address that the device has [127.0.0.1]");
  flags.Add("--shards", &options.shards, "shards of the service [4]").Within(1, 64);
  flags.Add("--rate", &options.rate, "messages per second; 0: half of the processor time [0]");
  flags.Add("--handoffs", &options.handoffs, "planned handoffs [20]");
  flags.Add("--upgrades", &options.upgrades, "upgrades that complete [20]");
  flags.Add("--bad-upgrades", &options.bad_upgrades,
            "upgrades to a program that crashes, is never healthy, or hangs, in turn [6]");
  flags.Add("--crashes", &options.crashes, "kills of the owner with a hot standby [20]");
  flags.Add("--hangs", &options.hangs, "stops of the owner with a hot standby [5]");
  flags.Add("--cold-crashes", &options.cold_crashes, "kills without a standby [3]");
  flags.Add("--driver-kills", &options.driver_kills,
            "kills of the process that drives the queues, with brokered workers on the soft device "
            "[20]");
  flags.Add("--control-kills", &options.control_kills, "kills of control [1]");
  flags.Add("--keeper-kills", &options.keeper_kills, "kills of the service's keeper [3]");
  flags.Add("--baton-upgrades", &options.baton_upgrades,
            "replacements of the service's keeper by `baton upgrade --baton` [3]");
  flags.Add("--batond-kills", &options.batond_kills, "kills of batond [3]");
  flags.Add("--poisons", &options.poisons,
            "messages of which every worker dies, until their connection is failed [3]");
  flags.Add("--baseline-runs", &options.baseline_runs,
            "without Baton: kills after which clients connect anew, and restarts and kills "
            "with clients that have connections to a standby, of each so many [10]");
  flags
      .Add("--realtime-priority", &options.realtime_priority,
           "of serving threads and of the peer, with Baton and without; 0: none [5 on the "
           "soft device, 0 on others]")
      .Within(0, 99);
  flags.Add(
      "--require-ratio", &options.required_ratio,
      "fail unless the median gap of clients that connect anew is so many times the median "
      "blackout of handoffs and of upgrades, and the gap of a kill with a connected standby so "
      "many times that of hot crashes; 0: any [0]");
  flags.Add("--bin", &options.binary_directory, "where the programs are [$BATON_BIN, beside]");
}

// All parties share a few cores here. Without real-time priorities the times are those of the
// scheduler: a dying process keeps a core for a millisecond or two while others wait for it.
void ChooseRealtimePriority(DemoOptions& options) {
  // Soft-RoCE's work is done by threads of the kernel, which have no priority themselves.
  if (options.realtime_priority < 0)
    options.realtime_priority = options.fabric.device == "soft" ? 5 : 0;
  if (options.realtime_priority == 0) return;
  absl::Status permitted;
  std::thread([&] { permitted = UseRealtimePriority(options.realtime_priority); }).join();
  // Native workers have given up the capability, and have the limit alone.
  const auto most = static_cast<rlim_t>(options.realtime_priority);
  const rlimit limit = {most, most};
  if (permitted.ok() && options.mode == Mode::kNative && setrlimit(RLIMIT_RTPRIO, &limit) != 0) {
    permitted = ErrnoStatus(errno, "native workers need RLIMIT_RTPRIO (ulimit -r)");
  }
  if (permitted.ok()) return;
  options.realtime_priority = 0;
  std::fprintf(stderr, "without real-time priorities, expect longer blackouts: %s\n",
               std::string(permitted.message()).c_str());
}

std::unique_ptr<Progress> MakeProgress(const DemoOptions& options, const Output& output) {
  const std::optional<Terminal> terminal = Terminal::Open(STDERR_FILENO);
  if (output.no_live || !terminal.has_value()) return MakePlainProgress();
  return MakeLiveView(options, *terminal);
}

void RunAll(const Output& output, DemoResult* result) {
  const auto path = [&](const char* name) { return absl::StrCat(output.directory, "/", name); };
  for (const char* const name : {kBatonTimeline, kBaselineTimeline, kStandbyTimeline}) {
    std::error_code error;
    std::filesystem::remove(path(name), error);  // one of a former run is not to be drawn
  }
  const std::unique_ptr<Progress> progress = MakeProgress(result->options, output);
  const uint64_t start = MonotonicNanoseconds();
  result->baton = RunWithBaton(result->options, path(kBatonTimeline), progress.get());
  if (result->options.baseline_runs > 0) {
    const uint64_t rate = result->baton.rate != 0 ? result->baton.rate : 8000;
    result->baseline = RunBaseline(result->options, rate, path(kBaselineTimeline), progress.get());
    result->standby =
        RunStandbyBaseline(result->options, rate, path(kStandbyTimeline), progress.get());
  }
  result->seconds = static_cast<double>(MonotonicNanoseconds() - start) * 1e-9;
}

void SayWritten(const char* what, const absl::Status& written, const std::string& path) {
  std::fprintf(stderr, "%s\n",
               written.ok() ? absl::StrCat(what, ": ", path).c_str()
                            : absl::StrCat("no ", what, ": ", written.message()).c_str());
}

int Main(int argc, char** argv) {
  DemoResult result;
  Output output;
  examples::Flags flags(
      "Replaces and kills a service over RDMA under verified traffic, with Baton and without. Exit "
      "status 0: with Baton nothing was lost, duplicated, reordered or disconnected, and every "
      "event ended as it should.");
  AddFlags(flags, result.options, output);
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  std::error_code error;
  std::filesystem::create_directories(output.directory, error);
  if (error) {
    std::fprintf(stderr, "demo: cannot make the directory %s: %s\n", output.directory.c_str(),
                 error.message().c_str());
    return 2;
  }

  ChooseRealtimePriority(result.options);
  RunAll(output, &result);
  SayWritten("picture", Draw(result, output.directory), output.directory + "/timeline.svg");
  if (output.html) {
    SayWritten("page", WritePage(result, output.directory), output.directory + "/demo.html");
  }
  std::fputs(output.json ? (ToJson(result) + "\n").c_str() : ToTable(result).c_str(), stdout);
  return IsOk(result) && HasRequiredRatio(result) ? 0 : 1;
}

}  // namespace
}  // namespace baton::demo

int main(int argc, char** argv) { return baton::demo::Main(argc, argv); }

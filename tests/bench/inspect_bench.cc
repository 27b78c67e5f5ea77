// Whether `baton inspect` costs the service that it looks at anything: throughput under load while
// a live arena is inspected, against the same work on a copy of it. `./run bench inspect` starts
// it.
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/bench/fleet.h"
#include "tests/bench/suite.h"
#include "tests/harness/child_process.h"
#include "tests/harness/temp_directory.h"
#include "worker/examples/common/flags.h"

namespace baton::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kInspectTime{30};

struct Options {
  SuiteOptions suite;
  std::string binary_directory;
  double seconds = 3;
  double interval_ms = 250;
};

// What is done beside the load. The copy takes as much of the processors as the live one, and
// touches nothing that the service uses.
enum Beside : uint8_t { kNothing, kCopy, kLive, kSides };
constexpr const char* kNames[kSides] = {"alone", "beside_inspecting_a_copy", "beside_inspecting"};

class Measurement {
 public:
  Measurement(const Options& options, const Suite& suite, Round* round)
      : options_(options),
        seconds_(std::max(0.2, options.seconds * suite.options().scale)),
        binaries_(options.binary_directory),
        round_(*round) {}

  absl::Status Measure() {
    FleetOptions options;
    options.binaries = binaries_;
    options.workers = 1;
    options.connections = 0;
    BATON_ASSIGN_OR_RETURN(fleet_, Fleet::Start(options));
    harness::PeerOptions load;
    load.connections = Fleet::kSpareConnections;
    BATON_ASSIGN_OR_RETURN(peer_, fleet_->StartPeer(0, load));
    BATON_RETURN_IF_ERROR(peer_->Settle());
    BATON_RETURN_IF_ERROR(Run({"snapshot", Fleet::NameOf(0), Copy()}));
    // Forth and back: what drifts does so for all.
    for (const Beside beside : {kNothing, kCopy, kLive, kLive, kCopy, kNothing}) {
      BATON_RETURN_IF_ERROR(MeasureOnce(beside));
    }
    for (int i = 0; i < kSides; ++i) {
      round_.Set(absl::StrCat("messages_", kNames[i]), messages_[i] / took_[i], "1/s");
    }
    round_.Set("inspections", inspections_[kLive], "");
    round_.Set("inspections_of_the_copy", inspections_[kCopy], "");
    return peer_->Stop().status();
  }

 private:
  std::string Copy() const { return directory_.File("copy"); }

  absl::Status Run(std::vector<std::string> arguments) {
    harness::ChildOptions baton;
    BATON_ASSIGN_OR_RETURN(baton.program, binaries_.Find("baton"));
    baton.log_path = directory_.File("baton.log");
    baton.arguments = {"--state-dir",
                       std::filesystem::path(fleet_->SocketOf(0)).parent_path().string()};
    baton.arguments.insert(baton.arguments.end(), arguments.begin(), arguments.end());
    BATON_ASSIGN_OR_RETURN(const auto process, harness::ChildProcess::Start(baton));
    // What it prints is taken: it would wait for that.
    while (process->ReadLine(kInspectTime).ok()) continue;
    BATON_ASSIGN_OR_RETURN(const int status, process->WaitEnd(kInspectTime));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("baton ", arguments[0], ": ", process->LogTail()));
  }

  absl::Status MeasureOnce(Beside beside) {
    BATON_RETURN_IF_ERROR(peer_->Mark("begin").status());
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(seconds_));
    const auto interval = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double, std::milli>(options_.interval_ms));
    for (auto next = Clock::now(); next < end; next += interval) {
      std::this_thread::sleep_until(next);
      if (beside == kNothing) continue;
      std::vector<std::string> inspect = {"inspect", "--queues", "--work-requests", "-o", "json"};
      if (beside == kCopy) {
        inspect.insert(inspect.end(), {"--offline", Copy()});
      } else {
        inspect.push_back(Fleet::NameOf(0));
      }
      BATON_RETURN_IF_ERROR(Run(std::move(inspect)));
      ++inspections_[beside];
    }
    std::this_thread::sleep_until(end);
    BATON_ASSIGN_OR_RETURN(const harness::PeerWindow window, peer_->Mark("end"));
    messages_[beside] += static_cast<double>(window.messages);
    took_[beside] += window.seconds;
    return absl::OkStatus();
  }

  const Options& options_;
  const double seconds_;
  const harness::Binaries binaries_;
  Round& round_;
  const harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<harness::PeerProcess> peer_;
  std::array<double, kSides> messages_ = {}, took_ = {}, inspections_ = {};
};

int Main(int argc, char** argv) {
  Options options;
  examples::Flags flags(
      "Messages per second of a service while its arena is inspected again and again, with "
      "every connection's queues and work requests; while a copy of it is; and while none is.");
  AddSuiteOptions(flags, &options.suite);
  flags.Add("--seconds", &options.seconds, "of each, twice a round, times --scale [3]")
      .Within(0.1, 3600.0);
  flags.Add("--interval-ms", &options.interval_ms, "between two inspections [250]")
      .Within(1.0, 60'000.0);
  flags.Add("--bin", &options.binary_directory, "where the programs are [$BATON_BIN]");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  Suite suite("inspect", options.suite);
  suite.Compare({"inspected_to_a_copy", absl::StrCat("messages_", kNames[kLive]),
                 absl::StrCat("messages_", kNames[kCopy]), Better::kMore, 0.97});
  suite.Compare({"inspected_to_alone", absl::StrCat("messages_", kNames[kLive]),
                 absl::StrCat("messages_", kNames[kNothing]), Better::kMore});
  return suite.RunToExit(
      [&](Round& round) { return Measurement(options, suite, &round).Measure(); });
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }

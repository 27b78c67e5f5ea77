// ledger-faulty: ledger-v2 with a fault, for demonstrations and tests of upgrades.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "lib/base/status.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/flags.h"
#include "worker/examples/ledger/ledger_program.h"

namespace baton::ledger {
namespace {

struct Fault {
  std::string kind = "none";
  uint32_t after_ms = 200;

  bool Is(std::string_view name) const { return kind == name; }
};

// Never returns. The serving thread hangs here, and the other threads go on, as in a program with
// an endless loop.
void HangHere(int) {
  for (;;) pause();
}

class FaultyLedger final : public LedgerService {
 public:
  FaultyLedger(const LedgerServiceOptions& options, const Fault& fault)
      : LedgerService(options), fault_(fault) {}
  ~FaultyLedger() override { StopTimer(); }
  FaultyLedger(const FaultyLedger&) = delete;
  FaultyLedger& operator=(const FaultyLedger&) = delete;

  absl::Status OnAdopt(Shard& shard) override {
    if (fault_.Is("refuse")) return absl::UnavailableError("this program takes no shards");
    BATON_RETURN_IF_ERROR(LedgerService::OnAdopt(shard));
    if (!timer_.joinable()) StartTimer(shard.worker());
    return absl::OkStatus();
  }

  // The worker may be gone after these.
  void OnRelease(Shard&) override { StopTimer(); }
  void OnShutdown(std::string_view reason) override {
    LedgerService::OnShutdown(reason);
    StopTimer();
    asked_to_end_ = true;
  }

  bool asked_to_end() const { return asked_to_end_; }

 private:
  void StartTimer(Worker& worker) {
    if (!fault_.Is("crash") && !fault_.Is("hang") && !fault_.Is("turn-unhealthy")) return;
    struct sigaction action = {};
    action.sa_handler = HangHere;
    sigaction(SIGUSR1, &action, nullptr);
    timer_ = std::thread([this, &worker, server = pthread_self()] {
      const auto at = std::chrono::steady_clock::now() + std::chrono::milliseconds(fault_.after_ms);
      while (std::chrono::steady_clock::now() < at) {
        if (ending_) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      spdlog::warn("the fault: {}", fault_.kind);
      if (fault_.Is("crash")) kill(getpid(), SIGKILL);
      if (fault_.Is("hang")) pthread_kill(server, SIGUSR1);
      if (fault_.Is("turn-unhealthy")) worker.ReportHealth(false, "it has a fault");
    });
  }

  void StopTimer() {
    ending_ = true;
    if (timer_.joinable()) timer_.join();
  }

  const Fault fault_;
  std::thread timer_;
  std::atomic<bool> ending_{false};
  bool asked_to_end_ = false;
};

class FaultyProgram final : public LedgerProgram {
 public:
  FaultyProgram() : LedgerProgram("ledger-faulty", 2) {}

  void AddFlags(examples::Flags& flags, LedgerServiceOptions& options) override {
    flags
        .Add("--fault", &fault_.kind,
             "crash, hang, turn-unhealthy: --fault-after-ms after it took its first shard; "
             "unhealthy: from the beginning; never-ready; refuse: gives every shard back")
        .OneOf({"none", "crash", "hang", "turn-unhealthy", "unhealthy", "never-ready", "refuse"});
    flags.Add("--fault-after-ms", &fault_.after_ms, "[200]");
    flags.Add("--reads-state-version-min", &options.reads_state_version_min, "[1]");
    flags.Add("--reads-state-version-max", &options.reads_state_version_max, "[1]");
    flags.Add("--writes-state-version", &options.writes_state_version, "[1]");
  }

  std::unique_ptr<LedgerService> MakeService(const LedgerServiceOptions& options) override {
    auto service = std::make_unique<FaultyLedger>(options, fault_);
    service_ = service.get();
    return service;
  }

  absl::Status BeforeReady(Worker& worker) override {
    if (fault_.Is("unhealthy")) worker.ReportHealth(false, "it has been from the beginning");
    if (!fault_.Is("never-ready")) return absl::OkStatus();
    while (!service_->asked_to_end()) {
      BATON_RETURN_IF_ERROR(worker.Poll().status());
      BATON_RETURN_IF_ERROR(worker.Wait(100));
    }
    return absl::CancelledError("asked to end before it was ready");
  }

 private:
  Fault fault_;
  FaultyLedger* service_ = nullptr;
};

}  // namespace
}  // namespace baton::ledger

int main(int argc, char** argv) { return baton::ledger::FaultyProgram().Main(argc, argv); }

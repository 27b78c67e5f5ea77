// A client of memd in a thread of its own, which works on leased memory and checks all of it.
#ifndef TESTS_WORKER_EXAMPLES_MEMD_MEMD_LOAD_H_
#define TESTS_WORKER_EXAMPLES_MEMD_MEMD_LOAD_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/status.h"
#include "tests/harness/expectations.h"
#include "tests/lib/verbs/fabric.h"
#include "worker/examples/memd/memd_checker.h"
#include "worker/examples/memd/memd_client.h"

namespace baton::memd {

inline absl::StatusOr<std::unique_ptr<MemdClient>> ConnectClient(uint16_t port) {
  const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
  BATON_ASSIGN_OR_RETURN(auto device, verbs::testing::OpenDevice(fabric));
  return MemdClient::Connect(std::move(device), {fabric.host, port}, {});
}

class MemdLoad {
 public:
  MemdLoad(uint16_t port, const MemdCheckerOptions& options)
      : thread_([this, port, options] { status_ = Run(port, options); }) {}
  ~MemdLoad() { Join(); }
  MemdLoad(const MemdLoad&) = delete;
  MemdLoad& operator=(const MemdLoad&) = delete;

  // All that the checker does is done in so many rounds.
  static constexpr uint64_t kPeriod = 16;

  // Rests between two rounds from now on, which leaves the processors to workers that start.
  void SlowDown() { rests_ = true; }
  uint64_t answers() const { return rounds_; }
  uint64_t position() const { return rounds_ % kPeriod; }
  bool failed() const { return ended_ && !stop_; }
  // Ends it. OK: each result was what it had to be, and so is all of the memory.
  absl::Status Stop() {
    Join();
    return status_;
  }

 private:
  void Join() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  absl::Status Run(uint16_t port, const MemdCheckerOptions& options) {
    absl::Status status = Work(port, options);
    ended_ = true;
    return status;
  }
  absl::Status Work(uint16_t port, const MemdCheckerOptions& options) {
    BATON_ASSIGN_OR_RETURN(const auto client, ConnectClient(port));
    BATON_ASSIGN_OR_RETURN(MemdChecker checker, MemdChecker::Begin(client.get(), options));
    while (!stop_) {
      BATON_RETURN_IF_ERROR(checker.Round());
      rounds_ = checker.rounds();
      if (rests_) std::this_thread::sleep_for(kRest);
    }
    return checker.End();
  }

  static constexpr std::chrono::milliseconds kRest{2};

  absl::Status status_;  // of the thread, until it was joined
  std::atomic<uint64_t> rounds_{0};
  std::atomic<bool> stop_{false}, ended_{false}, rests_{false};
  std::thread thread_;
};

}  // namespace baton::memd

#endif  // TESTS_WORKER_EXAMPLES_MEMD_MEMD_LOAD_H_

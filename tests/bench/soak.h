// A Baton under churn: peers connect and go, shards are handed over, owners are killed, the service
// is upgraded, again and again, under a peer that checks every reply. What its processes hold is to
// stay as it is.
//
// Thread-safety: none (ChildProcess).
#ifndef TESTS_BENCH_SOAK_H_
#define TESTS_BENCH_SOAK_H_

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/footprint.h"
#include "tests/harness/binaries.h"
#include "tests/harness/cluster.h"
#include "tests/harness/peer_process.h"

namespace baton::bench {

inline constexpr std::array kSoaked = {"batond", "driver", "keeper", "control"};

struct SoakSample {
  double seconds = 0;  // since the soak began
  std::array<Footprint, kSoaked.size()> processes;
};

struct SoakResult {
  std::vector<SoakSample> samples;
  uint64_t cycles = 0;    // each: a kill, two moves of all shards, an upgrade, two peers
  uint64_t messages = 0;  // checked
};

class Soak {
 public:
  Soak(harness::Binaries binaries, double seconds)
      : binaries_(std::move(binaries)), seconds_(seconds) {}

  // For the time that it was given, or a few cycles, if that is longer. kDataLoss: a peer missed
  // something, or was disconnected.
  absl::StatusOr<SoakResult> Run();

 private:
  absl::Status Start();
  absl::Status Warm();
  absl::Status Cycles();
  absl::Status Sample();
  absl::Status Churn(uint32_t connections);
  absl::Status MoveAndKill();
  absl::Status Upgrade();
  absl::Status Finish(harness::PeerProcess& peer);

  const harness::Binaries binaries_;
  const double seconds_;
  std::unique_ptr<harness::Cluster> cluster_;
  std::unique_ptr<harness::PeerProcess> peer_;
  std::unique_ptr<harness::LedgerWorker> first_;
  uint64_t owner_ = 0;
  int version_ = 1;  // of the owner
  uint64_t began_ = 0;
  SoakResult result_;
};

// Median over the samples from the share `from` to the share `to` of all; none of none.
enum class Held : uint8_t { kPrivateBytes, kResidentBytes, kDescriptors };
std::optional<double> MedianHeld(const std::vector<SoakSample>& samples, size_t process, Held held,
                                 double from, double to);

}  // namespace baton::bench

#endif  // TESTS_BENCH_SOAK_H_

// A client's work on leased memory, every result of which is known before: what is lost, doubled or
// damaged shows. For `memd-cli hold` and tests.
#ifndef WORKER_EXAMPLES_MEMD_MEMD_CHECKER_H_
#define WORKER_EXAMPLES_MEMD_MEMD_CHECKER_H_

#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/examples/memd/memd_client.h"

namespace baton::memd {

struct MemdCheckerOptions {
  uint64_t bytes = 64 * 1024;      // that it leases; at least 4096
  uint64_t milliseconds = 60'000;  // which are renewed
  uint64_t seed = 1;
  // Memory of another client, of which it adds 1 to the first word in each round.
  std::optional<RemoteMemory> shared = {};
};

// Errors are those of the client, and kDataLoss: memory is not what it has to be. The message says
// where. Thread-compatible.
class MemdChecker {
 public:
  // `client` outlives this.
  static absl::StatusOr<MemdChecker> Begin(MemdClient* client, const MemdCheckerOptions& options);

  // READs, WRITEs, atomics, notices and requests; each is checked.
  absl::Status Round();
  // Compares all of the memory, and frees it.
  absl::Status End();

  uint64_t rounds() const { return rounds_; }
  const RemoteLease& lease() const { return lease_; }

 private:
  MemdChecker(MemdClient* client, const MemdCheckerOptions& options, const RemoteLease& lease)
      : client_(client),
        options_(options),
        lease_(lease),
        random_(options.seed),
        model_(options.bytes) {}

  absl::Status CheckAtomics();
  absl::Status CheckBytes();
  absl::Status CheckNotices();
  absl::Status CheckAnotherLease();
  absl::Status Compare(uint64_t offset, uint64_t length);
  // A range behind the words that atomics change: offset and length.
  std::pair<uint64_t, uint64_t> DrawRange();
  std::vector<uint8_t> DrawBytes(uint64_t length);

  MemdClient* client_;
  MemdCheckerOptions options_;
  RemoteLease lease_;
  std::mt19937_64 random_;
  std::vector<uint8_t> model_;  // what the memory has to be, but for the words of atomics
  uint64_t rounds_ = 0, swaps_ = 0, notices_ = 0;
};

}  // namespace baton::memd

#endif  // WORKER_EXAMPLES_MEMD_MEMD_CHECKER_H_

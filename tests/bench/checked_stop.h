#ifndef TESTS_BENCH_CHECKED_STOP_H_
#define TESTS_BENCH_CHECKED_STOP_H_

#include "absl/status/statusor.h"
#include "lib/base/status.h"
#include "tests/harness/peer_process.h"

namespace baton::bench {

// The peer's result. kDataLoss: it missed something, or was disconnected though it may not be.
inline absl::StatusOr<harness::JsonObject> StopChecked(harness::PeerProcess& peer) {
  BATON_ASSIGN_OR_RETURN(harness::JsonObject result, peer.Stop());
  if (result.Flag("ok")) return result;
  return absl::DataLossError("a peer found: " + result.text().substr(0, 600));
}

}  // namespace baton::bench

#endif  // TESTS_BENCH_CHECKED_STOP_H_

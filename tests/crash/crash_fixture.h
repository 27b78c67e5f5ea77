// A Baton with ledger workers and a peer that checks every reply, for tests that kill workers.
#ifndef TESTS_CRASH_CRASH_FIXTURE_H_
#define TESTS_CRASH_CRASH_FIXTURE_H_

#include <time.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/setting.h"

namespace baton::crash {

// For printf, on each platform.
inline unsigned long long Printable(uint64_t number) { return number; }

// The moment of a kill, not a wait for something: any duration is right.
inline void PassTime(uint64_t microseconds) {
  const timespec duration = {static_cast<time_t>(microseconds / 1'000'000),
                             static_cast<long>(microseconds % 1'000'000) * 1000};
  nanosleep(&duration, nullptr);
}

class CrashTest : public harness::ClusterFixture {
 protected:
  void StartCluster(harness::ClusterOptions options = harness::ClusterOptions(),
                    uint32_t extra_connections = kExtraConnections) {
    options.shards = 4;
    options.max_connections = kConnections + extra_connections;
    ASSERT_OK_AND_ASSIGN(cluster_, harness::Cluster::Start(std::move(options)));
  }

  // `rate` in messages per second.
  void StartPeer(uint64_t rate) {
    harness::PeerOptions options;
    options.connections = kConnections;
    options.window = 8;
    options.rate = rate;
    // Not about time: a machine that has no processor for us for long has lost nothing.
    options.arguments = {"--reply-timeout-ms", "120000"};
    ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(options));
  }

  // `crash_at`: empty for a worker that does not kill itself.
  void StartWorker(int version, std::unique_ptr<harness::LedgerWorker>* worker,
                   const std::string& crash_at = {}) {
    harness::LedgerOptions options;
    options.version = version;
    options.crash_at = crash_at;
    ASSERT_NO_FATAL_FAILURE(StartWorker(options, worker));
  }

  void StartWorker(const harness::LedgerOptions& options,
                   std::unique_ptr<harness::LedgerWorker>* worker) {
    ASSERT_OK_AND_ASSIGN(*worker, cluster_->StartLedger(options));
  }

  // Stops the peer: nothing was lost, repeated, reordered or disconnected.
  void ExpectNothingLost() { harness::ExpectNothingLost(*peer_); }

  static constexpr uint32_t kConnections = 16;
  static constexpr uint32_t kExtraConnections = 4;

  std::unique_ptr<harness::PeerProcess> peer_;
};

}  // namespace baton::crash

#endif  // TESTS_CRASH_CRASH_FIXTURE_H_

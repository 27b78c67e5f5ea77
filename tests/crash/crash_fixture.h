// A Baton with ledger workers and a peer that checks every reply, for tests that kill workers.
#ifndef TESTS_CRASH_CRASH_FIXTURE_H_
#define TESTS_CRASH_CRASH_FIXTURE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/harness/cluster.h"

#define ASSERT_OK(expression)                           \
  do {                                                  \
    const auto& assert_ok_ = (expression);              \
    ASSERT_TRUE(assert_ok_.ok()) << ToText(assert_ok_); \
  } while (false)

#define EXPECT_OK(expression)                           \
  do {                                                  \
    const auto& expect_ok_ = (expression);              \
    EXPECT_TRUE(expect_ok_.ok()) << ToText(expect_ok_); \
  } while (false)

namespace baton::crash {

inline std::string ToText(const absl::Status& status) { return status.ToString(); }
template <typename T>
std::string ToText(const absl::StatusOr<T>& status) {
  return status.status().ToString();
}

class CrashTest : public testing::Test {
 protected:
  void StartCluster(harness::ClusterOptions options = harness::ClusterOptions()) {
    options.shards = 4;
    options.max_connections = kConnections + kExtraConnections;
    auto started = harness::Cluster::Start(std::move(options));
    ASSERT_OK(started);
    cluster_ = *std::move(started);
  }

  // `rate` in messages per second.
  void StartPeer(uint64_t rate) {
    harness::PeerOptions options;
    options.connections = kConnections;
    options.window = 8;
    options.rate = rate;
    // Not about time: a machine that has no processor for us for long has lost nothing.
    options.arguments = {"--reply-timeout-ms", "120000"};
    auto started = cluster_->StartPeer(options);
    ASSERT_OK(started);
    peer_ = *std::move(started);
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
    auto started = cluster_->StartLedger(options);
    ASSERT_OK(started);
    *worker = *std::move(started);
  }

  // Stops the peer: nothing was lost, repeated, reordered or disconnected.
  void ExpectNothingLost() {
    const auto result = peer_->Stop();
    ASSERT_OK(result);
    for (const char* field :
         {"lost", "duplicated", "reordered", "corrupt", "wrong_total", "disconnects"}) {
      EXPECT_TRUE(result->Has(field)) << field;
      EXPECT_EQ(result->Count(field), 0u) << field;
    }
    EXPECT_TRUE(result->Flag("ok"));
    EXPECT_GT(result->Count("messages"), 0u);
  }

  void TearDown() override {
    if (HasFailure() && cluster_) cluster_->DumpLogs();
  }

  static constexpr uint32_t kConnections = 16;
  static constexpr uint32_t kExtraConnections = 4;

  std::unique_ptr<harness::Cluster> cluster_;
  std::unique_ptr<harness::PeerProcess> peer_;
};

}  // namespace baton::crash

#endif  // TESTS_CRASH_CRASH_FIXTURE_H_

// A Baton whose program is replaced under the traffic of a peer that checks every reply.
#ifndef TESTS_SYSTEM_UPGRADE_FIXTURE_H_
#define TESTS_SYSTEM_UPGRADE_FIXTURE_H_

#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/wait_until.h"

namespace baton::upgrade {

using harness::kTimeout;

// Longer than any test: nothing happens by itself within it but what is bad.
inline constexpr uint32_t kLongMs = 600'000;
inline constexpr uint32_t kShortMs = 150;

class UpgradeTest : public harness::ClusterFixture {
 protected:
  // A ledger-v1 owns everything, and the peer is connected.
  void Start(const std::vector<std::string>& batond_arguments = {},
             const harness::LedgerOptions& owner = {}) {
    harness::ClusterOptions options;
    options.shards = 4;
    options.max_connections = kConnections;
    // Slow enough for a busy machine. Tests stop control for a while, and find it alive after it.
    options.batond_arguments = {"--heartbeat-ms",    "50",
                                "--hang-timeout",    "600",
                                "--hang-timeout-ms", absl::StrCat(1500 * harness::Slowness())};
    options.batond_arguments.insert(options.batond_arguments.end(), batond_arguments.begin(),
                                    batond_arguments.end());
    ASSERT_OK_AND_ASSIGN(cluster_, harness::Cluster::Start(std::move(options)));
    ASSERT_OK_AND_ASSIGN(first_, cluster_->StartLedger(owner));
    ASSERT_OK(cluster_->WaitUntilOwner(first_->id));
    harness::PeerOptions peer_options;
    peer_options.connections = kConnections;
    peer_options.window = 8;
    peer_options.rate = 500;
    ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(peer_options));
    ASSERT_OK(peer_->Settle());
  }

  static harness::UpgradeOptions To(const std::string& program, uint32_t watch_ms = kShortMs) {
    harness::UpgradeOptions options;
    options.program = program;
    options.plan.set_watch_window_ms(watch_ms);
    return options;
  }
  static harness::UpgradeOptions ToFaulty(std::vector<std::string> arguments) {
    harness::UpgradeOptions options = To("ledger-faulty", kLongMs);
    options.arguments = std::move(arguments);
    return options;
  }

  // Follows an upgrade to its end, which is `phase`.
  void Upgrade(const harness::UpgradeOptions& options, v1::UpgradePhase phase,
               v1::Upgrade* upgrade = nullptr) {
    const auto started = cluster_->StartUpgrade(options);
    ASSERT_OK(started);
    ASSERT_NO_FATAL_FAILURE(ExpectEnd(started->id(), phase, upgrade));
  }
  void ExpectEnd(uint64_t id, v1::UpgradePhase phase, v1::Upgrade* upgrade = nullptr) {
    const auto ended = cluster_->WaitUntilUpgradeEnds(id);
    ASSERT_OK(ended);
    EXPECT_EQ(ended->phase(), phase) << ended->ShortDebugString();
    if (upgrade != nullptr) *upgrade = *ended;
  }
  void WaitForPhase(uint64_t id, v1::UpgradePhase phase) {
    ASSERT_OK(cluster_->WaitForUpgrade(id, v1::UpgradePhase_Name(phase),
                                       [&](const auto& now) { return now.phase() == phase; }));
  }

  // Kills the keeper, and returns when the next one serves.
  void ReplaceKeeper() {
    const auto before = cluster_->GetService();
    ASSERT_OK(before);
    const pid_t keeper = before->service().keeper_pid();
    ASSERT_EQ(kill(keeper, SIGKILL), 0);
    ASSERT_OK(harness::WaitUntil("another keeper", [&] {
      const auto now = cluster_->GetService();
      return now.ok() && now->service().reachable() && now->service().keeper_pid() != keeper;
    }));
  }

  // Every connection is answered by that version now.
  void ExpectServedBy(uint32_t version) {
    ASSERT_OK(peer_->Settle());
    const auto window = peer_->Mark("version");
    ASSERT_OK(window);
    EXPECT_EQ(window->last_versions[version], kConnections);
    EXPECT_EQ(window->disconnects, 0u);
  }

  // Its process has ended, and in order.
  void ExpectEndedInOrder(harness::LedgerWorker& worker) {
    const auto end = worker.process->WaitEnd(kTimeout);
    ASSERT_OK(end);
    EXPECT_TRUE(WIFEXITED(*end) && WEXITSTATUS(*end) == 0) << *end;
  }

  // What one upgrade left behind does not serve, nor stand by.
  void ExpectWorkers(const std::vector<uint64_t>& wanted) {
    const auto service = cluster_->GetService();
    ASSERT_OK(service);
    std::vector<uint64_t> ids;
    for (const v1::Worker& worker : service->workers()) ids.push_back(worker.id());
    EXPECT_THAT(ids, testing::UnorderedElementsAreArray(wanted));
  }

  // Stops the peer: nothing was lost, repeated, reordered or disconnected.
  void ExpectNothingLost() { harness::ExpectNothingLost(*peer_); }

  static constexpr uint32_t kConnections = 16;

  std::unique_ptr<harness::LedgerWorker> first_;
  std::unique_ptr<harness::PeerProcess> peer_;
};

}  // namespace baton::upgrade

#endif  // TESTS_SYSTEM_UPGRADE_FIXTURE_H_

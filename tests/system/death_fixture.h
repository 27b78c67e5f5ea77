// A Baton with an owner of all shards and a peer that checks every reply, some process of which
// dies.
#ifndef TESTS_SYSTEM_DEATH_FIXTURE_H_
#define TESTS_SYSTEM_DEATH_FIXTURE_H_

#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/check.h"
#include "lib/base/status.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/peer_process.h"

namespace baton::death {

class DeathTest : public harness::ClusterFixture {
 protected:
  void Start(const harness::ClusterOptions& options = harness::ClusterOptions()) {
    ASSERT_OK_AND_ASSIGN(cluster_, harness::Cluster::Start(options));
    ASSERT_OK_AND_ASSIGN(owner_, cluster_->StartLedger(1));
    StartLoad();
  }
  void StartLoad() {
    ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(harness::SteadyLoad()));
    ASSERT_OK(peer_->Settle());
  }

  v1::Service Service() {
    const auto status = cluster_->operators().GetStatus();
    BATON_CHECK(status.ok() && status->services_size() == 1);
    return status->services(0);
  }
  void Kill(pid_t process) { ASSERT_EQ(kill(process, SIGKILL), 0) << process; }
  // The peer is served, and so is one that comes now.
  void ExpectServed() {
    ASSERT_OK(peer_->Settle());
    const auto newcomer = cluster_->StartPeer(harness::PeerOptions());
    ASSERT_OK(newcomer);
    harness::ExpectNothingLost(**newcomer);
  }
  // Looks for it among the events that are new. An error: no keeper tells them.
  absl::StatusOr<bool> HasEvent(const std::string& kind) {
    BATON_ASSIGN_OR_RETURN(const auto events, cluster_->keeper().NewEvents());
    return std::any_of(events.begin(), events.end(),
                       [&](const v1::Event& event) { return event.kind() == kind; });
  }

  std::unique_ptr<harness::LedgerWorker> owner_;
  std::unique_ptr<harness::PeerProcess> peer_;
};

}  // namespace baton::death

#endif  // TESTS_SYSTEM_DEATH_FIXTURE_H_

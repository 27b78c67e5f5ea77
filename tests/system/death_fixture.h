// A Baton with an owner of all shards and a peer that checks every reply, some process of which
// dies.
#ifndef TESTS_SYSTEM_DEATH_FIXTURE_H_
#define TESTS_SYSTEM_DEATH_FIXTURE_H_

#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/check.h"
#include "lib/base/status.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/wait_until.h"

namespace baton::death {

// The growth of memory that is no leak: heaps come to rest, and pages of a fork are copied.
inline constexpr uint64_t kGrowthKilobytes = 512;

// The possessions of processes, in words.
struct Possessions {
  explicit Possessions(const std::vector<pid_t>& processes) {
    for (const pid_t process : processes) {
      const std::string name = harness::StatusOf(process, "Name");
      const std::string anonymous = harness::StatusOf(process, "RssAnon");
      absl::StrAppend(&open, name, ": ", harness::DescriptorsOf(process), " descriptors, ",
                      harness::ChildrenOf(process).size(), " children; ");
      absl::StrAppend(&memory, name, " ", anonymous, " ");
      kilobytes += std::strtoull(anonymous.c_str(), nullptr, 10);
    }
  }

  std::string open;    // descriptors and children
  std::string memory;  // that is their own
  uint64_t kilobytes = 0;
};

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
  // So many deaths in a row, each with its follower: `die`. Of `processes`, which there are after
  // each, the last ones have no more open than those after a quarter of the deaths had, nor more
  // memory.
  void ExpectNoGrowth(uint64_t deaths, const std::function<void()>& die,
                      const std::function<std::vector<pid_t>()>& processes) {
    std::optional<Possessions> early;
    for (uint64_t i = 0; i < deaths; ++i) {
      SCOPED_TRACE(absl::StrCat("death ", i));
      if (i == deaths / 4) early.emplace(processes());
      ASSERT_NO_FATAL_FAILURE(die());
      ASSERT_OK(peer_->Settle());
    }
    EXPECT_OK(harness::WaitUntil(absl::StrCat("what there was after a quarter: ", early->open),
                                 [&] { return Possessions(processes()).open == early->open; }));
    const Possessions late(processes());
    std::printf("%llu deaths: %s%s; after a quarter of them %s\n",
                static_cast<unsigned long long>(deaths), late.open.c_str(), late.memory.c_str(),
                early->memory.c_str());
    EXPECT_LE(late.kilobytes, early->kilobytes + kGrowthKilobytes);
    ExpectServed();
    harness::ExpectNothingLost(*peer_);
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

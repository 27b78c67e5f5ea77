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
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
      counts.push_back(harness::DescriptorsOf(process));
      counts.push_back(harness::ChildrenOf(process).size());
      absl::StrAppend(&open, name, ": ", counts[counts.size() - 2], " descriptors, ", counts.back(),
                      " children; ");
      absl::StrAppend(&memory, name, " ", anonymous, " ");
      kilobytes += std::strtoull(anonymous.c_str(), nullptr, 10);
    }
  }

  // Takes the most that each process had at any look.
  void Join(const Possessions& other) {
    for (size_t i = 0; i < counts.size(); ++i) counts[i] = std::max(counts[i], other.counts[i]);
    kilobytes = std::max(kilobytes, other.kilobytes);
  }
  bool HasNoMoreThan(const Possessions& other) const {
    return std::equal(counts.begin(), counts.end(), other.counts.begin(), other.counts.end(),
                      std::less_equal<>());
  }

  std::vector<size_t> counts;  // of descriptors and children, by process
  std::string open;            // the same in words
  std::string memory;          // that is their own
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
  // So many deaths in a row, each with its follower: `die`. In the end `processes` have no more
  // open than they had during the first quarter, and no more memory.
  void ExpectNoGrowth(uint64_t deaths, const std::function<void()>& die,
                      const std::function<std::vector<pid_t>()>& processes) {
    Possessions early(processes());
    for (uint64_t i = 0; i < deaths; ++i) {
      SCOPED_TRACE(absl::StrCat("death ", i));
      ASSERT_NO_FATAL_FAILURE(die());
      if (i < deaths / 4) early.Join(Possessions(processes()));
      // A request that three in a row die of is refused. So none dies while it is asked how it is.
      ASSERT_OK(peer_->Settle());
    }
    Possessions late(processes());
    EXPECT_OK(harness::WaitUntil(
        absl::StrCat("no more than in the first quarter: ", absl::StrJoin(early.counts, " ")), [&] {
          late = Possessions(processes());
          return late.HasNoMoreThan(early);
        }));
    std::printf("%llu deaths: %s%s; in the first quarter %s, %llu kB\n",
                static_cast<unsigned long long>(deaths), late.open.c_str(), late.memory.c_str(),
                absl::StrJoin(early.counts, " ").c_str(),
                static_cast<unsigned long long>(early.kilobytes));
    EXPECT_LE(late.kilobytes, early.kilobytes + kGrowthKilobytes);
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

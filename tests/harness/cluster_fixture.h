// The base class of tests of a whole Baton. It shows what all processes logged when a test fails.
#ifndef TESTS_HARNESS_CLUSTER_FIXTURE_H_
#define TESTS_HARNESS_CLUSTER_FIXTURE_H_

#include <chrono>
#include <memory>

#include "gtest/gtest.h"
#include "tests/harness/cluster.h"

namespace baton::harness {

// For what comes within a moment where the machine has time for it.
inline constexpr std::chrono::seconds kTimeout{30};

class ClusterFixture : public ::testing::Test {
 protected:
  void TearDown() override {
    if (HasFailure() && cluster_) cluster_->DumpLogs();
  }

  std::unique_ptr<Cluster> cluster_;
};

}  // namespace baton::harness

#endif  // TESTS_HARNESS_CLUSTER_FIXTURE_H_

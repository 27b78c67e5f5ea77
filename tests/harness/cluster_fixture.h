// The base class of tests of a whole Baton. It shows what all processes logged when a test fails.
#ifndef TESTS_HARNESS_CLUSTER_FIXTURE_H_
#define TESTS_HARNESS_CLUSTER_FIXTURE_H_

#include <memory>

#include "gtest/gtest.h"
#include "tests/harness/cluster.h"

namespace baton::harness {

class ClusterFixture : public ::testing::Test {
 protected:
  void TearDown() override {
    if (HasFailure() && cluster_) cluster_->DumpLogs();
  }

  std::unique_ptr<Cluster> cluster_;
};

}  // namespace baton::harness

#endif  // TESTS_HARNESS_CLUSTER_FIXTURE_H_

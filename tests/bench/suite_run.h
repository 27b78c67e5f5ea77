// A suite of the benchmark, run small by a test: what it measured.
#ifndef TESTS_BENCH_SUITE_RUN_H_
#define TESTS_BENCH_SUITE_RUN_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::bench {

struct SuiteRun {
  std::map<std::string, double> figures, ratios;
  std::vector<std::string> not_measured;  // of both
  bool has_plots = false;
};

// Runs `name`_bench with one round and these arguments. An error carries its log.
absl::StatusOr<SuiteRun> RunSuite(const std::string& name, std::vector<std::string> arguments);

}  // namespace baton::bench

#endif  // TESTS_BENCH_SUITE_RUN_H_

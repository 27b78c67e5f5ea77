// A program of cases from several sources. By the name of one of them it runs that one's cases: by
// x_test, and by anything_x_test, those of x_test.cc. By a name that does not end with "_test" it
// runs all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>

namespace baton::harness {
namespace {

std::string StemOf(const char* path) { return std::filesystem::path(path).stem().string(); }

bool IsNamed(std::string_view program, std::string_view stem) {
  if (!program.ends_with(stem)) return false;
  program.remove_suffix(stem.size());
  return program.empty() || program.ends_with('_');
}

// Calls `visit` with each suite and case.
template <typename Visit>
void ForEachCase(const Visit& visit) {
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) visit(suite, *suite.GetTestInfo(j));
  }
}

// Returns the source that `program` is named after, without its ending; empty: there is none.
std::string SourceOf(std::string_view program) {
  std::string source;
  ForEachCase([&](const ::testing::TestSuite&, const ::testing::TestInfo& one) {
    const std::string stem = StemOf(one.file());
    if (stem.size() > source.size() && IsNamed(program, stem)) source = stem;
  });
  return source;
}

// Adds to gtest's filter that cases of other sources do not run. Suites of which this source has
// none are named as a whole.
void RunOnly(const std::string& source) {
  std::set<std::string> own_suites, others;
  ForEachCase([&](const ::testing::TestSuite& suite, const ::testing::TestInfo& one) {
    if (StemOf(one.file()) == source) own_suites.insert(suite.name());
  });
  ForEachCase([&](const ::testing::TestSuite& suite, const ::testing::TestInfo& one) {
    const std::string name = suite.name();
    if (StemOf(one.file()) == source) return;
    others.insert(name + (own_suites.count(name) == 0 ? ".*" : std::string(".") + one.name()));
  });
  std::string filter = GTEST_FLAG_GET(filter);
  for (const std::string& other : others) {
    filter += filter.find('-') == std::string::npos ? '-' : ':';
    filter += other;
  }
  GTEST_FLAG_SET(filter, filter);
}

}  // namespace
}  // namespace baton::harness

int main(int argc, char** argv) {
  const std::string program = baton::harness::StemOf(argv[0]);
  ::testing::InitGoogleMock(&argc, argv);
  if (program.ends_with("_test")) {
    const std::string source = baton::harness::SourceOf(program);
    if (source.empty()) {
      std::fprintf(stderr, "%s: no source of that name has a case\n", program.c_str());
      return EXIT_FAILURE;
    }
    baton::harness::RunOnly(source);
  }
  return RUN_ALL_TESTS();
}

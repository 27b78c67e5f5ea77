// What the golden test types: for each section of golden.txt some command lines, and what is so
// before each.
#ifndef TESTS_SUPERVISOR_CLI_GOLDEN_CASES_H_
#define TESTS_SUPERVISOR_CLI_GOLDEN_CASES_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/supervisor/control/fakes.h"
#include "tests/supervisor/doctor/fake_machine.h"

namespace baton {

// What a case may change before it is typed.
struct GoldenScene {
  FakeKeeper& keeper;
  doctor::FakeMachine& machine;
  std::function<void(const v1::Event&)> log;                 // waits until control knows of it
  std::function<void(const std::vector<std::string>&)> run;  // a command, unseen
  FakeBatond& batond;
  std::function<void()> stop_control;
  std::function<void()> end_worker_when_asked;  // worker 1, which has a stream from then on
};

struct GoldenCase {
  std::vector<std::string> arguments;  // "STATE" stands for the state directory
  std::string typed = {};              // at a terminal; empty: there is none
  std::function<void(GoldenScene&)> before = {};
};

struct GoldenSection {
  std::string name;
  std::vector<GoldenCase> cases;
};

inline void PrintTo(const GoldenSection& section, std::ostream* out) { *out << section.name; }

std::vector<GoldenSection> GoldenSections();

}  // namespace baton

#endif  // TESTS_SUPERVISOR_CLI_GOLDEN_CASES_H_

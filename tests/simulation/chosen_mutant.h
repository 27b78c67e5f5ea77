// The defect that this run of a program with mutated sources has: see mutants.bzl.
#ifndef TESTS_SIMULATION_CHOSEN_MUTANT_H_
#define TESTS_SIMULATION_CHOSEN_MUTANT_H_

#include <cstdlib>

namespace baton {

// Returns the number in $BATON_MUTANT; 0, without it: no defect.
inline int ChosenMutant() {
  static const int chosen = [] {
    const char* const number = std::getenv("BATON_MUTANT");
    return number == nullptr ? 0 : std::atoi(number);
  }();
  return chosen;
}

}  // namespace baton

#endif  // TESTS_SIMULATION_CHOSEN_MUTANT_H_

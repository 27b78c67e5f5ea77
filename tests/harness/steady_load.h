#ifndef TESTS_HARNESS_STEADY_LOAD_H_
#define TESTS_HARNESS_STEADY_LOAD_H_

#include "tests/harness/peer_process.h"

namespace baton::harness {

// A peer that is busy all the time, and checks each answer.
inline PeerOptions SteadyLoad() {
  PeerOptions load;
  load.connections = 8;
  load.rate = 2000;
  return load;
}

}  // namespace baton::harness

#endif  // TESTS_HARNESS_STEADY_LOAD_H_

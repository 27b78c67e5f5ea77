// The parts of a QueueDriver. Each refers to the state and to parts that are declared before it,
// and to no others: a part below acts on what a part above returns.
//
// QueueDriver owns them and uses them on the driver's thread.
#ifndef LIB_DRIVER_DRIVER_PARTS_H_
#define LIB_DRIVER_DRIVER_PARTS_H_

#include "lib/driver/ambiguous_requests.h"
#include "lib/driver/commit_applier.h"
#include "lib/driver/completion_mover.h"
#include "lib/driver/connection_setup.h"
#include "lib/driver/connection_teardown.h"
#include "lib/driver/driver_state.h"
#include "lib/driver/request_poster.h"
#include "lib/driver/shared_receives.h"

namespace baton::driver {

struct DriverParts {
  DriverState state;
  AmbiguousRequests ambiguous{state};
  ConnectionTeardown teardown{state, ambiguous};
  RequestPoster poster{state, ambiguous, teardown};
  SharedReceives shared{state, teardown};
  ConnectionSetup setup{state, teardown, poster};
  CompletionMover completions{state, ambiguous, teardown, poster, shared};
  CommitApplier commits{state, teardown, poster, shared, setup};
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_DRIVER_PARTS_H_

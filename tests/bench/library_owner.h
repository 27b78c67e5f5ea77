// The loop of RawOwner on Debian's unmodified libibverbs and libmlx5.
//
// libmlx5 stores its doorbells where the NIC does not look. After each list of sends the owner sets
// a bit that makes the NIC look at the records of all queues: an atomic operation, as our driver's
// doorbell is. There is no connection manager, so the peer has to be on the same NIC.
#ifndef TESTS_BENCH_LIBRARY_OWNER_H_
#define TESTS_BENCH_LIBRARY_OWNER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tests/bench/loopback_device.h"
#include "tests/bench/queue_owner.h"
#include "tests/bench/threaded_nic.h"

namespace baton::bench {

// One at a time in a process, in which it answers system calls. `numbers` outlives it.
absl::StatusOr<std::unique_ptr<QueueOwner>> StartLibraryOwner(NicSockets sockets,
                                                              QueuePairNumbers* numbers);

}  // namespace baton::bench

#endif  // TESTS_BENCH_LIBRARY_OWNER_H_

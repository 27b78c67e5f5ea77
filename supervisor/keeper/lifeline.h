// What the life of a native worker hangs on: not its keeper, which may die while the worker goes
// on, but whoever holds one end of a pipe (batond, for the keeper). The kernel kills the worker
// when the last holder is gone, however that ends and whatever the worker does: it has asked for
// SIGKILL in the place of SIGIO (fcntl(2), F_SETSIG), and a pipe that nobody writes any more makes
// that signal.
//
// A second pipe proves the end: who reads it sees the end of the file when the last process that
// was forked for the service is gone, with all of its threads and memory.
#ifndef SUPERVISOR_KEEPER_LIFELINE_H_
#define SUPERVISOR_KEEPER_LIFELINE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::keeper {

struct Lifeline {
  FileDescriptor hold;      // nobody writes to it
  FileDescriptor worker;    // the workers'
  FileDescriptor presence;  // the workers', who do not write either
  FileDescriptor proof;     // readable, with the end of the file, when all workers are dead
};

absl::StatusOr<Lifeline> MakeLifeline();

// In the worker's process, in this order: an end of its own (the signal's receiver belongs to the
// opened file, not to the descriptor), before it has another identity, under which it could not;
// then, once it has, the tie. kUnavailable: the last holder is gone already.
absl::StatusOr<FileDescriptor> OpenOwnEnd(int worker_end);
absl::Status TieToLifeline(int own_end);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_LIFELINE_H_

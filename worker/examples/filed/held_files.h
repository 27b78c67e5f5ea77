// The files of a shard's long transfers, as the service's driver holds them: a successor goes on
// with one that was renamed or deleted meanwhile.
//
// A number in a state names a file. The driver knows nothing of transactions. So a file is dropped
// only when no committed state names it any more, and an owner that dies before that leaves files
// that its successor drops.
#ifndef WORKER_EXAMPLES_FILED_HELD_FILES_H_
#define WORKER_EXAMPLES_FILED_HELD_FILES_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"
#include "worker/file_reads.h"
#include "worker/worker.h"

namespace baton::filed {

// Make one in OnAdopt, and destroy it in OnRelease and OnLost: what is left to be dropped then is
// the successor's. Hold and Take wait for the keeper, and so does the drop, outside of OnCompletion
// and OnAdopt.
class HeldFiles {
 public:
  using Clock = std::chrono::steady_clock;

  // `named` returns the numbers that the shard's committed states have. `refused_until`: of all
  // shards of the worker, and outlives this. Nothing is asked before, since a keeper that does not
  // answer makes every client wait.
  HeldFiles(FileReads* reads, Shard* shard, std::function<std::set<uint64_t>()> named,
            Clock::time_point* refused_until);

  // Returns the number for a state. 0: a quota or the keeper refuses, or the file is not one that
  // can be held, and a successor has nothing but the path.
  uint64_t Hold(int fd);
  // Returns the file, or none if it is not held, or cannot be had now.
  FileDescriptor Take(uint64_t number);
  // The open transaction replaces the state that has `number`. Drops the file after the commit. 0:
  // there is none.
  void DropAfterCommit(uint64_t number);
  // Drops, soon, the files that no committed state names: their owners died, or a transaction was
  // forgotten.
  void DropLost();

 private:
  void Drop();
  absl::Status FindLost();
  void NoteRefusal(const absl::Status& why);

  FileReads* const reads_;
  Worker& worker_;
  const uint64_t tag_;
  const std::function<std::set<uint64_t>()> named_;
  std::vector<uint64_t> to_drop_;
  bool has_lost_ = false;
  Clock::time_point* const refused_until_;
  FileRequester requester_;
};

}  // namespace baton::filed

#endif  // WORKER_EXAMPLES_FILED_HELD_FILES_H_

// A correct worker, on the worker library, in a service whose other workers write whatever they
// like: it looks at all that it inherits, ends the connections, and never fails itself.
#ifndef TESTS_FUZZ_HONEST_HEIR_H_
#define TESTS_FUZZ_HONEST_HEIR_H_

#include <cstdint>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "worker/worker_impl.h"

namespace baton::fuzz {

class HonestHeir final : private Service {
 public:
  // `wake`: its end of the pair that wakes it and the engine.
  HonestHeir(const arena::Arena* arena, FileDescriptor wake, uint64_t id, uint32_t slot);
  ~HonestHeir() override;

  void Turn();

 private:
  absl::Status OnAdopt(Shard& shard) override;
  void OnCompletion(Shard& shard, const Completion& completion) override;
  void OnLost(Shard& shard) override;
  void Look(Shard& shard, Connection& connection);

  FileDescriptor keeper_;  // the other end of its socket: nobody is there
  std::vector<Shard*> shards_;
  WorkerImpl worker_;
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_HONEST_HEIR_H_

// The owner of a shard with a heap, with its engine on the same thread, over a device that does
// nothing.
#ifndef TESTS_BENCH_HEAP_OWNER_H_
#define TESTS_BENCH_HEAP_OWNER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/driver/engine/engine.h"
#include "tests/bench/null_device.h"
#include "worker/heap.h"
#include "worker/worker_impl.h"

namespace baton::bench {

// Thread-compatible: for the thread that called Start().
class HeapOwner final : private Service, private driver_process::EngineListener {
 public:
  // `bytes`: of the heap, a multiple of the page.
  static absl::StatusOr<std::unique_ptr<HeapOwner>> Start(uint64_t bytes);
  ~HeapOwner() override;

  Heap& heap() { return shard_->heap(); }
  absl::Status Commit() { return shard_->Commit(); }
  // Applies what was committed.
  absl::Status Apply();

 private:
  HeapOwner() = default;
  absl::Status Attach(uint64_t bytes);

  absl::Status OnAdopt(Shard& shard) override {
    shard_ = &shard;
    return absl::OkStatus();
  }
  void OnCompletion(Shard&, const Completion&) override {}
  void OnEvent(std::string_view, const std::string&, uint64_t, int, int) override {}
  void OnFenced(uint64_t) override { fenced_ = true; }
  void OnDeviceLost(const absl::Status&) override {}

  NullDevice device_{NullPeerKind::kNone};
  std::unique_ptr<arena::Arena> driver_;
  FileDescriptor keeper_;  // the other end of the worker's session
  std::unique_ptr<driver_process::Engine> engine_;
  std::unique_ptr<WorkerImpl> worker_;
  Shard* shard_ = nullptr;
  bool fenced_ = false;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_HEAP_OWNER_H_

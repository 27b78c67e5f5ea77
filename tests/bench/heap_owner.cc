#include "tests/bench/heap_owner.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "lib/base/check.h"
#include "lib/base/status.h"

namespace baton::bench {
namespace {

constexpr uint64_t kWorkerId = 1;
constexpr int kMostTurns = 1000;

arena::Shape ShapeOf(uint64_t heap_bytes) {
  arena::Shape shape = {};
  shape.shards = shape.connections = shape.workers = 1;
  shape.send_queue_depth = shape.receive_queue_depth = 1;
  shape.connection_state_bytes = shape.shard_state_bytes = 64;
  shape.heap_pages = static_cast<uint32_t>(heap_bytes / arena::kPageBytes);
  shape.buffer_bytes = arena::HeapBytes(shape) + arena::kPageBytes;
  shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
  return shape;
}

std::pair<FileDescriptor, FileDescriptor> MakePair() {
  int pair[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  return {FileDescriptor(pair[0]), FileDescriptor(pair[1])};
}
FileDescriptor Copy(int fd) { return FileDescriptor(dup(fd)); }

}  // namespace

absl::StatusOr<std::unique_ptr<HeapOwner>> HeapOwner::Start(uint64_t bytes) {
  std::unique_ptr<HeapOwner> owner(new HeapOwner());
  BATON_RETURN_IF_ERROR(owner->Attach(bytes));
  return owner;
}

absl::Status HeapOwner::Attach(uint64_t bytes) {
  BATON_ASSIGN_OR_RETURN(arena::Arena created, arena::Arena::Create(ShapeOf(bytes), "memory"));
  driver_ = std::make_unique<arena::Arena>(std::move(created));
  auto [engine_wake, worker_wake] = MakePair();
  auto [keeper, session] = MakePair();
  keeper_ = std::move(keeper);
  driver_process::EngineOptions options;
  options.nanoseconds = [] { return uint64_t{1'000'000'000}; };
  BATON_ASSIGN_OR_RETURN(engine_,
                         driver_process::Engine::Create(driver_.get(), &device_, this, options));
  engine_->AddWorker(0, kWorkerId, std::move(engine_wake));
  engine_->succession().SetReady(0);
  WorkerOptions worker;
  worker.commit_mode = CommitMode::kManual;
  worker_ = std::make_unique<WorkerImpl>(worker, static_cast<Service*>(this));
  worker_->Connected(std::move(session));
  BATON_ASSIGN_OR_RETURN(arena::Arena mapped, arena::Arena::Map(Copy(driver_->worker_log_fd()),
                                                                Copy(driver_->driver_log_fd()),
                                                                Copy(driver_->buffers_fd())));
  BATON_RETURN_IF_ERROR(worker_->Start(std::make_shared<const arena::Arena>(std::move(mapped)),
                                       std::move(worker_wake), kWorkerId, 0));
  for (int turns = 0; shard_ == nullptr; ++turns) {
    if (turns == kMostTurns) return absl::InternalError("the shard was not given to its worker");
    engine_->Turn();
    BATON_RETURN_IF_ERROR(worker_->Poll().status());
  }
  return absl::OkStatus();
}

HeapOwner::~HeapOwner() {
  if (worker_ != nullptr) worker_->Die();
}

absl::Status HeapOwner::Apply() {
  for (int turns = 0; engine_->Turn(); ++turns) {
    if (turns == kMostTurns) return absl::InternalError("the engine does not come to rest");
  }
  return fenced_ ? absl::InternalError("the engine has refused a transaction") : absl::OkStatus();
}

}  // namespace baton::bench

// A service whose driver is the real one, on a device in memory and without threads: what an engine
// does is done step by step.
#ifndef TESTS_FUZZ_BROKERED_SERVICE_H_
#define TESTS_FUZZ_BROKERED_SERVICE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/local_driver.h"
#include "tests/fuzz/memory_device.h"
#include "tests/lib/driver/commit_writer.h"
#include "worker/worker_impl.h"

namespace baton::fuzz {

class BrokeredService : private native::LocalObserver {
 public:
  // `arena` outlives it; everything in it is cleared.
  explicit BrokeredService(arena::Arena* arena);
  ~BrokeredService() override;

  arena::Arena& arena() { return *arena_; }
  MemoryDevice& device() { return device_; }
  driver::QueueDriver& driver() { return *driver_; }
  native::ConnectionManager& manager() { return local_->manager(); }
  driver::Ownership& ownership(uint32_t shard) { return ownership_[shard]; }
  uint32_t shards() const { return arena_->shape().shards; }
  uint32_t connections() const { return arena_->shape().connections; }
  arena::ConnectionRecord& record(uint32_t connection) { return arena_->connection(connection); }

  // One transaction of an owned shard; what it must not change is compared.
  driver::CommitOutcome Apply(uint32_t shard);
  void HandleEvents();
  void Poll();

  // The cut: what is published counts. As Engine::EndOwnership.
  void EndOwnership(uint32_t shard, bool released);
  bool GiveShard(uint32_t shard, uint32_t slot, uint64_t worker_id);

  // Whether the driver's memory makes sense.
  void Check();

 private:
  void OnConnectionState(uint32_t, std::string_view) override {}
  void OnRefusedConnection(std::string_view) override {}

  uint8_t* driver_memory() { return reinterpret_cast<uint8_t*>(&arena_->shard(0)); }
  size_t driver_bytes() const { return arena_->driver_map().total - arena_->driver_map().shards; }
  void CheckOthers(uint32_t shard);
  const uint8_t* Before(const void* now) {
    return before_.data() + (static_cast<const uint8_t*>(now) - driver_memory());
  }

  arena::Arena* const arena_;
  MemoryDevice device_;
  std::unique_ptr<native::LocalDriver> local_;
  driver::QueueDriver* driver_;  // that of `local_`
  std::vector<driver::Ownership> ownership_;
  std::vector<uint64_t> epochs_;
  std::vector<uint8_t> before_;  // the driver's memory before a transaction
};

// ---- Correct workers, which go on whatever others do: an echo service with its peers, and a
// worker among hostile ones.

// A correct echo service and its peers: every message comes back once and in order, whatever else
// happens in the process.
class HonestWorker {
 public:
  // Owns shard 0 in this epoch, and makes connections to it.
  HonestWorker(arena::Arena* arena, MemoryDevice* device, uint64_t epoch, uint32_t connections);

  // One step each of the peers, on the thread that turns the device, and of the worker.
  void PeersTurn();
  void WorkerTurn();
  // Both, and the driver's.
  void Turn(BrokeredService* service);

  uint64_t echoes() const { return echoes_; }

 private:
  struct Peer {
    uint64_t sent = 0;
    std::deque<std::string> expected;  // replies
  };
  uint64_t Buffer(uint32_t connection, uint64_t sequence) const;

  arena::Arena* const arena_;
  MemoryDevice* const device_;
  driver::testing::CommitWriter writer_;
  uint64_t read_ = 0;
  uint64_t echoes_ = 0;
  std::vector<Peer> peers_;  // by queue pair, in the order of their numbers
};

// A correct worker, on the worker library, in a service whose other workers write whatever they
// like: it looks at all that it inherits, ends the connections, and never fails itself.
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

#endif  // TESTS_FUZZ_BROKERED_SERVICE_H_

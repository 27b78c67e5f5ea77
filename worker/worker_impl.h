// Inside the worker library: one attachment to a service.
#ifndef WORKER_WORKER_IMPL_H_
#define WORKER_WORKER_IMPL_H_

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "worker/control_stream.h"
#include "worker/keeper_session.h"
#include "worker/keeper_watch.h"
#include "worker/native_host.h"
#include "worker/ownership_changes.h"
#include "worker/thread_lock.h"
#include "worker/wait_loop.h"
#include "worker/watches.h"
#include "worker/worker.h"
#include "worker/worker_notices.h"
#include "worker/worker_shards.h"

namespace baton {

class WorkerImpl final : public Worker {
 public:
  WorkerImpl(const WorkerOptions& options, Service* service);
  ~WorkerImpl() override;

  absl::Status Attach();

  // The parts of Attach that need no keeper: a simulation calls these instead.
  absl::Status FindNativeHost();
  void Connected(FileDescriptor keeper) {
    keeper_.emplace(std::move(keeper));
    keeper_->WaitWith([this](pollfd socket, int timeout_ms) { AwaitKeeper(socket, timeout_ms); });
  }
  absl::Status Start(std::shared_ptr<const arena::Arena> arena, FileDescriptor wake, uint64_t id,
                     uint32_t slot);
  // Releases all shards and detaches from the keeper, like the destructor.
  void Detach();
  // For tests: see KeeperSession.
  void SetReplyTimeout(int timeout_ms) { keeper_->SetReplyTimeout(timeout_ms); }
  // For a simulation: the worker's process is dead, and nothing of it happens any more.
  void Die() {
    is_dead_ = true;
    keeper_watch_.Die();
  }

  absl::Status Ready() override { return keeper_->SetReady(); }
  absl::Status TakeOver(absl::Span<const uint32_t> shards) override {
    return keeper_->TakeOver(shards);
  }
  absl::StatusOr<int> Poll() override;
  int event_fd() const override { return keeper_watch_.event_fd(); }
  bool ArmEvent() override { return wait_loop_.Arm() && !keeper_watch_.HasNews(); }
  absl::Status Watch(int fd, std::function<void()> callback) override {
    // While completions keep coming, no wait looks at the descriptors.
    looks_mask_ = 15;
    return watches_.Add(fd, std::move(callback));
  }
  void Unwatch(int fd) override { watches_.Remove(fd); }
  absl::Status Wait(int timeout_ms) override { return wait_loop_.Wait(timeout_ms); }
  absl::Status Run() override;
  void Stop() override { notices_.Stop(); }
  void Wake() override { notices_.Wake(); }
  absl::StatusOr<uint16_t> Listen(const std::string& host, uint16_t port) override {
    return keeper_->Listen(host, port);
  }
  absl::StatusOr<Connection*> Connect(Shard& shard, const std::string& host, uint16_t port,
                                      std::string_view private_data, uint64_t tag) override;
  const Capacity& capacity() const override { return capacity_; }
  absl::Span<uint8_t> buffers() const override {
    return {arena_->buffers(), arena::HeapOffset(arena_->shape(), 0)};
  }
  absl::StatusOr<Grant> GrantRemoteAccess(uint64_t offset, uint64_t length,
                                          uint32_t access) override {
    return keeper_->Grant(offset, length, access);
  }
  absl::Status RevokeGrant(uint32_t id) override { return keeper_->Revoke(id); }
  absl::StatusOr<uint64_t> HoldDescriptor(int fd, uint64_t tag) override {
    return keeper_->HoldDescriptor(fd, tag);
  }
  absl::StatusOr<int> TakeDescriptor(uint64_t number) override {
    return keeper_->TakeDescriptor(number);
  }
  absl::Status DropDescriptor(uint64_t number) override { return keeper_->DropDescriptor(number); }
  absl::StatusOr<std::vector<uint64_t>> HeldDescriptors(uint64_t tag) override {
    return keeper_->HeldDescriptors(tag);
  }
  absl::Status BeginHoldDescriptor(int fd, uint64_t tag,
                                   std::function<void(absl::StatusOr<uint64_t>)> done) override {
    return keeper_->BeginHoldDescriptor(fd, tag, std::move(done));
  }
  absl::Status BeginDropDescriptor(uint64_t number,
                                   std::function<void(absl::Status)> done) override {
    return keeper_->BeginDropDescriptor(number, std::move(done));
  }
  void ReportHealth(bool healthy, std::string_view detail) override;
  uint64_t id() const override { return id_; }
  absl::StatusOr<Region> RegisterMemory(uint64_t descriptor, uint64_t offset, uint64_t length,
                                        uint32_t access) override;
  absl::Status UnregisterMemory(uint32_t id) override;
  std::vector<Region> Regions() const override;

  Shard& shard(uint32_t index) { return *shards_.all()[index]; }
  bool awaits_device() const { return shards_.awaits_device(); }

 private:
  uint32_t SpokenLayoutVersion() const;
  absl::Status CheckDescriptors() const;
  void StartControlStream(const internal::Attached& attached);
  void Abandon();
  void HoldUntilTheEnd();
  int RunWatches();
  void ShutDown();
  void AwaitKeeper(pollfd socket, int timeout_ms);

  const pid_t process_;  // the process that made the worker
  const WorkerOptions options_;
  Service* const service_;
  std::optional<KeeperSession> keeper_;
  std::shared_ptr<const arena::Arena> arena_;
  Capacity capacity_;
  std::unique_ptr<NativeHost> native_;  // null: the driver is `baton-driver`
  std::optional<ThreadLock> lock_;
  uint64_t id_ = 0;
  uint32_t slot_ = 0;
  uint32_t heartbeat_ms_ = 1000;
  uint64_t polls_ = 0;  // and waits for the keeper: signs of life
  uint64_t turns_ = 0;  // calls of Poll
  // A worker that never sleeps still learns in time that the driver or the keeper is gone: it looks
  // in each turn whose number has none of these bits.
  uint64_t looks_mask_ = 1023;
  bool attached_ = false;  // the keeper counts this worker among its own
  bool is_dead_ = false;   // in a simulation
  WorkerNotices notices_;
  Watches watches_;
  KeeperWatch keeper_watch_;
  WorkerShards shards_;
  OwnershipChanges ownership_;
  WaitLoop wait_loop_;
  std::unique_ptr<ControlStream> control_;  // last: its thread uses what is above
};

}  // namespace baton

#endif  // WORKER_WORKER_IMPL_H_

// A native service whose driver died (driver_death.md): its workers go on, its connections
// are kept by batond, and this is how the next driver works for them until the last is gone.
//
// It cannot do all that the former one did. The device's objects are in the hands of processes that
// inherited them, which this one did not: it can make no queue pair of theirs, and fork nobody who
// could use them. So it lets the connections drain: it tells owners what happens to them at the
// connection manager, carries out what owners order there, and names heirs among the workers that
// live. Then the workers are ended, and the service is begun anew.
#ifndef SUPERVISOR_DRIVER_NATIVE_ADOPTION_H_
#define SUPERVISOR_DRIVER_NATIVE_ADOPTION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/rdma/adopted_ids.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/driver/held_descriptors.h"
#include "supervisor/driver/native/adopted_shards.h"
#include "supervisor/driver/native/lifeline.h"
#include "supervisor/driver/native/native_files.h"

namespace baton::driver_process {

// Gives batond what the next driver needs, before the first worker is forked.
absl::Status Hold(HeldDescriptors* held, const NativeFiles& files, const Lifeline& lifeline);

// The held descriptors, after Adoption has taken them back from batond.
struct AdoptedFiles {
  std::unique_ptr<arena::Arena> arena;
  FileDescriptor driver_wake, news;
  FileDescriptor proof;                   // Lifeline's
  std::vector<FileDescriptor> wakes;      // by worker slot
  std::vector<FileDescriptor> processes;  // likewise; HeldWorkers
};

// Thread-compatible, and without a thread.
class Adoption {
 public:
  // Takes over what is held. Null: there is nothing, or not all that it takes. An error: why it
  // cannot be adopted.
  static absl::StatusOr<std::unique_ptr<Adoption>> Begin(HeldDescriptors* held,
                                                         const v1::ServiceConfig& service);

  // `taken`: all that `ids` has.
  Adoption(AdoptedFiles files, std::unique_ptr<verbs::rdma::AdoptedIds> ids,
           const std::vector<verbs::rdma::AdoptedId>& taken, const v1::ServiceConfig& service);

  uint32_t connection_count() const { return count_; }

  // Everything that there may be to do. Call it when one of these descriptors is readable, and
  // every kTurnMs. `now_ns`: MonotonicNanoseconds().
  void Turn(uint64_t now_ns);
  static constexpr int kTurnMs = 200;
  std::vector<int> descriptors() const;

  // Why there is nothing more to wait for; empty: there is.
  std::string WhyOver() const;

  // Records that this driver survived its first turn. Begin fails with kAborted after kMostDeaths
  // drivers in a row did not, because the cause of their deaths would kill the next one, too.
  static void Settle(HeldDescriptors* held);
  static constexpr size_t kMostDeaths = 4;

  // Ends the workers, waits a while until they are proven dead, and gives everything back. What
  // connections there are end with it. An error: not all was given back, and they may live.
  static absl::Status End(HeldDescriptors* held);

 private:
  enum class Phase : uint8_t { kNone, kLive, kOver };
  struct Connection {
    Phase phase = Phase::kNone;
    uint32_t generation = 0;
    uint32_t shard = 0;
    int64_t number = -1;  // of its id; -1: it has none
  };

  static absl::StatusOr<std::vector<verbs::rdma::AdoptedId>> TakeIds(HeldDescriptors* held,
                                                                     verbs::rdma::AdoptedIds* ids);
  static absl::Status CountBegin(HeldDescriptors* held, int descriptor);
  void Sort(const std::vector<verbs::rdma::AdoptedId>& ids);
  bool IsInShard(uint32_t connection);
  void Judge(uint32_t connection);
  bool IsKnownToDriver(uint32_t connection, uint32_t generation) const;
  bool WasEstablished(uint32_t connection, uint32_t generation) const;
  bool Holds(uint32_t shard, uint32_t connection, uint32_t generation,
             arena::NoticeKind kind) const;

  bool IsUsed(uint32_t shard) const;
  bool HandleEvent();
  bool HandleOrder(uint32_t shard);
  void FollowMove(uint32_t connection, uint32_t shard);
  void Disconnect(uint32_t connection);
  void Free(uint32_t connection);
  void DestroyId(uint32_t connection);
  void Finish(uint32_t connection, verbs::CompletionStatus status, std::string_view why);
  void Tell(uint32_t connection, arena::NoticeKind kind, verbs::CompletionStatus status);
  void SendWaiting(uint32_t shard);
  void ReadNews();

  AdoptedFiles files_;
  const arena::Arena* const arena_;  // of files_
  const std::unique_ptr<verbs::rdma::AdoptedIds> ids_;
  AdoptedShards shards_;
  std::vector<Connection> connections_;
  std::vector<std::deque<arena::MailEntry>> waiting_;  // no room in the ring, by shard
  uint32_t count_ = 0;                                 // connections whose slot is not free
  bool device_removed_ = false;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_ADOPTION_H_

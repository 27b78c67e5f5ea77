#include "tests/bench/native_adoption.h"

#include <linux/futex.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace baton::bench {
namespace {

constexpr uint32_t kMessageBytes = 64;
constexpr uint64_t kEventsOfATransaction = 64;
constexpr uint64_t kStartNs = 60'000'000'000;

}  // namespace

absl::StatusOr<std::unique_ptr<NativeAdoption>> NativeAdoption::Start(uint32_t shards,
                                                                      uint32_t connections,
                                                                      NullPeerKind peer) {
  std::unique_ptr<NativeAdoption> adoption(new NativeAdoption(shards, connections, peer));
  BATON_RETURN_IF_ERROR(adoption->Open());
  BATON_RETURN_IF_ERROR(adoption->Establish());
  return adoption;
}

NativeAdoption::~NativeAdoption() {
  for (auto& driver : drivers_) driver.reset();
}

absl::Status NativeAdoption::Open() {
  arena::Shape shape = driver::testing::TestShape(shards_, connections_, kDepth);
  shape.workers = 2;
  shape.pooled_queue_pairs = (connections_ + shards_ - 1) / shards_;
  BATON_ASSIGN_OR_RETURN(arena::Arena arena, arena::Arena::Create(shape, "adoption"));
  arena_.emplace(std::move(arena));
  auto null = std::make_unique<NullDevice>(peer_);
  null->AddRequests(connections_);
  device_ = std::move(null);
  BATON_ASSIGN_OR_RETURN(engine_,
                         driver_process::NativeEngine::Create(&*arena_, device_.get(), this, {}));
  return engine_->Listen({"127.0.0.1", 1}).status();
}

absl::Status NativeAdoption::AddWorker(uint32_t slot) {
  driver_process::NativeInheritance inheritance = engine_->InheritanceOf(slot, slot + 1);
  inheritance.watch_deaths = false;
  BATON_ASSIGN_OR_RETURN(drivers_[slot],
                         driver_process::NativeDriver::Create(std::move(inheritance)));
  arena_->ClearWorker(slot);
  arena::StoreRelease(arena_->worker(slot).thread_locks[0].futex, static_cast<uint32_t>(getpid()));
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  const FileDescriptor its(pair[0]);
  engine_->AddWorker(slot, slot + 1, FileDescriptor(pair[1]), {}, driver_process::Standing::kFirst);
  engine_->succession().SetReady(slot);
  return absl::OkStatus();
}

absl::Status NativeAdoption::Check(uint32_t slot, int result) {
  if (result == 0) return absl::OkStatus();
  return absl::InternalError(host(slot).last_error(host(slot).context));
}

uint32_t NativeAdoption::OwnedBy(uint32_t slot) const {
  uint32_t count = 0;
  for (uint32_t shard = 0; shard < shards_; ++shard) {
    count += arena::OwnershipSlot(arena::LoadAcquire(arena_->shard(shard).owner.ownership)) == slot;
  }
  return count;
}

absl::Status NativeAdoption::Establish() {
  BATON_RETURN_IF_ERROR(AddWorker(0));
  const uint64_t deadline = MonotonicNanoseconds() + kStartNs;
  while (OwnedBy(0) < shards_) {
    BATON_RETURN_IF_ERROR(Check(0, host(0).attend(host(0).context)));
    if (MonotonicNanoseconds() > deadline) return absl::DeadlineExceededError("no owner");
  }
  for (uint32_t shard = 0; shard < shards_; ++shard) {
    served_.emplace_back(&*arena_, shard);
    served_[shard].writer.Begin(1);
  }
  while (established_ < connections_) {
    engine_->Turn();
    BATON_RETURN_IF_ERROR(Check(0, host(0).attend(host(0).context)));
    for (uint32_t shard = 0; shard < shards_; ++shard) BATON_RETURN_IF_ERROR(Serve(shard));
    if (MonotonicNanoseconds() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(established_, " of ", connections_, " connections came up"));
    }
  }
  BATON_RETURN_IF_ERROR(AddWorker(1));
  engine_->Turn();
  return Check(1, host(1).attend(host(1).context));
}

// A transaction with what there is to accept and to acknowledge.
absl::Status NativeAdoption::Serve(uint32_t shard) {
  BATON_RETURN_IF_ERROR(Check(0, host(0).poll(host(0).context, shard)));
  Shard& served = served_[shard];
  const uint64_t tail = arena_->shard(shard).completion_tail;
  const uint64_t end = std::min(tail, served.read + kEventsOfATransaction);
  for (; served.read < end; ++served.read) {
    const arena::CompletionEntry entry = arena_->completion(shard, served.read);
    switch (arena::CompletionKind(entry.kind)) {
      case arena::CompletionKind::kConnectRequest:
        served.writer.Accept(entry.connection, shard);
        break;
      case arena::CompletionKind::kEstablished:
        ++established_;
        break;
      default:
        return absl::InternalError(absl::StrCat("connection ", entry.connection, " ended"));
    }
  }
  served.writer.Acknowledge(served.read).Publish();
  return Check(0, host(0).apply(host(0).context, shard));
}

void NativeAdoption::PublishSends(uint32_t count) {
  driver::testing::CommitWriter& writer = served_[0].writer;
  for (uint32_t i = 0; i < count; ++i) {
    // The writer goes on from what the driver has applied, which is none of these yet.
    arena::CommitEntry& entry = writer.Connection(0);
    entry.send_end += i;
    entry.receive_end += i;
    writer.Receive(0, 4096, kMessageBytes);
    writer.Send(0, 0, kMessageBytes);
    writer.Publish();
  }
}

absl::StatusOr<uint64_t> NativeAdoption::AcknowledgeAll() {
  Shard& shard = served_[0];
  const uint64_t tail = arena_->shard(0).completion_tail;
  const uint64_t count = tail - shard.read;
  shard.read = tail;
  shard.writer.Acknowledge(tail).Publish();
  BATON_RETURN_IF_ERROR(Check(0, host(0).apply(host(0).context, 0)));
  return count;
}

absl::StatusOr<AdoptionTimes> NativeAdoption::Adopt() {
  drivers_[0].reset();
  arena::StoreRelease(arena_->worker(0).thread_locks[0].futex, uint32_t{FUTEX_OWNER_DIED});
  drivers_[1]->LookForDeaths();
  AdoptionTimes times;
  const uint64_t began = MonotonicNanoseconds();
  const auto took_us = [began] {
    return static_cast<double>(MonotonicNanoseconds() - began) * 1e-3;
  };
  for (uint32_t owned = 0; owned < shards_; owned = OwnedBy(1)) {
    BATON_RETURN_IF_ERROR(Check(1, host(1).attend(host(1).context)));
    if (owned == 0) times.first_us = took_us();
    if (took_us() * 1000 > static_cast<double>(kStartNs)) {
      return absl::DeadlineExceededError("the heir does not take over");
    }
  }
  times.last_us = took_us();
  return times;
}

}  // namespace baton::bench

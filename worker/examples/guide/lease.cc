// Chapter 5: leases memory to peers, which READ and WRITE it without a worker.
//   lease NUMBER BYTES SECONDS    memory for so long; 0: as long as the connection. The answer is
//                                 the lease's id, rkey and address; for the same NUMBER the same
//   free ID                       ends a lease
// A WRITE_WITH_IMM into a lease, whose immediate is the lease's id, is answered with the first
// number that is there.
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "worker/examples/guide/reply_service.h"
#include "worker/heap.h"
#include "worker/heap_grants.h"
#include "worker/leases.h"

namespace baton::guide {
namespace {

constexpr uint32_t kFormat = 1;  // of a connection's state: its leases
constexpr uint32_t kMost = 3;    // leases of a peer
constexpr uint32_t kAccess = verbs::kRemoteRead | verbs::kRemoteWrite;
constexpr uint64_t kSecond = 1'000'000'000;

// Frees the connection's leases whose time is over, in a transaction of its own: one for all
// connections could lack the room.
absl::Status FreeOverdue(Shard& shard, Connection& connection) {
  BATON_ASSIGN_OR_RETURN(Leases leases, Leases::Load(connection, connection.state(), kMost));
  const uint64_t now = Leases::Now();
  if (leases.next_end().value_or(now + 1) > now) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(leases.FreeOverdue(now));
  BATON_RETURN_IF_ERROR(shard.SetState(connection, leases.state(), kFormat));
  return shard.Commit();
}

class Lessor final : public ReplyService {
 public:
  absl::Status Check(const Capacity& capacity) override {
    if (capacity.shard_heap_bytes > 0) return absl::OkStatus();
    return absl::FailedPreconditionError("lease needs a service with shard_heap_bytes");
  }

  // Frees the memory of which no state knows, and revokes what was granted of it.
  absl::Status OnAdopt(Shard& shard) override {
    std::set<uint64_t> known;
    for (Connection* connection : shard.connections()) {
      BATON_ASSIGN_OR_RETURN(const Leases leases,
                             Leases::Load(*connection, connection->state(), kMost));
      for (const Lease& lease : leases.all()) known.insert(lease.offset);
    }
    BATON_RETURN_IF_ERROR(HeapGrants::FreeLost(
        shard, [&](const Buffer& buffer) { return known.contains(buffer.offset); }));
    shards_.insert(&shard);
    return StartTimer(shard.worker());
  }
  void OnRelease(Shard& shard) override { shards_.erase(&shard); }
  void OnLost(Shard& shard) override { shards_.erase(&shard); }

  void OnCompletion(Shard& shard, const Completion& done) override {
    using Kind = Completion::Kind;
    Connection& connection = *done.connection;
    if (done.opcode == verbs::CompletionOpcode::kReceiveWithImmediate &&
        done.status == verbs::CompletionStatus::kSuccess) {
      if (!AnswerNotice(shard, done).ok()) shard.Disconnect(connection).IgnoreError();
      return;
    }
    if (done.kind != Kind::kDisconnected && done.kind != Kind::kConnectFailed) {
      return ReplyService::OnCompletion(shard, done);
    }
    absl::StatusOr<Leases> leases = Leases::Load(connection, connection.state(), kMost);
    // If it fails, the next owner frees the rest.
    if (leases.ok()) leases->FreeAll().IgnoreError();
  }

 private:
  absl::StatusOr<std::string> Reply(Shard& shard, Connection& connection,
                                    const std::string& message) override {
    BATON_ASSIGN_OR_RETURN(Leases leases, Leases::Load(connection, connection.state(), kMost));
    std::istringstream words(message);
    std::string command, answer;
    uint64_t number = 0, bytes = 0;
    uint32_t seconds = 0, id = 0;
    words >> command;
    if (command == "lease" && words >> number >> bytes >> seconds) {
      const LeaseRequest request = {number, bytes, kAccess, seconds * kSecond};
      BATON_ASSIGN_OR_RETURN(const Lease lease, leases.Allocate(request, Leases::Now()));
      answer = absl::StrCat(lease.id, " ", lease.rkey, " ", lease.remote_address);
    } else if (command == "free" && words >> id) {
      BATON_RETURN_IF_ERROR(leases.Free(id));
      answer = "freed";
    } else {
      return absl::InvalidArgumentError("neither lease NUMBER BYTES SECONDS nor free ID");
    }
    BATON_RETURN_IF_ERROR(shard.SetState(connection, leases.state(), kFormat));
    return answer;
  }

  // The peer has written into the lease that the immediate names.
  static absl::Status AnswerNotice(Shard& shard, const Completion& notice) {
    Connection& connection = *notice.connection;
    BATON_ASSIGN_OR_RETURN(const Leases leases,
                           Leases::Load(connection, connection.state(), kMost));
    const Lease* const lease = leases.Find(notice.immediate);
    if (lease == nullptr) return SendText(shard, connection, "no lease of yours", notice.tag);
    uint64_t number = 0;  // a copy: the peer may write on
    std::memcpy(&number, shard.heap().At(lease->memory()),
                std::min<size_t>(lease->bytes, sizeof(number)));
    return SendText(shard, connection, absl::StrCat("lease ", lease->id, " has ", number),
                    notice.tag);
  }

  absl::Status StartTimer(Worker& worker) {
    if (timer_) return absl::OkStatus();
    constexpr itimerspec kPeriod = {{1, 0}, {1, 0}};
    timer_.Reset(timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
    if (timerfd_settime(timer_.get(), 0, &kPeriod, nullptr) != 0) {
      return ErrnoStatus(errno, "cannot make a timer");
    }
    return worker.Watch(timer_.get(), [this] { Tick(); });
  }
  // A service with many connections keeps the next end of each, and looks at no other.
  void Tick() {
    uint64_t ticks = 0;
    if (read(timer_.get(), &ticks, sizeof(ticks)) <= 0) return;
    for (Shard* const shard : shards_) {
      for (Connection* const connection : shard->connections()) {
        const absl::Status status = FreeOverdue(*shard, *connection);
        if (status.ok()) continue;
        shard->Abandon();  // no memory must be free of which the state says that it is leased
        std::cerr << "leases are freed later: " << status << std::endl;
      }
    }
  }

  FileDescriptor timer_;
  std::set<Shard*> shards_;
};

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  baton::guide::Lessor lessor;
  return baton::guide::Serve(lessor,
                             {.service = "counter",
                              .reads_state_version_min = 1,
                              .reads_state_version_max = 1,
                              .writes_state_version = 1,
                              .commit_mode = baton::CommitMode::kAfterEachCompletion},
                             argc, argv);
}

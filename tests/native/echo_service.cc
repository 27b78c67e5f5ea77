#include "tests/native/echo_service.h"

#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/verbs/rdma/rdma_device.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/verbs/nic_process.h"
#include "tests/native/message.h"
#include "tests/native/native_environment.h"

namespace baton::native {
namespace {

constexpr uint32_t kShard = 0;
constexpr uint64_t kLeastBuffers = 4096;  // of an arena
constexpr uint64_t kFirstWorker = 1;      // ids; the parent's own is this one
// A poll that finds nothing but markers uses a request for a notification up and does not say so.
constexpr int kLongestSleepMs = 100;
constexpr std::chrono::nanoseconds kEstablish = std::chrono::seconds(20);

// No connection is to end.
class Watcher final : public native::LocalObserver {
 public:
  explicit Watcher(OwnerRecord* record) : record_(record) {}
  void OnConnectionState(uint32_t connection, std::string_view what) override {
    if (what == "established") return;
    Fail(absl::StrCat("connection ", connection, " ", absl::string_view(what.data(), what.size())));
  }
  void OnRefusedConnection(std::string_view why) override { Fail(std::string(why)); }
  void Fail(const std::string& why) {
    if (record_->failure[0] != '\0') return;
    std::snprintf(record_->failure, sizeof(record_->failure), "%s", why.c_str());
  }

 private:
  OwnerRecord* const record_;
};

arena::Shape ShapeFor(const EchoOptions& options) {
  arena::Shape shape = {};
  shape.shards = 1;
  shape.connections = options.connections;
  shape.send_queue_depth = shape.receive_queue_depth = options.depth;
  shape.connection_state_bytes = 64;
  shape.shard_state_bytes = 64;
  shape.workers = 1;
  shape.buffer_bytes = std::bit_ceil(
      std::max(kLeastBuffers, 2 * uint64_t{options.connections} * options.depth * sizeof(Message)));
  shape.completion_log_entries =
      std::bit_ceil(static_cast<uint32_t>(arena::RequiredCompletionEntries(shape)));
  return shape;
}

// For as long as it lives.
absl::Status Own(EchoOwner* owner, driver::QueueDriver* driver, verbs::Device* device, bool sleeps,
                 OwnerRecord* record) {
  const uint64_t before = record->answered;
  for (bool asked = false;; ++record->turns) {
    device->Progress();
    BATON_ASSIGN_OR_RETURN(const bool found, owner->Turn());
    record->recovery = driver->recovery();
    record->answered = before + owner->answered();
    if (found) {
      asked = false;
    } else if (!sleeps) {
      sched_yield();
    } else if (!std::exchange(asked, true)) {
      BATON_RETURN_IF_ERROR(driver->RequestNotification(kShard));
    } else {
      pollfd event = {device->event_fd(), POLLIN, 0};
      (void)poll(&event, 1, kLongestSleepMs);
      asked = false;
    }
  }
}

constexpr uint32_t kSlot = 0;             // of the worker
constexpr uint64_t kMaxCompletions = 32;  // to a transaction

// Puts the buffer where workers put it, and not only where those of layout version 1 do: a driver
// writes such requests to the device's queue by itself.
void UseFirstLine(arena::WorkRequest& request) {
  request.one_line = 1;
  request.only = request.sges[0];
}

}  // namespace

EchoService::EchoService(const std::string& host, const EchoOptions& options)
    : options_(options), observer_(std::make_unique<Watcher>(record_.get())) {
  device_ = (IsSoftUnderTest() ? verbs::testing::OpenWithNic(nullptr, options.nic)
                               : verbs::rdma::CreateRdmaDevice({}))
                .value();
  BATON_CHECK(device_->CheckForkable().ok());
  arena_.emplace(arena::Arena::Create(ShapeFor(options), "echo").value());
  local_ = native::LocalDriver::Create(&*arena_, device_.get(), observer_.get()).value();
  port_ = driver::ListenOnce(device_.get(), local_->objects(), {host, 0}).value().port;
}

EchoService::~EchoService() {
  for (size_t i = 0; i < children_.size(); ++i) Kill(i);
}

bool EchoService::Establish() {
  EchoOwner owner(&*arena_, &local_->driver(), kFirstWorker);
  if (!owner.Adopt().ok()) return false;
  const uint64_t deadline = MonotonicNanoseconds() + harness::Patient(kEstablish).count();
  while (Ended() != 0) {
    if (MonotonicNanoseconds() > deadline) return false;
    local_->TurnManager();
    uint32_t shard;
    while (local_->HandleNotice(&shard)) {
    }
    if (!owner.Turn().ok()) return false;
    sched_yield();
  }
  return true;
}

uint32_t EchoService::Ended() const {
  uint32_t ended = 0;
  for (uint32_t i = 0; i < options_.connections; ++i) {
    const auto state = arena::ConnectionState(arena_->connection(i).state);
    if (state != arena::ConnectionState::kEstablished) ++ended;
  }
  return ended;
}

size_t EchoService::Fork() {
  int go[2];
  BATON_CHECK(pipe(go) == 0);
  const pid_t pid = fork();
  BATON_CHECK(pid >= 0);
  if (pid == 0) {
    close(go[1]);
    Wait(go[0], kFirstWorker + 1 + children_.size());
  }
  close(go[0]);
  children_.push_back({pid, go[1]});
  return children_.size() - 1;
}

void EchoService::Wait(int go, uint64_t worker_id) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Watcher watcher(record_.get());
  char begin = 0;
  if (read(go, &begin, 1) != 1) _exit(0);
  const absl::Status status = [&] {
    BATON_RETURN_IF_ERROR(device_->AfterFork());
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<driver::QueueDriver> driver, local_->MakeSuccessor());
    EchoOwner owner(&*arena_, driver.get(), worker_id);
    BATON_RETURN_IF_ERROR(owner.Adopt());
    record_->turns.store(0);
    ++record_->took_over;
    return Own(&owner, driver.get(), device_.get(), options_.sleeps, record_.get());
  }();
  watcher.Fail(status.ToString());
  _exit(1);
}

void EchoService::Begin(size_t child) {
  const char begin = 1;
  BATON_CHECK(write(children_[child].go, &begin, 1) == 1);
}

void EchoService::Kill(size_t child) {
  Child& one = children_[child];
  if (one.pid < 0) return;
  kill(one.pid, SIGKILL);
  BATON_CHECK(waitpid(one.pid, nullptr, 0) == one.pid);
  close(one.go);
  one = {};
}

EchoOwner::EchoOwner(arena::Arena* arena, driver::QueueDriver* driver, uint64_t worker_id)
    : arena_(arena),
      driver_(driver),
      worker_id_(worker_id),
      depth_(arena->shape().receive_queue_depth),
      ownership_(arena, kShard),
      writer_(arena, kShard),
      counts_(arena->shape().connections),
      send_ends_(arena->shape().connections) {}

uint64_t EchoOwner::ReceiveOffset(uint32_t connection, uint32_t depth, uint64_t sequence) {
  return (2 * connection * uint64_t{depth} + sequence % depth) * sizeof(Message);
}
uint64_t EchoOwner::SendOffset(uint32_t connection, uint32_t depth, uint64_t sequence) {
  return ReceiveOffset(connection, depth, sequence) + depth * sizeof(Message);
}

// What the dead has published is applied first: it was committed.
absl::Status EchoOwner::Adopt() {
  if (ownership_.owned()) {
    absl::Status error;
    for (;;) {
      const driver::CommitOutcome outcome = driver_->ApplyNext(kShard, &error);
      if (outcome == driver::CommitOutcome::kIdle) break;
      if (outcome != driver::CommitOutcome::kApplied) return error;
    }
    const uint64_t former = ownership_.owner_id();
    ownership_.End(/*released=*/false);
    ownership_.ProveDead(former);
  }
  ownership_.GiveTo(kSlot, worker_id_);
  writer_.Begin(ownership_.epoch());
  return absl::OkStatus();
}

void EchoOwner::Accept(uint32_t connection) {
  for (uint32_t i = 0; i < depth_; ++i) {
    writer_.Receive(connection, ReceiveOffset(connection, depth_, i), sizeof(Message));
  }
  writer_.Accept(connection, kShard);
}

uint64_t EchoOwner::CommittedCount(uint32_t connection) const {
  const arena::ConnectionRecord& record = arena_->connection(connection);
  if (record.state_length == 0) return 0;
  uint64_t count = 0;
  std::memcpy(&count, arena_->connection_state(connection, record.state_slot), sizeof(count));
  return count;
}

absl::StatusOr<bool> EchoOwner::Turn() {
  BATON_RETURN_IF_ERROR(driver_->PollCompletions(kShard).status());
  const arena::ShardRecord& shard = arena_->shard(kShard);
  for (uint32_t i = 0; i < counts_.size(); ++i) {
    counts_[i] = CommittedCount(i);
    send_ends_[i] = arena_->connection(i).send.committed;
  }
  uint32_t answered = 0, last = 0;
  uint64_t next = shard.acknowledged;
  for (; next < shard.completion_tail && next < shard.acknowledged + kMaxCompletions; ++next) {
    const arena::CompletionEntry& entry = arena_->completion(kShard, next);
    if (arena::CompletionKind(entry.kind) == arena::CompletionKind::kConnectRequest) {
      Accept(entry.connection);
    }
    if (arena::CompletionKind(entry.kind) != arena::CompletionKind::kReceive) continue;
    if (!Answer(entry)) break;
    last = entry.connection;
    ++answered;
  }
  if (next == shard.acknowledged) return false;
  answered > 0 ? writer_.AcknowledgeWith(last, next) : writer_.Acknowledge(next);
  BATON_RETURN_IF_ERROR(Commit());
  answered_ += answered;
  return true;
}

bool EchoOwner::Answer(const arena::CompletionEntry& entry) {
  const uint32_t connection = entry.connection;
  const arena::ConnectionRecord& record = arena_->connection(connection);
  if (send_ends_[connection] - record.send.completed >= depth_) return false;
  Message reply;
  std::memcpy(&reply, arena_->buffers() + ReceiveOffset(connection, depth_, entry.sequence),
              sizeof(reply));
  // One that is not whole is sent back as it is.
  if (reply.sum == SumOf(reply)) {
    reply.count = counts_[connection];
    reply.sum = SumOf(reply);
  }
  ++counts_[connection];
  const uint64_t offset = SendOffset(connection, depth_, send_ends_[connection]);
  std::memcpy(arena_->buffers() + offset, &reply, sizeof(reply));
  UseFirstLine(writer_.Send(connection, offset, sizeof(reply)));
  ++send_ends_[connection];
  UseFirstLine(writer_.Receive(connection, ReceiveOffset(connection, depth_, entry.sequence),
                               sizeof(Message)));
  writer_.ConnectionState(
      connection,
      std::string_view(reinterpret_cast<const char*>(&counts_[connection]), sizeof(uint64_t)), 1);
  return true;
}

absl::Status EchoOwner::Commit() {
  writer_.Publish();
  absl::Status error;
  const driver::CommitOutcome outcome = driver_->ApplyNext(kShard, &error);
  if (outcome == driver::CommitOutcome::kApplied) return absl::OkStatus();
  return error.ok() ? absl::InternalError(
                          absl::StrCat("the commit's outcome is ", static_cast<int>(outcome)))
                    : error;
}

}  // namespace baton::native

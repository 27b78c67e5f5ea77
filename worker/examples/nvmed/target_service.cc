#include "worker/examples/nvmed/target_service.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/end_text.h"
#include "worker/examples/nvmed/connect.h"
#include "worker/examples/nvmed/saved_queue.h"
#include "worker/examples/nvmed/state.h"

namespace baton::nvmed {
namespace {

// The most receives of new queues in one transaction, which takes 4096 work requests of all kinds.
constexpr uint32_t kReceivesAtOnce = 2048;
static_assert(kReceivesAtOnce >= kMaxQueueEntries);
// With more staged work requests nothing is begun in a transaction: the completions of one turn,
// and one command more, add less than 500.
constexpr uint32_t kStagedAtOnce = 3500;
constexpr uint64_t kNever = UINT64_MAX;

uint64_t KeepAliveNanoseconds(const ControllerState& controller) {
  return controller.keep_alive_ms * uint64_t{1'000'000};
}

}  // namespace

// ---------------------------------------------------------------- ownership

absl::Status TargetService::Fit(Worker& worker) {
  const Capacity& capacity = worker.capacity();
  if (capacity.shards != 1) {
    // A connection request does not name the controller whose queue it is to be.
    return absl::InvalidArgumentError(
        absl::StrCat("the service has ", capacity.shards, " shards: set shards to 1"));
  }
  if (capacity.shared_receive_queue_depth != 0) {
    return absl::InvalidArgumentError(
        "the service's connections share their receives: leave shared_receive_queue_depth out");
  }
  BATON_ASSIGN_OR_RETURN(plan_, BufferPlan::Make(config_, capacity, worker.buffers().size()));
  const uint32_t needed_state =
      sizeof(QueueState) + plan_->queue_entries() * uint32_t{sizeof(PendingCommand)};
  if (capacity.connection_state_bytes < needed_state) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the service keeps ", capacity.connection_state_bytes,
        " bytes of state per connection: raise connection_state_bytes to ", needed_state));
  }
  registry_.emplace(capacity.shard_state_bytes);
  if (registry_->controllers().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the service keeps ", capacity.shard_state_bytes,
        " bytes of state per shard: raise shard_state_bytes to ", sizeof(RegistryHeader), " and ",
        sizeof(ControllerState), " for each controller"));
  }
  buffers_ = worker.buffers();
  BATON_RETURN_IF_ERROR(plan_->Check(buffers_));
  BATON_ASSIGN_OR_RETURN(target_, Target::Open(config_, *plan_, buffers_));
  options_.queue_entries = static_cast<uint16_t>(plan_->queue_entries());
  // One connection is the admin queue's.
  options_.io_queues =
      static_cast<uint16_t>(std::min(config_.io_queues(), std::max(capacity.connections, 2u) - 1));
  send_depth_ = capacity.send_queue_depth;
  options_.max_transfer_bytes = config_.max_transfer_bytes();
  options_.in_capsule_bytes = config_.in_capsule_bytes();
  options_.firmware = firmware_;
  options_.address = config_.address();
  options_.port = static_cast<uint16_t>(config_.port());
  BATON_RETURN_IF_ERROR(StartExecutor(worker));
  queues_.resize(capacity.connections);
  deadlines_.resize(registry_->controllers().size());
  return absl::OkStatus();
}

absl::Status TargetService::StartExecutor(Worker& worker) {
  bool files = false, slow = false;
  for (const Subsystem& subsystem : target_->subsystems()) {
    for (const Namespace& one : subsystem.namespaces) {
      files |= one.backing->memory() == nullptr;
      slow |= !one.backing->prompt();
    }
  }
  if (files && !worker.capacity().outside_effects) {
    return absl::InvalidArgumentError(
        "namespaces in files: set outside_effects of the service, so that nobody goes on while a "
        "former owner may still be writing");
  }
  if (!slow) return absl::OkStatus();
  jobs_.emplace(config_.io_threads(), [&worker] { worker.Wake(); });
  return absl::OkStatus();
}

absl::Status TargetService::OnAdopt(Shard& shard) {
  BATON_RETURN_IF_ERROR(plan_->Check(buffers_));
  BATON_RETURN_IF_ERROR(registry_->Load(shard.state(), shard.state_version()));
  Forget();
  shard_ = &shard;
  plan_->Stamp(buffers_);
  now_ = MonotonicNanoseconds();
  for (Connection* connection : shard.connections()) {
    const absl::Status status = LoadQueue(*connection);
    // A state that cannot be read fails its connection, not the shard.
    if (!status.ok()) Drop(QueueOf(*connection), MessageOf(status));
  }
  chunks_.Fill();
  MatchControllers();
  const uint32_t any = waiting_.empty() ? 0 : waiting_.front().order;
  std::sort(waiting_.begin(), waiting_.end(), [any](const Waiting& a, const Waiting& b) {
    return ComesBefore(a.order, b.order, any);
  });
  if (!waiting_.empty()) next_order_ = waiting_.back().order + 1;

  const absl::Span<ControllerState> controllers = registry_->controllers();
  for (size_t i = 0; i < controllers.size(); ++i) {
    deadlines_[i] =
        Deadline(std::min(controllers[i].deadline, now_ + KeepAliveNanoseconds(controllers[i])));
  }
  if (registry_->namespaces_hash() != target_->Hash()) {
    for (ControllerState& controller : controllers) {
      if (controller.id != 0) View(controller).NoteNamespacesChanged();
    }
    registry_->set_namespaces_hash(target_->Hash());
    registry_->Touch();
  }
  next_deadline_ = 0;  // EndTurn looks at all of them
  return absl::OkStatus();
}

absl::Status TargetService::LoadQueue(Connection& connection) {
  Queue& queue = QueueOf(connection);
  bool shared = false;
  // First of all, and whatever the state says, claims the chunks of outstanding work requests.
  connection.shard().ForEachBufferInUse(connection, [&](const Buffer& buffer, bool send) {
    const uint32_t chunk = plan_->ChunkOf(buffer.offset);
    if (send && chunk < plan_->chunks()) shared |= !chunks_.Claim(chunk, connection.index());
  });
  const absl::Span<const uint8_t> state = connection.state();
  if (state.empty()) {  // its connect request is not answered, and may not be delivered again
    requests_.push_back({connection.index(), connection.generation()});
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(SavedQueue saved,
                         ReadQueue(state, connection.state_version(), plan_->queue_entries()));
  queue.state = saved.state;
  queue.pending = std::move(saved.pending);
  // Its former owner may have died before it disconnected it.
  if (queue.state.phase == QueueState::kEnding) {
    ends_.push_back({connection.index(), connection.generation()});
  }
  for (size_t slot = 0; slot < queue.pending.size(); ++slot) {
    const PendingCommand& pending = queue.pending[slot];
    if (pending.where == PendingCommand::kIdle) continue;
    ++queue.pending_count;
    waiting_.push_back(
        {connection.index(), connection.generation(), static_cast<uint16_t>(slot), pending.order});
    if (pending.where >= PendingCommand::kChunk0 &&
        !chunks_.Claim(pending.where - PendingCommand::kChunk0, connection.index())) {
      return absl::DataLossError("state names a chunk that another command has");
    }
  }
  return shared ? absl::DataLossError("a work request names a chunk that another command has")
                : absl::OkStatus();
}

// Makes controllers and queues fit each other. They are committed together, but may still disagree:
// if owners died of a connection's end, their successor is not told that end, and a former owner
// may have been faulty.
void TargetService::MatchControllers() {
  const absl::Span<ControllerState> controllers = registry_->controllers();
  std::vector<uint64_t> queues(controllers.size());
  std::vector<const Queue*> admins(controllers.size());
  for (const std::unique_ptr<Queue>& queue : queues_) {
    ControllerState* controller = queue == nullptr ? nullptr : ControllerOf(*queue);
    if (controller == nullptr) continue;
    const size_t place = static_cast<size_t>(controller - controllers.data());
    if (queue->state.id != 0) {
      queues[place] |= uint64_t{1} << (queue->state.id - 1);
    } else if (queue->connection->index() == controller->admin_connection &&
               queue->connection->generation() == controller->admin_generation) {
      admins[place] = queue.get();
    } else {
      queue->state.controller = 0;  // so that its end does not end the controller
      Drop(*queue, "its controller has another admin queue");
    }
  }
  for (size_t place = 0; place < controllers.size(); ++place) {
    ControllerState& controller = controllers[place];
    if (controller.id == 0) continue;
    if (controller.queues != queues[place]) {
      controller.queues = queues[place];
      registry_->Touch();
    }
    if (admins[place] == nullptr) {
      DropController(controller, "its admin queue is gone");
      controller = ControllerState();
    } else if (!HoldsSlotsOf(controller, admins[place]->pending)) {
      controller.held_count = 0;
      DropController(controller, "its events are not of its admin queue");
    } else if (controller.ending != 0) {
      DropController(controller, "its former owner has ended it");
    }
  }
}

void TargetService::OnRelease(Shard&) {
  Quiesce();
  Forget();
}

void TargetService::Quiesce() {
  if (jobs_) {
    jobs_->Drain();
    TakeResults();
  }
  Commit();
}

void TargetService::OnLost(Shard& shard) {
  spdlog::warn("shard {} was taken away", shard.index());
  if (jobs_) jobs_->Drain();
  Forget();
}

void TargetService::OnShutdown(std::string_view reason) {
  spdlog::info("asked to end: {}", std::string(reason));
  stopping_ = true;
}

// Drops the state that is only in this process.
void TargetService::Forget() {
  shard_ = nullptr;
  for (std::unique_ptr<Queue>& queue : queues_) queue.reset();
  touched_.clear();
  waiting_.clear();
  if (jobs_) jobs_->Forget();
  ends_.clear();
  requests_.clear();
  accepted_receives_ = staged_ = 0;
  chunks_.Reset(plan_->chunks());
  next_order_ = 0;
  next_deadline_ = kNever;
}

// ---------------------------------------------------------------- connections

TargetService::Queue& TargetService::QueueOf(Connection& connection) {
  std::unique_ptr<Queue>& queue = queues_[connection.index()];
  if (queue == nullptr) {
    queue = std::make_unique<Queue>();
    queue->connection = &connection;
    queue->generation = connection.generation();
  }
  return *queue;
}

void TargetService::OnCompletion(Shard& shard, const Completion& completion) {
  if (&shard != shard_) return;
  Connection& connection = *completion.connection;
  if (completion.kind == Completion::Kind::kConnectRequest) {
    // The slot's former connection may have ended without a notification.
    Queue* former = queues_[connection.index()].get();
    if (former != nullptr && former->generation != connection.generation()) OnEnd(*former);
    // A successor may have answered the request at adoption, before it gets this completion.
    if (QueueOf(connection).state.phase == 0) OnConnectRequest(connection);
    return;
  }
  Queue& queue = QueueOf(connection);
  switch (completion.kind) {
    case Completion::Kind::kReceive:
      OnReceive(queue, completion);
      break;
    case Completion::Kind::kSend:
      OnSent(queue, completion);
      break;
    case Completion::Kind::kDisconnected:
    case Completion::Kind::kConnectFailed:
      spdlog::info("queue {} of controller {}, connection {} of {}, ended: {}", queue.state.id,
                   queue.state.controller, connection.index(),
                   std::string(connection.peer_address()),
                   std::string(examples::EndText(completion)));
      OnEnd(queue);
      break;
    default:
      break;
  }
}

void TargetService::OnConnectRequest(Connection& connection) {
  RdmaReject reject{0, RdmaRejectStatus::kNoResources};
  RdmaRequest request = {};
  const std::string_view data = connection.private_data();
  std::memcpy(&request, data.data(), std::min(data.size(), sizeof(request)));
  if (data.size() < sizeof(request)) {
    reject.sts = RdmaRejectStatus::kInvalidPrivateDataLength;
  } else if (request.recfmt != 0) {
    reject.sts = RdmaRejectStatus::kInvalidRecfmt;
  } else if (request.qid > options_.io_queues) {
    reject.sts = RdmaRejectStatus::kInvalidQid;
  } else if (request.hsqsize == 0 || request.hsqsize >= plan_->queue_entries()) {
    reject.sts = RdmaRejectStatus::kInvalidHsqsize;
  } else if (accepted_receives_ + request.hsqsize + 1 > kReceivesAtOnce) {
    requests_.push_back({connection.index(), connection.generation()});
    return;
  } else {
    const absl::Status status = Accept(connection, request);
    if (status.ok()) return;
    spdlog::error("queue {} of {} is refused: {}", request.qid,
                  std::string(connection.peer_address()), std::string(status.message()));
    Drop(QueueOf(connection), MessageOf(status));
    return;
  }
  spdlog::warn(
      "a queue of {} is refused: {} bytes of private data, format {}, queue {}, {} entries",
      std::string(connection.peer_address()), data.size(), request.recfmt, request.qid,
      request.hsqsize + 1);
  const absl::Status status = shard_->Reject(
      connection, std::string_view(reinterpret_cast<const char*>(&reject), sizeof(reject)));
  if (!status.ok()) Drop(QueueOf(connection), MessageOf(status));
}

absl::Status TargetService::Accept(Connection& connection, const RdmaRequest& request) {
  BATON_CRASH_POINT("nvmed-accept-begin");
  Queue& queue = QueueOf(connection);
  queue.state.id = request.qid;
  queue.state.entries = static_cast<uint16_t>(request.hsqsize + 1);
  queue.state.wrap = queue.state.entries;
  queue.state.phase = QueueState::kAccepted;
  queue.pending.assign(queue.state.entries, PendingCommand());
  for (uint16_t slot = 0; slot < queue.state.entries; ++slot) {
    const Buffer buffer = plan_->Capsule(connection, slot);
    BATON_RETURN_IF_ERROR(
        shard_->Receive(connection, {&buffer, 1}, Pack({Purpose::kCapsule, slot, {}})));
  }
  queue.connect_by = HostDeadline();
  accepted_receives_ += queue.state.entries;
  staged_ += queue.state.entries;
  const RdmaAccept reply = {0, queue.state.entries, {}};
  BATON_RETURN_IF_ERROR(shard_->Accept(
      connection, std::string_view(reinterpret_cast<const char*>(&reply), sizeof(reply))));
  Touch(queue);
  BATON_CRASH_POINT("nvmed-accept-end");
  return absl::OkStatus();
}

// Answers connect requests in transactions of their own, in each as many as it has room for.
void TargetService::AnswerRequests() {
  while (!requests_.empty() && accepted_receives_ == 0) {
    for (const ConnectionName& request : std::exchange(requests_, {})) {
      const Queue* queue = queues_[request.connection].get();
      if (queue == nullptr || queue->connection->generation() != request.generation ||
          queue->state.phase != 0) {
        continue;
      }
      OnConnectRequest(*queue->connection);
    }
    Commit();
  }
}

void TargetService::OnEnd(Queue& queue) {
  ControllerState* controller = ControllerOf(queue);
  queue.state.phase = QueueState::kEnding;
  if (controller != nullptr && queue.state.id == 0) {
    DropController(*controller, "its admin queue has ended");
    *controller = ControllerState();
    registry_->Touch();
  } else if (controller != nullptr) {
    controller->queues &= ~(uint64_t{1} << (queue.state.id - 1));
    controller->reads += queue.state.reads;
    controller->writes += queue.state.writes;
    controller->blocks_read += queue.state.blocks_read;
    controller->blocks_written += queue.state.blocks_written;
    registry_->Touch();
  }
  const uint32_t index = queue.connection->index();
  if (jobs_) jobs_->Orphan(index, &chunks_);
  chunks_.GiveBackAll(index);
  touched_.erase(std::remove(touched_.begin(), touched_.end(), &queue), touched_.end());
  queues_[index].reset();
}

void TargetService::Drop(Queue& queue, std::string_view why) {
  if (queue.state.phase == QueueState::kEnding) return;
  spdlog::error("queue {} of controller {}, connection {} of {}, is disconnected: {}",
                queue.state.id, queue.state.controller, queue.connection->index(),
                std::string(queue.connection->peer_address()), std::string(why));
  queue.state.phase = QueueState::kEnding;
  ends_.push_back({queue.connection->index(), queue.connection->generation()});
}

// Disconnects the connections that Drop chose, as far as the transaction has room.
void TargetService::EndConnections() {
  std::vector<ConnectionName> later;
  for (const ConnectionName& end : std::exchange(ends_, {})) {
    Queue* queue = queues_[end.connection].get();
    if (queue == nullptr || queue->generation != end.generation) continue;
    absl::Status status = absl::ResourceExhaustedError("");
    if (MakeRoom(*queue)) status = shard_->Disconnect(*queue->connection);
    if (absl::IsResourceExhausted(status)) {
      later.push_back(end);
    } else if (!status.ok()) {
      spdlog::error("connection {}: disconnecting failed: {}", end.connection,
                    std::string(status.message()));
    }
  }
  ends_.insert(ends_.end(), later.begin(), later.end());
}

void TargetService::DropController(ControllerState& controller, std::string_view why) {
  controller.ending = 1;
  registry_->Touch();
  for (const std::unique_ptr<Queue>& queue : queues_) {
    if (queue != nullptr && queue->state.controller == controller.id &&
        queue->state.phase == QueueState::kConnected) {
      Drop(*queue, why);
    }
  }
}

ControllerState* TargetService::ControllerOf(const Queue& queue) {
  return registry_->Find(queue.state.controller);
}

Totals TargetService::TotalsOf(const ControllerState& controller) const {
  // Blocks are counted in units of 512 bytes.
  Totals totals{controller.reads, controller.writes, controller.blocks_read * 512,
                controller.blocks_written * 512};
  for (const std::unique_ptr<Queue>& queue : queues_) {
    if (queue == nullptr || queue->state.controller != controller.id) continue;
    totals.reads += queue->state.reads;
    totals.writes += queue->state.writes;
    totals.bytes_read += queue->state.blocks_read * 512;
    totals.bytes_written += queue->state.blocks_written * 512;
  }
  return totals;
}

// ---------------------------------------------------------------- commands arrive

absl::Span<uint8_t> TargetService::BytesAt(uint64_t offset, uint64_t length) const {
  return buffers_.subspan(offset, length);
}

CapsuleLimits TargetService::LimitsOf(const Queue& queue) const {
  CapsuleLimits limits;
  limits.admin_queue = queue.state.id == 0;
  limits.in_capsule_bytes = limits.admin_queue ? 0 : plan_->in_capsule_bytes();
  limits.max_transfer_bytes = plan_->chunk_bytes();
  return limits;
}

bool TargetService::HasRoom(const Queue& queue) const {
  return queue.connection->send_room() >= 2 && queue.connection->receive_room() >= 1;
}

void TargetService::OnReceive(Queue& queue, const Completion& completion) {
  if (queue.state.phase == QueueState::kEnding) return;
  if (completion.status != verbs::CompletionStatus::kSuccess) {
    if (completion.status != verbs::CompletionStatus::kFlushError) {
      spdlog::error("queue {} of controller {}: a receive failed: {}", queue.state.id,
                    queue.state.controller,
                    std::string(verbs::CompletionStatusName(completion.status)));
    }
    return;
  }
  const uint16_t slot = Unpack(completion.tag).slot;
  if (slot >= queue.pending.size()) return Drop(queue, "a receive of another program");
  Hear(queue);
  BATON_CRASH_POINT("nvmed-command-begin");
  Begin(queue, slot, completion.byte_len);
  BATON_CRASH_POINT("nvmed-command-end");
}

void TargetService::Begin(Queue& queue, uint16_t slot, uint32_t bytes) {
  if (!HasRoom(queue) && !StartsWithoutRoom(queue, slot, bytes, false)) {
    return Wait(queue, slot, bytes, std::nullopt);
  }
  const Buffer buffer = plan_->Capsule(*queue.connection, slot);
  const absl::StatusOr<Capsule> capsule =
      ParseCapsule(BytesAt(buffer.offset, std::min(bytes, buffer.length)), LimitsOf(queue));
  if (!capsule.ok()) return Drop(queue, MessageOf(capsule.status()));
  Step step{queue, slot, bytes, *capsule, 0};
  const StatusCode status =
      capsule->status != StatusCode::kSuccess ? capsule->status : CheckData(step);
  if (status != StatusCode::kSuccess) {
    Answer answer;
    answer.status = status;
    return Finish(step, answer);
  }
  if (DirectionOf(step.capsule.command) != DataDirection::kToController || step.length == 0) {
    return Perform(step, std::nullopt);
  }
  if (step.capsule.data.kind == DataPointer::Kind::kKeyed) return Fetch(step);
  const Namespace* space = queue.state.id != 0 ? NamespaceOf(step) : nullptr;
  if (space == nullptr || (space->backing->prompt() && !space->backing->direct())) {
    return Perform(step, std::nullopt);
  }
  // Copied to a chunk: it lies on pages, and if the connection ends during the write, no later
  // capsule arrives there.
  const std::optional<uint32_t> chunk = chunks_.Take(queue.connection->index());
  if (!chunk) return Wait(queue, slot, bytes, std::nullopt);
  std::memcpy(BytesAt(plan_->Chunk(*chunk), step.length).data(),
              BytesAt(buffer.offset + step.capsule.data.offset, step.length).data(), step.length);
  Perform(step, chunk);
}

// Returns whether a thread is to execute the command of a slot. If so, `*work` becomes what it
// executes.
bool TargetService::IsForThreads(Queue& queue, uint16_t slot, uint32_t bytes, IoWork* work,
                                 DataPointer::Kind* data) {
  if (queue.state.id == 0 || queue.state.phase != QueueState::kConnected) return false;
  const Buffer buffer = plan_->Capsule(*queue.connection, slot);
  const absl::StatusOr<Capsule> capsule =
      ParseCapsule(BytesAt(buffer.offset, std::min(bytes, buffer.length)), LimitsOf(queue));
  if (!capsule.ok() || capsule->status != StatusCode::kSuccess) return false;
  Step step{queue, slot, bytes, *capsule, 0};
  if (CheckData(step) != StatusCode::kSuccess) return false;
  const Namespace* space = NamespaceOf(step);
  const bool has_data =
      DirectionOf(capsule->command) == DataDirection::kToController && step.length > 0;
  *data = has_data ? capsule->data.kind : DataPointer::Kind::kNone;
  return space != nullptr && !space->backing->prompt() && View(*ControllerOf(queue)).enabled() &&
         MakeWork(capsule->command, *SubsystemOf(queue), work) == StatusCode::kSuccess;
}

// Returns true for a command for threads whose data are here: it needs room only when it is
// answered. A former owner may have executed it, so it must not wait for anything that later
// commands do not wait for.
bool TargetService::StartsWithoutRoom(Queue& queue, uint16_t slot, uint32_t bytes, bool fetched) {
  IoWork work;
  DataPointer::Kind data;
  return IsForThreads(queue, slot, bytes, &work, &data) &&
         (fetched || data != DataPointer::Kind::kKeyed);
}

// Checks that the data of a command are as long as the command says, and where they can be.
StatusCode TargetService::CheckData(Step& step) {
  const SubmissionEntry& command = step.capsule.command;
  const bool admin = step.queue.state.id == 0;
  uint8_t block_shift = 9;
  if (!admin) {
    const Namespace* space = NamespaceOf(step);
    if (space != nullptr) block_shift = static_cast<uint8_t>(space->block_shift);
  }
  const std::optional<uint64_t> length = DataLength(command, admin, block_shift);
  if (!length) return StatusCode::kSuccess;  // the command's execution refuses it
  const StatusCode status = CheckDataLength(step.capsule.data, *length, LimitsOf(step.queue));
  if (status != StatusCode::kSuccess) return status;
  step.length = static_cast<uint32_t>(*length);
  if (step.length > 0 && DirectionOf(command) == DataDirection::kToHost &&
      step.capsule.data.kind != DataPointer::Kind::kKeyed) {
    return StatusCode::kSglDescriptorTypeInvalid;
  }
  return StatusCode::kSuccess;
}

Subsystem* TargetService::SubsystemOf(const Queue& queue) {
  ControllerState* controller = ControllerOf(queue);
  return controller == nullptr ? nullptr : View(*controller).subsystem();
}

Namespace* TargetService::NamespaceOf(const Step& step) {
  Subsystem* subsystem = SubsystemOf(step.queue);
  return subsystem == nullptr ? nullptr : subsystem->Find(step.capsule.command.nsid);
}

// READs the host's data into a chunk, also for a namespace in memory, because a block must be
// written as a whole or not at all.
void TargetService::Fetch(const Step& step) {
  Connection& connection = *step.queue.connection;
  const std::optional<uint32_t> chunk = chunks_.Take(connection.index());
  if (!chunk) return Wait(step.queue, step.slot, step.bytes, std::nullopt);
  const Buffer buffer{plan_->Chunk(*chunk), step.length};
  SendWork read;
  read.opcode = verbs::Opcode::kRead;
  read.buffers = {&buffer, 1};
  read.tag = Pack({Purpose::kFetch, step.slot, chunk});
  read.remote_address = step.capsule.data.address;
  read.rkey = step.capsule.data.key;
  const absl::Status status = Send(step.queue, read);
  if (!status.ok()) Drop(step.queue, MessageOf(status));
}

void TargetService::OnSent(Queue& queue, const Completion& completion) {
  AwaitSends(queue);
  const WorkTag tag = Unpack(completion.tag);
  if (tag.chunk && !chunks_.Has(*tag.chunk, queue.connection->index())) {
    return Drop(queue, "a work request of another program");
  }
  if (completion.status != verbs::CompletionStatus::kSuccess) {
    if (completion.status != verbs::CompletionStatus::kFlushError) {
      spdlog::error("queue {} of controller {}: a work request failed: {}", queue.state.id,
                    queue.state.controller,
                    std::string(verbs::CompletionStatusName(completion.status)));
    }
    if (tag.chunk) chunks_.GiveBack(*tag.chunk);
    return;
  }
  switch (tag.purpose) {
    case Purpose::kFetch:
      if (queue.state.phase == QueueState::kEnding || tag.slot >= queue.pending.size()) {
        if (tag.chunk) chunks_.GiveBack(*tag.chunk);
        return;
      }
      BATON_CRASH_POINT("nvmed-fetched-begin");
      // The capsule has only its command: fetched data do not follow it.
      Continue(queue, tag.slot, BufferPlan::kCommandBytes, tag.chunk);
      BATON_CRASH_POINT("nvmed-fetched-end");
      return;
    case Purpose::kReturn:
      if (tag.chunk) chunks_.GiveBack(*tag.chunk);
      return;
    case Purpose::kLastResponse:
      return Drop(queue, "the host has asked for it");
    default:
      return;
  }
}

// Goes on when the host's data are here. The capsule still has the command, and is parsed again.
void TargetService::Continue(Queue& queue, uint16_t slot, uint32_t bytes,
                             std::optional<uint32_t> chunk) {
  if (!HasRoom(queue) && !StartsWithoutRoom(queue, slot, bytes, true)) {
    return Wait(queue, slot, bytes, chunk);
  }
  const Buffer buffer = plan_->Capsule(*queue.connection, slot);
  const absl::StatusOr<Capsule> capsule =
      ParseCapsule(BytesAt(buffer.offset, std::min(bytes, buffer.length)), LimitsOf(queue));
  if (!capsule.ok()) return Drop(queue, MessageOf(capsule.status()));
  Step step{queue, slot, bytes, *capsule, 0};
  Answer answer;
  answer.status = capsule->status != StatusCode::kSuccess ? capsule->status : CheckData(step);
  if (answer.status != StatusCode::kSuccess) {
    // The namespaces may have changed since the data were fetched.
    if (chunk) chunks_.GiveBack(*chunk);
    return Finish(step, answer);
  }
  Perform(step, chunk);
}

// ---------------------------------------------------------------- commands are executed

// `chunk`: where the data are, unless they are in the capsule.
void TargetService::Perform(const Step& step, std::optional<uint32_t> chunk) {
  const DataPointer& pointer = step.capsule.data;
  absl::Span<uint8_t> data;
  if (chunk) {
    data = BytesAt(plan_->Chunk(*chunk), step.length);
  } else if (pointer.kind == DataPointer::Kind::kInCapsule) {
    const Buffer buffer = plan_->Capsule(*step.queue.connection, step.slot);
    data = BytesAt(buffer.offset + pointer.offset, step.length);
  }
  const bool fabrics = step.capsule.command.opcode == static_cast<uint8_t>(AdminOpcode::kFabrics);
  const bool connected = step.queue.state.phase == QueueState::kConnected;
  if (!fabrics && connected && step.queue.state.id != 0) {
    return PerformIo(step, chunk, data);
  }
  if (chunk) chunks_.GiveBack(*chunk);  // it is free once this is committed
  if (fabrics) {
    PerformFabrics(step, data);
  } else if (!connected) {
    Answer answer;
    answer.status = StatusCode::kCommandSequenceError;
    Finish(step, answer);
  } else {
    PerformAdmin(step);
  }
}

void TargetService::PerformFabrics(const Step& step, absl::Span<const uint8_t> data) {
  const SubmissionEntry& command = step.capsule.command;
  const FabricsType type = FabricsTypeOf(command);
  const bool connected = step.queue.state.phase == QueueState::kConnected;
  Answer answer;
  if ((type == FabricsType::kConnect) == connected) {
    answer.status = StatusCode::kCommandSequenceError;
    return Finish(step, answer);
  }
  ControllerState* controller = ControllerOf(step.queue);
  switch (type) {
    case FabricsType::kConnect:
      return PerformConnect(step, data);
    case FabricsType::kPropertyGet:
    case FabricsType::kPropertySet:
      if (step.queue.state.id != 0 || controller == nullptr) {
        answer.status = StatusCode::kInvalidField;
      } else {
        Controller view = View(*controller);
        answer = type == FabricsType::kPropertyGet ? view.GetProperty(command)
                                                   : view.SetProperty(command);
      }
      break;
    case FabricsType::kDisconnect:
      if (step.queue.state.id == 0) answer.status = StatusCode::kDisconnectInvalidQueueType;
      break;
    default:
      answer.status = StatusCode::kInvalidOpcode;
      break;
  }
  Finish(step, answer);
}

void TargetService::PerformConnect(const Step& step, absl::Span<const uint8_t> data) {
  Queue& queue = step.queue;
  ConnectRequest request = {};
  request.command = ViewOf<ConnectCommand>(step.capsule.command);
  std::memcpy(&request.data, data.data(), std::min(data.size(), sizeof(request.data)));
  request.queue_id = queue.state.id;
  request.entries = queue.state.entries;
  request.connection = queue.connection->index();
  request.generation = queue.connection->generation();
  ControllerState* controller = nullptr;
  const Answer answer = Connect(request, options_, *target_, *registry_, &controller);
  if (answer.status == StatusCode::kSuccess) {
    queue.state.phase = QueueState::kConnected;
    queue.state.controller = controller->id;
    queue.state.wrap = static_cast<uint16_t>(request.command.sqsize + 1);
    queue.state.no_flow_control =
        (request.command.cattr & kConnectDisableSqFlowControl) != 0 ? 1 : 0;
    if (queue.state.id == 0) {
      controller->deadline = now_ + KeepAliveNanoseconds(*controller);
      Hear(queue);
    }
    spdlog::info("queue {} of controller {}, connection {} of {}, is connected: {}", queue.state.id,
                 controller->id, queue.connection->index(),
                 std::string(queue.connection->peer_address()), controller->subsystem_nqn);
  } else {
    spdlog::warn("a Connect of {} for queue {} is refused: status {:#x}",
                 std::string(queue.connection->peer_address()), queue.state.id,
                 static_cast<unsigned>(answer.status));
  }
  Finish(step, answer);
}

void TargetService::PerformAdmin(const Step& step) {
  ControllerState* controller = ControllerOf(step.queue);
  if (controller == nullptr) return Drop(step.queue, "its controller is gone");
  std::optional<uint32_t> chunk;
  Buffer buffer{0, step.length};
  if (step.length > 0 && DirectionOf(step.capsule.command) == DataDirection::kToHost) {
    chunk = chunks_.Take(step.queue.connection->index());
    if (!chunk) return Wait(step.queue, step.slot, step.bytes, std::nullopt);
    buffer.offset = plan_->Chunk(*chunk);
  }
  const Answer answer =
      View(*controller)
          .Execute(step.capsule.command, step.slot, TotalsOf(*controller),
                   chunk ? BytesAt(buffer.offset, buffer.length) : absl::Span<uint8_t>());
  const auto opcode = static_cast<AdminOpcode>(step.capsule.command.opcode);
  if (opcode == AdminOpcode::kKeepAlive || opcode == AdminOpcode::kSetFeatures) {
    // A successor uses this deadline. The command may have changed the timeout, or set the first
    // one.
    controller->deadline = now_ + KeepAliveNanoseconds(*controller);
    registry_->Touch();
    Hear(step.queue);
  }
  if (answer.held) return;
  Finish(step, answer, chunk ? std::optional(buffer) : std::nullopt, chunk);
}

// `chunk`: where `data`, the host's, are; nullopt if they are in the capsule.
void TargetService::PerformIo(const Step& step, std::optional<uint32_t> chunk,
                              absl::Span<uint8_t> data) {
  Subsystem* subsystem = SubsystemOf(step.queue);
  Answer answer;
  IoWork work;
  if (subsystem == nullptr || !View(*ControllerOf(step.queue)).enabled()) {
    answer.status = StatusCode::kCommandSequenceError;
  } else {
    answer.status = MakeWork(step.capsule.command, *subsystem, &work);
  }
  if (answer.status != StatusCode::kSuccess) {
    if (chunk) chunks_.GiveBack(*chunk);
    return Finish(step, answer);
  }
  if (!work.space->backing->prompt()) return Submit(step, work, chunk, data);

  std::optional<Buffer> returned;
  if (work.kind == IoWork::Kind::kRead) {
    chunk = chunks_.Take(step.queue.connection->index());
    if (!chunk) return Wait(step.queue, step.slot, step.bytes, std::nullopt);
    returned = Buffer{plan_->Chunk(*chunk), step.length};
    answer.status = Run(work, BytesAt(returned->offset, returned->length));
  } else {
    if (!IsTimeTo("lose-write")) answer.status = Run(work, data);
    BATON_CRASH_POINT("nvmed-executed");
    if (chunk) chunks_.GiveBack(*chunk);
    chunk.reset();
  }
  if (answer.status == StatusCode::kSuccess) Count(step.queue, work);
  Finish(step, answer, returned, chunk);
}

void TargetService::Count(Queue& queue, const IoWork& work) {
  if (work.kind == IoWork::Kind::kRead) {
    ++queue.state.reads;
    queue.state.blocks_read += work.bytes / 512;
  } else if (work.kind == IoWork::Kind::kWrite) {
    ++queue.state.writes;
    queue.state.blocks_written += work.bytes / 512;
  }
}

// ---------------------------------------------------------------- commands that take long

void TargetService::Submit(const Step& step, const IoWork& work, std::optional<uint32_t> chunk,
                           absl::Span<uint8_t> data) {
  const std::optional<uint32_t> fetched = chunk;
  bool waits =
      !jobs_->has_room() || jobs_->Conflicts(work) || (!resumed_order_ && !waiting_.empty());
  if (!waits && work.kind == IoWork::Kind::kRead) {
    chunk = chunks_.Take(step.queue.connection->index());
    if (chunk) data = BytesAt(plan_->Chunk(*chunk), step.length);
    waits = !chunk;
  }
  if (waits) return Wait(step.queue, step.slot, step.bytes, fetched);
  SetPending(step.queue, step.slot, step.bytes, fetched);
  IoWork done = work;
  if (work.kind == IoWork::Kind::kWrite && IsTimeTo("lose-write")) done.kind = IoWork::Kind::kFlush;
  Job job;
  job.connection = step.queue.connection->index();
  job.generation = step.queue.connection->generation();
  job.slot = step.slot;
  job.chunk = chunk;
  job.work = work;
  jobs_->Start(job, done, data);
}

void TargetService::TakeResults() {
  jobs_->TakeResults([this](Job& job, StatusCode status) {
    Queue* queue = job.orphaned ? nullptr : queues_[job.connection].get();
    if (queue != nullptr && queue->state.phase != QueueState::kEnding &&
        (!HasRoom(*queue) || !MakeRoom(*queue))) {
      return false;
    }
    BATON_CRASH_POINT("nvmed-result");
    Complete(job, status);
    return true;
  });
}

void TargetService::Complete(const Job& job, StatusCode status) {
  Queue* queue = job.orphaned ? nullptr : queues_[job.connection].get();
  const uint32_t bytes = queue == nullptr ? 0 : queue->pending[job.slot].bytes;
  // Also for a queue that is ending: a successor would take the chunk for one of the command's.
  if (queue != nullptr) ClearPending(*queue, job.slot);
  if (queue == nullptr || queue->state.phase == QueueState::kEnding) {
    if (job.chunk) chunks_.GiveBack(*job.chunk);
    return;
  }
  const Buffer buffer = plan_->Capsule(*queue->connection, job.slot);
  const absl::StatusOr<Capsule> capsule =
      ParseCapsule(BytesAt(buffer.offset, std::min(bytes, buffer.length)), LimitsOf(*queue));
  if (!capsule.ok()) return Drop(*queue, MessageOf(capsule.status()));
  const Step step{*queue, job.slot, bytes, *capsule, static_cast<uint32_t>(job.work.bytes)};
  Answer answer;
  answer.status = status;
  if (status == StatusCode::kSuccess) Count(*queue, job.work);
  if (job.work.kind == IoWork::Kind::kRead) {
    const Buffer data{plan_->Chunk(*job.chunk), step.length};
    return Finish(step, answer, data, job.chunk);
  }
  if (job.chunk) chunks_.GiveBack(*job.chunk);
  Finish(step, answer);
}

// ---------------------------------------------------------------- commands are answered

void TargetService::Finish(const Step& step, const Answer& answer, std::optional<Buffer> data,
                           std::optional<uint32_t> chunk) {
  Queue& queue = step.queue;
  const SubmissionEntry& command = step.capsule.command;
  if (data && answer.status == StatusCode::kSuccess) {
    SendWork write;
    write.opcode = verbs::Opcode::kWrite;
    write.buffers = {&*data, 1};
    write.tag = Pack({Purpose::kReturn, step.slot, chunk});
    write.remote_address = step.capsule.data.address;
    write.rkey = step.capsule.data.key;
    const absl::Status status = Send(queue, write);
    if (!status.ok()) return Drop(queue, MessageOf(status));
    BATON_CRASH_POINT("nvmed-data-staged");
  } else if (chunk) {
    chunks_.GiveBack(*chunk);
  }
  CompletionEntry entry = {};
  entry.result = answer.result;
  entry.cid = command.cid;
  entry.status = StatusField(answer.status, IsLasting(answer.status));
  ControllerState* controller = ControllerOf(queue);
  if (answer.status != StatusCode::kSuccess && controller != nullptr) {
    View(*controller).NoteError(queue.state.id, command, entry.status);
  }
  for (uint32_t i = 0; i < answer.released; ++i) {
    const HeldEvent& released = answer.release[i];
    if (answer.answer_released) {
      CompletionEntry aborted = {};
      aborted.cid = released.command_id;
      aborted.status = StatusField(StatusCode::kAbortRequested, true);
      Respond(queue, released.slot, aborted, DataPointer(), false);
    } else if (!PostReceive(queue, released.slot)) {
      return;
    }
  }
  const bool last = command.opcode == static_cast<uint8_t>(AdminOpcode::kFabrics) &&
                    FabricsTypeOf(command) == FabricsType::kDisconnect &&
                    answer.status == StatusCode::kSuccess;
  Respond(queue, step.slot, entry, step.capsule.data, last);
}

// Sends the answer and posts the slot's receive again, in one transaction: a host that has the
// answer may send its next command, and needs the receive.
void TargetService::Respond(Queue& queue, uint16_t slot, const CompletionEntry& answer,
                            const DataPointer& data, bool last) {
  if (queue.state.phase == QueueState::kEnding) return;
  Connection& connection = *queue.connection;
  CompletionEntry entry = answer;
  queue.state.head = static_cast<uint16_t>((queue.state.head + 1) % queue.state.wrap);
  entry.sqhd = queue.state.no_flow_control != 0 ? 0xffff : queue.state.head;
  const Buffer buffer{plan_->Response(connection, connection.next_send()), sizeof(entry)};
  std::memcpy(BytesAt(buffer.offset, buffer.length).data(), &entry, sizeof(entry));
  SendWork send;
  send.buffers = {&buffer, 1};
  send.tag = Pack({last ? Purpose::kLastResponse : Purpose::kResponse, slot, std::nullopt});
  if (data.kind == DataPointer::Kind::kKeyed && data.invalidate_key) {
    send.opcode = verbs::Opcode::kSendWithInvalidate;
    send.invalidate_rkey = data.key;
  }
  absl::Status status;
  if (!IsTimeTo("lose-response")) status = Send(queue, send);
  if (status.ok() && IsTimeTo("repeat-response")) status = Send(queue, send);
  if (!status.ok()) return Drop(queue, MessageOf(status));
  BATON_CRASH_POINT("nvmed-response-staged");
  PostReceive(queue, slot);
  Touch(queue);
}

absl::Status TargetService::Send(Queue& queue, const SendWork& work) {
  if (!queue.sends_by) AwaitSends(queue);
  ++staged_;
  return shard_->Send(*queue.connection, work);
}

bool TargetService::PostReceive(Queue& queue, uint16_t slot) {
  ++staged_;
  const Buffer buffer = plan_->Capsule(*queue.connection, slot);
  const absl::Status status = shard_->Receive(*queue.connection, {&buffer, 1},
                                              Pack({Purpose::kCapsule, slot, std::nullopt}));
  if (!status.ok()) Drop(queue, MessageOf(status));
  return status.ok();
}

// ---------------------------------------------------------------- waiting for room

// Records that the command is pending, so that a successor would go on with it. Returns its place
// in the order of arrival.
uint32_t TargetService::SetPending(Queue& queue, uint16_t slot, uint32_t bytes,
                                   std::optional<uint32_t> chunk) {
  PendingCommand& pending = queue.pending[slot];
  pending.where = static_cast<uint16_t>(chunk ? PendingCommand::kChunk0 + *chunk
                                              : uint32_t{PendingCommand::kNoChunk});
  pending.bytes = static_cast<uint16_t>(bytes);
  pending.order = resumed_order_ ? *resumed_order_ : next_order_++;
  ++queue.pending_count;
  Touch(queue);
  return pending.order;
}

void TargetService::ClearPending(Queue& queue, uint16_t slot) {
  queue.pending[slot] = PendingCommand();
  --queue.pending_count;
  Touch(queue);
}

void TargetService::Wait(Queue& queue, uint16_t slot, uint32_t bytes,
                         std::optional<uint32_t> chunk) {
  const uint32_t order = SetPending(queue, slot, bytes, chunk);
  const Waiting waiting{queue.connection->index(), queue.connection->generation(), slot, order};
  if (resumed_order_) {
    blocked_ = true;  // Resume keeps its place
  } else {
    waiting_.push_back(waiting);
  }
}

// Goes on with waiting commands, in the order of arrival. A command that cannot go on yet (its
// queue has no room, there is no chunk, or it overlaps another) keeps its place. It delays only
// later writes that overlap it, and these only if it has all of its data. Without its data no
// former owner can have executed it, and it may be waiting for a chunk that a later write has.
void TargetService::Resume() {
  passed_over_.clear();
  passed_writes_.clear();
  while (!waiting_.empty()) {
    const Waiting next = waiting_.front();
    waiting_.pop_front();
    Queue* queue = queues_[next.connection].get();
    if (queue == nullptr || queue->generation != next.generation ||
        queue->state.phase == QueueState::kEnding) {
      continue;
    }
    IoWork work;
    DataPointer::Kind data = DataPointer::Kind::kNone;
    const PendingCommand pending = queue->pending[next.slot];
    const bool fetched = pending.where >= PendingCommand::kChunk0;
    const bool for_threads = IsForThreads(*queue, next.slot, pending.bytes, &work, &data);
    const bool held_up =
        for_threads && std::any_of(passed_writes_.begin(), passed_writes_.end(),
                                   [&](const IoWork& other) { return IsOverlap(work, other); });
    const bool can_start =
        HasRoom(*queue) || (for_threads && (fetched || data != DataPointer::Kind::kKeyed));
    blocked_ = held_up || !can_start || !MakeRoom(*queue);
    if (!blocked_) {
      ClearPending(*queue, next.slot);
      resumed_order_ = next.order;
      if (fetched) {
        Continue(*queue, next.slot, pending.bytes, pending.where - PendingCommand::kChunk0);
      } else {
        Begin(*queue, next.slot, pending.bytes);
      }
      resumed_order_.reset();
    }
    if (!blocked_) continue;
    passed_over_.push_back(next);
    const bool has_data = queue->pending[next.slot].where >= PendingCommand::kChunk0 ||
                          data == DataPointer::Kind::kNone;
    if (for_threads && work.writes() && has_data) passed_writes_.push_back(work);
  }
  waiting_.assign(passed_over_.begin(), passed_over_.end());
}

// ---------------------------------------------------------------- the end of a turn

// Notes that the queue's state is to be saved, and takes the room for it in the transaction. There
// is room whenever a completion is delivered, and after MakeRoom. Returns false if there is none.
bool TargetService::Touch(Queue& queue) {
  if (queue.touched) return true;
  const absl::Span<const uint8_t> state(reinterpret_cast<const uint8_t*>(&queue.state),
                                        sizeof(queue.state));
  const absl::Status status = shard_->SetState(*queue.connection, state, kStateVersion);
  if (absl::IsResourceExhausted(status)) return false;
  queue.touched = true;
  touched_.push_back(&queue);
  return true;
}

// Makes room in the transaction for a step of the queue. Commits if there is none. Returns false if
// there is none even then.
bool TargetService::MakeRoom(Queue& queue) {
  if (staged_ <= kStagedAtOnce && Touch(queue)) return true;
  Commit();
  return staged_ == 0 && Touch(queue);
}

// Notes a sign of life of the queue's host.
void TargetService::Hear(const Queue& queue) {
  const ControllerState* controller = ControllerOf(queue);
  if (controller == nullptr || controller->keep_alive_ms == 0) return;
  const size_t place = static_cast<size_t>(controller - registry_->controllers().data());
  deadlines_[place] = Deadline(now_ + KeepAliveNanoseconds(*controller));
  next_deadline_ = std::min(next_deadline_, deadlines_[place].at());
}

Deadline TargetService::HostDeadline() {
  const Deadline deadline(now_ + config_.host_timeout_ms() * uint64_t{1'000'000});
  next_deadline_ = std::min(next_deadline_, deadline.at());
  return deadline;
}

// Starts the deadline by which the host has to take something, anew with each thing that it takes.
// A host that takes no answers would otherwise keep chunks, and blocks that others want to write,
// for ever.
void TargetService::AwaitSends(Queue& queue) { queue.sends_by = HostDeadline(); }

// Returns why the queue's time is over, or nullopt if it is not. A successor starts its deadlines
// anew.
std::optional<std::string_view> TargetService::CheckQueue(Queue& queue) {
  if (queue.state.phase == QueueState::kAccepted && !queue.connect_by) {
    queue.connect_by = HostDeadline();
  } else if (queue.state.phase != QueueState::kAccepted) {
    queue.connect_by.reset();
  }
  const bool idle = queue.connection->send_room() == send_depth_;
  if (idle) queue.sends_by.reset();
  if (!idle && !queue.sends_by) AwaitSends(queue);
  if (queue.connect_by && queue.connect_by->IsOver(now_)) {
    return "no Connect within host_timeout_ms";
  }
  if (queue.sends_by && queue.sends_by->IsOver(now_)) {
    return "it takes nothing that it is sent, for host_timeout_ms";
  }
  for (const std::optional<Deadline>* deadline : {&queue.connect_by, &queue.sends_by}) {
    if (*deadline) next_deadline_ = std::min(next_deadline_, (*deadline)->at());
  }
  return std::nullopt;
}

void TargetService::CheckDeadlines() {
  next_deadline_ = kNever;
  for (const std::unique_ptr<Queue>& queue : queues_) {
    if (queue == nullptr || queue->state.phase == 0) continue;
    if (queue->state.phase == QueueState::kEnding) continue;
    if (const auto why = CheckQueue(*queue)) Drop(*queue, *why);
  }
  const absl::Span<ControllerState> controllers = registry_->controllers();
  for (size_t i = 0; i < controllers.size(); ++i) {
    ControllerState& controller = controllers[i];
    if (controller.id == 0 || controller.keep_alive_ms == 0 || controller.ending != 0) continue;
    if (deadlines_[i].IsOver(now_)) {
      DropController(controller, "no sign of life of its host within the keep alive timeout");
    } else {
      next_deadline_ = std::min(next_deadline_, deadlines_[i].at());
    }
  }
}

void TargetService::TellChanges() {
  for (ControllerState& controller : registry_->controllers()) {
    if (controller.id == 0 || controller.ending != 0) continue;
    Queue* queue = queues_[controller.admin_connection].get();
    if (queue == nullptr || queue->state.controller != controller.id ||
        !View(controller).HasEvent() || !HasRoom(*queue) || !MakeRoom(*queue)) {
      continue;
    }
    HeldEvent request;
    CompletionEntry entry = {};
    if (!View(controller).TakeEvent(&request, &entry.result)) continue;
    entry.cid = request.command_id;
    Respond(*queue, request.slot, entry, DataPointer(), false);
  }
}

void TargetService::EndTurn(uint64_t now) {
  now_ = now;
  if (shard_ == nullptr) return;
  if (jobs_) TakeResults();
  TellChanges();
  if (now_ >= next_deadline_) CheckDeadlines();
  EndConnections();
  do {
    chunks_freed_ = false;
    Resume();
    Commit();
    AnswerRequests();
  } while (chunks_freed_ && !waiting_.empty());  // nothing else may come to resume them
}

void TargetService::Commit() {
  if (shard_ == nullptr) return;
  for (Queue* const queue : touched_) {
    absl::Span<const PendingCommand> commands;
    if (queue->pending_count > 0) commands = queue->pending;
    WriteQueue(queue->state, commands, &state_bytes_);
    queue->touched = false;
    const absl::Status status = shard_->SetState(*queue->connection, state_bytes_, kStateVersion);
    if (!status.ok()) Drop(*queue, MessageOf(status));
  }
  touched_.clear();
  if (registry_->touched()) {
    const absl::Status status = shard_->SetShardState(registry_->Save(), kStateVersion);
    if (!status.ok()) spdlog::error("state of the shard: {}", std::string(status.message()));
    registry_->Saved();
  }
  BATON_CRASH_POINT("nvmed-commit");
  const absl::Status status = shard_->Commit();
  if (status.ok()) {
    accepted_receives_ = staged_ = 0;
    chunks_freed_ |= chunks_.Committed();
  } else {
    spdlog::error("commit: {}", std::string(status.message()));
  }
}

}  // namespace baton::nvmed

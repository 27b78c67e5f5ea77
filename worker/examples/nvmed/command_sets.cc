#include "worker/examples/nvmed/command_sets.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "spdlog/spdlog.h"
#include "worker/examples/nvmed/connect.h"
#include "worker/examples/nvmed/io_command.h"
#include "worker/examples/nvmed/nvme_data.h"

namespace baton::nvmed {
namespace {

void Count(Queue& queue, const IoWork& work) {
  if (work.kind == IoWork::Kind::kRead) {
    ++queue.state.reads;
    queue.state.blocks_read += work.bytes / 512;
  } else if (work.kind == IoWork::Kind::kWrite) {
    ++queue.state.writes;
    queue.state.blocks_written += work.bytes / 512;
  }
}

}  // namespace

// ---------------------------------------------------------------- commands are answered

void Responder::Finish(const Step& step, const Answer& answer, std::optional<Buffer> data,
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
    const absl::Status status = transaction_.Send(queue, write);
    if (!status.ok()) return transaction_.Drop(queue, MessageOf(status));
    BATON_CRASH_POINT("nvmed-data-staged");
  } else if (chunk) {
    resources_.chunks.GiveBack(*chunk);
  }
  CompletionEntry entry = {};
  entry.result = answer.result;
  entry.cid = command.cid;
  entry.status = StatusField(answer.status, IsLasting(answer.status));
  ControllerState* controller = resources_.ControllerOf(queue);
  if (answer.status != StatusCode::kSuccess && controller != nullptr) {
    resources_.View(*controller).NoteError(queue.state.id, command, entry.status);
  }
  for (uint32_t i = 0; i < answer.released; ++i) {
    const HeldEvent& released = answer.release[i];
    if (answer.answer_released) {
      CompletionEntry aborted = {};
      aborted.cid = released.command_id;
      aborted.status = StatusField(StatusCode::kAbortRequested, true);
      Respond(queue, released.slot, aborted, DataPointer(), false);
    } else if (!transaction_.PostReceive(queue, released.slot)) {
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
void Responder::Respond(Queue& queue, uint16_t slot, const CompletionEntry& answer,
                        const DataPointer& data, bool last) {
  if (queue.state.phase == QueueState::kEnding) return;
  Connection& connection = *queue.connection;
  CompletionEntry entry = answer;
  queue.state.head = static_cast<uint16_t>((queue.state.head + 1) % queue.state.wrap);
  entry.sqhd = queue.state.no_flow_control != 0 ? 0xffff : queue.state.head;
  const Buffer buffer{resources_.plan.Response(connection, connection.next_send()), sizeof(entry)};
  std::memcpy(resources_.BytesAt(buffer.offset, buffer.length).data(), &entry, sizeof(entry));
  SendWork send;
  send.buffers = {&buffer, 1};
  send.tag = Pack({last ? Purpose::kLastResponse : Purpose::kResponse, slot, std::nullopt});
  if (data.kind == DataPointer::Kind::kKeyed && data.invalidate_key) {
    send.opcode = verbs::Opcode::kSendWithInvalidate;
    send.invalidate_rkey = data.key;
  }
  absl::Status status;
  if (!resources_.fault.IsTimeTo("lose-response")) status = transaction_.Send(queue, send);
  if (status.ok() && resources_.fault.IsTimeTo("repeat-response")) {
    status = transaction_.Send(queue, send);
  }
  if (!status.ok()) return transaction_.Drop(queue, MessageOf(status));
  BATON_CRASH_POINT("nvmed-response-staged");
  transaction_.PostReceive(queue, slot);
  transaction_.Touch(queue);
}

void Responder::TellChanges() {
  for (ControllerState& controller : resources_.registry.controllers()) {
    if (controller.id == 0 || controller.ending != 0) continue;
    Queue* queue = associations_.At(controller.admin_connection);
    if (queue == nullptr || queue->state.controller != controller.id ||
        !resources_.View(controller).HasEvent() || !queue->HasRoom() ||
        !transaction_.MakeRoom(*queue)) {
      continue;
    }
    HeldEvent request;
    CompletionEntry entry = {};
    if (!resources_.View(controller).TakeEvent(&request, &entry.result)) continue;
    entry.cid = request.command_id;
    Respond(*queue, request.slot, entry, DataPointer(), false);
  }
}

// ---------------------------------------------------------------- Fabrics and admin commands

void AdminCommandSet::PerformFabrics(const Step& step, absl::Span<const uint8_t> data) {
  const SubmissionEntry& command = step.capsule.command;
  const FabricsType type = FabricsTypeOf(command);
  const bool connected = step.queue.state.phase == QueueState::kConnected;
  if ((type == FabricsType::kConnect) == connected) {
    return responder_.Finish(step, Refuse(StatusCode::kCommandSequenceError));
  }
  ControllerState* controller = resources_.ControllerOf(step.queue);
  Answer answer;
  switch (type) {
    case FabricsType::kConnect:
      return PerformConnect(step, data);
    case FabricsType::kPropertyGet:
    case FabricsType::kPropertySet:
      if (step.queue.state.id != 0 || controller == nullptr) {
        answer.status = StatusCode::kInvalidField;
      } else {
        Controller view = resources_.View(*controller);
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
  responder_.Finish(step, answer);
}

void AdminCommandSet::PerformConnect(const Step& step, absl::Span<const uint8_t> data) {
  Queue& queue = step.queue;
  ConnectRequest request = {};
  request.command = ViewOf<ConnectCommand>(step.capsule.command);
  std::memcpy(&request.data, data.data(), std::min(data.size(), sizeof(request.data)));
  request.queue_id = queue.state.id;
  request.entries = queue.state.entries;
  request.connection = queue.connection->index();
  request.generation = queue.connection->generation();
  ControllerState* controller = nullptr;
  const Answer answer =
      Connect(request, resources_.options, resources_.target, resources_.registry, &controller);
  if (answer.status == StatusCode::kSuccess) {
    queue.state.phase = QueueState::kConnected;
    queue.state.controller = controller->id;
    queue.state.wrap = static_cast<uint16_t>(request.command.sqsize + 1);
    queue.state.no_flow_control =
        (request.command.cattr & kConnectDisableSqFlowControl) != 0 ? 1 : 0;
    if (queue.state.id == 0) {
      controller->deadline = resources_.deadlines.NextSignOfLife(*controller);
      resources_.Hear(queue);
    }
    spdlog::info("queue {} of controller {}, connection {} of {}, is connected: {}", queue.state.id,
                 controller->id, queue.connection->index(),
                 std::string(queue.connection->peer_address()), controller->subsystem_nqn);
  } else {
    spdlog::warn("a Connect of {} for queue {} is refused: status {:#x}",
                 std::string(queue.connection->peer_address()), queue.state.id,
                 static_cast<unsigned>(answer.status));
  }
  responder_.Finish(step, answer);
}

void AdminCommandSet::Perform(const Step& step, ControllerState& controller) {
  std::optional<uint32_t> chunk;
  Buffer buffer{0, step.length};
  if (step.length > 0 && DirectionOf(step.capsule.command) == DataDirection::kToHost) {
    chunk = resources_.chunks.Take(step.queue.connection->index());
    if (!chunk) return pending_.Wait(step.queue, step.slot, step.bytes, std::nullopt);
    buffer.offset = resources_.plan.Chunk(*chunk);
  }
  const absl::Span<uint8_t> data =
      chunk ? resources_.BytesAt(buffer.offset, buffer.length) : absl::Span<uint8_t>();
  const Answer answer =
      resources_.View(controller)
          .Execute(step.capsule.command, step.slot, associations_.TotalsOf(controller), data);
  const auto opcode = static_cast<AdminOpcode>(step.capsule.command.opcode);
  if (opcode == AdminOpcode::kKeepAlive || opcode == AdminOpcode::kSetFeatures) {
    // A successor uses this deadline. The command may have changed the timeout, or set the first
    // one.
    controller.deadline = resources_.deadlines.NextSignOfLife(controller);
    resources_.registry.Touch();
    resources_.Hear(step.queue);
  }
  if (answer.held) return;
  responder_.Finish(step, answer, chunk ? std::optional(buffer) : std::nullopt, chunk);
}

// ---------------------------------------------------------------- I/O commands

absl::Status IoCommandSet::StartExecutor(Worker& worker, uint32_t threads) {
  bool files = false, slow = false;
  for (const Subsystem& subsystem : resources_.target.subsystems()) {
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
  jobs_.emplace(threads, [&worker] { worker.Wake(); });
  return absl::OkStatus();
}

void IoCommandSet::Perform(const Step& step, std::optional<uint32_t> chunk,
                           absl::Span<uint8_t> data) {
  Subsystem* subsystem = resources_.SubsystemOf(step.queue);
  Answer answer;
  IoWork work;
  if (subsystem == nullptr || !resources_.View(*resources_.ControllerOf(step.queue)).enabled()) {
    answer.status = StatusCode::kCommandSequenceError;
  } else {
    answer.status = MakeWork(step.capsule.command, *subsystem, &work);
  }
  if (answer.status != StatusCode::kSuccess) {
    if (chunk) resources_.chunks.GiveBack(*chunk);
    return responder_.Finish(step, answer);
  }
  if (!work.space->backing->prompt()) return Submit(step, work, chunk, data);

  std::optional<Buffer> returned;
  if (work.kind == IoWork::Kind::kRead) {
    chunk = resources_.chunks.Take(step.queue.connection->index());
    if (!chunk) return pending_.Wait(step.queue, step.slot, step.bytes, std::nullopt);
    returned = Buffer{resources_.plan.Chunk(*chunk), step.length};
    answer.status = Run(work, resources_.BytesAt(returned->offset, returned->length));
  } else {
    if (!resources_.fault.IsTimeTo("lose-write")) answer.status = Run(work, data);
    BATON_CRASH_POINT("nvmed-executed");
    if (chunk) resources_.chunks.GiveBack(*chunk);
    chunk.reset();
  }
  if (answer.status == StatusCode::kSuccess) Count(step.queue, work);
  responder_.Finish(step, answer, returned, chunk);
}

void IoCommandSet::Submit(const Step& step, const IoWork& work, std::optional<uint32_t> chunk,
                          absl::Span<uint8_t> data) {
  const std::optional<uint32_t> fetched = chunk;
  bool waits = !jobs_->has_room() || jobs_->Conflicts(work) || pending_.has_earlier();
  if (!waits && work.kind == IoWork::Kind::kRead) {
    chunk = resources_.chunks.Take(step.queue.connection->index());
    if (chunk) data = resources_.BytesAt(resources_.plan.Chunk(*chunk), step.length);
    waits = !chunk;
  }
  if (waits) return pending_.Wait(step.queue, step.slot, step.bytes, fetched);
  pending_.Set(step.queue, step.slot, step.bytes, fetched);
  IoWork done = work;
  if (work.kind == IoWork::Kind::kWrite && resources_.fault.IsTimeTo("lose-write")) {
    done.kind = IoWork::Kind::kFlush;
  }
  Job job;
  job.connection = step.queue.connection->index();
  job.generation = step.queue.connection->generation();
  job.slot = step.slot;
  job.chunk = chunk;
  job.work = work;
  jobs_->Start(job, done, data);
}

void IoCommandSet::CompleteJobs() {
  jobs_->TakeResults([this](Job& job, StatusCode status) {
    Queue* queue = job.orphaned ? nullptr : associations_.At(job.connection);
    if (queue != nullptr && queue->state.phase != QueueState::kEnding &&
        (!queue->HasRoom() || !transaction_.MakeRoom(*queue))) {
      return false;
    }
    BATON_CRASH_POINT("nvmed-result");
    Complete(job, status);
    return true;
  });
}

void IoCommandSet::Complete(const Job& job, StatusCode status) {
  Queue* queue = job.orphaned ? nullptr : associations_.At(job.connection);
  const uint32_t bytes = queue == nullptr ? 0 : queue->pending[job.slot].bytes;
  // Also for a queue that is ending: a successor would take the chunk for one of the command's.
  if (queue != nullptr) pending_.Clear(*queue, job.slot);
  if (queue == nullptr || queue->state.phase == QueueState::kEnding) {
    if (job.chunk) resources_.chunks.GiveBack(*job.chunk);
    return;
  }
  const absl::StatusOr<Capsule> capsule = resources_.Parse(*queue, job.slot, bytes);
  if (!capsule.ok()) return transaction_.Drop(*queue, MessageOf(capsule.status()));
  const Step step{*queue, job.slot, bytes, *capsule, static_cast<uint32_t>(job.work.bytes)};
  const Answer answer = Refuse(status);
  if (status == StatusCode::kSuccess) Count(*queue, job.work);
  if (job.work.kind == IoWork::Kind::kRead) {
    const Buffer data{resources_.plan.Chunk(*job.chunk), step.length};
    return responder_.Finish(step, answer, data, job.chunk);
  }
  if (job.chunk) resources_.chunks.GiveBack(*job.chunk);
  responder_.Finish(step, answer);
}

}  // namespace baton::nvmed

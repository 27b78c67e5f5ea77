#include "worker/examples/nvmed/associations.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "spdlog/spdlog.h"
#include "worker/examples/nvmed/state.h"

namespace baton::nvmed {
namespace {

// The most receives of new queues in one transaction, which takes 4096 work requests of all kinds.
constexpr uint32_t kReceivesAtOnce = 2048;
static_assert(kReceivesAtOnce >= kMaxQueueEntries);

}  // namespace

void Associations::Adopt(Shard& shard) {
  for (Connection* connection : shard.connections()) {
    const absl::Status status = LoadQueue(*connection);
    // A state that cannot be read fails its connection, not the shard.
    if (!status.ok()) transaction_.Drop(QueueOf(*connection), MessageOf(status));
  }
  resources_.chunks.Fill();
  MatchControllers();
  pending_.Sort();
}

void Associations::Forget() {
  for (std::unique_ptr<Queue>& queue : queues_) queue.reset();
  requests_.clear();
}

absl::Status Associations::LoadQueue(Connection& connection) {
  Queue& queue = QueueOf(connection);
  bool shared = false;
  // First of all, and whatever the state says, claims the chunks of outstanding work requests.
  connection.shard().ForEachBufferInUse(connection, [&](const Buffer& buffer, bool send) {
    const uint32_t chunk = resources_.plan.ChunkOf(buffer.offset);
    if (send && chunk < resources_.plan.chunks()) {
      shared |= !resources_.chunks.Claim(chunk, connection.index());
    }
  });
  const absl::Span<const uint8_t> state = connection.state();
  if (state.empty()) {  // its connect request is not answered, and may not be delivered again
    requests_.push_back(&queue);
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(SavedQueue saved, ReadQueue(state, connection.state_version(),
                                                     resources_.plan.queue_entries()));
  queue.state = saved.state;
  queue.pending = std::move(saved.pending);
  // Its former owner may have died before it disconnected it.
  if (queue.state.phase == QueueState::kEnding) transaction_.End(queue);
  for (size_t slot = 0; slot < queue.pending.size(); ++slot) {
    const PendingCommand& pending = queue.pending[slot];
    if (pending.where == PendingCommand::kIdle) continue;
    pending_.Load(queue, static_cast<uint16_t>(slot));
    if (pending.where >= PendingCommand::kChunk0 &&
        !resources_.chunks.Claim(pending.where - PendingCommand::kChunk0, connection.index())) {
      return absl::DataLossError("state names a chunk that another command has");
    }
  }
  return shared ? absl::DataLossError("a work request names a chunk that another command has")
                : absl::OkStatus();
}

// Makes controllers and queues fit each other. They are committed together, but may still disagree:
// if owners died of a connection's end, their successor is not told that end, and a former owner
// may have been faulty.
void Associations::MatchControllers() {
  const absl::Span<ControllerState> controllers = resources_.registry.controllers();
  std::vector<uint64_t> queues(controllers.size());
  std::vector<const Queue*> admins(controllers.size());
  for (const std::unique_ptr<Queue>& queue : queues_) {
    ControllerState* controller = queue == nullptr ? nullptr : resources_.ControllerOf(*queue);
    if (controller == nullptr) continue;
    const size_t place = static_cast<size_t>(controller - controllers.data());
    if (queue->state.id != 0) {
      queues[place] |= uint64_t{1} << (queue->state.id - 1);
    } else if (queue->connection->index() == controller->admin_connection &&
               queue->connection->generation() == controller->admin_generation) {
      admins[place] = queue.get();
    } else {
      queue->state.controller = 0;  // so that its end does not end the controller
      transaction_.Drop(*queue, "its controller has another admin queue");
    }
  }
  for (size_t place = 0; place < controllers.size(); ++place) {
    ControllerState& controller = controllers[place];
    if (controller.id == 0) continue;
    if (controller.queues != queues[place]) {
      controller.queues = queues[place];
      resources_.registry.Touch();
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

void Associations::OnConnectRequest(Connection& connection) {
  RdmaReject reject{0, RdmaRejectStatus::kNoResources};
  RdmaRequest request = {};
  const std::string_view data = connection.private_data();
  std::memcpy(&request, data.data(), std::min(data.size(), sizeof(request)));
  if (data.size() < sizeof(request)) {
    reject.sts = RdmaRejectStatus::kInvalidPrivateDataLength;
  } else if (request.recfmt != 0) {
    reject.sts = RdmaRejectStatus::kInvalidRecfmt;
  } else if (request.qid > resources_.options.io_queues) {
    reject.sts = RdmaRejectStatus::kInvalidQid;
  } else if (request.hsqsize == 0 || request.hsqsize >= resources_.plan.queue_entries()) {
    reject.sts = RdmaRejectStatus::kInvalidHsqsize;
  } else if (transaction_.accepted_receives() + request.hsqsize + 1 > kReceivesAtOnce) {
    requests_.push_back(&QueueOf(connection));
    return;
  } else {
    const absl::Status status = Accept(connection, request);
    if (status.ok()) return;
    spdlog::error("queue {} of {} is refused: {}", request.qid,
                  std::string(connection.peer_address()), std::string(status.message()));
    transaction_.Drop(QueueOf(connection), MessageOf(status));
    return;
  }
  spdlog::warn(
      "a queue of {} is refused: {} bytes of private data, format {}, queue {}, {} entries",
      std::string(connection.peer_address()), data.size(), request.recfmt, request.qid,
      request.hsqsize + 1);
  const absl::Status status = connection.shard().Reject(
      connection, std::string_view(reinterpret_cast<const char*>(&reject), sizeof(reject)));
  if (!status.ok()) transaction_.Drop(QueueOf(connection), MessageOf(status));
}

absl::Status Associations::Accept(Connection& connection, const RdmaRequest& request) {
  BATON_CRASH_POINT("nvmed-accept-begin");
  Queue& queue = QueueOf(connection);
  queue.state.id = request.qid;
  queue.state.entries = static_cast<uint16_t>(request.hsqsize + 1);
  queue.state.wrap = queue.state.entries;
  queue.state.phase = QueueState::kAccepted;
  queue.pending.assign(queue.state.entries, PendingCommand());
  for (uint16_t slot = 0; slot < queue.state.entries; ++slot) {
    BATON_RETURN_IF_ERROR(transaction_.Receive(queue, slot));
  }
  queue.connect_by = resources_.deadlines.HostDeadline();
  transaction_.AddAcceptedReceives(queue.state.entries);
  const RdmaAccept reply = {0, queue.state.entries, {}};
  BATON_RETURN_IF_ERROR(connection.shard().Accept(
      connection, std::string_view(reinterpret_cast<const char*>(&reply), sizeof(reply))));
  transaction_.Touch(queue);
  BATON_CRASH_POINT("nvmed-accept-end");
  return absl::OkStatus();
}

void Associations::AnswerRequests() {
  while (!requests_.empty() && transaction_.accepted_receives() == 0) {
    for (Queue* const queue : std::exchange(requests_, {})) {
      if (queue->connection->generation() != queue->generation || queue->state.phase != 0) continue;
      OnConnectRequest(*queue->connection);
    }
    transaction_.Commit();
  }
}

void Associations::OnEnd(Queue& queue) {
  ControllerState* controller = resources_.ControllerOf(queue);
  queue.state.phase = QueueState::kEnding;
  if (controller != nullptr && queue.state.id == 0) {
    DropController(*controller, "its admin queue has ended");
    *controller = ControllerState();
    resources_.registry.Touch();
  } else if (controller != nullptr) {
    controller->queues &= ~(uint64_t{1} << (queue.state.id - 1));
    controller->reads += queue.state.reads;
    controller->writes += queue.state.writes;
    controller->blocks_read += queue.state.blocks_read;
    controller->blocks_written += queue.state.blocks_written;
    resources_.registry.Touch();
  }
  const uint32_t index = queue.connection->index();
  resources_.chunks.GiveBackAll(index);
  std::erase(requests_, &queue);
  transaction_.Forget(queue);
  queues_[index].reset();
}

void Associations::DropController(ControllerState& controller, std::string_view why) {
  controller.ending = 1;
  resources_.registry.Touch();
  for (const std::unique_ptr<Queue>& queue : queues_) {
    if (queue != nullptr && queue->state.controller == controller.id &&
        queue->state.phase == QueueState::kConnected) {
      transaction_.Drop(*queue, why);
    }
  }
}

Totals Associations::TotalsOf(const ControllerState& controller) const {
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

// Returns why the queue's time is over, or nullopt if it is not. A successor starts its deadlines
// anew.
std::optional<std::string_view> Associations::CheckQueue(Queue& queue) {
  if (queue.state.phase == QueueState::kAccepted && !queue.connect_by) {
    queue.connect_by = resources_.deadlines.HostDeadline();
  } else if (queue.state.phase != QueueState::kAccepted) {
    queue.connect_by.reset();
  }
  const bool idle = queue.connection->send_room() == send_depth_;
  if (idle) queue.sends_by.reset();
  if (!idle && !queue.sends_by) queue.AwaitSends(resources_.deadlines);
  if (queue.connect_by && resources_.deadlines.IsOver(*queue.connect_by)) {
    return "no Connect within host_timeout_ms";
  }
  if (queue.sends_by && resources_.deadlines.IsOver(*queue.sends_by)) {
    return "it takes nothing that it is sent, for host_timeout_ms";
  }
  return std::nullopt;
}

void Associations::CheckDeadlines() {
  resources_.deadlines.Forget();
  for (const std::unique_ptr<Queue>& queue : queues_) {
    if (queue == nullptr || queue->state.phase == 0) continue;
    if (queue->state.phase == QueueState::kEnding) continue;
    if (const auto why = CheckQueue(*queue)) transaction_.Drop(*queue, *why);
  }
  const absl::Span<ControllerState> controllers = resources_.registry.controllers();
  for (size_t i = 0; i < controllers.size(); ++i) {
    ControllerState& controller = controllers[i];
    if (controller.id == 0 || controller.keep_alive_ms == 0 || controller.ending != 0) continue;
    if (!resources_.deadlines.IsKeepAliveOver(i)) continue;
    DropController(controller, "no sign of life of its host within the keep alive timeout");
  }
}

}  // namespace baton::nvmed

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>

#include "lib/arena/arena.h"
#include "lib/arena/text_field.h"
#include "lib/base/status.h"
#include "lib/base/utf8.h"
#include "lib/driver/connection_state.h"
#include "lib/verbs/verbs.h"
#include "supervisor/inspect/descriptions.h"

namespace baton::inspect {
namespace {

using arena::ConnectionRecord;
using arena::ConnectionState;

// In the order of ConnectionState and of PoisonLevel.
constexpr const char* kStates[] = {"free",        "requested", "connecting",
                                   "established", "draining",  "closed"};
constexpr const char* kPoisonLevels[] = {"none", "flushed", "silent", "void"};
static_assert(std::size(kStates) == uint32_t(ConnectionState::kClosed) + 1);
static_assert(std::size(kPoisonLevels) == uint32_t(arena::PoisonLevel::kVoid) + 1);

std::string StatusName(uint32_t status) {
  using verbs::CompletionStatus;
  if (status == 0) return "";
  if (status > static_cast<uint32_t>(CompletionStatus::kFatalError)) return InvalidName(status);
  return std::string(verbs::CompletionStatusName(CompletionStatus(status)));
}

template <size_t size>
std::string TextIn(const char (&field)[size]) {
  return ValidUtf8(arena::TextOf(field), size);
}

void DescribeQueue(const ArenaView& arena, const ConnectionRecord& record, bool receive,
                   v1::InspectedQueue* out) {
  const arena::QueueCursors& cursors = receive ? record.receive : record.send;
  const arena::MarkerCursors& markers = receive ? record.receive_markers : record.send_markers;
  out->set_committed(cursors.committed);
  out->set_posted(cursors.posted);
  out->set_completed(cursors.completed);
  out->set_acknowledged(cursors.acknowledged);
  out->set_attempted(cursors.posted +
                     (arena.layout_version >= 2 ? driver::MaybePosted(record, receive) : 0));
  out->set_markers_begun(markers.begun);
  out->set_markers_confirmed(markers.confirmed);
  out->set_markers_completed(markers.completed);
}

// Returns why the cursors are impossible; empty: they are possible. With shared receives only
// `completed` may be set.
std::string QueueProblem(const v1::InspectedQueue& queue, uint64_t depth) {
  if (depth == 0) {
    const bool still = queue.committed() == 0 && queue.posted() == 0 && queue.acknowledged() == 0;
    return still ? "" : "cursors of receives, which the shard's connections share";
  }
  const bool ordered = queue.acknowledged() <= queue.completed() &&
                       queue.completed() <= queue.posted() && queue.posted() <= queue.committed() &&
                       queue.attempted() <= queue.committed();
  if (!ordered) {
    return absl::StrCat("acknowledged ", queue.acknowledged(), ", completed ", queue.completed(),
                        ", posted ", queue.posted(), ", attempted ", queue.attempted(),
                        ", committed ", queue.committed(), ": not in that order");
  }
  if (queue.committed() - queue.acknowledged() > 2 * depth ||
      queue.committed() - queue.completed() > depth) {
    return absl::StrCat(queue.committed() - queue.completed(), " outstanding, and ",
                        queue.completed() - queue.acknowledged(),
                        " not acknowledged, are more than a depth of ", depth, " allows");
  }
  return "";
}

void CheckQueue(const char* name, const v1::InspectedQueue& queue, uint64_t depth,
                v1::InspectedConnection* out) {
  const std::string problem = QueueProblem(queue, depth);
  if (problem.empty() || out->changing()) return;
  out->add_invalid(absl::StrCat(name, ": ", problem));
}

void DescribeRecord(const ArenaView& arena, const ConnectionRecord& record,
                    v1::InspectedConnection* out) {
  const arena::Shape& shape = arena.header.shape;
  out->set_generation(record.generation);
  out->set_shard(record.shard);
  out->set_state(NameIn(kStates, record.state));
  out->set_qp_number(record.qp_number);
  out->set_local_address(TextIn(record.local_address));
  out->set_peer_address(TextIn(record.peer_address));
  out->set_listener_port(record.listener_port);
  out->set_tag(record.tag);
  DescribeQueue(arena, record, /*receive=*/false, out->mutable_send());
  DescribeQueue(arena, record, /*receive=*/true, out->mutable_receive());
  CheckQueue("send queue", out->send(), shape.send_queue_depth, out);
  CheckQueue("receive queue", out->receive(), arena::ReceiveDepth(shape), out);
  out->set_bytes_received(record.bytes_received);
  out->set_last_status(StatusName(record.last_status));
  out->set_poison(NameIn(kPoisonLevels, record.poison));
  out->set_arriving(record.arriving != 0);
  out->set_answered(record.answered != 0);
  out->set_was_established(record.was_established != 0);
  out->set_abandoned(record.abandoned != 0);
  out->set_initiator_depth(record.initiator_depth);
  out->set_responder_resources(record.responder_resources);
  if (record.private_data_length <= arena::kPrivateDataBytes) {
    out->set_private_data(record.private_data, record.private_data_length);
  } else {
    out->add_invalid(absl::StrCat("private data: ", record.private_data_length, " bytes"));
  }
  if (record.shard >= shape.shards && ConnectionState(record.state) != ConnectionState::kFree) {
    out->add_invalid(absl::StrCat("shard: ", record.shard, " of ", shape.shards));
  }
  const auto check_name = [&](const char* field, const std::string& name, uint32_t number) {
    if (name == InvalidName(number)) out->add_invalid(absl::StrCat(field, ": ", number));
  };
  check_name("state", out->state(), record.state);
  check_name("poison", out->poison(), record.poison);
  check_name("last status", out->last_status(), record.last_status);
}

absl::Status DescribeQueues(const ArenaView& arena, v1::InspectedConnection* out, Room* room) {
  const arena::Shape& shape = arena.header.shape;
  BATON_RETURN_IF_ERROR(
      DescribeWorkRequests(arena, {out->index(), false, shape.send_queue_depth, out->send()}, room,
                           out->mutable_work_requests()));
  if (arena::ReceiveDepth(shape) == 0) return absl::OkStatus();
  return DescribeWorkRequests(arena,
                              {out->index(), true, arena::ReceiveDepth(shape), out->receive()},
                              room, out->mutable_work_requests());
}

// Removes requests that were acknowledged meanwhile. The requests were read after the record, and
// an acknowledged log entry may be overwritten. So the record is read again, and requests that it
// shows as acknowledged are left out.
absl::Status DropAcknowledged(const ArenaView& arena, v1::InspectedConnection* out) {
  BATON_ASSIGN_OR_RETURN(const auto look, arena.files.driver_log().ReadStill<ConnectionRecord>(
                                              arena.driver_map.Connection(out->index())));
  const ConnectionRecord& now = look.value;
  if (now.generation != out->generation()) {
    out->set_changing(true);
    out->clear_work_requests();
    return absl::OkStatus();
  }
  WorkRequests* const requests = out->mutable_work_requests();
  const auto gone = [&](const v1::InspectedWorkRequest& request) {
    const arena::QueueCursors& cursors = request.queue() == "send" ? now.send : now.receive;
    return request.sequence() < cursors.acknowledged;
  };
  requests->erase(std::remove_if(requests->begin(), requests->end(), gone), requests->end());
  return absl::OkStatus();
}

absl::StatusOr<v1::InspectedConnection> DescribeConnection(const ArenaView& arena, uint32_t index,
                                                           const Selection& selection, Room* room) {
  BATON_ASSIGN_OR_RETURN(const auto look, arena.files.driver_log().ReadStill<ConnectionRecord>(
                                              arena.driver_map.Connection(index)));
  v1::InspectedConnection out;
  out.set_index(index);
  out.set_changing(look.changing);
  DescribeRecord(arena, look.value, &out);
  const StateOfRecord state = {false, index, CursorOf(look.value)};
  DescribeStateCursor(arena, state, out.mutable_application_state(), out.mutable_invalid());
  if (selection.work_requests) {
    BATON_RETURN_IF_ERROR(DescribeQueues(arena, &out, room));
    BATON_RETURN_IF_ERROR(DropAcknowledged(arena, &out));
  }
  if (selection.state) {
    BATON_RETURN_IF_ERROR(
        DescribeStateBytes(arena, state, selection.decode, out.mutable_application_state()));
  }
  return out;
}

// The part of a record that is read also for connections that are not shown.
struct RecordBeginning {
  uint32_t state, generation, shard, qp_number;
};
static_assert(offsetof(ConnectionRecord, state) == offsetof(RecordBeginning, state));
static_assert(offsetof(ConnectionRecord, shard) == offsetof(RecordBeginning, shard));

absl::StatusOr<bool> IsListed(const ArenaView& arena, uint32_t index, const Selection& selection) {
  BATON_ASSIGN_OR_RETURN(const auto record, arena.files.driver_log().Read<RecordBeginning>(
                                                arena.driver_map.Connection(index)));
  if (ConnectionState(record.state) == ConnectionState::kFree) return false;
  return !selection.shard || record.shard == *selection.shard;
}

// Returns the number of connections according to the shards' records.
uint64_t ConnectionsOf(const Selection& selection, const v1::Inspection& inspection) {
  if (!selection.shard) return inspection.totals().connections();
  return inspection.shards_size() == 0 ? 0 : inspection.shards(0).connections();
}

}  // namespace

absl::Status DescribeConnections(const ArenaView& arena, const Selection& selection,
                                 v1::Inspection* out) {
  Room room = {uint64_t{selection.limit} * kRequestsPerConnection, out->work_requests_left_out()};
  if (selection.connection) {
    BATON_ASSIGN_OR_RETURN(*out->add_connections(),
                           DescribeConnection(arena, *selection.connection, selection, &room));
    out->set_work_requests_left_out(room.left_out);
    return absl::OkStatus();
  }
  for (uint32_t i = selection.first_connection; i < arena.header.shape.connections; ++i) {
    BATON_ASSIGN_OR_RETURN(const bool listed, IsListed(arena, i, selection));
    if (!listed) continue;
    if (static_cast<uint32_t>(out->connections_size()) == selection.limit) {
      out->set_next_connection(i);
      break;
    }
    BATON_ASSIGN_OR_RETURN(*out->add_connections(), DescribeConnection(arena, i, selection, &room));
  }
  const uint64_t all = ConnectionsOf(selection, *out);
  const auto shown = static_cast<uint64_t>(out->connections_size());
  out->set_connections_left_out(all > shown ? all - shown : out->next_connection() != 0);
  out->set_work_requests_left_out(room.left_out);
  return absl::OkStatus();
}

}  // namespace baton::inspect

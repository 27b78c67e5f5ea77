#include <algorithm>
#include <iterator>
#include <string>

#include "lib/arena/arena.h"
#include "lib/base/status.h"
#include "lib/verbs/verbs.h"
#include "supervisor/inspect/descriptions.h"

namespace baton::inspect {
namespace {

using arena::SharedReceiveState;
using arena::WorkRequest;

constexpr char kCompleted[] = "completed";

// Returns what is wrong with a range that is not within the buffers; empty: it lies in a region.
// `is_over`: the request has completed, so its region may be gone, and its number another's.
std::string WrongRegion(const ArenaView& arena, const arena::BufferRange& range, bool may_be_region,
                        bool is_over) {
  const uint32_t number = arena::RegionOf(range.offset);
  if (number == 0) {
    return absl::StrCat(range.length, " bytes at ", range.offset, " of ",
                        arena.header.shape.buffer_bytes);
  }
  if (!may_be_region) return absl::StrCat("region ", number, ", which is for sends");
  if (is_over) return "";
  const uint64_t begin = range.offset - arena::RegionOffset(number);
  uint64_t length = 0;
  if (arena.header.regions != 0) {
    const auto region =
        arena.files.driver_log().Read<arena::RegionRecord>(arena::DriverMemoryMap::Region(number));
    if (region.ok()) length = region->length;
  }
  if (begin < length && range.length <= length - begin) return "";
  return absl::StrCat(range.length, " bytes at ", begin, " of ", length, " in region ", number);
}

void DecodeRanges(const ArenaView& arena, const WorkRequest& request, bool receive,
                  v1::InspectedWorkRequest* out) {
  const uint64_t buffer_bytes = arena.header.shape.buffer_bytes;
  if (request.sge_count > arena::kMaxSges) {
    out->add_invalid(absl::StrCat("scatter-gather entries: ", request.sge_count));
  }
  if (request.one_line > 1 || (request.one_line == 1 && request.sge_count != 1)) {
    out->add_invalid(absl::StrCat("one line: ", request.one_line, " with ", request.sge_count,
                                  " scatter-gather entries"));
  }
  const uint32_t count = std::min<uint32_t>(request.sge_count, arena::kMaxSges);
  for (uint32_t i = 0; i < count; ++i) {
    const arena::BufferRange& range = arena::RangeOf(request, i);
    v1::InspectedRange* const buffer = out->add_buffers();
    buffer->set_offset(range.offset);
    buffer->set_length(range.length);
    if (range.offset <= buffer_bytes && range.length <= buffer_bytes - range.offset) continue;
    const bool may_be_region = !receive && !verbs::IsAnswered(verbs::Opcode(request.opcode));
    const std::string wrong =
        WrongRegion(arena, range, may_be_region, /*is_over=*/out->state() == kCompleted);
    if (!wrong.empty()) out->add_invalid(absl::StrCat("scatter-gather entry ", i, ": ", wrong));
  }
}

void DecodeFlags(const WorkRequest& request, v1::InspectedWorkRequest* out) {
  if ((request.flags & arena::kRequestFence) != 0) out->add_flags("fence");
  if ((request.flags & arena::kRequestSolicited) != 0) out->add_flags("solicited");
  if ((request.flags & ~arena::kRequestFlags) != 0) {
    out->add_invalid(absl::StrCat("flags: ", request.flags));
  }
}

void DecodeOpcode(const WorkRequest& request, bool receive, v1::InspectedWorkRequest* out) {
  const bool known = receive ? request.opcode == 0 : request.opcode < verbs::kOpcodeCount;
  if (!known) {
    out->set_opcode(InvalidName(request.opcode));
    out->add_invalid(absl::StrCat("opcode: ", request.opcode));
  } else {
    out->set_opcode(receive ? "RECEIVE"
                            : std::string(verbs::OpcodeName(verbs::Opcode(request.opcode))));
  }
}

std::string StateIn(const v1::InspectedQueue& cursors, uint64_t sequence) {
  if (sequence < cursors.completed()) return kCompleted;
  if (sequence < cursors.posted()) return "posted";
  return sequence < cursors.attempted() ? "maybe posted" : "committed";
}

// In the order of SharedReceiveState.
constexpr const char* kSharedStates[] = {"free", "maybe posted", "posted", kCompleted};
static_assert(std::size(kSharedStates) == uint32_t(SharedReceiveState::kCompleted) + 1);

}  // namespace

void DecodeWorkRequest(const ArenaView& arena, const WorkRequest& request, bool receive,
                       v1::InspectedWorkRequest* out) {
  DecodeOpcode(request, receive, out);
  DecodeFlags(request, out);
  DecodeRanges(arena, request, receive, out);
  out->set_tag(request.tag);
  out->set_immediate(request.immediate);
  out->set_remote_address(request.remote_address);
  out->set_rkey(request.rkey);
  out->set_invalidate_rkey(request.invalidate_rkey);
  out->set_compare_add(request.compare_add);
  out->set_swap(request.swap);
}

absl::Status DescribeWorkRequests(const ArenaView& arena, const QueueOfConnection& queue,
                                  Room* room, WorkRequests* out) {
  const uint64_t entries = 2 * uint64_t{queue.depth};
  const uint64_t outstanding = queue.cursors.committed() - queue.cursors.acknowledged();
  if (outstanding > entries) return absl::OkStatus();  // impossible, and reported as invalid
  const uint64_t shown = std::min(outstanding, room->work_requests);
  const uint64_t log = queue.receive ? arena.worker_map.ReceiveLog(queue.connection)
                                     : arena.worker_map.SendLog(queue.connection);
  for (uint64_t i = 0; i < shown; ++i) {
    const uint64_t sequence = queue.cursors.acknowledged() + i;
    const uint64_t at = log + (sequence & (entries - 1)) * sizeof(WorkRequest);
    BATON_ASSIGN_OR_RETURN(const auto request, arena.files.worker_log().Read<WorkRequest>(at));
    v1::InspectedWorkRequest* const added = out->Add();
    added->set_queue(queue.receive ? "receive" : "send");
    added->set_sequence(sequence);
    added->set_state(StateIn(queue.cursors, sequence));
    DecodeWorkRequest(arena, request, queue.receive, added);
  }
  room->work_requests -= shown;
  room->left_out += outstanding - shown;
  return absl::OkStatus();
}

absl::Status DescribeSharedReceives(const ArenaView& arena, uint32_t shard, Room* room,
                                    WorkRequests* out) {
  const uint32_t slots = arena::SharedReceiveSlots(arena.header.shape);
  for (uint32_t slot = 0; slot < slots; ++slot) {
    BATON_ASSIGN_OR_RETURN(const auto word, arena.files.driver_log().Read<arena::SharedReceive>(
                                                arena.driver_map.SharedReceives(shard) +
                                                slot * sizeof(arena::SharedReceive)));
    const uint32_t state = word.word & 0xff;
    if (SharedReceiveState(state) == SharedReceiveState::kFree) continue;
    if (room->work_requests == 0) {
      ++room->left_out;
      continue;
    }
    BATON_ASSIGN_OR_RETURN(const auto request, arena.files.worker_log().Read<WorkRequest>(
                                                   arena.worker_map.SharedReceives(shard) +
                                                   slot * sizeof(WorkRequest)));
    v1::InspectedWorkRequest* const added = out->Add();
    added->set_queue("shared receive");
    added->set_sequence(slot);
    added->set_state(NameIn(kSharedStates, state));
    if (state >= std::size(kSharedStates)) {
      added->add_invalid(absl::StrCat("state: ", state));
    }
    DecodeWorkRequest(arena, request, /*receive=*/true, added);
    --room->work_requests;
  }
  return absl::OkStatus();
}

}  // namespace baton::inspect

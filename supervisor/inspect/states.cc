#include <algorithm>
#include <utility>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/base/status.h"
#include "lib/base/utf8.h"
#include "supervisor/inspect/descriptions.h"

namespace baton::inspect {
namespace {

constexpr size_t kMostDecodedBytes = 64 << 10;
constexpr uint32_t kSlots = 2;

uint32_t RoomOf(const ArenaView& arena, bool of_shard) {
  return of_shard ? arena.header.shape.shard_state_bytes
                  : arena.header.shape.connection_state_bytes;
}

bool IsPossible(const ArenaView& arena, const StateOfRecord& state) {
  return state.cursor.slot < kSlots && state.cursor.length <= RoomOf(arena, state.of_shard);
}

absl::StatusOr<StateCursor> CursorNow(const ArenaView& arena, const StateOfRecord& state) {
  if (state.of_shard) {
    BATON_ASSIGN_OR_RETURN(const auto look, arena.files.driver_log().ReadStill<arena::ShardRecord>(
                                                arena.driver_map.Shard(state.index)));
    return CursorOf(look.value);
  }
  BATON_ASSIGN_OR_RETURN(const auto look,
                         arena.files.driver_log().ReadStill<arena::ConnectionRecord>(
                             arena.driver_map.Connection(state.index)));
  return CursorOf(look.value);
}

absl::StatusOr<std::vector<uint8_t>> ReadSlot(const ArenaView& arena, const StateOfRecord& state,
                                              uint32_t slot, uint32_t length) {
  std::vector<uint8_t> bytes(length);
  const uint64_t at = state.of_shard ? arena.worker_map.ShardState(state.index, slot)
                                     : arena.worker_map.ConnectionState(state.index, slot);
  BATON_RETURN_IF_ERROR(arena.files.worker_log().Read(at, bytes.data(), bytes.size()));
  return bytes;
}

// `bytes`: the first of `length` bytes.
void AddSlot(uint32_t slot, bool committed, const std::vector<uint8_t>& bytes, uint32_t length,
             v1::InspectedState* out) {
  v1::InspectedStateSlot* const added = out->add_slots();
  const size_t shown = std::min<size_t>(bytes.size(), kShownStateBytes);
  added->set_slot(slot);
  added->set_committed(committed);
  added->set_content(bytes.data(), shown);
  added->set_left_out(length - shown);
}

// The state that was committed last, and its first bytes, or all of them.
struct Committed {
  StateCursor cursor;
  std::vector<uint8_t> bytes;
  bool changing = true;
};

// An owner writes to the slot again after the next commit. The record may look the same after two
// commits, so the bytes, too, are read until two reads are equal.
absl::StatusOr<Committed> ReadCommitted(const ArenaView& arena, StateOfRecord state, bool whole) {
  Committed committed;
  for (int look = 0; look < Memory::kMostLooks && committed.changing; ++look) {
    if (!IsPossible(arena, state)) return committed;
    const uint32_t length =
        whole ? state.cursor.length : std::min(state.cursor.length, kShownStateBytes);
    BATON_ASSIGN_OR_RETURN(std::vector<uint8_t> bytes,
                           ReadSlot(arena, state, state.cursor.slot, length));
    BATON_ASSIGN_OR_RETURN(const StateCursor now, CursorNow(arena, state));
    committed.changing = look == 0 || now != state.cursor || bytes != committed.bytes;
    committed.cursor = state.cursor;
    committed.bytes = std::move(bytes);
    state.cursor = now;
  }
  return committed;
}

}  // namespace

void DescribeStateCursor(const ArenaView& arena, const StateOfRecord& state,
                         v1::InspectedState* out, Problems* problems) {
  out->set_version(state.cursor.version);
  out->set_length(state.cursor.length);
  out->set_slot(state.cursor.slot);
  if (IsPossible(arena, state)) return;
  problems->Add(absl::StrCat("state: ", state.cursor.length, " of ", RoomOf(arena, state.of_shard),
                             " bytes in slot ", state.cursor.slot, " of ", kSlots));
}

absl::Status DescribeStateBytes(const ArenaView& arena, const StateOfRecord& state,
                                const DecodeState& decode, v1::InspectedState* out) {
  if (!IsPossible(arena, state)) return absl::OkStatus();  // reported as invalid elsewhere
  BATON_ASSIGN_OR_RETURN(Committed committed,
                         ReadCommitted(arena, state, /*whole=*/decode != nullptr));
  const StateCursor& cursor = committed.cursor;
  out->set_changing(committed.changing);
  out->set_version(cursor.version);
  out->set_length(cursor.length);
  out->set_slot(cursor.slot);
  const uint32_t room = RoomOf(arena, state.of_shard);
  BATON_ASSIGN_OR_RETURN(const std::vector<uint8_t> other,
                         ReadSlot(arena, state, 1 - cursor.slot, std::min(room, kShownStateBytes)));
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    if (slot == cursor.slot) {
      AddSlot(slot, /*committed=*/true, committed.bytes, cursor.length, out);
    } else {
      AddSlot(slot, /*committed=*/false, other, room, out);
    }
  }
  if (!decode || cursor.length == 0) return absl::OkStatus();  // nothing was committed
  const absl::StatusOr<std::string> text =
      decode({state.of_shard, state.index, cursor.version, std::move(committed.bytes)});
  if (text.ok()) {
    out->set_decoded(ValidUtf8(*text, kMostDecodedBytes));
  } else {
    out->set_decoder_error(ValidUtf8(MessageOf(text.status()), kMostDecodedBytes));
  }
  return absl::OkStatus();
}

}  // namespace baton::inspect

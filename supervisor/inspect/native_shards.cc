#include <algorithm>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/base/status_macros.h"
#include "supervisor/inspect/descriptions.h"

namespace baton::inspect {
namespace {

absl::Status DescribeRing(const ArenaView& arena, uint64_t at, uint64_t entries,
                          std::string_view name, v1::InspectedRing* out, Problems* problems) {
  BATON_ASSIGN_OR_RETURN(const auto look, arena.files.recovery.ReadStill<arena::MailCursors>(at));
  out->set_told(look.value.tail);
  out->set_done(look.value.head);
  if (!look.changing && look.value.tail - look.value.head > entries) {
    problems->Add(absl::StrCat(absl::string_view(name.data(), name.size()), ": ", look.value.head,
                               " done of ", look.value.tail));
  }
  return absl::OkStatus();
}

absl::Status CountPool(const ArenaView& arena, uint32_t shard, v1::InspectedShard* out) {
  std::vector<arena::PooledQueuePair> pool(arena.header.shape.pooled_queue_pairs);
  BATON_RETURN_IF_ERROR(arena.files.recovery.Read(arena.recovery_map.Pool(shard), pool.data(),
                                                  pool.size() * sizeof(pool[0])));
  uint32_t counts[4] = {};
  for (const arena::PooledQueuePair& one : pool) {
    if (one.state < 4) {
      ++counts[one.state];
    } else {
      out->add_invalid(absl::StrCat("queue pair ", one.number, ": ", InvalidName(one.state)));
    }
  }
  const auto count = [&](arena::PooledState state) { return counts[static_cast<int>(state)]; };
  out->mutable_pool()->set_free(count(arena::PooledState::kFree));
  out->mutable_pool()->set_taken(count(arena::PooledState::kTaken));
  out->mutable_pool()->set_spent(count(arena::PooledState::kSpent));
  out->mutable_pool()->set_lent(count(arena::PooledState::kLent));
  return absl::OkStatus();
}

}  // namespace

absl::Status DescribeNativeShard(const ArenaView& arena, uint32_t shard, bool whole,
                                 v1::InspectedShard* out) {
  BATON_ASSIGN_OR_RETURN(const auto look, arena.files.recovery.ReadStill<arena::NativeShard>(
                                              arena.recovery_map.NativeShardOf(shard)));
  const uint64_t heir = look.value.heir;
  if (heir > arena.header.shape.workers) {
    out->add_invalid(absl::StrCat("heir: worker slot ", heir - 1));
  } else if (heir != 0) {
    out->set_heir_slot(static_cast<int32_t>(heir) - 1);
  }
  if (!whole) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(DescribeRing(arena, arena.recovery_map.Notices(shard), arena::kNotices,
                                     "notices", out->mutable_notices(), out->mutable_invalid()));
  BATON_RETURN_IF_ERROR(DescribeRing(arena, arena.recovery_map.Orders(shard),
                                     arena::OrdersOf(arena.header.shape), "orders",
                                     out->mutable_orders(), out->mutable_invalid()));
  return CountPool(arena, shard, out);
}

}  // namespace baton::inspect

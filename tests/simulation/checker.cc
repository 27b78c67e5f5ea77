#include "tests/simulation/checker.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "tests/simulation/protocol.h"

namespace baton::simulation {

using arena::CommitEntry;
using arena::CommitKind;

Checker::Checker(Context* context, const arena::Arena* arena)
    : context_(context),
      arena_(arena),
      connections_(arena->shape().connections),
      shards_(arena->shape().shards) {
  for (Shard& shard : shards_) {
    shard.shared.resize(arena::SharedReceiveSlots(arena->shape()));
    shard.heap.resize(arena->shape().heap_pages);
  }
}

Checker::Connection& Checker::At(uint32_t index, uint32_t generation) {
  Connection& connection = connections_[index];
  if (connection.generation != generation) {
    // Its peer may hear of the end only when another has the slot.
    if (connection.excused) {
      connection.client == 0 ? void(failed_unknown_ = true) : Excuse(connection.client);
    }
    connection = Connection{};
    connection.generation = generation;
  }
  if (connection.client == 0) {
    std::memcpy(&connection.client, arena_->connection(index).private_data, 8);
  }
  return connection;
}

// ---------------------------------------------------------------- commits

void Checker::OnPublished(uint32_t slot) {
  CheckRecords();
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    const uint64_t word = arena::LoadAcquire(arena_->shard(i).owner.ownership);
    if (arena::OwnershipSlot(word) != slot) continue;
    Shard& shard = shards_[i];
    const uint64_t epoch = arena::OwnershipEpoch(word);
    const uint64_t tail = arena::LoadAcquire(arena_->bank(i, epoch).tail);
    if (!arena::CursorIsOf(tail, epoch)) continue;
    if (shard.epoch != epoch) {
      shard.epoch = epoch;
      shard.tail = 0;
    }
    if (shard.tail == arena::CursorIndex(tail)) continue;
    ++commits_;
    for (; shard.tail < arena::CursorIndex(tail); ++shard.tail) {
      Fold(i, arena_->commit_entry(i, epoch, shard.tail));
    }
  }
}

bool Checker::HaveOneOwner(uint32_t shard, uint32_t other) const {
  const auto owner = [&](uint32_t index) {
    return arena::OwnershipSlot(arena::LoadAcquire(arena_->shard(index).owner.ownership));
  };
  return owner(shard) == owner(other);
}

void Checker::Fold(uint32_t shard, const CommitEntry& entry) {
  context_->Note("committed", shard, entry.kind, entry.connection);
  switch (CommitKind(entry.kind)) {
    case CommitKind::kConnection: {
      Connection& connection = At(entry.connection, entry.generation);
      Commit(connection.receive, entry, true);
      Commit(connection.send, entry, false);
      break;
    }
    case CommitKind::kSharedReceives:
      CommitShared(shard, entry);
      break;
    case CommitKind::kHeap:
      CommitHeap(shard, entry);
      break;
    case CommitKind::kAccept:
      if (!HaveOneOwner(shard, entry.target_shard)) {
        Excuse(At(entry.connection, entry.generation).client);
      }
      break;
    case CommitKind::kReject:
    case CommitKind::kDisconnect: {
      Connection& connection = At(entry.connection, entry.generation);
      connection.excused = true;  // a peer that we connect to has perhaps not said who it is
      Excuse(connection.client);
      break;
    }
    default:
      break;
  }
}

void Checker::Commit(Queue& queue, const CommitEntry& entry, bool receive) {
  const uint64_t end = receive ? entry.receive_end : entry.send_end;
  if (end < queue.committed.size()) {
    context_->Break(absl::StrCat("P2: connection ", entry.connection, " takes back what was ",
                                 "committed: ", queue.committed.size(), " to ", end));
    return;
  }
  for (uint64_t i = queue.committed.size(); i < end; ++i) {
    queue.committed.push_back(receive ? arena_->receive_request(entry.connection, i)
                                      : arena_->send_request(entry.connection, i));
    queue.receives.push_back(entry.receive_end);
  }
}

void Checker::CommitShared(uint32_t shard, const CommitEntry& entry) {
  const auto named = std::bit_cast<arena::SharedReceivesEntry>(entry);
  auto& slots = shards_[shard].shared;
  for (uint32_t i = 0; i < std::min<uint32_t>(named.count, arena::kSharedReceivesPerEntry); ++i) {
    if (named.slots[i] >= slots.size()) continue;  // of who is hostile
    slots[named.slots[i]].committed = arena_->shared_receive_request(shard, named.slots[i]);
    ++slots[named.slots[i]].commits;
  }
}

void Checker::CheckRecords() {
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    const arena::OwnershipRecord& record = arena_->shard(i).owner;
    Shard& shard = shards_[i];
    CheckPublished(i);
    if (record.cut_epoch == shard.seen_cut) continue;
    shard.seen_cut = record.cut_epoch;
    ++cuts_;
    const uint64_t published = shard.epoch == record.cut_epoch ? shard.tail : 0;
    context_->Note("cut", i, record.cut_epoch, record.cut_tail);
    if (record.cut_tail == published) continue;
    context_->Break(absl::StrCat("P2: shard ", i, " epoch ", record.cut_epoch, " was cut at ",
                                 record.cut_tail, ", published were ", published));
  }
}

// Whole entries, and nothing in between.
void Checker::CheckPublished(uint32_t index) {
  Shard& shard = shards_[index];
  for (; shard.seen_completions < arena_->shard(index).completion_tail; ++shard.seen_completions) {
    const arena::CompletionEntry& entry = arena_->completion(index, shard.seen_completions);
    const auto kind = arena::CompletionKind(entry.kind);
    // A worker passes over it: it loads no connection that arrives.
    const arena::ConnectionRecord& record = arena_->connection(entry.connection);
    if (record.arriving != 0 && record.shard == index &&
        record.generation == arena::GenerationOf(entry)) {
      context_->Break(absl::StrCat("P1: completion ", shard.seen_completions, " of shard ", index,
                                   " was shown while its connection ", entry.connection,
                                   " arrives"));
    }
    const bool receive = kind == arena::CompletionKind::kReceive;
    const bool request = receive || kind == arena::CompletionKind::kSend;
    if (arena::IsSharedReceive(entry.wr_id) && receive &&
        arena::SharedReceiveSlot(entry.wr_id) == entry.sequence) {
      continue;
    }
    const uint64_t wr_id =
        arena::PackWrId(entry.connection, arena::GenerationOf(entry),
                        receive ? arena::Direction::kReceive : arena::Direction::kSend,
                        request ? entry.sequence : arena::kEventSequence);
    if (kind == arena::CompletionKind::kDisconnected ||
        kind == arena::CompletionKind::kConnectFailed) {
      Connection& connection = At(entry.connection, arena::GenerationOf(entry));
      if (connection.ended) context_->Break("P1: the end of a connection was published twice");
      connection.ended = true;
    }
    if (entry.kind != 0 && entry.wr_id == wr_id) continue;
    context_->Break(absl::StrCat("P1: completion ", shard.seen_completions, " of shard ", index,
                                 " was published and is not whole"));
  }
}

void Checker::OnAdopted(uint32_t shard, uint64_t epoch) {
  if (epoch <= shards_[shard].adopted) {
    context_->Break(absl::StrCat("P3: shard ", shard, " epoch ", epoch, " was given twice"));
  }
  shards_[shard].adopted = epoch;
  CheckHeap(shard);
}

// ---------------------------------------------------------------- heaps

namespace {

uint64_t ObjectBytes(const arena::HeapBlock& block) {
  return block.units == 0 ? uint64_t{block.pages} * arena::kPageBytes
                          : uint64_t{block.units} * arena::kHeapUnitBytes;
}

// Calls `visit` with the offset and length in the heap of each object of a block.
template <typename Visit>
void ForEachKept(const arena::HeapBlock& block, uint64_t page, const Visit& visit) {
  for (uint64_t kept = block.kept; kept != 0; kept &= kept - 1) {
    const auto index = static_cast<uint64_t>(std::countr_zero(kept));
    visit(page * arena::kPageBytes + index * ObjectBytes(block), ObjectBytes(block));
  }
}

}  // namespace

void Checker::CommitHeap(uint32_t shard, const CommitEntry& entry) {
  const auto heap = std::bit_cast<arena::HeapEntry>(entry);
  auto& blocks = shards_[shard].heap;
  for (uint32_t i = 0; i < std::min<uint32_t>(heap.count, arena::kHeapChangesPerEntry); ++i) {
    if (heap.changes[i].page >= blocks.size()) continue;  // its owner is fenced for it
    blocks[heap.changes[i].page] = arena::BlockOf(heap.changes[i]);
  }
}

// When nothing of the shard is under way: what is allocated is what was committed, and the state
// names all of it.
void Checker::CheckHeap(uint32_t index) {
  const std::vector<arena::HeapBlock>& blocks = shards_[index].heap;
  if (blocks.empty()) return;
  std::set<uint64_t> allocated;
  uint64_t end = 0;
  for (uint64_t page = 0; page < blocks.size(); ++page) {
    const arena::HeapBlock& block = blocks[page];
    const arena::HeapBlock& record = arena_->heap(index)[page];
    if (record.pages != block.pages || record.units != block.units || record.kept != block.kept) {
      return context_->Break(absl::StrCat("heap: the block at page ", page, " of shard ", index,
                                          " is not what was committed"));
    }
    if (block.pages == 0) continue;
    if (page < end) {
      return context_->Break(
          absl::StrCat("heap: page ", page, " of shard ", index, " is in two blocks"));
    }
    end = page + block.pages;
    ForEachKept(block, page, [&](uint64_t offset, uint64_t) { allocated.insert(offset); });
  }
  const arena::ShardRecord& record = arena_->shard(index);
  const std::string_view state(
      reinterpret_cast<const char*>(arena_->shard_state(index, record.state_slot)),
      record.state_length);
  HeapObjects named = {};
  if (!state.empty() && !Decode(state.substr(sizeof(ShardTotals)), &named)) {
    return context_->Break(absl::StrCat("P1: the state of the heap of shard ", index, " is torn"));
  }
  for (const HeapObject& object : named.objects) {
    if (object.length == 0 || allocated.erase(object.offset) == 1) continue;
    return context_->Break(absl::StrCat("heap: the state of shard ", index, " names what is at ",
                                        object.offset, ", and it is not allocated"));
  }
  if (!allocated.empty()) {
    context_->Break(
        absl::StrCat("heap: shard ", index, " has leaked what is at ", *allocated.begin()));
  }
}

// P4: the device may have, or will have, what a committed request refers to. And what is committed
// is nobody else's, whatever the open transaction frees.
void Checker::OnAllocated(uint32_t index, const Buffer& buffer) {
  const auto check = [&](uint64_t offset, uint64_t length, const char* user, uint64_t number) {
    if (offset >= buffer.offset + buffer.length || buffer.offset >= offset + length) return;
    context_->Break(absl::StrCat("P4: shard ", index, " was given heap memory at ", buffer.offset,
                                 " that ", user, " ", absl::Hex(number), " has"));
  };
  const uint64_t base = reinterpret_cast<uint64_t>(arena_->buffers());
  for (const Range& held : held_) {
    if (held.begin < base) continue;  // a spare
    check(held.begin - base, held.end - held.begin, "posted request", held.wr_id);
  }
  const auto check_request = [&](const arena::WorkRequest& request, uint64_t number) {
    for (uint32_t i = 0; i < std::min<uint32_t>(request.sge_count, arena::kMaxSges); ++i) {
      const arena::BufferRange& range = arena::RangeOf(request, i);
      check(range.offset, range.length, "committed request", number);
    }
  };
  for (uint32_t i = 0; i < connections_.size(); ++i) {
    const arena::ConnectionRecord& record = arena_->connection(i);
    const Connection& connection = At(i, record.generation);
    if (record.shard != index || record.state == 0 || connection.ended) continue;
    for (const Queue* queue : {&connection.send, &connection.receive}) {
      for (uint64_t j = queue->posted + queue->spared; j < queue->committed.size(); ++j) {
        check_request(queue->committed[j], j);
      }
    }
  }
  const uint64_t begin = arena::HeapOffset(arena_->shape(), index);
  for (uint64_t page = 0; page < shards_[index].heap.size(); ++page) {
    ForEachKept(shards_[index].heap[page], page, [&](uint64_t offset, uint64_t length) {
      check(begin + offset, length, "the committed object of page", page);
    });
  }
}

// ---------------------------------------------------------------- device

const arena::WorkRequest* Checker::Post(uint64_t wr_id) {
  const uint32_t index = arena::WrIdConnection(wr_id);
  const uint32_t generation = arena_->connection(index).generation;
  const bool receive = arena::WrIdDirection(wr_id) == arena::Direction::kReceive;
  Connection& connection = At(index, generation);
  Queue& queue = receive ? connection.receive : connection.send;
  const uint64_t sequence = arena::WrIdSequence(wr_id);
  context_->Note(receive ? "posted receive" : "posted send", index, generation, sequence);
  for (; sequence > queue.posted && queue.spared > 0; --queue.spared) ++queue.posted;
  if (arena::WrIdGeneration(wr_id) != arena::ShortGeneration(generation) ||
      sequence != queue.posted) {
    context_->Break(absl::StrCat("P2: connection ", index, " posted ", sequence, " after ",
                                 queue.posted, " requests"));
    return nullptr;
  }
  if (sequence >= queue.committed.size()) {
    context_->Break(absl::StrCat("P2: connection ", index, " posted ", sequence, ", committed are ",
                                 queue.committed.size()));
    return nullptr;
  }
  // Where it is not known whether one was posted, a spare is.
  const uint64_t receives = connection.receive.posted + connection.receive.spared;
  if (!receive && queue.receives[sequence] > receives && !HasSpare(index)) {
    context_->Break(absl::StrCat("P2: connection ", index, " posted send ", sequence,
                                 " before the receives of its transaction"));
  }
  return &queue.committed[queue.posted++];
}

// The shard is in the place of the connection. One of which nobody was told is posted once more.
const arena::WorkRequest* Checker::PostShared(uint64_t wr_id) {
  const uint32_t shard = arena::WrIdConnection(wr_id), slot = arena::SharedReceiveSlot(wr_id);
  context_->Note("posted shared receive", shard, slot, arena::WrIdGeneration(wr_id));
  Shard::SharedReceive& receive = shards_[shard].shared[slot];
  if (++receive.posts > receive.commits && poison_deaths_ == 0) {
    context_->Break(absl::StrCat("P2: shared receive ", slot, " of shard ", shard, " was posted ",
                                 receive.posts, " times, committed ", receive.commits));
    return nullptr;
  }
  return &receive.committed;
}

void Checker::CheckShared(uint32_t shard, size_t at_device) {
  const arena::ShardRecord& record = arena_->shard(shard);
  const uint64_t posted = record.shared_receives_posted, unsure = record.shared_receives_unsure;
  uint32_t attempted = 0;
  for (uint32_t slot = 0; slot < shards_[shard].shared.size(); ++slot) {
    const auto state = arena::StateOf(arena_->shared_receive(shard, slot));
    attempted += state == arena::SharedReceiveState::kAttempted ? 1 : 0;
    if (state != arena::SharedReceiveState::kCompleted) continue;
    context_->Break(absl::StrCat("shared receive ", slot, " of shard ", shard, " is leaked"));
  }
  if (at_device >= posted && at_device <= posted + unsure && attempted == unsure) return;
  context_->Break(absl::StrCat("shard ", shard, " has lost shared receives: the device has ",
                               at_device, ", posted are ", posted, ", unsure ", unsure, ", ",
                               attempted));
}

void Checker::HoldBuffers(uint64_t wr_id, absl::Span<const verbs::ScatterGather> sges,
                          const arena::WorkRequest& committed) {
  const uint64_t base = reinterpret_cast<uint64_t>(arena_->buffers());
  if (sges.size() != committed.sge_count) return context_->Break("P2: posted with other buffers");
  for (size_t i = 0; i < sges.size(); ++i) {
    if (sges[i].address != base + committed.sges[i].offset ||
        sges[i].length != committed.sges[i].length) {
      return context_->Break("P2: posted with another buffer than was committed");
    }
    Hold(wr_id, sges[i]);
  }
}

void Checker::Hold(uint64_t wr_id, const verbs::ScatterGather& sge) {
  const Range range = {sge.address, sge.address + sge.length, wr_id};
  for (const Range& held : held_) {
    if (held.wr_id != wr_id && held.begin < range.end && range.begin < held.end) {
      return context_->Break(absl::StrCat("P4: a buffer of ", absl::Hex(wr_id),
                                          " is in the hands of ", absl::Hex(held.wr_id)));
    }
  }
  held_.push_back(range);
}

void Checker::OnSendPosted(const verbs::SendRequest& request) {
  if (arena::WrIdSequence(request.wr_id) >= arena::kMarkerSequence) {
    context_->Note("posted marker", request.wr_id);
    if (request.opcode == verbs::Opcode::kWrite && request.sges.empty()) return;
    return context_->Break("a marker with an effect");
  }
  const arena::WorkRequest* committed = Post(request.wr_id);
  if (!committed) return;
  if (static_cast<uint8_t>(request.opcode) != committed->opcode ||
      request.immediate != committed->immediate ||
      request.remote_address != committed->remote_address || request.rkey != committed->rkey) {
    return context_->Break("P2: a send is not the one that was committed");
  }
  HoldBuffers(request.wr_id, request.sges, *committed);
}

void Checker::OnReceivePosted(const verbs::ReceiveRequest& request) {
  if (arena::IsSharedReceive(request.wr_id)) {
    const arena::WorkRequest* committed = PostShared(request.wr_id);
    if (committed) HoldBuffers(request.wr_id, request.sges, *committed);
    return;
  }
  if (arena::WrIdSequence(request.wr_id) >= arena::kMarkerSequence) {
    context_->Note("posted spare", request.wr_id, request.sges.size());
    for (const verbs::ScatterGather& sge : request.sges) Hold(request.wr_id, sge);
    return;
  }
  const arena::WorkRequest* committed = Post(request.wr_id);
  if (committed) HoldBuffers(request.wr_id, request.sges, *committed);
}

void Checker::OnCompleted(const verbs::Completion& completion) {
  std::erase_if(held_, [&](const Range& range) { return range.wr_id == completion.wr_id; });
  if (arena::IsSharedReceive(completion.wr_id)) return;
  const uint32_t index = arena::WrIdConnection(completion.wr_id);
  const uint32_t generation = arena_->connection(index).generation;
  if (arena::WrIdSequence(completion.wr_id) >= arena::kSpareSequence &&
      arena::WrIdGeneration(completion.wr_id) == arena::ShortGeneration(generation) &&
      completion.status == verbs::CompletionStatus::kSuccess) {
    ++At(index, generation).receive.spared;
  }
}

// Whether connection `index` may be this client's, which the checker may not know yet: of one that
// we asked for it is told with its establishment.
bool Checker::MayBeOf(uint32_t index, uint64_t client) const {
  uint64_t peer;
  std::memcpy(&peer, arena_->connection(index).private_data, sizeof(peer));
  return peer == client || peer == 0;
}

bool Checker::Excused(uint64_t client) {
  for (uint32_t i = 0; i < connections_.size(); ++i) {
    const Connection& connection = At(i, arena_->connection(i).generation);
    if (!connection.excused) continue;
    Excuse(connection.client);
    if (connection.client == 0 && MayBeOf(i, client)) return true;
  }
  if (failed_unknown_ || excused_.contains(client)) return true;
  for (uint32_t i = 0; i < connections_.size(); ++i) {
    // A poisoned connection ends before the engine tells why, and OnPoisoned judges that.
    if (arena_->connection(i).poison != 0 && MayBeOf(i, client)) return true;
  }
  return false;
}

// ---------------------------------------------------------------- poison

void Checker::OnOwnerDied(uint32_t shard) {
  const arena::ShardRecord& record = arena_->shard(shard);
  shards_[shard].deaths.emplace_back(record.acknowledged, record.completion_tail);
}

void Checker::OnPoisoned(uint32_t shard, uint32_t index, uint64_t completion, bool guessed) {
  ++poisonings_;
  const Connection& connection = At(index, arena_->connection(index).generation);
  const auto& deaths = shards_[shard].deaths;
  const auto could_be_of_it = std::count_if(deaths.begin(), deaths.end(), [&](const auto& left) {
    return left.first <= completion && completion < left.second;
  });
  context_->Note("poisoned", index, completion, static_cast<uint64_t>(could_be_of_it));
  // A peer that we connect to may be failed before it said who it is.
  if (connection.client == 0) failed_unknown_ = true;
  Excuse(connection.client);
  if (poison_deaths_ == 0 || could_be_of_it < poison_deaths_) {
    context_->Break(absl::StrCat("P7: connection ", index, " was failed for completion ",
                                 completion, ", of which ", could_be_of_it,
                                 " owners may have died"));
  }
  // Nobody died in a handler but of poison.
  if (!random_deaths_ && !guessed && connection.client != 0 &&
      !poisoners_.contains(connection.client)) {
    context_->Break(absl::StrCat("P7: connection ", index, " was failed, and client ",
                                 connection.client, " sent no poison"));
  }
}

// ---------------------------------------------------------------- peers, and the end

void Checker::OnReply(uint64_t shard, uint64_t shard_count) {
  if (shard >= shards_.size() || !shards_[shard].counts.insert(shard_count).second) {
    context_->Break(
        absl::StrCat("P1: two replies of shard ", shard, " are its number ", shard_count));
  }
}

void Checker::CheckEnd(bool all_replies_seen) {
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    const arena::ShardRecord& record = arena_->shard(i);
    ShardTotals totals = {};
    const std::string_view state(
        reinterpret_cast<const char*>(arena_->shard_state(i, record.state_slot)),
        record.state_length);
    if (!state.empty() && !Decode(state.substr(0, sizeof(totals)), &totals)) {
      return context_->Break(absl::StrCat("P1: the state of shard ", i, " is torn"));
    }
    CheckHeap(i);
    const auto& counts = shards_[i].counts;
    if ((!counts.empty() && *counts.rbegin() > totals.processed) ||
        (all_replies_seen && counts.size() != totals.processed)) {
      return context_->Break(absl::StrCat("P1: shard ", i, " counts ", totals.processed,
                                          " requests, its peers ", counts.size()));
    }
  }
  for (uint32_t i = 0; i < connections_.size(); ++i) {
    const arena::ConnectionRecord& record = arena_->connection(i);
    if (arena::ConnectionState(record.state) != arena::ConnectionState::kEstablished) continue;
    const Connection& connection = At(i, record.generation);
    // Receives are held back behind a spare until its message comes.
    const bool held = HasSpare(i);
    if (connection.send.posted != connection.send.committed.size() ||
        (!held && connection.receive.posted + connection.receive.spared !=
                      connection.receive.committed.size())) {
      return context_->Break(
          absl::StrCat("P2: connection ", i, " has committed requests that ", "were not posted"));
    }
  }
}

bool Checker::HasSpare(uint32_t index) const {
  for (uint32_t i = 0; i < arena::kSpares; ++i) {
    if (arena_->spare(arena_->connection(index).shard, i).owner == index + 1) return true;
  }
  return false;
}

void Checker::CheckCounters(uint32_t shard, const driver::ShardCounters& counters) {
  uint64_t sends_in_flight = 0, receives_in_flight = 0, receives_held = 0;
  for (uint32_t i = 0; i < connections_.size(); ++i) {
    const arena::ConnectionRecord& record = arena_->connection(i);
    if (record.shard != shard || record.state == 0) continue;
    sends_in_flight += record.send.posted - record.send.completed;
    if (arena::HasSharedReceives(arena_->shape())) continue;
    receives_in_flight += record.receive.posted - record.receive.completed;
    const auto state = arena::ConnectionState(record.state);
    const bool live = state == arena::ConnectionState::kConnecting ||
                      state == arena::ConnectionState::kEstablished;
    // A peer may have left before it was answered; nobody has looked at that yet.
    const bool unanswered = state == arena::ConnectionState::kRequested;
    if (unanswered || (live && HasSpare(i))) {
      receives_held += record.receive.committed - record.receive.posted;
    }
  }
  receives_in_flight += arena_->shard(shard).shared_receives_posted;
  receives_held += arena_->shard(shard).shared_receives_unsure;
  if (counters.sends_committed == counters.sends_posted &&
      counters.receives_committed == counters.receives_posted + receives_held &&
      counters.sends_posted - counters.sends_completed == sends_in_flight &&
      counters.receives_posted - counters.receives_completed == receives_in_flight) {
    return;
  }
  context_->Break(absl::StrCat("reports: shard ", shard, " has ", sends_in_flight, " sends and ",
                               receives_in_flight, " receives in flight, and counts of sends ",
                               counters.sends_committed, " committed, ", counters.sends_posted,
                               " posted, ", counters.sends_completed, " completed, of receives ",
                               counters.receives_committed, ", ", counters.receives_posted, ", ",
                               counters.receives_completed));
}

}  // namespace baton::simulation

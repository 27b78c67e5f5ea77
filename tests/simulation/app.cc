#include "tests/simulation/app.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"

namespace baton::simulation {
namespace {

std::string_view TextOf(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Both queues of each connection of the service, should all of them be in one shard.
uint64_t BuffersOfShard(const arena::Shape& shape) {
  return uint64_t{8} * shape.send_queue_depth * shape.connections;
}

uint64_t SharedBuffer(const arena::Shape& shape, uint32_t shard, uint64_t slot) {
  return (uint64_t{shape.shards} * BuffersOfShard(shape) +
          uint64_t{shard} * arena::SharedReceiveSlots(shape) + slot) *
         kMessageBytes;
}

absl::Span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

App::App(Context* context, Checker* checker, const arena::Arena* arena, const AppOptions& options)
    : context_(context),
      checker_(checker),
      arena_(arena),
      options_(options),
      heap_(context, checker, arena),
      peers_(arena->shape().connections),
      processed_(arena->shape().shards),
      owned_(arena->shape().shards),
      pools_(arena->shape().shards) {}

uint64_t BufferBytes(const arena::Shape& shape) {
  return uint64_t{shape.shards} * (BuffersOfShard(shape) + arena::SharedReceiveSlots(shape)) *
         kMessageBytes;
}

void App::Need(const absl::Status& status, const char* what) {
  if (!status.ok()) context_->Break(absl::StrCat(what, ": ", status.message()));
}

// ---------------------------------------------------------------- ownership

absl::Status App::OnAdopt(Shard& shard) {
  checker_->OnAdopted(shard.index(), shard.epoch());
  if (options_.decides && context_->dice.OneIn(20)) return absl::AbortedError("not this one");
  held_.emplace_back(shard.index(), shard.epoch());
  owned_[shard.index()] = &shard;
  ShardTotals totals = {};
  if (!shard.state().empty() && !Decode(TextOf(shard.state()).substr(0, sizeof(totals)), &totals)) {
    context_->Break(absl::StrCat("P1: shard ", shard.index(), " was adopted with torn state"));
  }
  processed_[shard.index()] = totals.processed;
  heap_.OnAdopt(shard);
  if (options_.pools) FillPools(shard);
  for (Connection* connection : shard.connections()) {
    Peer& peer = PeerOf(*connection);
    if (peer.account.client != 0 && peer.account.answered == 0) {
      undecided_.push_back(connection);
    }
  }
  if (shared()) TopUpShared(shard);
  return absl::OkStatus();
}

void App::Forget(Shard& shard) {
  owned_[shard.index()] = nullptr;
  std::erase_if(undecided_, [&](Connection* one) { return &one->shard() == &shard; });
}

void App::OnRelease(Shard& shard) {
  released_ = {shard.index(), shard.epoch()};
  Forget(shard);
}
void App::OnLost(Shard& shard) { Forget(shard); }

// The library clears `context` whenever it loads a connection anew: then the state is what counts.
App::Peer& App::PeerOf(Connection& connection) {
  Peer& peer = peers_[connection.index()];
  if (connection.context == &peer) return peer;
  connection.context = &peer;
  peer = Peer{};
  if (!connection.state().empty() && !Decode(TextOf(connection.state()), &peer.account)) {
    context_->Break(absl::StrCat("P1: connection ", connection.index(), " has torn state"));
  }
  if (!connection.state().empty() && connection.state_version() != kStateVersion) {
    context_->Break("P1: state and its version do not belong together");
  }
  return peer;
}

// ---------------------------------------------------------------- completions

void App::OnCompletion(Shard& shard, const Completion& done) {
  Connection& connection = *done.connection;
  const uint64_t word = arena::LoadAcquire(arena_->shard(shard.index()).owner.ownership);
  if (arena::OwnershipEpoch(word) != shard.epoch()) {
    context_->Break(
        absl::StrCat("P3: shard ", shard.index(), " delivers in epoch ", shard.epoch()));
  }
  Peer& peer = PeerOf(connection);
  context_->Note("delivered", connection.index(), static_cast<uint64_t>(done.kind), done.sequence);
  if (options_.defects.acknowledge_first) (void)shard.Commit();
  if (heap_.Act(shard)) SaveTotals(shard);
  Account& account = peer.account;
  switch (done.kind) {
    case Completion::Kind::kConnectRequest:
      OnRequest(shard, done, peer);
      return;
    case Completion::Kind::kEstablished:
      if (account.established != 0) context_->Break("P1: kEstablished was delivered twice");
      account.established = 1;
      // We, or an owner before us, have asked for this connection: no request told its client.
      if (account.client == 0) ReadClient(connection, account);
      if (account.answered == 0 && !checker_->KnowsTag(done.tag)) {
        context_->Break("P1: kEstablished of a connection that nobody asked for");
      }
      account.answered = 1;
      break;
    case Completion::Kind::kReceive:
      OnReceive(shard, done, peer);
      break;
    case Completion::Kind::kSend:
      if (done.sequence != account.sends_completed) {
        context_->Break(absl::StrCat("P1: send ", done.sequence, " completed, expected was ",
                                     account.sends_completed));
      }
      ++account.sends_completed;
      GiveBuffer(shard, done, true);
      break;
    case Completion::Kind::kDisconnected:
    case Completion::Kind::kConnectFailed:
      std::erase(undecided_, &connection);
      if (options_.pools) GiveRest(shard, connection, account);
      if (shared()) TopUpShared(shard);
      return;
  }
  if (options_.decides && !peer.closing && context_->dice.OneIn(100)) {
    peer.closing = shard.Disconnect(connection).ok();
  }
  if (account.answered != 0) TopUp(shard, connection, peer);
  Save(shard, connection, peer);
  if (shared()) TopUpShared(shard);
}

void App::ReadClient(const Connection& connection, Account& account) {
  const std::string_view data = connection.private_data();
  if (data.size() != sizeof(account.client)) return context_->Break("a peer without its number");
  std::memcpy(&account.client, data.data(), data.size());
}

Shard* App::SomeShard() {
  return owned_[context_->dice.Below(static_cast<uint32_t>(owned_.size()))];
}

void App::OnConnecting(Connection& connection) {
  Peer& peer = PeerOf(connection);
  peer.account.answered = 1;
  // The driver may be so far behind that there is no room: it gets its receives when it is
  // established. The state takes the connection's entry beforehand.
  const absl::Status saved =
      connection.shard().SetState(connection, BytesOf(Encode(peer.account)), kStateVersion);
  if (absl::IsResourceExhausted(saved)) return;
  Need(saved, "SetState");
  TopUp(connection.shard(), connection, peer);
  Save(connection.shard(), connection, peer);
}

void App::OnRequest(Shard& shard, const Completion& done, Peer& peer) {
  Connection& connection = *done.connection;
  Account& account = peer.account;
  if (account.client != 0) context_->Break("P1: a new connection has state");
  ReadClient(connection, account);
  if (options_.decides && context_->dice.OneIn(3)) {
    undecided_.push_back(&connection);
    // Committed now, posted when it is accepted.
    if (!options_.pools && context_->dice.OneIn(2)) TopUp(shard, connection, peer);
    return Save(shard, connection, peer);
  }
  Answer(shard, connection, peer);
}

void App::OnReceive(Shard& shard, const Completion& done, Peer& peer) {
  Account& account = peer.account;
  if (shared()) {
    if (!heap_.IsInHeap(done.tag) &&
        done.tag != SharedBuffer(arena_->shape(), shard.index(), done.sequence)) {
      context_->Break(absl::StrCat("P1: shared receive ", done.sequence, " with another's tag"));
    }
  } else if (done.sequence != account.receives_completed) {
    context_->Break(absl::StrCat("P1: receive ", done.sequence, " completed, expected was ",
                                 account.receives_completed));
  }
  ++account.receives_completed;
  GiveBuffer(shard, done, false);
  if (done.status != verbs::CompletionStatus::kSuccess) return;
  Request request = {};
  // The offset of the buffer is in the tag.
  const uint8_t* buffers = shard.worker().buffers().data();
  const std::string_view bytes(reinterpret_cast<const char*>(buffers + done.tag), done.byte_len);
  const bool whole = Decode(bytes, &request);
  // It may come before kEstablished, which tells who the peer is that we have connected to.
  if (account.client == 0) account.client = request.client;
  if (!whole || request.client != account.client) {
    return context_->Break(absl::StrCat("P4: connection ", done.connection->index(), " receive ",
                                        done.sequence, " is not what its peer sent"));
  }
  if (done.has_immediate && done.immediate != request.amount) {
    context_->Break("P1: a completion with another's immediate");
  }
  if (request.amount == kPoisonAmount) BATON_CRASH_POINT("poison");
  if (request.sequence != account.requests + 1) {
    return context_->Break(
        absl::StrCat("P1: request ", request.sequence, " follows ", account.requests));
  }
  ++account.requests;
  account.total += request.amount;
  if (options_.defects.state_after_commit) {
    Save(shard, *done.connection, peer);
    (void)shard.Commit();
  }
  SendReply(shard, *done.connection, peer);
}

// Posts as many receives as can certainly be answered, even if one connection takes all of them.
void App::TopUpShared(Shard& shard) {
  const arena::Shape& shape = arena_->shape();
  uint64_t taken = shard.shared_receives_outstanding();
  for (Connection* connection : shard.connections()) {
    taken += connection->next_send() - PeerOf(*connection).account.sends_completed;
  }
  for (; shard.shared_receive_room() > 0 && taken < shape.send_queue_depth; ++taken) {
    const std::optional<Buffer> own = heap_.TakeMessage(shard);
    const uint64_t offset =
        own ? own->offset : SharedBuffer(shape, shard.index(), shard.next_shared_receive());
    const uint32_t first = context_->dice.From(1, sizeof(Request) - 1);
    const std::array<Buffer, 2> parts = {Buffer{offset, first},
                                         Buffer{offset + first, kMessageBytes - first}};
    const absl::Status posted = shard.ReceiveShared(parts, offset);
    if (own) heap_.GiveMessage(shard, *own);
    // The driver is far behind: when it has caught up.
    if (posted.code() == absl::StatusCode::kResourceExhausted) return;
    Need(posted, "ReceiveShared");
    if (context_->broken()) return;
  }
}

uint64_t App::Count(Shard& shard) {
  ++processed_[shard.index()];
  SaveTotals(shard);
  return processed_[shard.index()];
}

void App::SaveTotals(Shard& shard) {
  const std::string state = Encode(ShardTotals{processed_[shard.index()], 0}) + heap_.State(shard);
  Need(shard.SetShardState(BytesOf(state), kStateVersion), "SetShardState");
}

void App::SendReply(Shard& shard, Connection& connection, Peer& peer) {
  const std::optional<Buffer> own = heap_.TakeMessage(shard);
  const uint64_t offset = own ? own->offset : TakeBuffer(shard, connection, true);
  const std::string reply = Encode(Reply{peer.account.client, peer.account.requests,
                                         peer.account.total, shard.index(), Count(shard), 0});
  uint8_t* buffers = shard.worker().buffers().data();
  std::copy(reply.begin(), reply.end(), buffers + offset);
  const auto length = static_cast<uint32_t>(reply.size());
  const uint32_t first = context_->dice.Below(length);
  const std::array<Buffer, 2> parts = {Buffer{offset, first},
                                       Buffer{offset + first, length - first}};
  SendWork work;
  constexpr std::array kOpcodes = {verbs::Opcode::kSend, verbs::Opcode::kSendWithImmediate,
                                   verbs::Opcode::kWriteWithImmediate};
  work.opcode = kOpcodes[context_->dice.Below(kOpcodes.size())];
  work.buffers = parts;
  work.immediate = static_cast<uint32_t>(peer.account.requests);
  work.tag = offset;
  Need(shard.Send(connection, work), "Send");
  if (own) heap_.GiveMessage(shard, *own);
}

// Posts as many receives as there is certainly room to answer.
void App::TopUp(Shard& shard, Connection& connection, Peer& peer) {
  if (shared()) return;
  const uint32_t depth = arena_->shape().receive_queue_depth;
  const Account& account = peer.account;
  while (!peer.closing && connection.receive_room() > 0 &&
         connection.next_receive() - account.receives_completed + connection.next_send() -
                 account.sends_completed <
             depth) {
    // One that is accepted into another shard takes no memory of this one's heap along.
    const std::optional<Buffer> own =
        account.established != 0 ? heap_.TakeMessage(shard) : std::nullopt;
    const uint64_t offset = own ? own->offset : TakeBuffer(shard, connection, false);
    const uint32_t first = context_->dice.From(1, sizeof(Request) - 1);
    const std::array<Buffer, 2> parts = {Buffer{offset, first},
                                         Buffer{offset + first, kMessageBytes - first}};
    Need(shard.Receive(connection, parts, offset), "Receive");
    if (own) heap_.GiveMessage(shard, *own);
    if (context_->broken()) return;
  }
}

void App::Save(Shard& shard, Connection& connection, Peer& peer) {
  Need(shard.SetState(connection, BytesOf(Encode(peer.account)), kStateVersion), "SetState");
}

// ---------------------------------------------------------------- buffers

void App::FillPools(Shard& shard) {
  const uint64_t count = BuffersOfShard(arena_->shape());
  std::vector<bool> used(count);
  const uint64_t base = shard.index() * count;
  for (Connection* connection : shard.connections()) {
    shard.ForEachBufferInUse(*connection, [&](const Buffer& buffer, bool) {
      const uint64_t number = buffer.offset / kMessageBytes - base;
      if (number < count) used[number] = true;
    });
  }
  for (auto& pool : pools_[shard.index()]) pool.clear();
  for (uint64_t i = 0; i < count; ++i) {
    if (!used[i]) pools_[shard.index()][i % 2].push_back((base + i) * kMessageBytes);
  }
}

uint64_t App::TakeBuffer(Shard& shard, const Connection& connection, bool send) {
  if (options_.pools) {
    std::vector<uint64_t>& pool = pools_[shard.index()][send];
    if (pool.empty()) {
      context_->Break(absl::StrCat("shard ", shard.index(), " has leaked its buffers"));
      return 0;
    }
    const uint64_t offset = pool.back();
    pool.pop_back();
    return offset;
  }
  const uint32_t ring = 2 * arena_->shape().send_queue_depth;
  uint64_t place = (send ? connection.next_send() : connection.next_receive()) % ring;
  if (options_.defects.reuse_buffer_early && !send) place %= std::max(1u, ring / 4);
  return (uint64_t{2} * ring * connection.index() + (send ? 0 : ring) + place) * kMessageBytes;
}

// A receive's buffer can be posted again in the same transaction: until that is committed nothing
// writes it. A send's can be written at once: nobody needs it again.
void App::GiveBuffer(Shard& shard, const Completion& done, bool send) {
  if (!options_.pools || heap_.IsInHeap(done.tag)) return;
  pools_[shard.index()][send].push_back(done.tag);
}

// Requests that were never posted get no completion: their buffers come back with the end.
void App::GiveRest(Shard& shard, Connection& connection, const Account& account) {
  std::array<std::vector<uint64_t>, 2> in_use;
  shard.ForEachBufferInUse(connection, [&](const Buffer& buffer, bool send) {
    const uint64_t whole = buffer.offset / kMessageBytes * kMessageBytes;
    if (in_use[send].empty() || in_use[send].back() != whole) in_use[send].push_back(whole);
  });
  const std::array<uint64_t, 2> left = {connection.next_receive() - account.receives_completed,
                                        connection.next_send() - account.sends_completed};
  for (const bool send : {false, true}) {
    // The ones before have completed in this transaction, and are back already.
    if (left[send] > in_use[send].size()) return context_->Break("P4: buffers in use not told");
    auto& pool = pools_[shard.index()][send];
    std::copy_if(in_use[send].end() - static_cast<ptrdiff_t>(left[send]), in_use[send].end(),
                 std::back_inserter(pool),
                 [this](uint64_t offset) { return !heap_.IsInHeap(offset); });
  }
}

// ---------------------------------------------------------------- decisions

void App::Answer(Shard& shard, Connection& connection, Peer& peer) {
  Dice& dice = context_->dice;
  // The driver may be so far behind that there is no room: then it is decided later. The state
  // takes the connection's entry beforehand.
  const auto later = [&](const absl::Status& status) {
    if (status.code() != absl::StatusCode::kResourceExhausted) return false;
    if (std::find(undecided_.begin(), undecided_.end(), &connection) == undecided_.end()) {
      undecided_.push_back(&connection);
    }
    return true;
  };
  if (later(shard.SetState(connection, BytesOf(Encode(peer.account)), kStateVersion))) return;
  if (options_.decides && dice.OneIn(10)) {
    const absl::Status rejected = shard.Reject(connection, "no");
    if (later(rejected)) return;
    Need(rejected, "Reject");
    std::erase(undecided_, &connection);
    peer.account.answered = 1;
    peer.closing = true;
    return Save(shard, connection, peer);
  }
  Shard* target =
      options_.decides ? owned_[dice.Below(static_cast<uint32_t>(owned_.size()))] : nullptr;
  if (!target) target = &shard;
  const absl::Status accepted =
      shard.Accept(connection, *target, absl::StrCat("for ", peer.account.client));
  if (later(accepted)) return;
  Need(accepted, "Accept");
  std::erase(undecided_, &connection);
  peer.account.answered = 1;
  // Buffers that the open transaction of another shard would free are not free in this one: it may
  // never be committed. That connection gets its receives when it is established.
  if (!options_.pools || target == &shard) TopUp(shard, connection, peer);
  Save(shard, connection, peer);
}

void App::Idle(bool commit) {
  const std::vector<Connection*> undecided = undecided_;
  for (Connection* connection : undecided) {
    if (options_.decides && !context_->dice.OneIn(4)) continue;
    Shard& shard = connection->shard();
    Answer(shard, *connection, PeerOf(*connection));
  }
  if (!commit) return;
  for (Shard* shard : owned_) {
    if (!shard) continue;
    if (shared()) TopUpShared(*shard);
    const bool committed = shard->Commit().ok();
    if (heap_.enabled() && committed && context_->dice.OneIn(8)) heap_.ActAndAbandon(*shard);
  }
}

}  // namespace baton::simulation

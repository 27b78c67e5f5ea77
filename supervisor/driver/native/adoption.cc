#include "supervisor/driver/native/adoption.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/arena/text_field.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "lib/channel/message_channel.h"
#include "lib/driver/connection_state.h"
#include "lib/log/log.h"
#include "lib/native/mailbox.h"
#include "spdlog/spdlog.h"
#include "supervisor/driver/native/native_driver.h"
#include "supervisor/driver/workers/held_workers.h"

namespace baton::driver_process {
namespace {

using arena::MailEntry;
using arena::NoticeKind;
using arena::OrderKind;
using arena::TextOf;
using native::Mailbox;
using verbs::CompletionStatus;
using verbs::rdma::AdoptedId;
using verbs::rdma::AdoptedIds;

// Names of what is held.
constexpr char kArena[] = "arena";        // worker log, driver log, buffers, recovery memory
constexpr char kDevice[] = "device";      // never asked for: open is all that it has to be
constexpr char kLifeline[] = "lifeline";  // likewise
constexpr char kIds[] = "rdma_cm";        // of the first driver, then of its successors
constexpr char kLinks[] = "links";        // proof, driver_wake, news
constexpr char kWakes[] = "wakes";
constexpr char kComplete[] = "complete";  // all of the above are there
constexpr char kBegun[] = "begun";        // as many as adoptions that have begun and not settled

constexpr int kPerTurn = 64;
constexpr int kEndMs = 10'000;

std::string Key(const std::string& local, const std::string& peer) {
  return absl::StrCat(local, " ", peer);
}

std::string KeyOf(const AdoptedId& id) {  // as ConnectionManager writes them down
  return Key(absl::StrCat(id.local.host, ":", id.local.port),
             absl::StrCat(id.peer.host, ":", id.peer.port));
}

}  // namespace

absl::Status Hold(HeldDescriptors* held, const NativeFiles& files, const Lifeline& lifeline) {
  // Descriptors of another generation must not be adopted together with these.
  BATON_RETURN_IF_ERROR(held->DropAll());
  const arena::Arena& arena = *files.arena;
  const std::vector<std::pair<const char*, std::vector<int>>> all = {
      {kArena,
       {arena.worker_log_fd(), arena.driver_log_fd(), arena.buffers_fd(), arena.recovery_fd()}},
      {kDevice, files.device},
      {kLifeline, {lifeline.hold.get()}},
      {kIds, {files.connection_manager}},
      {kLinks, {lifeline.proof.get(), files.driver_wake, files.news}},
      {kWakes, files.wakes},
      {kComplete, {files.driver_wake}}};
  for (const auto& [name, descriptors] : all) {
    BATON_RETURN_IF_ERROR(held->Put(name, descriptors));
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- taking over

absl::StatusOr<std::unique_ptr<Adoption>> Adoption::Begin(HeldDescriptors* held,
                                                          const v1::ServiceConfig& service) {
  BATON_ASSIGN_OR_RETURN(const std::vector<FileDescriptor> complete, held->Get(kComplete));
  if (complete.empty()) return nullptr;
  BATON_RETURN_IF_ERROR(CountBegin(held, complete[0].get()));
  BATON_ASSIGN_OR_RETURN(std::vector<FileDescriptor> arena, held->Get(kArena));
  BATON_ASSIGN_OR_RETURN(std::vector<FileDescriptor> links, held->Get(kLinks));
  AdoptedFiles files;
  BATON_ASSIGN_OR_RETURN(files.wakes, held->Get(kWakes));
  if (arena.size() != 4 || links.size() != 3) {
    return absl::InternalError("what is held of the former driver is not what a driver gives");
  }
  BATON_ASSIGN_OR_RETURN(arena::Arena attached,
                         arena::Arena::AttachKeeper(std::move(arena[0]), std::move(arena[1]),
                                                    std::move(arena[2]), std::move(arena[3])));
  files.arena = std::make_unique<arena::Arena>(std::move(attached));
  if (files.wakes.size() != files.arena->shape().workers ||
      !arena::IsNative(files.arena->shape())) {
    return absl::InternalError("what is held of the former driver does not fit its arena");
  }
  BATON_ASSIGN_OR_RETURN(files.processes, HeldWorkers::Get(held, files.arena->shape().workers));
  files.proof = std::move(links[0]);
  files.driver_wake = std::move(links[1]);
  files.news = std::move(links[2]);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<AdoptedIds> ids, verbs::rdma::OpenAdoptedIds());
  BATON_ASSIGN_OR_RETURN(const std::vector<AdoptedId> taken, TakeIds(held, ids.get()));
  return std::make_unique<Adoption>(std::move(files), std::move(ids), taken, service);
}

absl::Status Adoption::CountBegin(HeldDescriptors* held, int descriptor) {
  static_assert(kMostDeaths <= kMaxFrameDescriptors);
  BATON_ASSIGN_OR_RETURN(const std::vector<FileDescriptor> begun, held->Get(kBegun));
  if (begun.size() >= kMostDeaths) {
    return absl::AbortedError(
        absl::StrCat(begun.size(), " drivers in a row died while they took over"));
  }
  return held->Put(kBegun, std::vector<int>(begun.size() + 1, descriptor));
}

void Adoption::Settle(HeldDescriptors* held) {
  const absl::Status status = held->Drop(kBegun);
  if (!status.ok()) spdlog::warn("that the adoption goes well is not held: {}", MessageOf(status));
}

Adoption::Adoption(AdoptedFiles files, std::unique_ptr<AdoptedIds> ids,
                   const std::vector<AdoptedId>& taken, const v1::ServiceConfig& service)
    : files_(std::move(files)),
      arena_(files_.arena.get()),
      ids_(std::move(ids)),
      shards_(arena_, std::move(files_.wakes), std::move(files_.processes), service),
      connections_(arena_->shape().connections),
      waiting_(arena_->shape().shards) {
  Sort(taken);
}

// Ours is held, too, before it has anything: should this process be killed in the middle, each id
// is in a file that somebody has open.
absl::StatusOr<std::vector<AdoptedId>> Adoption::TakeIds(HeldDescriptors* held, AdoptedIds* ids) {
  BATON_ASSIGN_OR_RETURN(const std::vector<FileDescriptor> former, held->Get(kIds));
  std::vector<int> files;
  for (const FileDescriptor& file : former) files.push_back(file.get());
  files.push_back(ids->fd());
  BATON_RETURN_IF_ERROR(held->Put(kIds, files));
  std::vector<AdoptedId> all;
  for (const FileDescriptor& file : former) {
    BATON_ASSIGN_OR_RETURN(const std::vector<AdoptedId> some, ids->TakeFrom(file.get()));
    all.insert(all.end(), some.begin(), some.end());
  }
  BATON_RETURN_IF_ERROR(held->Put(kIds, {ids->fd()}));
  return all;
}

// Which id is whose, by the two addresses. Two connections can have the same: the older one is
// over, and nobody knows which that is. Both are failed.
void Adoption::Sort(const std::vector<AdoptedId>& ids) {
  std::map<std::string, std::vector<uint32_t>> by_key;
  for (uint32_t i = 0; i < connections_.size(); ++i) {
    const arena::ConnectionRecord& record = arena_->connection(i);
    Connection& connection = connections_[i];
    connection.generation = arena::LoadRelaxed(record.generation);
    connection.shard = arena::LoadRelaxed(record.shard);
    if (connection.generation ==
        arena::LoadAcquire(arena_->native_connection(i).freed_generation)) {
      continue;
    }
    if (!IsInShard(i)) continue;
    connection.phase = Phase::kLive;
    ++count_;
    by_key[Key(TextOf(record.local_address), TextOf(record.peer_address))].push_back(i);
  }
  std::map<std::string, int> alike;
  for (const AdoptedId& id : ids) ++alike[KeyOf(id)];
  for (const AdoptedId& id : ids) {
    const auto found = by_key.find(KeyOf(id));
    if (found == by_key.end() || found->second.size() != 1 || alike[KeyOf(id)] != 1) {
      ids_->Destroy(id.number);
    } else {
      connections_[found->second[0]].number = id.number;
    }
  }
  for (uint32_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i].phase == Phase::kLive) Judge(i);
  }
}

// A worker has written what it says of its shard. One that is in none has no driver who could be
// told of its end, or free it.
bool Adoption::IsInShard(uint32_t index) {
  if (connections_[index].shard < waiting_.size()) return true;
  spdlog::error("connection {} with {} has failed: its record says shard {}, and there are {}",
                index, TextOf(arena_->connection(index).peer_address), connections_[index].shard,
                waiting_.size());
  return false;
}

bool Adoption::Holds(uint32_t shard, uint32_t index, uint32_t generation, NoticeKind kind) const {
  MailEntry entry = {};
  entry.kind = static_cast<uint8_t>(kind);
  entry.connection = index;
  entry.generation = generation;
  return Mailbox::Notices(*arena_, shard).Holds(entry);
}

// A notice is passed when what it told is in the records: so it is looked for first.
bool Adoption::IsKnownToDriver(uint32_t index, uint32_t generation) const {
  return Holds(connections_[index].shard, index, generation, NoticeKind::kRequested) ||
         Holds(connections_[index].shard, index, generation, NoticeKind::kConnecting) ||
         arena::LoadAcquire(arena_->native_connection(index).handled_generation) == generation;
}

bool Adoption::WasEstablished(uint32_t index, uint32_t generation) const {
  return Holds(connections_[index].shard, index, generation, NoticeKind::kEstablished) ||
         arena::LoadRelaxed(arena_->connection(index).was_established) != 0;
}

// Finds out what happened to a connection while there was no driver.
void Adoption::Judge(uint32_t index) {
  Connection& connection = connections_[index];
  if (!IsKnownToDriver(index, connection.generation)) {
    // The driver was killed before it told anybody.
    DestroyId(index);
    arena::StoreRelease(arena_->native_connection(index).freed_generation, connection.generation);
    connection.phase = Phase::kNone;
    --count_;
    return;
  }
  if (!WasEstablished(index, connection.generation)) {
    DestroyId(index);
    return Finish(index, CompletionStatus::kFatalError,
                  "the service's driver died while the connection was made");
  }
  if (connection.number < 0) {
    return Finish(
        index, CompletionStatus::kFatalError,
        "it was not found again, or not for certain, after the service's driver had died");
  }
  const std::optional<bool> connected = ids_->IsConnected(static_cast<uint32_t>(connection.number));
  if (!connected) {
    return Finish(index, CompletionStatus::kFatalError,
                  "the kernel did not say what became of it, after the service's driver had died");
  }
  if (!*connected) {
    ids_->Disconnect(static_cast<uint32_t>(connection.number));  // the answer, if it waits for one
    Finish(index, CompletionStatus::kSuccess, "");
  }
}

// ---------------------------------------------------------------- turns

std::vector<int> Adoption::descriptors() const {
  return {ids_->fd(), files_.driver_wake.get(), files_.news.get(), files_.proof.get()};
}

std::string Adoption::WhyOver() const {
  if (count_ == 0) return "no connection is left";
  if (device_removed_) return "the device is being removed from the machine";
  pollfd entry = {files_.proof.get(), 0, 0};
  if (poll(&entry, 1, 0) == 1) return "no worker is left";
  for (uint32_t shard = 0; shard < waiting_.size(); ++shard) {
    if (!Mailbox::Orders(*arena_, shard).broken() && !Mailbox::Notices(*arena_, shard).broken()) {
      continue;
    }
    return absl::StrCat("what a worker has written of the messages of shard ", shard,
                        " to and from its driver cannot be");
  }
  return shards_.WhyStuck();
}

void Adoption::Turn(uint64_t now_ns) {
  eventfd_t count;
  (void)eventfd_read(files_.driver_wake.get(), &count);
  bool more = false;
  for (int i = 0; i < kPerTurn && (more = HandleEvent()); ++i) {
  }
  for (uint32_t shard = 0; shard < waiting_.size(); ++shard) {
    for (int i = 0; i < kPerTurn && HandleOrder(shard); ++i) {
    }
    more |= !Mailbox::Orders(*arena_, shard).empty();
    SendWaiting(shard);
  }
  shards_.Turn(now_ns, [this](uint32_t shard) { return IsUsed(shard); });
  ReadNews();
  if (more) (void)eventfd_write(files_.driver_wake.get(), 1);
}

bool Adoption::IsUsed(uint32_t shard) const {
  return std::any_of(connections_.begin(), connections_.end(), [shard](const Connection& one) {
    return one.phase != Phase::kNone && one.shard == shard;
  });
}

bool Adoption::HandleEvent() {
  const std::optional<AdoptedIds::Event> event = ids_->NextEvent();
  if (!event) return false;
  if (event->kind == verbs::rdma::AdoptedEvent::kDeviceRemoved) device_removed_ = true;
  for (uint32_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i].number != event->number || connections_[i].phase != Phase::kLive) continue;
    ids_->Disconnect(event->number);  // the answer
    Finish(i, CompletionStatus::kSuccess, "");
  }
  return true;
}

bool Adoption::HandleOrder(uint32_t shard) {
  Mailbox orders = Mailbox::Orders(*arena_, shard);
  if (orders.empty()) return false;
  const MailEntry order = orders.Next();
  const uint32_t index = order.connection;
  const bool known = index < connections_.size() && connections_[index].phase != Phase::kNone &&
                     connections_[index].generation == order.generation;
  if (known && connections_[index].shard != shard) FollowMove(index, shard);
  if (known && connections_[index].shard == shard) {
    if (OrderKind(order.kind) == OrderKind::kDisconnect) Disconnect(index);
    if (OrderKind(order.kind) == OrderKind::kFree) Free(index);
    // kAccept was carried out, or has failed with the former driver; kReject: likewise.
  }
  orders.Pass();
  return true;
}

// Behaves like ConnectionManager::FollowMove. The connection was failed if it was not established.
void Adoption::FollowMove(uint32_t index, uint32_t shard) {
  if (arena::LoadAcquire(arena_->connection(index).shard) != shard) return;
  connections_[index].shard = shard;
  // The bound is needed because a worker could move a connection without end.
  const bool has_room = waiting_[shard].size() < 2 * connections_.size();
  if (connections_[index].phase == Phase::kOver && has_room) {
    Tell(index, NoticeKind::kEnded, CompletionStatus::kFatalError);
  }
}

void Adoption::Disconnect(uint32_t index) {
  Connection& connection = connections_[index];
  if (connection.phase != Phase::kLive) return;
  ids_->Disconnect(static_cast<uint32_t>(connection.number));
  connection.phase = Phase::kOver;
}

void Adoption::Free(uint32_t index) {
  Connection& connection = connections_[index];
  DestroyId(index);
  arena::StoreRelease(arena_->native_connection(index).freed_generation, connection.generation);
  connection.phase = Phase::kNone;
  --count_;
  log::Write(spdlog::level::info,
             {.kind = "adopted_connection_ended", .connection = static_cast<int>(index)},
             fmt::format("connection {} with {} has ended: {} are left", index,
                         TextOf(arena_->connection(index).peer_address), count_));
}

void Adoption::DestroyId(uint32_t index) {
  const int64_t number = std::exchange(connections_[index].number, -1);
  if (number >= 0) ids_->Destroy(static_cast<uint32_t>(number));
}

// Its driver sets the queue pair to the error state when it reads this.
void Adoption::Finish(uint32_t index, CompletionStatus status, std::string_view why) {
  Connection& connection = connections_[index];
  connection.phase = Phase::kOver;
  arena::SetText(arena_->native_connection(index).end_reason, why);
  Tell(index, NoticeKind::kEnded, status);
}

// ---------------------------------------------------------------- notices

void Adoption::Tell(uint32_t index, NoticeKind kind, CompletionStatus status) {
  const Connection& connection = connections_[index];
  MailEntry entry = {};
  entry.kind = static_cast<uint8_t>(kind);
  entry.status = static_cast<uint8_t>(status);
  entry.connection = index;
  entry.generation = connection.generation;
  waiting_[connection.shard].push_back(entry);
  SendWaiting(connection.shard);
}

void Adoption::SendWaiting(uint32_t shard) {
  if (Mailbox::Notices(*arena_, shard).PutWaiting(&waiting_[shard])) shards_.WakeDriver(shard);
}

void Adoption::ReadNews() {
  driver_process::ReadNews(files_.news.get(), [](const News& news) {
    log::Write(spdlog::level::info,
               {.kind = news.kind, .shard = news.shard, .connection = news.connection},
               news.message);
  });
}

// ---------------------------------------------------------------- the end

// The proof is held for as long as it takes: should this process die meanwhile, the next waits,
// too.
absl::Status Adoption::End(HeldDescriptors* held) {
  BATON_ASSIGN_OR_RETURN(const std::vector<FileDescriptor> links, held->Get(kLinks));
  BATON_RETURN_IF_ERROR(held->DropAll(/*but=*/kLinks));  // which ends them
  if (links.empty()) return absl::OkStatus();
  pollfd entry = {links[0].get(), 0, 0};
  if (poll(&entry, 1, kEndMs) != 1) {
    spdlog::error(
        "processes of the former driver's workers are still there {} ms after their end: what they "
        "have of the device stays taken until they are gone",
        kEndMs);
  }
  return held->DropAll();
}

}  // namespace baton::driver_process

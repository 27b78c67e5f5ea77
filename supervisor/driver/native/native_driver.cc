#include "supervisor/driver/native/native_driver.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/arena/text_field.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "supervisor/driver/engine/news_line.h"

namespace baton::driver_process {
namespace {

using driver::CommitOutcome;

constexpr uint64_t kUnseen = ~uint64_t{0};

// A turn handles at most this many notices of connections, because peers decide how many come.
constexpr uint32_t kNoticesPerTurn = 64;

// An owner that never sleeps reads its wake descriptor only in one turn of this many, because a
// read is a system call.
constexpr uint32_t kTurnsBetweenWakes = 1024;

}  // namespace

NativeDriver::NativeDriver(NativeInheritance inheritance)
    : inheritance_(std::move(inheritance)),
      reports_(inheritance_.arena),
      watched_(arena().shape().workers, 0) {
  for (uint32_t i = 0; i < arena().shape().shards; ++i) ownerships_.emplace_back(&arena(), i);
  adopted_.resize(ownerships_.size(), 0);
  device_ = std::make_unique<native::NativeDevice>(native::NativeDevice::Context{
      .arena = &arena(),
      .device = inheritance_.device,
      .pool = inheritance_.pool,
      .objects = inheritance_.objects.get(),
      .wake_driver = [this] { WakeDriver(); },
      .tell = [this](std::string_view what) { Tell("queue_pair_not_free", -1, -1, what); }});
  driver_ = driver::QueueDriver::Create(&arena(), device_.get(), this, inheritance_.objects);
  claims_.emplace(&arena(), &ownerships_, driver_.get(),
                  Claims::Options{inheritance_.slot, !inheritance_.outside_effects});
  change_.emplace(ShardChange::Parts{
      .arena = &arena(),
      .driver = driver_.get(),
      .reports = &reports_,
      .apply_next = [this](uint32_t shard,
                           absl::Status* error) { return driver_->ApplyNext(shard, error); },
      .tell = [this](
                  std::string_view kind, uint32_t shard,
                  std::string_view message) { Tell(kind, static_cast<int>(shard), -1, message); }});
  host_.version = BATON_NATIVE_VERSION;
  host_.bytes = sizeof(host_);
  host_.baton_release = kRelease;
  host_.context = this;
  host_.socket = inheritance_.session;
  host_.attend = Call<&NativeDriver::Attend>;
  host_.adopt = Call<&NativeDriver::Adopt, uint32_t, uint64_t>;
  host_.apply = Call<&NativeDriver::Apply, uint32_t>;
  host_.poll = Call<&NativeDriver::Poll, uint32_t>;
  host_.request_notification = Call<&NativeDriver::RequestNotification, uint32_t>;
  host_.release = Call<&NativeDriver::Release, uint32_t, uint64_t>;
  host_.last_error = [](void* self) {
    return static_cast<NativeDriver*>(self)->last_error_.c_str();
  };
}

absl::StatusOr<std::unique_ptr<NativeDriver>> NativeDriver::Create(NativeInheritance inheritance) {
  std::unique_ptr<NativeDriver> driver(new NativeDriver(std::move(inheritance)));
  BATON_ASSIGN_OR_RETURN(driver->process_, ForkMark::Create());
  driver->epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!driver->epoll_) return ErrnoStatus(errno, "epoll_create1");
  const NativeInheritance& from = driver->inheritance_;
  for (const int fd : {from.wakes[from.slot], from.device->event_fd()}) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(driver->epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return ErrnoStatus(errno, "epoll_ctl");
    }
  }
  driver->host_.event_fd = driver->epoll_.get();
  if (!from.watch_deaths) return driver;
  driver->watcher_.emplace(&driver->arena(), from.realtime_priority,
                           [raw = driver.get()](uint32_t slot, uint64_t) {
                             raw->died_.fetch_or(uint64_t{1} << slot);
                             const NativeInheritance& own = raw->inheritance_;
                             (void)eventfd_write(own.wakes[own.slot], 1);
                           });
  return driver;
}

NativeDriver::~NativeDriver() {
  watcher_.reset();
  driver_.reset();
  device_.reset();
}

// A child of the worker has the descriptors, too, but the session, the pidfd and the lifeline are
// its parent's. The session's number is not closed here, because the object may have closed it
// before, and opened another file with it.
BatonNativeHost* NativeDriver::host() {
  if (!process_.IsOurs()) host_.socket = -1;
  return &host_;
}

int NativeDriver::RefuseFork() {
  last_error_ =
      "this process was forked by the worker's object, and only the process that the driver forked "
      "is the worker: the service must not fork to go to the background";
  return -EPERM;
}

int NativeDriver::Fail(const absl::Status& status) {
  last_error_ = std::string(MessageOf(status));
  Tell("native_driver_failed", -1, -1, last_error_);
  return -EIO;
}

void NativeDriver::WakeDriver() const { (void)eventfd_write(inheritance_.driver_wake, 1); }

void NativeDriver::Tell(std::string_view kind, int shard, int connection,
                        std::string_view message) const {
  const std::string line = NewsLine(kind, message, 0, shard, connection);
  // A line that `baton-driver` does not take is lost.
  (void)!write(inheritance_.news, line.data(), line.size());
}

// ---------------------------------------------------------------- turns

absl::Status NativeDriver::Attend() {
  last_look_ = std::exchange(arming_, false);
  if (slept_ && !last_look_) {
    ReadWake();
    inheritance_.device->Progress();
  } else if (++busy_turns_ % kTurnsBetweenWakes == 0) {
    ReadWake();
  }
  // A worker without shards requests no notification before it sleeps.
  slept_ = last_look_ || operated_ == 0;
  device_->Progress();
  if (device_->HasNotice()) HandleNotices(kNoticesPerTurn);
  if (claims_->empty() && std::exchange(watch_due_, false)) {
    WatchOwners();
    WakeDriver();
  }
  const uint64_t changes = arena::LoadAcquire(arena().header().ownership_changes);
  if (changes == seen_changes_ && died_.load(std::memory_order_relaxed) == 0 && claims_->empty()) {
    return absl::OkStatus();
  }
  // Takes nothing before the worker library has released a lost shard. HandleNotices() does nothing
  // until then, and the notices of an adopted shard have to be handled at once.
  if (LostAny()) return absl::OkStatus();
  const uint64_t died = died_.exchange(0);
  for (uint32_t slot = 0; slot < watched_.size(); ++slot) {
    if ((died >> slot & 1) != 0) watched_[slot] = 0;  // its watch is over
  }
  seen_changes_ = changes;
  const uint32_t operated = operated_;
  claims_->Inherit();
  BATON_RETURN_IF_ERROR(TakeClaimed());
  // All notices of the shards that were adopted just now are handled, so that their connections
  // have what they need before the worker sees their completions.
  HandleNotices(arena::kNotices * (operated_ - operated));
  // The shards taken over just now are served first. Watching other owners wakes a thread, which
  // can wait. `baton-driver` can wait longer than the peers: the end of the former owner's process
  // wakes it anyway.
  watch_due_ |= operated_ != operated;
  if (!watch_due_) WatchOwners();
  return absl::OkStatus();
}

void NativeDriver::ReadWake() {
  eventfd_t count;
  if (eventfd_read(inheritance_.wakes[inheritance_.slot], &count) == 0) seen_changes_ = kUnseen;
}

bool NativeDriver::LostAny() const {
  for (uint32_t shard = 0; shard < adopted_.size(); ++shard) {
    if (adopted_[shard] != 0 && !IsOurs(shard)) return true;
  }
  return false;
}

// Does nothing if a shard has another owner by now, because it must not write to that shard's log.
// The worker library releases the shard in this turn, and other notices wait for the next.
void NativeDriver::HandleNotices(uint32_t most) {
  if (LostAny()) return;
  uint32_t shard;
  for (uint32_t i = 0; i < most; ++i) {
    if (!driver_->HandleEvent(&shard) && !driver_->HandleDeviceEvent(&shard)) return;
  }
  device_->ServeAnotherFirst();
  // Keeps the worker from sleeping before the rest is handled.
  if (last_look_ && device_->HasNotice()) {
    (void)eventfd_write(inheritance_.wakes[inheritance_.slot], 1);
  }
}

// There is never more than one transaction, because each is applied when it is published.
absl::Status NativeDriver::Apply(uint32_t shard) {
  if (!IsOurs(shard)) [[unlikely]]
    return absl::OkStatus();
  absl::Status error;
  const CommitOutcome outcome = driver_->ApplyNext(shard, &error);
  if (outcome == CommitOutcome::kInvalid) {
    return absl::InternalError(
        absl::StrCat("shard ", shard, ": an invalid transaction: ", error.message()));
  }
  if (outcome == CommitOutcome::kIdle) return absl::OkStatus();
  const arena::SuccessionRecord& record = arena().succession(shard);
  if (record.served_epoch != ownerships_[shard].epoch()) OnFirstCommit(shard);
  return absl::OkStatus();
}

absl::Status NativeDriver::Poll(uint32_t shard) {
  if (!IsOurs(shard)) [[unlikely]]
    return absl::OkStatus();
  if (last_look_) return PollBeforeSleep(shard);
  return driver_->PollCompletions(shard).status();
}

// A poll that consumes a completion cancels the requested notification. If the completion is not
// for the worker, this requests another. If it is, the worker does not sleep.
absl::Status NativeDriver::PollBeforeSleep(uint32_t shard) {
  const uint64_t told = arena().shard(shard).completion_tail;
  for (;;) {
    BATON_ASSIGN_OR_RETURN(const bool took, driver_->PollCompletions(shard));
    if (!took || arena().shard(shard).completion_tail != told) return absl::OkStatus();
    BATON_RETURN_IF_ERROR(driver_->RequestNotification(shard));
  }
}

void NativeDriver::OnFirstCommit(uint32_t shard) {
  change_->OnFirstCommit(ownerships_[shard]);
  if (!watch_due_) WakeDriver();  // otherwise Attend() does, after waiting peers are served
}

absl::Status NativeDriver::RequestNotification(uint32_t shard) {
  arming_ = slept_ = true;  // even if the shard has another owner
  if (!IsOurs(shard)) return absl::OkStatus();
  return driver_->RequestNotification(shard);
}

// ---------------------------------------------------------------- ownership

// Takes one shard (or group), which is served before the next is taken. So the first of many shards
// does not wait for the last.
absl::Status NativeDriver::TakeClaimed() {
  claims_->Note([this](const driver::Ownership& shard) { change_->Begin(shard); });
  for (const uint32_t operated = operated_; operated_ == operated && !claims_->empty();) {
    BATON_RETURN_IF_ERROR(Take(claims_->Next()));
  }
  return absl::OkStatus();
}

// If the worker is killed in this call, its heir repeats it.
absl::Status NativeDriver::Take(const std::vector<Claimed>& all) {
  if (all.empty()) return absl::OkStatus();
  std::vector<uint32_t> shards, connections;
  for (const Claimed& one : all) {
    shards.push_back(one.shard);
    connections.insert(connections.end(), one.connections.begin(), one.connections.end());
  }
  device_->Restore(shards, connections);
  BATON_RETURN_IF_ERROR(driver_->Adopt(shards, connections));
  for (const Claimed& one : all) {
    const uint32_t shard = one.shard;
    EndFormer(ownerships_[shard], one.connections);
    BATON_CRASH_POINT("native-before-taking");
    const absl::StatusOr<uint64_t> taken =
        ownerships_[shard].TakeClaimed(inheritance_.slot, inheritance_.worker_id);
    if (!taken.ok()) {
      Tell("ownership_broken", static_cast<int>(shard), -1, MessageOf(taken.status()));
      LeaveShard(shard);
      continue;
    }
    adopted_[shard] = *taken;
    BATON_CRASH_POINT("native-taken");
    ++operated_;
  }
  return absl::OkStatus();
}

// Writes the report before the worker's first commit. QueueDriver::Adopt has posted already.
void NativeDriver::EndFormer(const driver::Ownership& shard,
                             absl::Span<const uint32_t> connections) {
  change_->ApplyRest(shard);
  if (change_->NextEpochPrepared(shard)) return;
  std::optional<Poisoning> poisoned = change_->CountDeath(shard, inheritance_.poison_deaths);
  change_->Report(shard, connections, inheritance_.worker_id, std::move(poisoned));
}

void NativeDriver::LeaveShard(uint32_t shard) {
  adopted_[shard] = 0;
  driver_->Leave(shard);
  device_->Forget(shard);
  inheritance_.objects->completion_queues[shard]->ForgetNotification();
}

void NativeDriver::WatchOwners() {
  if (!watcher_) return;
  std::vector<uint64_t> wanted(watched_.size(), 0);
  for (uint32_t shard = 0; shard < ownerships_.size(); ++shard) {
    if (arena::LoadAcquire(arena().succession(shard).heir) != inheritance_.slot + 1) continue;
    const uint64_t word = ownerships_[shard].word();
    const uint32_t slot = arena::ClaimantOrOwner(arena::OwnershipSlot(word));
    if (slot >= wanted.size() || slot == inheritance_.slot) continue;  // no owner, or this worker
    wanted[slot] = std::max(wanted[slot], arena::OwnershipEpoch(word) + 1);
  }
  for (uint32_t slot = 0; slot < wanted.size(); ++slot) {
    if (wanted[slot] == watched_[slot]) continue;
    watched_[slot] = wanted[slot];
    // The epoch stands for a worker id: it only tells one watch of a slot from the next.
    wanted[slot] == 0 ? watcher_->Forget(slot) : watcher_->Watch(slot, wanted[slot]);
  }
}

// Take() has adopted the shard already, before the ownership word named this worker.
absl::Status NativeDriver::Adopt(uint32_t shard, uint64_t epoch) {
  if (driver_->Operates(shard) && ownerships_[shard].epoch() == epoch) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("shard ", shard, " epoch ", epoch, " was never taken over by this process"));
}

absl::Status NativeDriver::Release(uint32_t shard, uint64_t epoch) {
  if (!driver_->Operates(shard)) return absl::OkStatus();
  const uint64_t word = adopted_[shard];
  const bool ours = IsOurs(shard) && arena::OwnershipEpoch(word) == epoch;
  if (ours) BATON_RETURN_IF_ERROR(Apply(shard));
  LeaveShard(shard);
  --operated_;
  slept_ = true;
  if (!ours || arena().shard(shard).released_epoch != epoch) return absl::OkStatus();
  change_->Begin(ownerships_[shard]);
  const uint64_t heir = arena::LoadAcquire(arena().succession(shard).heir);
  const bool named =
      heir != 0 && heir - 1 != inheritance_.slot && heir - 1 < inheritance_.wakes.size();
  BATON_CRASH_POINT("native-before-hand-over");
  if (!ownerships_[shard].HandOver(word)) return absl::OkStatus();
  if (named) (void)eventfd_write(inheritance_.wakes[heir - 1], 1);
  WakeDriver();
  return absl::OkStatus();
}

// ---------------------------------------------------------------- what the driver tells

void NativeDriver::OnConnectionState(uint32_t connection, std::string_view what) {
  const arena::ConnectionRecord& record = arena().connection(connection);
  Tell("connection", static_cast<int>(record.shard), static_cast<int>(connection),
       absl::StrCat("connection ", connection, " with ", arena::TextOf(record.peer_address), " ",
                    View(what)));
}

void NativeDriver::OnRefusedConnection(std::string_view why) {
  Tell("connection_refused", -1, -1, why);
}

void NativeDriver::OnSlotFree(uint32_t connection) {
  const absl::Status freed = device_->FreeSlot(connection);
  if (freed.ok()) return;
  Tell("slot_not_freed", -1, static_cast<int>(connection),
       absl::StrCat("connection ", connection,
                    " has ended, and its slot stays out of use: ", freed.message()));
}

void NativeDriver::OnSettled(uint32_t connection, bool receive, uint64_t end) {
  if (reports_.OnSettled(connection, receive, end)) WakeDriver();
}

}  // namespace baton::driver_process

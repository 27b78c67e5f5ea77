#include "worker/held_files.h"

#include <algorithm>
#include <utility>

#include "lib/base/crash_point.h"
#include "lib/base/status.h"

namespace baton {
namespace {

constexpr std::chrono::seconds kRest{10};
constexpr uint32_t kLongestRetryMs = 128;
constexpr std::chrono::seconds kPatience{10};  // with a keeper, as callers of the Worker have
// The control stream's thread may take an answer, and tells nobody of it.
constexpr uint32_t kBetweenLooksMs = 50;
constexpr uint32_t kWhileRefusedMs = 1000;  // between looks whether the keeper may be asked again

// Nobody knows what has become of the request.
bool IsUncertain(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

uint64_t TagOf(const Shard& shard) { return HeldFiles::kTag + shard.index(); }

}  // namespace

HeldFiles::HeldFiles(FileReads* reads)
    : reads_(reads), worker_(reads->worker()), places_(worker_.capacity().shards) {}

HeldFiles::~HeldFiles() = default;

HeldFiles::Order::~Order() { files_->Withdraw(this); }

absl::StatusOr<uint64_t> HeldFiles::Order::TakeResult() {
  absl::StatusOr<uint64_t> result = *std::move(result_);
  result_ = absl::UnknownError("taken");
  return result;
}

// The first call of an epoch lists what former owners left.
HeldFiles::Place& HeldFiles::PlaceOf(Shard& shard) {
  Place& place = places_[shard.index()];
  if (place.epoch == shard.epoch()) return place;
  Forget(shard);
  place.shard = &shard;
  place.epoch = shard.epoch();
  place.requester =
      std::make_unique<FileRequester>(reads_, &shard, [this, &place] { Settle(place); });
  WakeSoon(place);
  return place;
}

// Returns null if the shard is another worker's by now, or of another epoch.
HeldFiles::Place* HeldFiles::FindPlace(uint32_t shard, uint64_t epoch) {
  Place& place = places_[shard];
  return place.requester != nullptr && place.epoch == epoch ? &place : nullptr;
}

void HeldFiles::WakeSoon(Place& place) { reads_->WakeSoon(*place.requester); }

void HeldFiles::Adopt(Shard& shard) {
  if (shard.epoch() == 0) return;
  Place& place = PlaceOf(shard);
  place.is_listed = false;
  place.drops_lost = true;
  WakeSoon(place);
}

void HeldFiles::Keep(Shard& shard, uint64_t number) {
  if (number == 0 || shard.epoch() == 0) return;
  PlaceOf(shard);
  User& user = users_[number];
  user.shard = shard.index();
  user.is_kept = true;
}

void HeldFiles::Discard(Connection& connection, uint64_t number) {
  const auto found = users_.find(number);
  if (found == users_.end() || !std::exchange(found->second.is_kept, false)) return;
  ++found->second.senders;  // End takes it away
  End(connection, number, {});
}

std::unique_ptr<HeldFiles::Order> HeldFiles::Hold(Shard& shard, int fd, FileRequester& requester) {
  std::unique_ptr<Order> order(new Order);
  order->files_ = this;
  order->shard_ = &shard;
  order->fd_ = fd;
  order->requester_ = &requester;
  order->epoch_ = shard.epoch();
  order->deadline_ = Clock::now() + kPatience;
  if (shard.epoch() == 0) {
    order->result_ = absl::AbortedError("the shard is another worker's");
    return order;
  }
  const Place& place = PlaceOf(shard);
  orders_.push_back(order.get());
  if (!is_asked_ && orders_.size() == 1) AskToHold();
  // The place of an order before it may be gone when that cannot be asked for.
  if (!order->done()) reads_->RetryLater(*place.requester, kBetweenLooksMs);
  return order;
}

absl::StatusOr<FileDescriptor> HeldFiles::Take(uint64_t number) {
  BATON_ASSIGN_OR_RETURN(const int fd, worker_.TakeDescriptor(number));
  return FileDescriptor(fd);
}

void HeldFiles::Use(Shard& shard, uint64_t number) {
  if (number == 0 || shard.epoch() == 0) return;
  PlaceOf(shard);
  User& user = users_[number];
  user.shard = shard.index();
  user.is_kept = false;
  ++user.senders;
}

void HeldFiles::End(Connection& connection, uint64_t number, RegionCache::Lease region) {
  if (number == 0 && !region) return;
  Shard& shard = connection.shard();
  if (shard.epoch() == 0) return;
  if (const auto found = users_.find(number); found != users_.end()) {
    if (found->second.senders > 0) --found->second.senders;
    if (found->second.senders == 0 && !found->second.is_kept) users_.erase(found);
  }
  Place& place = PlaceOf(shard);
  place.ended.push_back(
      {&connection, connection.generation(), connection.next_send(), number, std::move(region)});
  place.retry_ms = FileReads::kRetryMs;
  WakeSoon(place);
}

void HeldFiles::Forget(const Shard& shard) {
  Place& place = places_[shard.index()];
  place = Place();
  std::erase_if(users_, [&](const auto& one) { return one.second.shard == shard.index(); });
  const auto is_lost = [&](Order* order) {
    if (order->shard_ != &shard) return false;
    order->result_ = absl::AbortedError("the shard is another worker's");
    return true;
  };
  std::erase_if(orders_, is_lost);
  if (asked_ != nullptr && is_lost(asked_)) asked_ = nullptr;
}

// An abandoned transaction takes the numbers of its sends back.
bool HeldFiles::IsOver(const Ended& ended) {
  const Connection& connection = *ended.connection;
  if (connection.generation() != ended.generation || !connection.established()) return true;
  return connection.completed_sends() >= std::min(ended.sends, connection.next_send());
}

// The shard was committed just before, unless the mode is CommitMode::kManual. Completions come
// without a call of this class, so it looks again in a moment, and ever more seldom: a peer may
// keep a send from completing for long.
void HeldFiles::Settle(Place& place) {
  std::erase_if(place.ended, [&](const Ended& ended) {
    if (!IsOver(ended)) return false;
    if (ended.number != 0) place.to_drop.push_back(ended.number);
    return true;
  });
  List(place);
  AskNext();
  if (is_asked_) {
    reads_->RetryLater(*place.requester, kBetweenLooksMs);
  } else if (!orders_.empty()) {
    reads_->RetryLater(*place.requester);
  } else if (!place.is_listed || !place.to_drop.empty()) {
    reads_->RetryLater(*place.requester, kWhileRefusedMs);
  }
  if (place.ended.empty()) return;
  reads_->RetryLater(*place.requester, place.retry_ms);
  place.retry_ms = std::min(2 * place.retry_ms, kLongestRetryMs);
}

// ---------------------------------------------------------------- the keeper

// Files to hold come first, because pieces wait for that. But after one that is held another is
// dropped, or the driver would soon hold as many as it may.
void HeldFiles::AskNext() {
  if (std::exchange(drops_first_, false)) DropNext();
  for (size_t before = 0; !is_asked_ && orders_.size() != before;) {
    before = orders_.size();
    AskToHold();
  }
  DropNext();
}

void HeldFiles::DropNext() {
  for (Place& place : places_) {
    if (place.requester != nullptr) AskToDrop(place);
  }
}

// Asks for the first one, if there is one. If the keeper cannot be asked now, it is tried again.
void HeldFiles::AskToHold() {
  if (orders_.empty()) return;
  Order* const order = orders_.front();
  const uint32_t shard = order->shard_->index();
  Place& place = places_[shard];
  absl::Status asked = absl::FailedPreconditionError(
      "the keeper refused or did not answer, and is not asked for 10 s");
  if (Clock::now() >= refused_until_) {
    asked = worker_.BeginHoldDescriptor(
        order->fd_, TagOf(*order->shard_),
        [this, shard, epoch = place.epoch](const absl::StatusOr<uint64_t>& number) {
          OnHeld(shard, epoch, number);
        });
    reads_->RetryLater(*place.requester, asked.ok() ? kBetweenLooksMs : FileReads::kRetryMs);
    if (absl::IsUnavailable(asked) && Clock::now() < order->deadline_) return;
    if (!asked.ok()) NoteRefusal(asked);
  }
  orders_.pop_front();
  if (!asked.ok()) return Finish(order, asked);
  is_asked_ = true;
  asked_ = order;
}

// The next owner drops what comes too late for this one.
void HeldFiles::OnHeld(uint32_t shard, uint64_t epoch, const absl::StatusOr<uint64_t>& number) {
  BATON_CRASH_POINT("file-held");
  is_asked_ = false;
  drops_first_ = true;
  Order* const order = std::exchange(asked_, nullptr);
  Place* const place = FindPlace(shard, epoch);
  if (place != nullptr && number.ok()) {
    place->held.insert(*number);
    if (order == nullptr) place->to_drop.push_back(*number);
  } else if (place != nullptr && IsUncertain(number.status())) {
    place->is_listed = false;  // it may be held nevertheless
    WakeSoon(*place);
  }
  const bool asks_again = absl::IsUnavailable(number.status());
  if (order != nullptr && asks_again && Clock::now() < order->deadline_) {
    orders_.push_front(order);
  } else if (order != nullptr) {
    if (number.ok()) Use(*order->shard_, *number);
    if (!number.ok()) NoteRefusal(number.status());
    Finish(order, number);
  }
  AskNext();
}

void HeldFiles::Finish(Order* order, const absl::StatusOr<uint64_t>& result) {
  order->result_ = result;
  reads_->WakeSoon(*order->requester_);
}

// No state has the number of a file that nobody has taken.
void HeldFiles::Withdraw(Order* order) {
  std::erase(orders_, order);
  if (asked_ == order) asked_ = nullptr;
  if (!order->done() || !order->result_->ok()) return;
  Place* const place = FindPlace(order->shard_->index(), order->epoch_);
  if (place == nullptr) return;
  users_.erase(**order->result_);
  place->to_drop.push_back(**order->result_);
  WakeSoon(*place);
}

// A file that cannot be dropped now is dropped with the next one, or by the next owner.
void HeldFiles::AskToDrop(Place& place) {
  while (place.is_listed && !is_asked_ && !place.to_drop.empty() &&
         Clock::now() >= refused_until_) {
    const uint64_t number = place.to_drop.back();
    // A transfer may have been loaded with it again, after Shard::Abandon.
    if (place.held.contains(number) && !users_.contains(number)) {
      const absl::Status asked = worker_.BeginDropDescriptor(
          number, [this, shard = place.shard->index(), epoch = place.epoch, number](
                      const absl::Status& dropped) { OnDropped(shard, epoch, number, dropped); });
      reads_->RetryLater(*place.requester, asked.ok() ? kBetweenLooksMs : FileReads::kRetryMs);
      if (absl::IsUnavailable(asked)) return;
      if (!asked.ok()) return NoteRefusal(asked);
      is_asked_ = true;
    }
    place.to_drop.pop_back();
  }
}

void HeldFiles::OnDropped(uint32_t shard, uint64_t epoch, uint64_t number,
                          const absl::Status& dropped) {
  is_asked_ = false;
  Place* const place = FindPlace(shard, epoch);
  const bool is_gone = dropped.ok() || absl::IsNotFound(dropped);
  if (place != nullptr && is_gone) place->held.erase(number);
  if (is_gone) BATON_CRASH_POINT("file-dropped");
  if (place != nullptr && !is_gone) place->to_drop.push_back(number);
  if (!is_gone && !absl::IsUnavailable(dropped)) NoteRefusal(dropped);
  AskNext();
}

// Waits for the keeper.
void HeldFiles::List(Place& place) {
  if (place.is_listed || is_asked_ || Clock::now() < refused_until_) return;
  const absl::Status listed = ListHeld(place);
  place.is_listed = listed.ok();
  if (!listed.ok()) NoteRefusal(listed);
}

absl::Status HeldFiles::ListHeld(Place& place) {
  BATON_ASSIGN_OR_RETURN(const std::vector<uint64_t> held,
                         worker_.HeldDescriptors(TagOf(*place.shard)));
  const auto waits = [&](uint64_t number) {
    return std::any_of(place.ended.begin(), place.ended.end(),
                       [&](const Ended& ended) { return ended.number == number; });
  };
  place.held = {held.begin(), held.end()};
  if (!place.drops_lost) return absl::OkStatus();
  for (const uint64_t number : held) {
    if (!users_.contains(number) && !waits(number)) place.to_drop.push_back(number);
  }
  std::sort(place.to_drop.begin(), place.to_drop.end());
  place.to_drop.erase(std::unique(place.to_drop.begin(), place.to_drop.end()), place.to_drop.end());
  return absl::OkStatus();
}

// A quota, or a file that cannot be held, is no reason to ask for nothing else.
void HeldFiles::NoteRefusal(const absl::Status& why) {
  if (absl::IsResourceExhausted(why) || absl::IsInvalidArgument(why)) return;
  refused_until_ = Clock::now() + kRest;
}

}  // namespace baton

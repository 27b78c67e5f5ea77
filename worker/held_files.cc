#include "worker/held_files.h"

#include <algorithm>
#include <utility>

#include "lib/base/crash_point.h"
#include "lib/base/status.h"

namespace baton {
namespace {

constexpr std::chrono::seconds kRest{60};
constexpr uint32_t kLongestRetryMs = 128;

uint64_t TagOf(const Shard& shard) { return HeldFiles::kTag + shard.index(); }

}  // namespace

HeldFiles::HeldFiles(FileReads* reads)
    : reads_(reads), worker_(reads->worker()), places_(worker_.capacity().shards) {}

HeldFiles::~HeldFiles() = default;

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

absl::StatusOr<uint64_t> HeldFiles::Hold(Shard& shard, int fd) {
  if (Clock::now() < refused_until_) {
    return absl::FailedPreconditionError(
        "the keeper refused or did not answer, and is not asked for a minute");
  }
  if (shard.epoch() == 0) return absl::AbortedError("the shard is another worker's");
  Place& place = PlaceOf(shard);
  absl::StatusOr<uint64_t> number = worker_.HoldDescriptor(fd, TagOf(shard));
  BATON_CRASH_POINT("file-held");
  if (number.ok()) {
    place.held.insert(*number);
    Use(shard, *number);
    return number;
  }
  NoteRefusal(number.status());
  if (absl::IsDeadlineExceeded(number.status()) || absl::IsUnavailable(number.status())) {
    place.is_listed = false;  // it may be held nevertheless
    WakeSoon(place);
  }
  return number;
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
  Drop(place);
  if (place.ended.empty()) return;
  reads_->RetryLater(*place.requester, place.retry_ms);
  place.retry_ms = std::min(2 * place.retry_ms, kLongestRetryMs);
}

// A file that cannot be dropped now is dropped with the next one, or by the next owner.
void HeldFiles::Drop(Place& place) {
  const bool has_work = !place.is_listed || !place.to_drop.empty();
  if (!has_work || Clock::now() < refused_until_) return;
  if (!place.is_listed) {
    const absl::Status listed = ListHeld(place);
    if (!listed.ok()) return NoteRefusal(listed);
    place.is_listed = true;
  }
  while (!place.to_drop.empty()) {
    const uint64_t number = place.to_drop.back();
    // A transfer may have been loaded with it again, after Shard::Abandon.
    if (place.held.contains(number) && !users_.contains(number)) {
      const absl::Status dropped = worker_.DropDescriptor(number);
      if (!dropped.ok() && !absl::IsNotFound(dropped)) return NoteRefusal(dropped);
      place.held.erase(number);
      BATON_CRASH_POINT("file-dropped");
    }
    place.to_drop.pop_back();
  }
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

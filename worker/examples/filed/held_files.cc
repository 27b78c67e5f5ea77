#include "worker/examples/filed/held_files.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "lib/base/crash_point.h"
#include "spdlog/spdlog.h"

namespace baton::filed {
namespace {

constexpr std::chrono::seconds kRest{60};

}  // namespace

HeldFiles::HeldFiles(FileReads* reads, Shard* shard, std::function<std::set<uint64_t>()> named,
                     Clock::time_point* refused_until)
    : reads_(reads),
      worker_(shard->worker()),
      tag_(uint64_t{shard->index()} + 1),
      named_(std::move(named)),
      refused_until_(refused_until),
      requester_(reads, shard, [this] { Drop(); }) {}

uint64_t HeldFiles::Hold(int fd) {
  if (Clock::now() < *refused_until_) return 0;
  const absl::StatusOr<uint64_t> number = worker_.HoldDescriptor(fd, tag_);
  BATON_CRASH_POINT("filed-file-held");
  if (number.ok()) return *number;
  NoteRefusal(number.status());
  // It may be held nevertheless.
  if (absl::IsDeadlineExceeded(number.status())) DropLost();
  return 0;
}

FileDescriptor HeldFiles::Take(uint64_t number) {
  if (number == 0) return FileDescriptor();
  absl::StatusOr<int> fd = worker_.TakeDescriptor(number);
  if (fd.ok()) return FileDescriptor(*fd);
  spdlog::warn("a file that was held cannot be had: {}", std::string(fd.status().message()));
  return FileDescriptor();
}

void HeldFiles::DropAfterCommit(uint64_t number) {
  if (number == 0) return;
  to_drop_.push_back(number);
  reads_->WakeSoon(requester_);
}

void HeldFiles::DropLost() {
  has_lost_ = true;
  reads_->WakeSoon(requester_);
}

// The shard was committed just before. What cannot be dropped now is dropped with the next one, or
// by the next owner.
void HeldFiles::Drop() {
  if (Clock::now() < *refused_until_) return;
  if (has_lost_) {
    const absl::Status found = FindLost();
    if (!found.ok()) return NoteRefusal(found);
    has_lost_ = false;
  }
  while (!to_drop_.empty()) {
    const absl::Status dropped = worker_.DropDescriptor(to_drop_.back());
    if (!dropped.ok()) return NoteRefusal(dropped);
    to_drop_.pop_back();
    BATON_CRASH_POINT("filed-file-dropped");
  }
}

absl::Status HeldFiles::FindLost() {
  const absl::StatusOr<std::vector<uint64_t>> held = worker_.HeldDescriptors(tag_);
  if (!held.ok()) return held.status();
  const std::set<uint64_t> named = named_();
  to_drop_.clear();  // no state names these, so they are listed, too
  for (const uint64_t number : *held) {
    if (!named.contains(number)) to_drop_.push_back(number);
  }
  return absl::OkStatus();
}

// A quota, or a file that cannot be held, is no reason to ask for nothing else.
void HeldFiles::NoteRefusal(const absl::Status& why) {
  if (absl::IsResourceExhausted(why) || absl::IsInvalidArgument(why)) return;
  *refused_until_ = Clock::now() + kRest;
  spdlog::warn("a successor finds files by their paths for a while: {}",
               std::string(why.message()));
}

}  // namespace baton::filed

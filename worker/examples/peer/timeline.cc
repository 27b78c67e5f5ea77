#include "worker/examples/peer/timeline.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::peer {

absl::StatusOr<std::unique_ptr<Timeline>> Timeline::Create(const std::string& path, uint64_t now) {
  FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return ErrnoStatus(errno, absl::StrCat("cannot write the timeline ", path));
  std::fputs(
      "monotonic_us,replies,max_silence_us,lost,duplicated,reordered,corrupt,wrong_total,"
      "disconnects\n",
      file);
  return std::unique_ptr<Timeline>(new Timeline(file, now));
}

void Timeline::Advance(uint64_t now, uint64_t ongoing, const Counters& counters) {
  const Defects& defects = counters.defects;
  while (IsDue(now)) {
    // This call may be late by several buckets. An ongoing silence then counts at the end of each,
    // and is shorter at the end of an earlier one.
    const uint64_t end = bucket_ + kBucketNanoseconds;
    const uint64_t since_end = now - end;
    const uint64_t at_end = ongoing > since_end ? ongoing - since_end : 0;
    std::fprintf(file_.get(),
                 "%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
                 ",%" PRIu64 ",%" PRIu64 "\n",
                 bucket_ / 1000, replies_, std::max(silence_, at_end) / 1000, defects.lost,
                 defects.duplicated, defects.reordered, defects.corrupt, defects.wrong_total,
                 counters.disconnects);
    replies_ = 0;
    silence_ = 0;
    bucket_ = end;
  }
  if (now - flushed_ < kFlushNanoseconds) return;
  std::fflush(file_.get());
  flushed_ = now;
}

}  // namespace baton::peer

#include "tests/demo/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace baton::demo {
namespace {

bool Parse(const char* line, Bucket* bucket) {
  Counters& counters = bucket->counters;
  return std::sscanf(line,
                     "%" SCNu64 ",%" SCNu64 ",%" SCNu64 ",%" SCNu64 ",%" SCNu64 ",%" SCNu64
                     ",%" SCNu64 ",%" SCNu64 ",%" SCNu64,
                     &bucket->start_us, &bucket->replies, &bucket->silence_us, &counters.lost,
                     &counters.duplicated, &counters.reordered, &counters.corrupt,
                     &counters.wrong_total, &counters.disconnects) == 9;
}

}  // namespace

std::vector<Bucket> TimelineReader::Read() {
  if (!file_) file_ = FileDescriptor(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<Bucket> buckets;
  if (!file_) return buckets;
  char bytes[16'384];
  ssize_t count;
  while ((count = read(file_.get(), bytes, sizeof(bytes))) > 0) {
    rest_.append(bytes, static_cast<size_t>(count));
  }
  size_t start = 0, end;
  while ((end = rest_.find('\n', start)) != std::string::npos) {
    rest_[end] = '\0';
    Bucket bucket;
    if (Parse(rest_.c_str() + start, &bucket)) buckets.push_back(bucket);
    start = end + 1;
  }
  rest_.erase(0, start);
  return buckets;
}

absl::StatusOr<std::vector<Bucket>> ReadTimeline(const std::string& path) {
  std::vector<Bucket> buckets = TimelineReader(path).Read();
  if (buckets.empty()) return absl::NotFoundError(absl::StrCat("no timeline in ", path));
  return buckets;
}

std::vector<Bucket> Thin(const std::vector<Bucket>& buckets, size_t count, uint64_t* microseconds) {
  const size_t each = std::max<size_t>(1, (buckets.size() + count - 1) / count);
  *microseconds = each * Bucket::kMicroseconds;
  std::vector<Bucket> thin;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (i % each == 0) {
      thin.push_back(buckets[i]);
      continue;
    }
    Bucket& last = thin.back();
    last.replies += buckets[i].replies;
    last.silence_us = std::max(last.silence_us, buckets[i].silence_us);
    last.counters = buckets[i].counters;
  }
  // The last one may stand for fewer, and would show too few replies.
  if (thin.size() > 1 && buckets.size() % each != 0) thin.pop_back();
  return thin;
}

}  // namespace baton::demo

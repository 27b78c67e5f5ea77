#include "supervisor/driver/engine/news_line.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/status.h"
#include "lib/base/utf8.h"

namespace baton::driver_process {
namespace {

constexpr int kNewsAtATime = 256;

}  // namespace

std::string NewsLine(std::string_view kind, std::string_view message, uint64_t worker_id, int shard,
                     int connection) {
  std::string line =
      absl::StrCat(View(kind), " ", worker_id, " ", shard, " ", connection, " ", View(message));
  line.resize(std::min(line.size(), kNewsBytes));
  return line;
}

void ReadNews(int pipe, const std::function<void(const News&)>& tell) {
  std::array<char, kNewsBytes> line;
  for (int i = 0; i < kNewsAtATime; ++i) {
    const ssize_t got = read(pipe, line.data(), line.size());
    if (got <= 0) return;
    const std::vector<std::string> parts = absl::StrSplit(
        absl::string_view(line.data(), static_cast<size_t>(got)), absl::MaxSplits(' ', 4));
    News news;
    if (parts.size() != 5 || !absl::SimpleAtoi(parts[1], &news.worker_id) ||
        !absl::SimpleAtoi(parts[2], &news.shard) || !absl::SimpleAtoi(parts[3], &news.connection)) {
      continue;
    }
    news.kind = ValidUtf8(parts[0], kNewsBytes);
    news.message = ValidUtf8(parts[4], kNewsBytes);
    tell(news);
  }
}

}  // namespace baton::driver_process

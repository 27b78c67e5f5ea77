#include "lib/native/prefault.h"

#include <sys/mman.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

namespace baton::native {
namespace {

// A line of proc(5)'s maps has a path at its end, of at most PATH_MAX.
constexpr size_t kLineBytes = 8192;
// A larger private range is reserved and not used: runtimes and sanitizers have such ranges, some
// larger than the machine's memory.
constexpr size_t kMostPrivateBytes = size_t{1} << 30;

struct Range {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool writable = false;
};

// Returns all ranges before any is populated, because reading the file maps memory.
std::vector<Range> MappedRanges() {
  std::vector<Range> ranges;
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                   std::fclose);
  std::vector<char> line(kLineBytes);
  while (maps != nullptr && std::fgets(line.data(), kLineBytes, maps.get()) != nullptr) {
    Range range;
    char readable = '-', writable = '-', shared = '-';
    if (std::sscanf(line.data(), "%" SCNxPTR "-%" SCNxPTR " %c%c%*c%c", &range.begin, &range.end,
                    &readable, &writable, &shared) != 5) {
      continue;
    }
    range.writable = writable == 'w';
    if (shared == 'p' && range.end - range.begin > kMostPrivateBytes) continue;
    if (readable == 'r') ranges.push_back(range);
  }
  return ranges;
}

}  // namespace

void Prefault() {
  for (const Range& range : MappedRanges()) {
    (void)madvise(reinterpret_cast<void*>(range.begin), range.end - range.begin,
                  range.writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  }
}

}  // namespace baton::native

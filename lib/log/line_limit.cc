#include "lib/log/line_limit.h"

#include <utility>

namespace baton::log {
namespace {

constexpr char kOthers[] = "other";

}  // namespace

bool LineLimit::Take(std::string_view name, uint64_t now_ns) {
  Kind& kind = Find(name, now_ns);
  const bool is_written = kind.lines.TryTake(now_ns);
  kind.left_out += !is_written;
  return is_written;
}

void LineLimit::TakeLeftOut(
    const std::function<void(const std::string& kind, uint64_t lines)>& tell) {
  for (auto& [name, kind] : kinds_) {
    if (const uint64_t lines = std::exchange(kind.left_out, 0); lines > 0) tell(name, lines);
  }
}

LineLimit::Kind& LineLimit::Find(std::string_view name, uint64_t now_ns) {
  const auto found = kinds_.find(name);
  if (found != kinds_.end()) return found->second;
  const std::string key(kinds_.size() + 1 < kMaxKinds ? name : kOthers);
  return kinds_.try_emplace(key, Kind{TokenBucket(kPerSecond, kBurst, now_ns)}).first->second;
}

}  // namespace baton::log

#include "lib/log/line_limit.h"

#include <algorithm>
#include <utility>

namespace baton::log {
namespace {

constexpr char kOthers[] = "other";

}  // namespace

bool LineLimit::Take(std::string_view name, uint64_t now_ns) {
  Kind& kind = Find(name, now_ns);
  const double seconds = static_cast<double>(now_ns - kind.counted_ns) * 1e-9;
  kind.lines = std::min<double>(kBurst, kind.lines + seconds * kPerSecond);
  kind.counted_ns = now_ns;
  if (kind.lines < 1) {
    ++kind.left_out;
    return false;
  }
  kind.lines -= 1;
  return true;
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
  return kinds_.try_emplace(key, Kind{kBurst, now_ns, 0}).first->second;
}

}  // namespace baton::log

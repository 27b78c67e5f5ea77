#include "tests/simulation/driver_deaths.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace baton::simulation {
namespace {

constexpr uint32_t kFocused = 12;

std::map<std::string, uint64_t>& Counted() {
  static std::map<std::string, uint64_t> deaths;
  return deaths;
}

// The same in every process.
uint32_t HashOf(const char* text) {
  uint32_t hash = 2'166'136'261;
  for (; *text != '\0'; ++text) hash = (hash ^ static_cast<uint8_t>(*text)) * 16'777'619;
  return hash >> 8;
}

// Drivers come to these points only after another death, or leave most to find out there.
bool IsRare(std::string_view where) {
  for (const std::string_view part : {"marker", "spare", "settled", "device: post"}) {
    if (where.find(part) != std::string_view::npos) return true;
  }
  return false;
}

struct Place {
  uint32_t hash;
  bool rare;
};

// Looked up by address: what a name says is found out once.
const Place& PlaceOf(const char* where) {
  static std::unordered_map<const char*, Place> places;
  const auto found = places.find(where);
  if (found != places.end()) return found->second;
  return places.emplace(where, Place{HashOf(where), IsRare(where)}).first->second;
}

}  // namespace

const std::map<std::string, uint64_t>& DriverDeaths::All() { return Counted(); }

bool DriverDeaths::IsDue(const char* where) {
  if (suspended_ || mortality_.deaths == 0 || mortality_.once_in == 0 ||
      context_->now_ns < mortality_.after_ns) {
    return false;
  }
  const Place& place = PlaceOf(where);
  uint32_t once_in = mortality_.once_in;
  if (mortality_.focus != 0) {
    const bool focused = (place.hash + mortality_.focus) % kFocused == 0;
    once_in = focused ? std::max(2u, once_in / 20) : 4 * once_in;
  }
  if (place.rare) once_in = std::min(std::max(3u, once_in / 20), 20u);
  if (!context_->dice.OneIn(once_in)) return false;
  --mortality_.deaths;
  ++Counted()[where];
  ++count_;
  context_->Note("driver: dies");
  context_->Note(where);
  for (uint32_t i = 0; i < memory_->shape().shards; ++i) memory_->shard(i).fatal_deaths = 0;
  return true;
}

}  // namespace baton::simulation

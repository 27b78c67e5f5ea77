// What every part of a simulation shares: the dice, the time, the trace, the first promise that was
// found broken, and the arenas.
#ifndef TESTS_SIMULATION_CONTEXT_H_
#define TESTS_SIMULATION_CONTEXT_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lib/arena/arena.h"

namespace baton::simulation {

// SplitMix64: the same numbers everywhere for the same seed.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e37'79b9'7f4a'7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9;
    z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11eb;
    return z ^ (z >> 31);
  }
  // 0 <= result < n; 0 when n is 0.
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>((Next() >> 32) * n >> 32); }
  uint32_t From(uint32_t low, uint32_t high) { return low + Below(high - low + 1); }
  // Once in n times; never when n is 0.
  bool OneIn(uint32_t n) { return n != 0 && Below(n) == 0; }

 private:
  uint64_t state_;
};

// Unwinds a driver that was killed.
struct DriverKilled {};

class Context {
 public:
  explicit Context(uint64_t seed) : dice(seed), hash_(seed) {}

  Dice dice;
  uint64_t now_ns = 1;  // grows with every step

  // Runs other parts, perhaps, in the middle of what is running.
  std::function<void()> interleave = [] {};

  // Whether the driver, which calls, dies here. `where`: a literal. Who asks throws DriverKilled.
  std::function<bool(const char* where)> driver_dies = [](const char*) { return false; };
  void DriverPoint(const char* where) {
    if (driver_dies(where)) throw DriverKilled();
  }

  // `what`: a literal.
  void Note(const char* what, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0);
  uint64_t hash() const { return hash_; }
  uint64_t noted() const { return noted_; }
  // The last steps, oldest first, one line each.
  std::string Last(size_t count) const;

  // A promise is broken. The first one counts, and ends the schedule.
  void Break(std::string what);
  bool broken() const { return !broken_.empty(); }
  const std::string& what_broke() const { return broken_; }

 private:
  struct Noted {
    const char* what;
    uint64_t now_ns, a, b, c;
  };
  static constexpr size_t kKept = 1024;

  std::array<Noted, kKept> ring_;
  uint64_t noted_ = 0;
  uint64_t hash_;
  std::string broken_;
};

// Mapping and sealing memory takes longer than a schedule, so schedules use arenas again.
struct ArenaPair {
  std::unique_ptr<arena::Arena> driver;
  std::shared_ptr<const arena::Arena> worker;  // mapped as workers map it
};

// Returns an arena of `shape` that is as Arena::Create leaves it.
ArenaPair& FreshArena(const arena::Shape& shape);

// For the child of a fork, which has none of its parent's mappings.
void ForgetArenas();

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_CONTEXT_H_

// What peers and the service say to each other, and what the service keeps: a sequence and a
// running total for each peer, a counter for each shard. A lost, repeated or reordered effect shows
// in every later reply.
#ifndef TESTS_SIMULATION_PROTOCOL_H_
#define TESTS_SIMULATION_PROTOCOL_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace baton::simulation {

struct Request {
  uint64_t client;
  uint64_t sequence;
  uint64_t amount;
  uint64_t check;
};

struct Reply {
  uint64_t client;
  uint64_t sequence;
  uint64_t total;
  uint64_t shard;
  uint64_t shard_count;  // requests that the shard has processed, this one included
  uint64_t check;
};

// Application state of a connection.
struct Account {
  uint64_t client;
  uint64_t requests;
  uint64_t total;
  uint64_t sends_completed;
  uint64_t receives_completed;
  uint32_t answered;  // accepted or rejected
  uint32_t established;
  uint64_t check;
};

// Application state of a shard.
struct ShardTotals {
  uint64_t processed;
  uint64_t check;
};

// An object that a shard keeps in its heap.
struct HeapObject {
  uint32_t offset;  // in the heap
  uint32_t length;  // 0: there is none
  uint64_t stamp;   // its contents follow from it
};

// Application state of a shard of a service that has heaps, behind ShardTotals.
inline constexpr uint32_t kHeapObjects = 8;
struct HeapObjects {
  HeapObject objects[kHeapObjects];
  uint64_t check;
};

// A service that is given this amount has a defect that its peers bring out: it dies.
inline constexpr uint64_t kPoisonAmount = 1000;  // others are smaller

inline constexpr uint32_t kStateVersion = 3;
inline constexpr uint32_t kMessageBytes = 64;

// Returns the checksum of everything before the field `check`, which is the last.
template <typename T>
uint64_t CheckOf(const T& value) {
  uint64_t words[sizeof(T) / 8];
  std::memcpy(words, &value, sizeof(T));
  uint64_t sum = 0x1234'5678'9abc'def1 + sizeof(T);
  for (size_t i = 0; i + 1 < sizeof(T) / 8; ++i) sum = (sum ^ words[i]) * 0x9e37'79b9'7f4a'7c15 + i;
  return sum | 1;
}

template <typename T>
std::string Encode(T value) {
  value.check = CheckOf(value);
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// False when the bytes are not, whole, what Encode has made.
template <typename T>
bool Decode(std::string_view bytes, T* value) {
  if (bytes.size() != sizeof(T)) return false;
  std::memcpy(value, bytes.data(), sizeof(T));
  return value->check == CheckOf(*value);
}

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_PROTOCOL_H_

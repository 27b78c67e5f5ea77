#include "tests/simulation/context.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"

namespace baton::simulation {

void Context::Note(const char* what, uint64_t a, uint64_t b, uint64_t c) {
  ring_[noted_++ % kKept] = {what, now_ns, a, b, c};
  const auto mix = [this](uint64_t value) {
    hash_ = (hash_ ^ value) * 0x9e37'79b9'7f4a'7c15;
    hash_ ^= hash_ >> 29;
  };
  // Letters, not the address: the same in every process.
  for (const char* letter = what; *letter != '\0'; ++letter) {
    hash_ = (hash_ ^ static_cast<uint8_t>(*letter)) * 0x100'0000'01b3;
  }
  mix(a);
  mix(b);
  mix(c);
}

std::string Context::Last(size_t count) const {
  std::string text;
  for (uint64_t i = noted_ - std::min<uint64_t>({count, kKept, noted_}); i < noted_; ++i) {
    const Noted& noted = ring_[i % kKept];
    absl::StrAppend(&text, "  ", noted.now_ns / 1000, " ", noted.what, " ", noted.a, " ", noted.b,
                    " ", noted.c, "\n");
  }
  return text;
}

void Context::Break(std::string what) {
  if (broken()) return;
  Note("BROKEN");
  broken_ = std::move(what);
}

namespace {

FileDescriptor Copy(int fd) { return FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

ArenaPair Create(const arena::Shape& shape) {
  auto driver = arena::Arena::Create(shape, "simulated");
  BATON_CHECK(driver.ok());
  auto worker = arena::Arena::Map(Copy(driver->worker_log_fd()), Copy(driver->driver_log_fd()),
                                  Copy(driver->buffers_fd()));
  BATON_CHECK(worker.ok());
  ArenaPair pair;
  pair.driver = std::make_unique<arena::Arena>(*std::move(driver));
  pair.worker = std::make_shared<const arena::Arena>(*std::move(worker));
  return pair;
}

void Clear(const arena::Arena& arena) {
  const arena::WorkerMemoryMap& worker = arena.worker_map();
  uint8_t* const slots = reinterpret_cast<uint8_t*>(&arena.worker(0));
  std::memset(slots, 0, worker.total - worker.workers);
  uint8_t* const shards = reinterpret_cast<uint8_t*>(&arena.shard(0));
  std::memset(shards, 0, arena.driver_map().total - arena.driver_map().shards);
  std::memset(arena.buffers(), 0, arena.shape().buffer_bytes);
  const arena::RecoveryMemoryMap& recovery = arena.recovery_map();
  std::memset(arena.poll_slots(0), 0, recovery.spare_buffers);
  std::memset(&arena.succession(0), 0, recovery.total - recovery.shards);
  arena.header().driver_sleeping = 0;
  arena.header().ownership_changes = 0;
  for (uint32_t i = 0; i < arena.shape().shards; ++i) {
    arena.shard(i).owner.ownership = arena::PackOwnership(0, arena::kNobody);
  }
}

using ArenaKey = std::array<uint32_t, 7>;
std::map<ArenaKey, ArenaPair> g_arenas;

}  // namespace

ArenaPair& FreshArena(const arena::Shape& shape) {
  const ArenaKey key = {shape.shards,
                        shape.connections,
                        shape.send_queue_depth,
                        shape.workers,
                        shape.shared_receive_queue_depth,
                        shape.heap_pages,
                        shape.brokered_queue_pairs};
  auto found = g_arenas.find(key);
  if (found == g_arenas.end()) found = g_arenas.emplace(key, Create(shape)).first;
  Clear(*found->second.driver);
  return found->second;
}

void ForgetArenas() { g_arenas.clear(); }

}  // namespace baton::simulation

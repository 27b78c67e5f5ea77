// `baton inspect` on an arena in which somebody has written anything.
#include <array>
#include <cstring>
#include <sstream>
#include <string>

#include "lib/arena/arena.h"
#include "lib/base/check.h"
#include "supervisor/cli/commands.h"
#include "supervisor/inspect/arena_view.h"
#include "tests/fuzz/clear_arena.h"
#include "tests/fuzz/program.h"
#include "tests/supervisor/inspect/known_arena.h"

namespace baton::fuzz {
namespace {

constexpr uint32_t kMaxWrites = 64;
constexpr size_t kMaxOutputBytes = 4 << 20;

arena::Arena MakeArena(bool native) {
  arena::Shape shape = driver::testing::TestShape(2, 8, 8);
  if (native) {
    shape.pooled_queue_pairs = 4;
    shape.shared_receive_queue_depth = 4;
    shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
  }
  return arena::Arena::Create(shape, "kv").value();
}

// Made once: the files are large.
struct Subject {
  explicit Subject(bool native)
      : arena(MakeArena(native)), files(inspect::testing::FilesOf(arena)), header(arena.header()) {}

  void Restore() {
    ClearArena(&arena);
    arena.header() = header;
    inspect::testing::Fill(arena);
  }
  // Where a word may be written: the beginnings of what has structure.
  uint8_t* Place(uint32_t which, uint64_t offset) {
    auto* const driver = reinterpret_cast<uint8_t*>(&arena.header());
    auto* const worker = reinterpret_cast<uint8_t*>(&arena.worker(0)) - arena.worker_map().workers;
    switch (which) {
      case 0:
        return driver + offset % sizeof(arena::DriverMemoryHeader);
      case 1:
        return reinterpret_cast<uint8_t*>(&arena.shard(0)) +
               offset % (arena.shape().shards * sizeof(arena::ShardRecord));
      case 2:
        return reinterpret_cast<uint8_t*>(&arena.connection(2)) +
               offset % sizeof(arena::ConnectionRecord);
      case 3:
        return driver + offset % (arena.driver_map().total - 8);
      case 4:
        return reinterpret_cast<uint8_t*>(&arena.send_request(2, 100)) +
               offset % (8 * sizeof(arena::WorkRequest));
      default:
        return worker + offset % (arena.worker_map().total - 8);
    }
  }

  arena::Arena arena;
  const inspect::ArenaFiles files;
  const arena::DriverMemoryHeader header;
};

void Look(const Subject& subject, const inspect::Selection& selection) {
  const auto view = inspect::ArenaView::Open(subject.files, "");
  if (!view.ok()) {
    BATON_CHECK(!view.status().message().empty());
    return;
  }
  const auto inspection = inspect::Inspect(*view, selection, subject.header.created_ns);
  if (!inspection.ok()) {
    BATON_CHECK(!inspection.status().message().empty());
    return;
  }
  std::ostringstream out;
  PrintInspection(out, *inspection, {.queues = true, .work_requests = true, .state = true});
  BATON_CHECK(out.str().size() < kMaxOutputBytes);
  BATON_CHECK(inspection->SerializeAsString().size() < kMaxOutputBytes);
}

}  // namespace

void ArenaInspection(const uint8_t* data, size_t size) {
  static std::array<Subject, 2> subjects = {Subject(false), Subject(true)};
  Program program(data, size);
  Subject& subject = subjects[program.Below(2)];
  subject.Restore();
  for (uint32_t i = 0; i < kMaxWrites && !program.empty(); ++i) {
    uint8_t* const place = subject.Place(program.Below(6), program.Take<uint16_t>() & ~7u);
    uint64_t word;
    std::memcpy(&word, place, sizeof(word));
    word = program.Near(word);
    std::memcpy(place, &word, sizeof(word));
  }
  inspect::Selection selection;
  selection.connections = selection.work_requests = selection.state = true;
  Look(subject, selection);
  selection.shard = 0;
  Look(subject, selection);
}

}  // namespace baton::fuzz

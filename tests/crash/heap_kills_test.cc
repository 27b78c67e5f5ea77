// The owner of a shard is killed after each number of instructions of an allocation, small and of
// pages, of a Keep and of a free, with their commits, and at random moments of a life of all: what
// its state names is allocated, as it was written, and every other byte is free, or behind the last
// object of a block.
//
// The driver is in this process, and each owner in one of its own. There are no connections: what
// work requests use is the simulation's.
// BATON_STRIDE: after each so many instructions (25; of pages and of a Keep 75); BATON_KILLS:
// random ones (100); BATON_SEED.
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/driver/engine/engine.h"
#include "tests/bench/null_device.h"
#include "tests/harness/processors.h"
#include "tests/harness/setting.h"
#include "tests/native/stepper.h"
#include "worker/heap.h"
#include "worker/heap_blocks.h"
#include "worker/worker_impl.h"

namespace baton::crash {
namespace {

constexpr uint32_t kPages = 256;  // room for all objects, whatever their blocks
constexpr uint32_t kMostObjects = 8, kObjectsAtFirst = 3;
constexpr uint64_t kStride = 25, kLongStride = 75;
constexpr uint64_t kPatienceNs = 60'000'000'000;

std::pair<FileDescriptor, FileDescriptor> MakePair() {
  int pair[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  return {FileDescriptor(pair[0]), FileDescriptor(pair[1])};
}
std::pair<FileDescriptor, FileDescriptor> MakePipe() {
  int ends[2];
  BATON_CHECK(pipe(ends) == 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}
FileDescriptor Copy(int fd) { return FileDescriptor(dup(fd)); }

arena::Shape HeapShape() {
  arena::Shape shape = {};
  shape.shards = shape.connections = shape.workers = 1;
  shape.send_queue_depth = shape.receive_queue_depth = 1;
  shape.connection_state_bytes = 64;
  shape.shard_state_bytes = 256;
  shape.heap_pages = kPages;
  shape.buffer_bytes = arena::HeapBytes(shape) + arena::kPageBytes;
  shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
  return shape;
}

// The state of the shard.
struct Named {
  uint64_t count = 0;
  struct Object {
    uint64_t offset, length;  // in the buffers
    uint64_t stamp;           // at its beginning
  } objects[kMostObjects] = {};
};
static_assert(sizeof(Named) <= 256);

Named NamedIn(const uint8_t* state, size_t length) {
  Named named;
  if (length == sizeof(named)) std::memcpy(&named, state, sizeof(named));
  return named;
}

[[gnu::noinline]] void Mark() { asm volatile(""); }

// ---------------------------------------------------------------- an owner, in its own process

class Owner final : private Service {
 public:
  Owner(const arena::Arena& arena, FileDescriptor wake, FileDescriptor session, uint64_t id) {
    WorkerOptions options;
    options.commit_mode = CommitMode::kManual;
    worker_ = std::make_unique<WorkerImpl>(options, static_cast<Service*>(this));
    worker_->Connected(std::move(session));
    auto mapped = arena::Arena::Map(Copy(arena.worker_log_fd()), Copy(arena.driver_log_fd()),
                                    Copy(arena.buffers_fd()));
    BATON_CHECK(mapped.ok());
    BATON_CHECK(worker_
                    ->Start(std::make_shared<const arena::Arena>(*std::move(mapped)),
                            std::move(wake), id, 0)
                    .ok());
    while (shard_ == nullptr) BATON_CHECK(worker_->Poll().ok());
    named_ = NamedIn(shard_->state().data(), shard_->state().size());
  }

  // Whether what is allocated is what the state names.
  bool FindsAll() {
    std::map<uint64_t, uint64_t> found;
    const auto visit = [&](const Buffer& buffer, bool kept) {
      found[buffer.offset] = kept ? buffer.length : 0;
    };
    if (!shard_->heap().ForEachAllocated(visit).ok() || found.size() != named_.count) return false;
    for (uint64_t i = 0; i < named_.count; ++i) {
      const Named::Object& object = named_.objects[i];
      if (found.count(object.offset) == 0 || found[object.offset] < object.length) return false;
    }
    const auto totals = shard_->heap().statistics();
    return totals.ok() && totals->scratch == 0 && totals->held == 0 &&
           totals->kept + totals->free + totals->rest == totals->bytes;
  }

  // Has as many objects as the first one.
  void Prepare() {
    std::mt19937_64 random(named_.count);
    while (named_.count > kObjectsAtFirst) BATON_CHECK(Free(0));
    while (named_.count < kObjectsAtFirst) BATON_CHECK(Allocate(random() % 5000 + 8, random()));
    Commit();
  }

  bool Allocate(uint64_t length, uint64_t stamp) {
    const absl::StatusOr<Buffer> buffer = shard_->heap().Allocate(length);
    if (!buffer.ok()) return false;
    std::memcpy(shard_->heap().At(*buffer), &stamp, sizeof(stamp));
    named_.objects[named_.count++] = {buffer->offset, length, stamp};
    return true;
  }
  // Allocates scratch memory, and keeps it.
  bool Keep(uint64_t length, uint64_t stamp) {
    const absl::StatusOr<Buffer> buffer = shard_->heap().AllocateScratch(length);
    if (!buffer.ok()) return false;
    std::memcpy(shard_->heap().At(*buffer), &stamp, sizeof(stamp));
    if (!shard_->heap().Keep(*buffer).ok()) {
      BATON_CHECK(shard_->heap().Free(*buffer).ok());
      return false;
    }
    named_.objects[named_.count++] = {buffer->offset, length, stamp};
    return true;
  }
  bool Free(uint64_t place) {
    const Named::Object freed = named_.objects[place];
    const absl::Status status =
        shard_->heap().Free({freed.offset, static_cast<uint32_t>(freed.length)});
    BATON_CHECK(status.ok() || absl::IsResourceExhausted(status));  // the driver is behind
    if (!status.ok()) return false;
    named_.objects[place] = named_.objects[--named_.count];
    named_.objects[named_.count] = {};
    return true;
  }
  void Commit() {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&named_);
    BATON_CHECK(shard_->SetShardState({bytes, sizeof(named_)}, 1).ok());
    while (!shard_->Commit().ok()) sched_yield();  // the driver is behind
  }

  void AllocateAndCommit() {
    BATON_CHECK(Allocate(300, 1));
    Commit();
  }
  // It has pages of its own, and no block of which objects are left.
  void AllocatePagesAndCommit() {
    BATON_CHECK(Allocate(3 * arena::kPageBytes, 2));
    Commit();
  }
  void KeepAndCommit() {
    BATON_CHECK(Keep(300, 3));
    Commit();
  }
  void FreeAndCommit() {
    BATON_CHECK(Free(1));
    Commit();
  }
  [[noreturn]] void AllocateAndFreeForever(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (;;) {
      const Named before = named_;
      for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) ChangeAny(random);
      if (random() % 8 != 0) {
        Commit();
      } else {
        shard_->Abandon();
        named_ = before;
      }
    }
  }

 private:
  void ChangeAny(std::mt19937_64& random) {
    const uint64_t length = random() % (random() % 4 == 0 ? 6 * arena::kPageBytes : 2000) + 8;
    const uint64_t choice = random() % 4;
    if (choice == 0 && named_.count > 0) {
      Free(random() % named_.count);
    } else if (choice <= 1 && named_.count < kMostObjects) {
      Allocate(length, random());
    } else if (choice == 2 && named_.count < kMostObjects) {
      Keep(length, random());
    } else if (const auto scratch = shard_->heap().AllocateScratch(length); scratch.ok()) {
      BATON_CHECK(shard_->heap().Free(*scratch).ok());
    }
  }

  absl::Status OnAdopt(Shard& shard) override {
    shard_ = &shard;
    return absl::OkStatus();
  }
  void OnCompletion(Shard&, const Completion&) override {}

  std::unique_ptr<WorkerImpl> worker_;
  Shard* shard_ = nullptr;
  Named named_;
};

// ---------------------------------------------------------------- the driver

class HeapKillsTest : public ::testing::Test, private driver_process::EngineListener {
 protected:
  using Work = void (Owner::*)();

  HeapKillsTest() : arena_(arena::Arena::Create(HeapShape(), "heap").value()) {
    driver_process::EngineOptions options;
    options.nanoseconds = [] { return uint64_t{1'000'000'000}; };
    options.poison_deaths = UINT32_MAX;
    engine_ = driver_process::Engine::Create(&arena_, &device_, this, options).value();
  }

  // Kills an owner after each number of instructions until `work` is done. `otherwise` is the
  // stride that is not set.
  void KillAfterEachInstruction(Work work, uint64_t otherwise = kStride) {
    // A step then takes no more than two switches of context.
    harness::StayHere();
    const uint64_t stride = harness::Setting("BATON_STRIDE", otherwise);
    uint64_t kills = 0;
    for (bool done = false; !done; ++kills) {
      SCOPED_TRACE(testing::Message() << "after " << kills * stride << " instructions");
      ASSERT_NO_FATAL_FAILURE(StartOwner([work](Owner& owner) {
        Mark();
        (owner.*work)();
        Mark();
        _exit(0);
      }));
      {
        native::Stepper stepper(owner_);
        Tell();
        ASSERT_EQ(stepper.RunTo({native::CodeOf(&Mark)}), native::CodeOf(&Mark));
        done = !stepper.Step(kills * stride);
        if (done) ended_ = true;
      }
      ASSERT_NO_FATAL_FAILURE(Kill());
    }
    std::printf("%llu kills\n", static_cast<unsigned long long>(kills));
    EXPECT_GT(kills * stride, 10 * kStride);
  }

  void KillAtRandom(uint64_t kills, uint64_t seed) {
    harness::RunOnProcessor(-1);
    std::mt19937_64 random(seed);
    for (uint64_t i = 0; i < kills; ++i) {
      SCOPED_TRACE(testing::Message() << "kill " << i << ", BATON_SEED=" << seed);
      ASSERT_NO_FATAL_FAILURE(
          StartOwner([life = random()](Owner& owner) { owner.AllocateAndFreeForever(life); }));
      const uint64_t wanted = arena_.shard(0).transactions + random() % 20;
      Tell();
      ASSERT_NO_FATAL_FAILURE(TurnUntil([&] { return arena_.shard(0).transactions >= wanted; }));
      const uint64_t end = MonotonicNanoseconds() + random() % 20'000;
      while (MonotonicNanoseconds() < end) engine_->Turn();
      ASSERT_NO_FATAL_FAILURE(Kill());
    }
  }

  // An owner that has found what its predecessor left, and waits.
  template <typename Life>
  void StartOwner(const Life& life) {
    auto [engine_wake, worker_wake] = MakePair();
    auto [keeper, session] = MakePair();
    auto [hear, tell] = MakePipe();
    auto [ready, say] = MakePipe();
    arena_.ClearWorker(0);
    engine_->AddWorker(0, ++id_, std::move(engine_wake));
    engine_->succession().SetReady(0);
    owner_ = fork();
    ASSERT_GE(owner_, 0);
    if (owner_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Owner owner(arena_, std::move(worker_wake), std::move(session), id_);
      const char found = owner.FindsAll() ? 'y' : 'n';
      owner.Prepare();
      BATON_CHECK(write(say.get(), &found, 1) == 1);
      char byte;
      BATON_CHECK(read(hear.get(), &byte, 1) == 1);
      life(owner);
      _exit(0);
    }
    ended_ = false;
    keeper_ = std::move(keeper);
    tell_ = std::move(tell);
    say.Reset();
    pollfd entry = {ready.get(), POLLIN, 0};
    ASSERT_NO_FATAL_FAILURE(TurnUntil([&] { return poll(&entry, 1, 0) == 1; }));
    char found = 0;
    ASSERT_EQ(read(ready.get(), &found, 1), 1) << "the owner has ended";
    ASSERT_EQ(found, 'y') << "the owner finds other memory than its state names";
    ASSERT_NO_FATAL_FAILURE(TurnUntil([this] { return !engine_->Turn(); }));
  }

  void Tell() { BATON_CHECK(write(tell_.get(), "b", 1) == 1); }

  // And looks at what is left.
  void Kill() {
    if (!ended_) {
      kill(owner_, SIGKILL);
      int end = 0;
      BATON_CHECK(waitpid(owner_, &end, 0) == owner_);
      EXPECT_TRUE(WIFSIGNALED(end) && WTERMSIG(end) == SIGKILL) << "it ended by itself: " << end;
    }
    engine_->succession().WorkerEnded(0, id_, "crash");
    engine_->succession().WorkerDead(0, id_);
    ASSERT_NO_FATAL_FAILURE(TurnUntil([this] { return !engine_->Turn(); }));
    ASSERT_FALSE(fenced_) << "the driver has refused a transaction";
    Verify();
  }

  void Verify() {
    const arena::ShardRecord& record = arena_.shard(0);
    const Named named = NamedIn(arena_.shard_state(0, record.state_slot), record.state_length);
    HeapBlocks blocks(kPages);
    const absl::Status loaded = blocks.Load(arena_.heap(0), [](HeapBlocks::VisitRange) {});
    ASSERT_TRUE(loaded.ok()) << loaded;
    std::map<uint64_t, uint64_t> allocated;
    uint64_t kept = 0;
    blocks.ForEachTaken([&](const HeapBlocks::Object& object, HeapBlocks::State) {
      allocated[arena::HeapOffset(arena_.shape(), 0) + object.offset] = object.length;
      kept += object.length;
    });
    EXPECT_EQ(allocated.size(), named.count);
    for (uint64_t i = 0; i < named.count; ++i) {
      const Named::Object& object = named.objects[i];
      EXPECT_GE(allocated[object.offset], object.length);
      uint64_t stamp;
      std::memcpy(&stamp, arena_.buffers() + object.offset, sizeof(stamp));
      EXPECT_EQ(stamp, object.stamp);
    }
    const HeapBlocks::Totals totals = blocks.totals();
    EXPECT_EQ(totals.kept, kept);
    EXPECT_EQ(totals.scratch + totals.held, 0u);
    EXPECT_EQ(totals.rest, RestOfBlocks());
    EXPECT_EQ(totals.kept + totals.free + totals.rest, blocks.bytes());
  }
  // Returns how many bytes lie behind the last objects of blocks.
  uint64_t RestOfBlocks() const {
    uint64_t rest = 0;
    for (uint32_t page = 0; page < kPages; ++page) {
      const arena::HeapBlock& block = arena_.heap(0)[page];
      if (block.units == 0) continue;  // none begins there, or one that is one object
      rest += uint64_t{block.pages} * arena::kPageBytes -
              uint64_t{arena::ObjectsOf(block)} * block.units * arena::kHeapUnitBytes;
    }
    return rest;
  }

  template <typename Condition>
  void TurnUntil(const Condition& condition) {
    const uint64_t deadline = MonotonicNanoseconds() + kPatienceNs;
    while (!condition()) {
      ASSERT_LT(MonotonicNanoseconds(), deadline);
      engine_->Turn();
      sched_yield();  // the owner may have to run here
    }
  }

 private:
  void OnEvent(std::string_view, const std::string&, uint64_t, int, int) override {}
  void OnFenced(uint64_t) override { fenced_ = true; }
  void OnDeviceLost(const absl::Status&) override {}

  arena::Arena arena_;
  bench::NullDevice device_{bench::NullPeerKind::kNone};
  std::unique_ptr<driver_process::Engine> engine_;
  FileDescriptor keeper_, tell_;
  pid_t owner_ = -1;
  bool ended_ = false;  // and was waited for
  bool fenced_ = false;
  uint64_t id_ = 0;
};

TEST_F(HeapKillsTest, shouldAccountForAllWhereverItsOwnerIsKilledInAllocate) {
  KillAfterEachInstruction(&Owner::AllocateAndCommit);
}

TEST_F(HeapKillsTest, shouldAccountForAllWhereverItsOwnerIsKilledInFree) {
  KillAfterEachInstruction(&Owner::FreeAndCommit);
}

TEST_F(HeapKillsTest, shouldAccountForAllWhereverItsOwnerIsKilledInAnAllocateOfPages) {
  KillAfterEachInstruction(&Owner::AllocatePagesAndCommit, kLongStride);
}

TEST_F(HeapKillsTest, shouldAccountForAllWhereverItsOwnerIsKilledInKeep) {
  KillAfterEachInstruction(&Owner::KeepAndCommit, kLongStride);
}

TEST_F(HeapKillsTest, shouldAccountForAllWheneverItsOwnerIsKilled) {
  KillAtRandom(harness::Setting("BATON_KILLS", 100),
               harness::Setting("BATON_SEED", std::random_device()()));
}

}  // namespace
}  // namespace baton::crash

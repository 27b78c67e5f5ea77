// The ownership of a native service's shard in one process: its keeper's engine and its workers'
// drivers are the real ones, the keeper and each worker run in threads of their own, and the dice
// say whose turn it is, at every crash point and between the stores of the worker's library.
// Workers are killed, retired and started, shards handed over. A seed replays its schedule:
// BATON_FIRST_SEED, BATON_SCHEDULES.
//
// Nothing is connected: what goes over the wire is the other simulation's, and the machine tests'.
// In some schedules the shard has a heap.
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/driver/native/native_driver.h"
#include "supervisor/driver/native/native_engine.h"
#include "tests/harness/processors.h"
#include "tests/harness/setting.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/verbs/forwarding_device.h"
#include "tests/simulation/context.h"
#include "tests/simulation/sim_device.h"
#include "worker/heap_blocks.h"

namespace baton::simulation {
namespace {

using driver_process::NativeDriver;
using driver_process::NativeEngine;

constexpr uint32_t kWorkers = 3;
constexpr int kSteps = 1500;
constexpr uint32_t kHeapPages = 24;

// In each schedule there may be a point at which workers often stay for long, and one at which they
// often die: what takes several coincidences happens, too. An empty one: none.
constexpr std::array<std::string_view, 9> kSlowAt = {
    "",
    "native-owner-seen",
    "native-before-claim",
    "native-before-claim",
    "native-claimed",
    "native-before-taking",
    "native-taken",
    "native-before-hand-over",
    "committed",
};
constexpr std::array<std::string_view, 9> kMortalAt = {
    "",
    "native-claimed",
    "native-claimed",
    "change-rest-applied",
    "native-before-taking",
    "native-taken",
    "native-before-hand-over",
    "committed",
    "released",
};

// The same for the keeper, which nothing kills here.
constexpr std::array<std::string_view, 5> kKeeperSlowAt = {
    "",
    "native-before-giving",
    "native-before-vacating",
    "succession-before-asking",
    "succession-release-asked",
};

class PollableDevice final : public verbs::testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  int event_fd() const override { return event_.get(); }

 private:
  const FileDescriptor event_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};  // of nothing
};

class NoObserver final : public DeviceObserver {
  void OnSendPosted(const verbs::SendRequest&) override {}
  void OnReceivePosted(const verbs::ReceiveRequest&) override {}
  void OnCompleted(const verbs::Completion&) override {}
};

struct Killed {};

// A thread that runs only when it is resumed, until it yields or ends.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body)
      : thread_([this, body = std::move(body)] {
          Await(true);
          current_ = this;
          try {
            if (!doomed_) body();
          } catch (const Killed&) {
          }
          current_ = nullptr;
          ended_ = true;
          Pass(false);
        }) {}
  ~Fiber() {
    Kill();
    thread_.join();
  }
  void Resume() {
    if (ended_) return;
    Pass(true);
    Await(false);
  }
  // What it does on its way out has no effect on the arena.
  void Kill() {
    doomed_ = true;
    Resume();
  }
  bool ended() const { return ended_; }

  // Stops the fiber that runs, if one does, until it is resumed.
  static void Yield(const char* where) {
    Fiber* const self = current_;
    if (self == nullptr || self->doomed_) return;
    self->where_ = where;
    self->Pass(false);
    self->Await(true);
    if (self->doomed_) throw Killed();
  }
  const char* where() const { return where_; }

 private:
  void Pass(bool inside) {
    const std::lock_guard<std::mutex> lock(mutex_);
    inside_ = inside;
    changed_.notify_all();
  }
  void Await(bool inside) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return inside_ == inside; });
  }

  static inline thread_local Fiber* current_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool inside_ = false, doomed_ = false, ended_ = false;
  const char* where_ = "start";
  std::thread thread_;
};

// The keeper's thread does one thing after the other, and may stay at each of its crash points.
class KeeperThread {
 public:
  bool busy() const { return task_ != nullptr; }
  // Not while it is busy.
  void Begin(std::function<void()> task) {
    task_ = std::move(task);
    fiber_.Resume();
  }
  void GoOn() { fiber_.Resume(); }
  void Finish() {
    while (busy()) GoOn();
  }
  const char* where() const { return fiber_.where(); }

 private:
  std::function<void()> task_;
  Fiber fiber_{[this] {
    for (;; Fiber::Yield("idle")) {
      if (task_) task_();
      task_ = nullptr;
    }
  }};
};

// What was committed to the shard, whoever did it.
struct Truth {
  uint64_t value = 0;
  std::map<uint32_t, arena::HeapBlock> blocks;  // of the heap, by page
  std::map<uint64_t, uint64_t> stamps;          // at the beginning of each object, by offset
};

// An owner uses the heap of its shard, as the worker library does. Where there is none,
// nothing happens, and no die is thrown.
class OwnersHeap {
 public:
  OwnersHeap(Context& context, const arena::Arena& arena, Truth& truth)
      : context_(context), arena_(arena), truth_(truth) {
    if (arena.shape().heap_pages != 0) blocks_.emplace(arena.shape().heap_pages);
  }

  // At an adoption: what was committed is there, and every other byte is free.
  void Load(uint64_t epoch) {
    if (!blocks_) return;
    for (uint32_t page = 0; page < kHeapPages; ++page) {
      const arena::HeapBlock found = arena::CopyOnce(arena_.heap(0)[page]);
      const auto known = truth_.blocks.find(page);
      if (!IsSame(found, known != truth_.blocks.end() ? known->second : arena::HeapBlock{})) {
        return context_.Break(absl::StrCat("heap: epoch ", epoch, " begins with another block at ",
                                           page, " than was committed"));
      }
    }
    const absl::Status loaded = blocks_->Load(arena_.heap(0), [](HeapBlocks::VisitRange) {});
    if (!loaded.ok()) return context_.Break(absl::StrCat("heap: ", loaded.message()));
    kept_.clear();
    blocks_->ForEachTaken([this](const HeapBlocks::Object& object, HeapBlocks::State) {
      kept_.push_back(object);
      const auto known = truth_.stamps.find(object.offset);
      if (known == truth_.stamps.end() || StampAt(object) != known->second) {
        context_.Break(absl::StrCat("heap: at ", object.offset, " is not what was written there"));
      }
    });
    CheckTotals();
  }

  // Allocates and frees in the open transaction, or not.
  void Change(driver::testing::CommitWriter* writer) {
    if (!blocks_) return;
    Dice& dice = context_.dice;
    for (uint32_t left = dice.Below(4); left > 0; --left) {
      if (!kept_.empty() && dice.OneIn(2)) {
        const uint32_t place = dice.Below(static_cast<uint32_t>(kept_.size()));
        Free(kept_[place]);
        kept_.erase(kept_.begin() + place);
      } else {
        Allocate(1 + dice.Below(dice.OneIn(2) ? 300 : 3 * arena::kPageBytes), dice.Next());
      }
    }
    for (const uint32_t page : changed_) writer->Heap(page, blocks_->Kept(page));
  }

  void NoteCommitted() {
    if (!blocks_) return;
    for (const uint32_t page : changed_) {
      truth_.blocks[page] = blocks_->Kept(page);
      blocks_->Unmark(page);
    }
    for (const HeapBlocks::Object& object : kept_) truth_.stamps[object.offset] = StampAt(object);
    for (const HeapBlocks::Object& object : freed_) blocks_->Hold(object);
    blocks_->Reclaim([](HeapBlocks::VisitRange) {});
    changed_.clear();
    freed_.clear();
    CheckTotals();
  }

 private:
  static bool IsSame(const arena::HeapBlock& one, const arena::HeapBlock& other) {
    return one.pages == other.pages && one.units == other.units && one.kept == other.kept;
  }
  uint8_t* At(const HeapBlocks::Object& object) const {
    return arena_.buffers() + arena::HeapOffset(arena_.shape(), 0) + object.offset;
  }
  uint64_t StampAt(const HeapBlocks::Object& object) const {
    uint64_t stamp;
    std::memcpy(&stamp, At(object), sizeof(stamp));
    return stamp;
  }
  void Note(const HeapBlocks::Object& object) {
    if (blocks_->Mark(object.block)) changed_.push_back(object.block);
  }
  void Allocate(uint64_t bytes, uint64_t stamp) {
    const auto taken = blocks_->Take(bytes, arena::kHeapUnitBytes, /*kept=*/true);
    if (!taken.has_value()) return;
    std::memcpy(At(*taken), &stamp, sizeof(stamp));
    kept_.push_back(*taken);
    Note(*taken);
  }
  void Free(const HeapBlocks::Object& object) {
    blocks_->BeginFree(object);
    freed_.push_back(object);
    Note(object);
  }
  void CheckTotals() {
    const HeapBlocks::Totals totals = blocks_->totals();
    uint64_t kept = 0;
    for (const HeapBlocks::Object& object : kept_) kept += object.length;
    if (totals.kept == kept && totals.kept + totals.free + totals.rest == blocks_->bytes()) return;
    context_.Break(absl::StrCat("heap: ", totals.kept, " kept of ", kept, ", ", totals.free,
                                " free and ", totals.rest, " lost of ", blocks_->bytes()));
  }

  Context& context_;
  const arena::Arena& arena_;
  Truth& truth_;
  std::optional<HeapBlocks> blocks_;
  std::vector<HeapBlocks::Object> kept_, freed_;
  std::vector<uint32_t> changed_;  // blocks
};

// A worker's process: the turns that the worker library makes of its host.
class Process {
 public:
  Process(Context& context, arena::Arena& arena, Truth& truth, NativeEngine& engine, uint32_t slot,
          uint64_t id)
      : context_(context),
        arena_(arena),
        truth_(truth),
        slot_(slot),
        id_(id),
        writer_(&arena, 0),
        heap_(context, arena, truth) {
    driver_process::NativeInheritance inheritance = engine.InheritanceOf(slot, id);
    inheritance.watch_deaths = false;
    driver_ = NativeDriver::Create(std::move(inheritance)).value();
    arena_.ClearWorker(slot);
    lock() = static_cast<uint32_t>(id);
    fiber_ = std::make_unique<Fiber>([this] { Main(); });
  }

  void Resume() { fiber_->Resume(); }
  void Die() {
    fiber_->Kill();
    driver_.reset();
    arena::StoreRelease(lock(), uint32_t{FUTEX_OWNER_DIED});
    adopted_ = 0;
  }
  void Retire() { retiring_ = true; }
  bool retiring() const { return retiring_; }
  bool ended() const { return fiber_->ended(); }
  // Its own sight of it: nobody else may own the shard meanwhile.
  bool owns() const { return adopted_ != 0 && !ended(); }
  uint64_t adopted() const { return adopted_; }
  void LookForDeaths() { driver_->LookForDeaths(); }
  const char* where() const { return fiber_->where(); }
  uint64_t id() const { return id_; }

 private:
  uint32_t& lock() { return arena_.worker(slot_).thread_locks[0].futex; }
  BatonNativeHost& host() { return *driver_->host(); }
  uint64_t word() const { return arena::LoadAcquire(arena_.shard(0).owner.ownership); }
  bool IsOurs(uint64_t epoch) const {
    return arena::OwnershipSlot(word()) == slot_ && arena::OwnershipEpoch(word()) == epoch;
  }
  void Expect(int result, const char* what) {
    if (result != 0) context_.Break(absl::StrCat(what, ": ", host().last_error(host().context)));
  }

  void Main() {
    while (!context_.broken()) {
      Fiber::Yield("turn");
      Expect(host().attend(host().context), "attend");
      const uint64_t epoch = arena::OwnershipEpoch(word());
      if (adopted_ != 0 && !IsOurs(adopted_)) {
        return context_.Break(absl::StrCat("P3: the shard was taken from worker ", id_,
                                           ", which lives, in epoch ", adopted_));
      }
      if (adopted_ == 0 && !retiring_ && IsOurs(epoch)) Adopt(epoch);
      if (adopted_ == 0 && retiring_) break;
      if (adopted_ == 0) continue;
      const bool asked = arena_.shard(0).owner.release_requested == adopted_;
      asked || retiring_ ? Release() : Commit();
    }
    arena::StoreRelease(lock(), uint32_t{0});
  }
  void Adopt(uint64_t epoch) {
    Expect(host().adopt(host().context, 0, epoch), "adopt");
    adopted_ = epoch;
    writer_.Begin(epoch);
    const arena::ShardRecord& shard = arena_.shard(0);
    const auto* const state =
        reinterpret_cast<const char*>(arena_.shard_state(0, shard.state_slot));
    value_ = 0;
    (void)absl::SimpleAtoi(absl::string_view(state, shard.state_length), &value_);
    if (value_ != truth_.value) {
      context_.Break(absl::StrCat("P2: epoch ", epoch, " begins with ", value_, ", committed is ",
                                  truth_.value));
    }
    heap_.Load(epoch);
    Commit();  // as the library does
  }
  void Commit() {
    writer_.ShardState(absl::StrCat(value_ + 1), 1);
    heap_.Change(&writer_);
    Fiber::Yield("before the commit");
    writer_.Publish();
    truth_.value = ++value_;
    heap_.NoteCommitted();
    Fiber::Yield("committed");
    Expect(host().apply(host().context, 0), "apply");
  }
  void Release() {
    writer_.Release().Publish();
    Fiber::Yield("released");
    const uint64_t epoch = std::exchange(adopted_, 0);
    Expect(host().release(host().context, 0, epoch), "release");
  }

  Context& context_;
  arena::Arena& arena_;
  Truth& truth_;
  const uint32_t slot_;
  const uint64_t id_;
  driver::testing::CommitWriter writer_;
  OwnersHeap heap_;
  std::unique_ptr<NativeDriver> driver_;
  uint64_t adopted_ = 0;  // epoch
  uint64_t value_ = 0;
  bool retiring_ = false;
  std::unique_ptr<Fiber> fiber_;  // last: it uses the others
};

class NativeWorld : private driver_process::EngineListener {
 public:
  explicit NativeWorld(uint64_t seed)
      : context_(seed), arena_(arena::Arena::Create(ShapeFor(seed), "native").value()) {
    slow_at_ = kSlowAt[dice().Below(kSlowAt.size())];
    mortal_at_ = kMortalAt[dice().Below(kMortalAt.size())];
    keeper_slow_at_ = kKeeperSlowAt[dice().Below(kKeeperSlowAt.size())];
    SetCrashPointHandler([](const char* name) {
      // connection_recovery_test has these.
      if (!std::string_view(name).starts_with("manager")) Fiber::Yield(name);
    });
    engine_ = NativeEngine::Create(&arena_, &device_, this, {.poison_deaths = 1'000'000}).value();
    keeper_ = std::make_unique<KeeperThread>();
  }
  ~NativeWorld() override {
    keeper_.reset();
    processes_ = {};
    engine_.reset();
    SetCrashPointHandler(nullptr);
  }

  // What broke; empty: nothing.
  std::string Run() {
    for (int i = 0; i < kSteps && !context_.broken(); ++i) Step();
    FinishKeeping();
    // With everybody alive that is, somebody serves in the end.
    for (int i = 0; i < kSteps && !context_.broken() && !IsServed(); ++i) Calm();
    if (!context_.broken() && !IsServed()) context_.Break("nobody owns the shard in the end");
    if (!context_.broken()) CheckReady();
    if (!context_.broken()) return {};
    return absl::StrCat(context_.what_broke(), "\n", context_.Last(40));
  }
  uint64_t hash() const { return context_.hash(); }
  uint64_t committed() const { return truth_.value; }
  size_t objects() const { return truth_.stamps.size(); }
  uint64_t epochs() const { return arena::OwnershipEpoch(arena_.shard(0).owner.ownership); }

 private:
  static arena::Shape ShapeFor(uint64_t seed) {
    arena::Shape shape = driver::testing::TestShape(1);
    shape.pooled_queue_pairs = 1;
    shape.workers = kWorkers;
    // No die: the other schedules are the same with heaps and without.
    if (seed % 3 == 1) {
      shape.heap_pages = kHeapPages;
      shape.buffer_bytes += arena::HeapBytes(shape);
    }
    return shape;
  }
  Dice& dice() { return context_.dice; }

  void Step() {
    const uint32_t slot = dice().Below(kWorkers);
    const uint32_t what = dice().Below(64);
    if (what == 0) {
      Kill(slot);
    } else if (what == 1) {
      Retire(slot);
    } else if (what < 5) {
      Handoff(slot);
    } else if (what < 8) {
      Bury(slot);
    } else if (what < 12) {
      Start(slot);
    } else if (what < 18) {
      Keep([this] { engine_->Turn(); });
    } else if (what < 24) {
      if (IsAlive(slot)) processes_[slot]->LookForDeaths();
    } else if (slow_until_[slot] <= context_.now_ns) {
      SetSilent(slot, false);
      Resume(slot);
      Suffer(slot);
    }
    ++context_.now_ns;
    CheckOwners();
  }
  // What comes of the point to which the worker has come.
  void Suffer(uint32_t slot) {
    if (!IsAlive(slot)) return;
    const std::string_view where = processes_[slot]->where();
    if (where == mortal_at_ && dice().OneIn(3)) {
      Kill(slot);
    } else if (where == slow_at_ && dice().OneIn(2)) {
      slow_until_[slot] = context_.now_ns + dice().Below(300);
      SetSilent(slot, dice().OneIn(2));
    }
  }
  // The keeper begins it, unless it is in the middle of something else: then that goes on. Returns
  // whether it has begun.
  bool Keep(std::function<void()> task) {
    if (keeper_slow_until_ > context_.now_ns) return false;
    const bool begins = !keeper_->busy();
    for (begins ? keeper_->Begin(std::move(task)) : keeper_->GoOn(); keeper_->busy();
         keeper_->GoOn()) {
      context_.Note(keeper_->where(), 0, arena_.shard(0).owner.ownership, truth_.value);
      const bool slow = keeper_->where() == keeper_slow_at_ && dice().OneIn(2);
      if (slow) keeper_slow_until_ = context_.now_ns + dice().Below(300);
      if (slow || dice().OneIn(64)) break;
    }
    return begins;
  }
  // The keeper has seen no sign of life for long, or sees one again.
  void SetSilent(uint32_t slot, bool silent) {
    if (!IsAlive(slot) || silent_[slot] == silent) return;
    const uint64_t id = processes_[slot]->id();
    if (Keep([this, slot, id, silent] { engine_->succession().SetSilent(slot, id, silent); })) {
      silent_[slot] = silent;
    }
  }
  void FinishKeeping() {
    keeper_->Finish();
    keeper_slow_until_ = 0;
  }
  void Calm() {
    for (uint32_t slot = 0; slot < kWorkers && !context_.broken(); ++slot) {
      Bury(slot);
      FinishKeeping();
      Start(slot);
      FinishKeeping();
      engine_->Turn();
      if (!IsAlive(slot)) continue;
      SetSilent(slot, false);
      FinishKeeping();
      processes_[slot]->LookForDeaths();
      Resume(slot);
      CheckOwners();
    }
  }

  bool IsAlive(uint32_t slot) const { return processes_[slot] && !processes_[slot]->ended(); }
  bool IsServed() const {
    for (const auto& process : processes_) {
      if (process && process->owns()) return true;
    }
    return false;
  }
  void Resume(uint32_t slot) {
    if (!IsAlive(slot)) return;
    processes_[slot]->Resume();
    context_.Note(processes_[slot]->where(), processes_[slot]->id(),
                  arena_.shard(0).owner.ownership, truth_.value);
  }
  void Kill(uint32_t slot) {
    if (!IsAlive(slot)) return;
    context_.Note("killed", processes_[slot]->id());
    processes_[slot]->Die();
    dead_[slot] = true;
  }
  void Retire(uint32_t slot) {
    if (!IsAlive(slot)) return;
    context_.Note("retires", processes_[slot]->id());
    processes_[slot]->Retire();
  }
  // The keeper learns that it is gone.
  void Bury(uint32_t slot) {
    if (!processes_[slot] || !processes_[slot]->ended()) return;
    const uint64_t id = processes_[slot]->id();
    const std::string_view cause = dead_[slot] ? "crash" : "detached";
    const bool begins = Keep([this, slot, id, cause] {
      engine_->succession().WorkerEnded(slot, id, cause);
      engine_->succession().WorkerDead(slot, id);
    });
    if (!begins) return;
    context_.Note("buried", id);
    processes_[slot].reset();
    dead_[slot] = false;
  }
  void Start(uint32_t slot) {
    if (processes_[slot]) return;
    if (keeper_->busy()) return (void)Keep(nullptr);
    const uint64_t id = ++last_id_;
    slow_until_[slot] = 0;
    silent_[slot] = false;
    context_.Note("started", id, slot);
    processes_[slot] = std::make_unique<Process>(context_, arena_, truth_, *engine_, slot, id);
    Keep([this, slot, id] {
      engine_->AddWorker(slot, id, FileDescriptor(), {}, driver_process::Standing::kFirst);
      engine_->succession().SetReady(slot);
    });
  }
  void Handoff(uint32_t slot) {
    if (!IsAlive(slot) || !engine_->succession().IsReady(slot)) return;
    const uint64_t id = processes_[slot]->id();
    if (Keep([this, slot] {
          engine_->succession().Handoff(0, slot, [](const absl::Status&, double) {});
        })) {
      context_.Note("handoff to", id);
    }
  }
  // A worker that gave the shard back was asked to, or has ended: none may be taken for one that
  // serves none.
  void CheckReady() {
    engine_->Turn();
    for (uint32_t slot = 0; slot < kWorkers; ++slot) {
      if (!IsAlive(slot) || processes_[slot]->retiring() || silent_[slot]) continue;
      if (engine_->succession().IsReady(slot)) continue;
      context_.Break(absl::StrCat("worker ", processes_[slot]->id(),
                                  " released what it was asked for, and gets no shard any more"));
    }
  }
  void CheckOwners() {
    int owners = 0;
    for (const auto& process : processes_) owners += process && process->owns();
    if (owners > 1) context_.Break(absl::StrCat("P3: ", owners, " workers own the shard"));
  }

  // Nobody writes over what is another's here, so nobody may find that somebody did.
  void OnEvent(std::string_view kind, const std::string& text, uint64_t, int, int) override {
    if (kind != "ownership_broken" && kind != "not_poisoned") return;
    context_.Break(absl::StrCat("P3: ", std::string(kind), ": ", text));
  }
  void OnFenced(uint64_t) override {}
  void OnDeviceLost(const absl::Status&) override {}

  Context context_;
  NoObserver observer_;
  arena::Arena arena_;
  PollableDevice device_{std::make_unique<SimDevice>(&context_, &observer_)};
  std::unique_ptr<NativeEngine> engine_;
  std::unique_ptr<KeeperThread> keeper_;  // busy only with engine_
  uint64_t keeper_slow_until_ = 0;
  Truth truth_;
  std::array<std::unique_ptr<Process>, kWorkers> processes_;
  std::array<bool, kWorkers> dead_ = {}, silent_ = {};
  std::array<uint64_t, kWorkers> slow_until_ = {};
  std::string_view slow_at_, mortal_at_, keeper_slow_at_;
  uint64_t last_id_ = 0;
};

// A check may end the process.
volatile uint64_t g_seed = 0;
void TellSeed(int) {
  std::array<char, 64> line;
  const int length =
      snprintf(line.data(), line.size(), "seed %llu\n", static_cast<unsigned long long>(g_seed));
  (void)!write(STDERR_FILENO, line.data(), static_cast<size_t>(length));
}

TEST(NativeSimulationTest, shouldKeepEveryPromiseInEverySchedule) {
  std::signal(SIGABRT, TellSeed);
  const uint64_t first = harness::Setting("BATON_FIRST_SEED", 1);
  const uint64_t count = harness::Setting("BATON_SCHEDULES", 500);
  uint64_t committed = 0, epochs = 0, objects = 0;
  // Only one thread runs at any time: on one processor, who passes on is followed at once.
  harness::StayHere();
  for (uint64_t seed = first; seed < first + count; ++seed) {
    g_seed = seed;
    NativeWorld world(seed);
    const std::string broken = world.Run();
    ASSERT_EQ(broken, "") << "BATON_FIRST_SEED=" << seed << " BATON_SCHEDULES=1 replays it";
    committed += world.committed();
    epochs += world.epochs();
    objects += world.objects();
  }
  std::cout << count << " schedules from seed " << first << ", " << epochs << " epochs, "
            << committed << " transactions, " << objects << " places in heaps" << std::endl;
  EXPECT_GT(epochs, count);
  // Workers do get to work. In some epochs none does: whoever has the shard is killed, or stays.
  EXPECT_GT(committed, epochs / 2);
  EXPECT_GE(objects, count / 4);
}

TEST(NativeSimulationTest, shouldRepeatAScheduleExactly) {
  harness::StayHere();
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    NativeWorld once(seed), another(seed + 1000);
    EXPECT_EQ(once.Run(), "");
    EXPECT_EQ(another.Run(), "");
    NativeWorld again(seed);
    EXPECT_EQ(again.Run(), "");
    EXPECT_EQ(once.hash(), again.hash());
    EXPECT_NE(once.hash(), another.hash());
  }
}

}  // namespace
}  // namespace baton::simulation

// Measures the costs of registered memory: to allocate from a shard's heap and to free, beside
// malloc and an allocator of the same kind that survives nothing; to send files through more or
// less of it; and what an idle connection takes. `./run bench memory` starts it.
//
// A pair frees one of the objects that are there, which chance chooses, and allocates another. All
// sides do the same pairs, and none touches the memory that it is given. The heap commits after
// every kPairsOfACommit pairs; what the driver does with the commits is not counted, because it
// does so in another process.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/bench/file_bench.h"
#include "tests/bench/heap_owner.h"
#include "tests/bench/plain_bfc.h"
#include "tests/bench/service_bytes.h"
#include "tests/bench/suite.h"
#include "tests/lib/verbs/fabric.h"
#include "worker/examples/common/flags.h"
#include "worker/heap_blocks.h"

namespace baton::bench {
namespace {

constexpr uint64_t kHeapBytes = uint64_t{64} << 20;
constexpr uint32_t kPairs = 200'000;
constexpr uint32_t kPairsOfACommit = 32;
constexpr uint32_t kChoices = 1 << 16;
constexpr uint64_t kSlack = kHeapBytes / 50;  // below what fits
constexpr double kBar = 2;                    // of the heap to the plain allocator

struct Sizes {
  const char* name;
  double low, high;       // bytes, of which all magnitudes are as likely
  uint32_t large_one_in;  // 0: none is large
};
constexpr double kLargeLow = 4096, kLargeHigh = 65536;
constexpr std::array<Sizes, 3> kSizes = {{
    {"small", 32, 2048, 0},
    {"pages", kLargeLow, kLargeHigh, 0},
    {"mixed", 32, 2048, 8},
}};
constexpr std::array<uint32_t, 2> kPercents = {50, 90};  // of the heap that are taken

// Chance decides these beforehand.
struct Choices {
  std::vector<uint32_t> bytes, victims;
};

Choices MakeChoices(const Sizes& sizes, uint32_t seed) {
  std::mt19937_64 random(seed);
  const auto between = [&](double low, double high) {
    const double part = static_cast<double>(random() >> 11) / static_cast<double>(1ull << 53);
    return static_cast<uint32_t>(low * std::pow(high / low, part));
  };
  Choices choices;
  for (uint32_t i = 0; i < kChoices; ++i) {
    const bool large = sizes.large_one_in != 0 && random() % sizes.large_one_in == 0;
    choices.bytes.push_back(large ? between(kLargeLow, kLargeHigh)
                                  : between(sizes.low, sizes.high));
    choices.victims.push_back(static_cast<uint32_t>(random()));
  }
  return choices;
}

// ---- The sides. Each has: Allocate, which returns where, or nothing; Free; Commit, which is
// measured; and Settle, which is not.

class MallocSide {
 public:
  std::optional<uint64_t> Allocate(uint32_t bytes) {
    void* const memory = std::malloc(bytes);
    if (memory == nullptr) return {};
    return reinterpret_cast<uint64_t>(memory);
  }
  void Free(uint64_t where) {
    std::free(reinterpret_cast<void*>(where));  // NOLINT(performance-no-int-to-ptr)
  }
  absl::Status Commit() { return absl::OkStatus(); }
  absl::Status Settle() { return absl::OkStatus(); }
};

class BfcSide {
 public:
  std::optional<uint64_t> Allocate(uint32_t bytes) { return heap_.Allocate(bytes); }
  void Free(uint64_t where) { heap_.Free(where); }
  absl::Status Commit() { return absl::OkStatus(); }
  absl::Status Settle() { return absl::OkStatus(); }

 private:
  PlainBfc heap_{kHeapBytes};
};

// The heap's own view, without transactions, of a shard without work requests.
class BlocksSide {
 public:
  std::optional<uint64_t> Allocate(uint32_t bytes) {
    if (blocks_.held_bytes() >= kHeapBytes / 8) Reclaim();
    auto object = blocks_.Take(bytes, arena::kHeapUnitBytes, /*kept=*/true);
    if (!object.has_value() && blocks_.held_bytes() > 0) {
      Reclaim();
      object = blocks_.Take(bytes, arena::kHeapUnitBytes, /*kept=*/true);
    }
    if (!object.has_value()) return {};
    return object->offset;
  }
  void Free(uint64_t where) {
    const auto object = blocks_.Find(where);
    blocks_.BeginFree(*object);
    blocks_.Hold(*object);
  }
  absl::Status Commit() { return absl::OkStatus(); }
  absl::Status Settle() { return absl::OkStatus(); }

 private:
  void Reclaim() {
    blocks_.Reclaim([](HeapBlocks::VisitRange) {});
  }

  HeapBlocks blocks_{static_cast<uint32_t>(kHeapBytes / arena::kPageBytes)};
};

class HeapSide {
 public:
  explicit HeapSide(HeapOwner* owner) : owner_(*owner) {}
  std::optional<uint64_t> Allocate(uint32_t bytes) {
    const absl::StatusOr<Buffer> buffer = owner_.heap().Allocate(bytes);
    if (!buffer.ok()) return {};
    return buffer->offset;
  }
  void Free(uint64_t where) {
    if (const absl::Status freed = owner_.heap().Free({where, 1}); !freed.ok()) failed_ = freed;
  }
  absl::Status Commit() {
    BATON_RETURN_IF_ERROR(failed_);
    return owner_.Commit();
  }
  absl::Status Settle() { return owner_.Apply(); }

 private:
  HeapOwner& owner_;
  absl::Status failed_;
};

// ---- The work.

template <typename Side>
class Work {
 public:
  Work(Side* side, const Choices* choices, uint32_t percent)
      : side_(*side), choices_(*choices), wanted_(kHeapBytes / 100 * percent) {}
  // Gives everything back, since malloc's outlives its side.
  ~Work() {
    for (const Object& object : objects_) side_.Free(object.where);
  }

  // Allocates until so much is taken as is wanted. If less fits, a little less than that is wanted.
  absl::Status Fill() {
    for (uint32_t i = 1; taken_ < wanted_ && AllocateOne(); ++i) {
      if (i % kPairsOfACommit == 0) BATON_RETURN_IF_ERROR(CommitAndSettle());
    }
    if (taken_ < wanted_) wanted_ = taken_ - kSlack;
    for (uint32_t i = 1; taken_ > wanted_; ++i) {
      FreeOne();
      ++next_;  // to another victim
      if (i % kPairsOfACommit == 0) BATON_RETURN_IF_ERROR(CommitAndSettle());
    }
    return CommitAndSettle();
  }

  // Does so many pairs. Returns the nanoseconds of one.
  absl::StatusOr<double> Pairs(uint32_t pairs) {
    uint64_t took = 0, allocated = 0;
    for (uint32_t done = 0; done < pairs; done += kPairsOfACommit) {
      const uint64_t began = MonotonicNanoseconds();
      for (uint32_t i = 0; i < kPairsOfACommit; ++i) {
        FreeOne();
        while (taken_ < wanted_ && AllocateOne()) ++allocated;
      }
      const absl::Status committed = side_.Commit();
      took += MonotonicNanoseconds() - began;
      BATON_RETURN_IF_ERROR(committed);
      BATON_RETURN_IF_ERROR(side_.Settle());
    }
    if (allocated == 0) return absl::InternalError("nothing could be allocated");
    return static_cast<double>(took) / static_cast<double>(allocated);
  }

  double taken_percent() const {
    return 100 * static_cast<double>(taken_) / static_cast<double>(kHeapBytes);
  }

 private:
  struct Object {
    uint64_t where;
    uint32_t bytes;
  };

  absl::Status CommitAndSettle() {
    BATON_RETURN_IF_ERROR(side_.Commit());
    return side_.Settle();
  }
  bool AllocateOne() {
    const uint32_t bytes = choices_.bytes[next_++ % kChoices];
    const std::optional<uint64_t> where = side_.Allocate(bytes);
    if (!where.has_value()) return false;
    objects_.push_back({*where, bytes});
    taken_ += bytes;
    return true;
  }
  void FreeOne() {
    if (objects_.empty()) return;
    Object& victim = objects_[choices_.victims[next_ % kChoices] % objects_.size()];
    side_.Free(victim.where);
    taken_ -= victim.bytes;
    victim = objects_.back();
    objects_.pop_back();
  }

  Side& side_;
  const Choices& choices_;
  uint64_t wanted_;
  uint64_t taken_ = 0;
  uint32_t next_ = 0;
  std::vector<Object> objects_;
};

class HeapBench {
 public:
  explicit HeapBench(Suite* suite) : suite_(*suite) {
    for (const Sizes& sizes : kSizes) {
      for (const uint32_t percent : kPercents) {
        const std::string load = LoadOf(sizes, percent);
        suite_.Compare({absl::StrCat("heap_", load, "_to_bfc"), absl::StrCat("heap_", load),
                        absl::StrCat("bfc_", load), Better::kLess, kBar});
        suite_.Compare({absl::StrCat("blocks_", load, "_to_bfc"), absl::StrCat("blocks_", load),
                        absl::StrCat("bfc_", load), Better::kLess});
        suite_.Compare({absl::StrCat("heap_", load, "_to_malloc"), absl::StrCat("heap_", load),
                        absl::StrCat("malloc_", load), Better::kLess});
      }
    }
    Draw();
  }

  // `between`: what else has to be done now and then.
  absl::Status Measure(Round& round, absl::FunctionRef<absl::Status()> between) {
    for (const Sizes& sizes : kSizes) {
      const Choices choices = MakeChoices(sizes, round.number() + 1);
      for (const uint32_t percent : kPercents) {
        const std::string load = LoadOf(sizes, percent);
        MallocSide malloc_side;
        BATON_RETURN_IF_ERROR(MeasureSide(round, "malloc", load, &malloc_side, choices, percent));
        BfcSide bfc;
        BATON_RETURN_IF_ERROR(MeasureSide(round, "bfc", load, &bfc, choices, percent));
        BlocksSide blocks;
        BATON_RETURN_IF_ERROR(MeasureSide(round, "blocks", load, &blocks, choices, percent));
        BATON_ASSIGN_OR_RETURN(const std::unique_ptr<HeapOwner> owner,
                               HeapOwner::Start(kHeapBytes));
        HeapSide heap(owner.get());
        BATON_RETURN_IF_ERROR(MeasureSide(round, "heap", load, &heap, choices, percent));
        BATON_RETURN_IF_ERROR(between());
      }
    }
    return absl::OkStatus();
  }

 private:
  static std::string LoadOf(const Sizes& sizes, uint32_t percent) {
    return absl::StrCat(sizes.name, "_", percent);
  }

  template <typename Side>
  absl::Status MeasureSide(Round& round, const char* name, const std::string& load, Side* side,
                           const Choices& choices, uint32_t percent) {
    const uint32_t pairs = suite_.Scaled(kPairs, kPairsOfACommit);
    Work<Side> work(side, &choices, percent);
    BATON_RETURN_IF_ERROR(work.Fill());
    BATON_RETURN_IF_ERROR(work.Pairs(std::max(pairs / 4, kPairsOfACommit)).status());
    BATON_ASSIGN_OR_RETURN(const double nanoseconds, work.Pairs(pairs));
    round.Set(absl::StrCat(name, "_", load), nanoseconds, "ns");
    round.Set(absl::StrCat(name, "_", load, "_taken"), work.taken_percent(), "% of the heap");
    return absl::OkStatus();
  }

  void Draw() {
    for (const Sizes& sizes : kSizes) {
      std::vector<Line> lines;
      for (const char* side : {"malloc", "bfc", "blocks", "heap"}) {
        Line line{side, {}};
        for (const uint32_t percent : kPercents) {
          line.points.emplace_back(percent, absl::StrCat(side, "_", LoadOf(sizes, percent)));
        }
        lines.push_back(std::move(line));
      }
      suite_.Draw({absl::StrCat("heap_", sizes.name),
                   absl::StrCat("To allocate and to free: ", sizes.name), "% of the heap taken",
                   "ns", std::move(lines)});
    }
  }

  Suite& suite_;
};

// ---- The memory of a connection without work, by the layouts.

constexpr double kIdleBar = 6 * 1024;  // bytes
constexpr uint32_t kIdleConnections = 65'536;
constexpr uint32_t kIdleDepth = 4;

class IdleBench {
 public:
  explicit IdleBench(Suite* suite) {
    for (const char* kind : {"brokered", "native"}) {
      const std::string figure = FigureOf(kind);
      suite->Compare({figure, figure, "", Better::kLess, kIdleBar});
    }
  }

  static absl::Status Measure(Round& round) {
    for (const bool native : {false, true}) {
      BATON_ASSIGN_OR_RETURN(const arena::Shape shape,
                             ShapeOfSharing({kIdleConnections, kIdleDepth, native}));
      round.Set(FigureOf(native ? "native" : "brokered"), IdleBytesOf(shape).Total(), "B");
    }
    return absl::OkStatus();
  }

 private:
  static std::string FigureOf(const char* kind) {
    return absl::StrCat("idle_connection_", kind, "_bytes");
  }
};

// ---- All of it.

struct Options {
  SuiteOptions suite;
  verbs::testing::Fabric fabric;
  std::vector<std::string> only;
  uint32_t largest_mib = 64;
  std::string binary_directory;

  // The heap needs no device: an RDMA device's machine may be emulated, and says nothing about it.
  bool Wants(const char* part) const {
    if (!only.empty()) return std::find(only.begin(), only.end(), part) != only.end();
    return std::string_view(part) != "heap" || fabric.device == "soft";
  }
};

absl::Status Measure(const Options& options, Suite* suite) {
  std::optional<HeapBench> heap;
  std::optional<FileBench> files;
  std::optional<IdleBench> idle;
  if (options.Wants("heap")) heap.emplace(suite);
  if (options.Wants("files") || options.Wants("sendfile") || options.Wants("regions")) {
    files.emplace(FileBenchOptions{options.fabric, uint64_t{options.largest_mib} << 20,
                                   options.Wants("files"), options.Wants("sendfile"),
                                   options.Wants("regions"), options.binary_directory},
                  suite);
    BATON_RETURN_IF_ERROR(files->Start());
  }
  if (options.Wants("idle")) idle.emplace(suite);
  const absl::Status status = suite->Run([&](Round& round) {
    const auto keep_alive = [&] { return files.has_value() ? files->Turn() : absl::OkStatus(); };
    if (heap.has_value()) BATON_RETURN_IF_ERROR(heap->Measure(round, keep_alive));
    if (files.has_value()) BATON_RETURN_IF_ERROR(files->Measure(round));
    return idle.has_value() ? IdleBench::Measure(round) : absl::OkStatus();
  });
  if (!status.ok() && files.has_value()) files->DumpLogs();
  return status.ok() ? suite->Report() : status;
}

int Main(int argc, char** argv) {
  Options options;
  examples::Flags flags(
      "What registered memory costs: heaps that survive their process, files that are sent "
      "through it, idle connections.");
  AddSuiteOptions(flags, &options.suite);
  flags.Add("--device", &options.fabric.device, "soft, rdma, or rdma:NAME [soft]");
  flags.Add("--address", &options.fabric.host, "IPv4 address that the device has [127.0.0.1]");
  flags
      .Add("--only", &options.only,
           "heap, files (over plain verbs), sendfile or regions (through Baton), or idle; may be "
           "repeated [all; without heap on an RDMA device]")
      .OneOf({"heap", "files", "sendfile", "regions", "idle"});
  flags.Add("--largest-mib", &options.largest_mib, "of the files, from 4 KiB on [64]")
      .Within(1, 1024);
  flags.Add("--bin", &options.binary_directory, "where the programs are [$BATON_BIN]");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  Suite suite("memory", options.suite);
  suite.Note("device", options.fabric.device);
  return ExitCode("memory", Measure(options, &suite));
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }

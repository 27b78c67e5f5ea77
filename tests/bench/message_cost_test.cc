// A message costs Baton what is recorded here: instructions of engine and worker library, and of a
// native worker's driver, which depend on no load, and no allocation.
//
// Engine and worker take turns on one thread, in a child that is stepped from one mark to the next.
// The native driver is stepped alone, over transactions that were published before: the library in
// front of it is the same as a brokered worker's.
//
// Only instructions of this program count: what a system call, a clock or a copy of the C library
// takes depends on the machine. The device is the null device, whose instructions count, too.
// A store is an instruction that writes memory, according to objdump: calls and pushes, too.
#include <gtest/gtest.h>
#include <link.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "lib/arena/arena.h"
#include "lib/base/check.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/driver/engine/engine.h"
#include "tests/bench/native_adoption.h"
#include "tests/bench/native_echo.h"
#include "tests/bench/null_device.h"
#include "tests/harness/processors.h"
#include "tests/native/stepper.h"
#include "worker/worker_impl.h"

namespace {
uint64_t allocations = 0;
}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size); memory != nullptr) return memory;
  throw std::bad_alloc();
}
// std::stable_sort takes this one.
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace baton::bench {
namespace {

constexpr uint64_t kWorkerId = 1;
constexpr uint32_t kDepth = 64;
constexpr uint32_t kMessageBytes = 64;
constexpr int kMostTurns = 1000;
// The cost of a message.
struct Recorded {
  double instructions;
  double stores;
};
[[maybe_unused]] constexpr Recorded kWrite = {2948.6, 478.1}, kWriteOf32 = {655.1, 75.1},
                                    kAsk = {3623.6, 570.1}, kAskOf32 = {1172.4, 136.5},
                                    kNativeDriver = {2083.3, 323.3}, kEcho = {2990, 495},
                                    kEchoInTwoTurns = {3602, 604}, kEchoOf32 = {894.0, 118.6};
[[maybe_unused]] constexpr Recorded kRawEcho = {1140, 196}, kRawEchoInTwoTurns = {1363, 240},
                                    kRawEchoOf32 = {585, 80.7};

class Quiet final : public driver_process::EngineListener {
 public:
  void OnEvent(std::string_view, const std::string&, uint64_t, int, int) override {}
  void OnFenced(uint64_t) override {}
  void OnDeviceLost(const absl::Status&) override {}
};

std::pair<FileDescriptor, FileDescriptor> MakePair() {
  int pair[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  return {FileDescriptor(pair[0]), FileDescriptor(pair[1])};
}
FileDescriptor Copy(int fd) { return FileDescriptor(dup(fd)); }

// One connection of a brokered service, with nothing of it in another thread.
class InlineBaton final : private Service {
 public:
  InlineBaton() : driver_(arena::Arena::Create(Shape(), "cost").value()) {
    auto [engine_wake, worker_wake] = MakePair();
    FileDescriptor session;
    std::tie(keeper_, session) = MakePair();
    driver_process::EngineOptions options;
    options.nanoseconds = [] { return uint64_t{1'000'000'000}; };
    engine_ = driver_process::Engine::Create(&driver_, &device_, &listener_, options).value();
    engine_->AddWorker(0, kWorkerId, std::move(engine_wake));
    engine_->succession().SetReady(0);
    BATON_CHECK(engine_->Listen({"127.0.0.1", 1}).ok());
    device_.AddRequests(1);
    WorkerOptions worker;
    worker.commit_mode = CommitMode::kManual;
    worker_ = std::make_unique<WorkerImpl>(worker, static_cast<Service*>(this));
    worker_->Connected(std::move(session));
    auto arena = std::make_shared<const arena::Arena>(
        arena::Arena::Map(Copy(driver_.worker_log_fd()), Copy(driver_.driver_log_fd()),
                          Copy(driver_.buffers_fd()))
            .value());
    BATON_CHECK(worker_->Start(std::move(arena), std::move(worker_wake), kWorkerId, 0).ok());
    TurnUntil([this] {
      if (shard_ != nullptr) BATON_CHECK(shard_->Commit().ok());
      return connection_ != nullptr;
    });
  }
  ~InlineBaton() override { worker_->Die(); }

  // So many WRITEs in one transaction, to their completions.
  void Write(uint32_t batch) {
    const Buffer buffer{0, kMessageBytes};
    SendWork work;
    work.opcode = verbs::Opcode::kWrite;
    work.buffers = {&buffer, 1};
    work.rkey = 1;
    const uint64_t wanted = completed_ + batch;
    for (uint32_t i = 0; i < batch; ++i) BATON_CHECK(shard_->Send(*connection_, work).ok());
    BATON_CHECK(shard_->Commit().ok());
    TurnUntil([&] { return completed_ == wanted; });
  }

  // So many SENDs, each with the receive that its answer takes, in one transaction, to the
  // completions of both.
  void Ask(uint32_t batch) {
    const Buffer question{0, kMessageBytes}, answer{4096, kMessageBytes};
    SendWork send;
    send.buffers = {&question, 1};
    const uint64_t wanted = completed_ + 2 * batch;
    for (uint32_t i = 0; i < batch; ++i) {
      BATON_CHECK(shard_->Receive(*connection_, {&answer, 1}).ok());
      BATON_CHECK(shard_->Send(*connection_, send).ok());
    }
    BATON_CHECK(shard_->Commit().ok());
    TurnUntil([&] { return completed_ == wanted; });
  }

 private:
  static arena::Shape Shape() {
    arena::Shape shape = {};
    shape.shards = shape.connections = shape.workers = 1;
    shape.send_queue_depth = shape.receive_queue_depth = kDepth;
    shape.connection_state_bytes = shape.shard_state_bytes = 64;
    shape.buffer_bytes = 1 << 21;
    shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
    return shape;
  }

  template <typename Condition>
  void TurnUntil(const Condition& condition) {
    for (int turns = 0; !condition(); ++turns) {
      BATON_CHECK(turns < kMostTurns);
      engine_->Turn();
      BATON_CHECK(worker_->Poll().ok());
    }
  }

  absl::Status OnAdopt(Shard& shard) override {
    shard_ = &shard;
    return absl::OkStatus();
  }
  void OnCompletion(Shard& shard, const Completion& completion) override {
    if (completion.kind == Completion::Kind::kSend) ++completed_;
    if (completion.kind == Completion::Kind::kReceive) ++completed_;
    if (completion.kind == Completion::Kind::kConnectRequest) {
      BATON_CHECK(shard.Accept(*completion.connection).ok());
    }
    if (completion.kind == Completion::Kind::kEstablished) connection_ = completion.connection;
  }

  arena::Arena driver_;
  NullDevice device_{NullPeerKind::kAtOnce};
  Quiet listener_;
  FileDescriptor keeper_;  // the other end of the worker's session
  std::unique_ptr<driver_process::Engine> engine_;
  std::unique_ptr<WorkerImpl> worker_;
  Shard* shard_ = nullptr;
  Connection* connection_ = nullptr;
  uint64_t completed_ = 0;
};

using Exchange = void (InlineBaton::*)(uint32_t batch);

TEST(MessageCost, shouldAllocateNothing) {
  for (const Exchange exchange : {&InlineBaton::Write, &InlineBaton::Ask}) {
    InlineBaton baton;
    for (int i = 0; i < 100; ++i) (baton.*exchange)(kDepth / 2);  // round the logs
    const uint64_t before = allocations;
    for (int i = 0; i < 1000; ++i) (baton.*exchange)(1);
    for (int i = 0; i < 100; ++i) (baton.*exchange)(kDepth / 2);
    EXPECT_EQ(allocations, before);
  }
}

// A native owner of one connection that has exchanged messages before.
std::unique_ptr<NativeAdoption> StartNative() {
  std::unique_ptr<NativeAdoption> owner =
      NativeAdoption::Start(1, 1, NullPeerKind::kAtOnce).value();
  for (int i = 0; i < 100; ++i) {
    owner->PublishSends(NativeAdoption::kDepth);
    for (uint32_t j = 0; j < NativeAdoption::kDepth; ++j) BATON_CHECK(owner->DriveNext().ok());
    const absl::StatusOr<uint64_t> completed = owner->AcknowledgeAll();
    BATON_CHECK(completed.ok() && *completed == 2 * NativeAdoption::kDepth);
  }
  return owner;
}

TEST(MessageCost, shouldAllocateNothingInANativeDriver) {
  const std::unique_ptr<NativeAdoption> owner = StartNative();
  owner->PublishSends(NativeAdoption::kDepth);
  const uint64_t before = allocations;
  for (uint32_t i = 0; i < NativeAdoption::kDepth; ++i) BATON_CHECK(owner->DriveNext().ok());
  EXPECT_EQ(allocations, before);
}

#ifndef BATON_SANITIZED

extern "C" const char __executable_start, etext;  // the linker's

bool IsOurs(uintptr_t place) {
  return place >= reinterpret_cast<uintptr_t>(&__executable_start) &&
         place < reinterpret_cast<uintptr_t>(&etext);
}

[[gnu::noinline]] void Mark() { asm volatile(""); }

// The child: a mark on either side of what is counted.
[[noreturn]] void ExchangeBetweenMarks(int begin, Exchange exchange, uint32_t batch,
                                       uint32_t times) {
  InlineBaton baton;
  for (int i = 0; i < 100; ++i) (baton.*exchange)(batch);
  char byte;
  BATON_CHECK(read(begin, &byte, 1) == 1);
  Mark();
  for (uint32_t i = 0; i < times; ++i) (baton.*exchange)(batch);
  Mark();
  _exit(0);
}

// The child of a native driver, likewise.
[[noreturn]] void DriveBetweenMarks(int begin) {
  const std::unique_ptr<NativeAdoption> owner = StartNative();
  owner->PublishSends(NativeAdoption::kDepth);
  char byte;
  BATON_CHECK(read(begin, &byte, 1) == 1);
  Mark();
  for (uint32_t i = 0; i < NativeAdoption::kDepth; ++i) BATON_CHECK(owner->DriveNext().ok());
  Mark();
  _exit(0);
}

// The child of an owner of queues. The completions of answers are found with the next messages, or
// in turns of their own.
[[noreturn]] void EchoBetweenMarks(std::unique_ptr<NativeEcho> echo, int begin, uint32_t batch,
                                   uint32_t times, bool own_turns) {
  const auto exchange = [&](const auto& turn) {
    echo->Ask(batch);
    turn();
    if (!own_turns) return;
    echo->Answer(batch);
    turn();
  };
  for (int i = 0; i < 100; ++i) exchange([&] { echo->Turn(); });
  char byte;
  BATON_CHECK(read(begin, &byte, 1) == 1);
  for (uint32_t i = 0; i < times; ++i) {
    exchange([&] {
      Mark();
      echo->Turn();
      Mark();
    });
  }
  BATON_CHECK(echo->received() == (100 + times) * batch);
  BATON_CHECK(echo->answered() == echo->received() - (own_turns ? 0 : batch));
  _exit(0);
}

// Returns true if the instruction writes memory. `text` is objdump's, in the syntax of AT&T, whose
// last operand is the destination.
bool IsStore(absl::string_view text) {
  std::vector<std::string> words =
      absl::StrSplit(text.substr(0, text.find('#')), ' ', absl::SkipWhitespace());
  static const std::set<std::string> prefixes = {"lock",    "rep", "repz",  "repnz",
                                                 "notrack", "bnd", "data16"};
  while (!words.empty() && prefixes.count(words[0]) != 0) words.erase(words.begin());
  if (words.empty()) return false;
  const std::string& name = words[0];
  if (absl::StartsWith(name, "push") || absl::StartsWith(name, "call")) return true;
  if (words.size() < 2) return false;
  const std::string& operands = words[1];
  if (absl::StartsWith(name, "xchg")) return absl::StrContains(operands, "(");
  if (absl::StartsWith(name, "cmp") && !absl::StartsWith(name, "cmpxchg")) return false;
  for (const char* reads : {"test", "nop", "lea", "j", "prefetch", "mul", "imul", "div", "idiv",
                            "fld", "fild", "ldmxcsr"}) {
    if (absl::StartsWith(name, reads)) return false;
  }
  if (name == "bt" || name == "btw" || name == "btl" || name == "btq") return false;
  if (operands.back() == ')') return true;
  // Memory of a thread, %fs:0x28. npos + 1 is the beginning.
  return absl::StrContains(operands.substr(operands.rfind(',') + 1), "s:");
}

// Returns where in this process the stores of this program are.
std::set<uintptr_t> ReadStores() {
  uintptr_t base = 0;
  // The program itself comes first.
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        *static_cast<uintptr_t*>(to) = info->dlpi_addr;
        return 1;
      },
      &base);
  const std::string command =
      absl::StrCat("objdump --disassemble --no-show-raw-insn '",
                   std::filesystem::read_symlink("/proc/self/exe").string(), "'");
  FILE* const output = popen(command.c_str(), "r");
  BATON_CHECK(output != nullptr);
  std::set<uintptr_t> stores;
  char* line = nullptr;
  size_t room = 0;
  // "  401136:<tab>mov    %rax,(%rdi)"
  while (getline(&line, &room, output) >= 0) {
    char* end = nullptr;
    const uintptr_t address = std::strtoull(line, &end, 16);
    if (end == line || end[0] != ':' || end[1] != '\t') continue;
    absl::string_view text(end + 2);
    if (absl::EndsWith(text, "\n")) text.remove_suffix(1);
    if (IsStore(text)) stores.insert(base + address);
  }
  std::free(line);
  BATON_CHECK(pclose(output) == 0 && !stores.empty());
  return stores;
}

TEST(MessageCost, shouldTellStoresFromOtherInstructions) {
  for (const char* store :
       {"mov    %rax,(%rdi)", "movl   $0x1,0x8(%rsp)", "push   %rbp", "call   1149 <main>",
        "lock cmpxchg %rdx,(%rdi)", "xchg   %rax,(%rdi)", "xchg   (%rdi),%rax",
        "mov    %rax,%fs:0x28", "mov    %rax,0x2ee2(%rip)        # 4020 <x>",
        "rep stos %al,%es:(%rdi)", "movups %xmm0,0x10(%rax,%rcx,8)", "addq   $0x1,(%rax)"}) {
    EXPECT_TRUE(IsStore(store)) << store;
  }
  for (const char* other :
       {"mov    (%rdi),%rax", "mov    %rax,%rbx", "cmp    %rax,(%rdi)", "test   %al,(%rdi)", "ret",
        "lea    0x8(%rsp),%rax", "nopw   0x0(%rax,%rax,1)", "jmp    *(%rax)", "leave",
        "mov    %fs:0x28,%rax", "prefetchw 0x40(%rax)", "divq   (%rdi)", "xchg   %ax,%ax",
        "movups (%rax),%xmm0", "pop    %rbp"}) {
    EXPECT_FALSE(IsStore(other)) << other;
  }
}

struct Cost {
  double instructions = 0;               // of a message
  double stores = 0;                     // likewise
  std::map<uintptr_t, uint64_t> places;  // how often each instruction was executed, others' too
};

double StoresIn(const Cost& cost, uint32_t messages) {
  static const std::set<uintptr_t> places = ReadStores();
  double stores = 0;
  for (const auto& [at, count] : cost.places) {
    if (places.count(at) != 0) stores += static_cast<double>(count) / messages;
  }
  return stores;
}

// `run` is the child: it reads a byte before its first mark, and does not return. An exchange has
// so many messages, and so many parts, each between two marks. The cheapest exchange counts: a
// worker looks for news of its keeper in one of many turns, and how many turns it took to connect
// depends on the machine.
Cost CostOf(const std::function<void(int begin)>& run, uint32_t messages, uint32_t parts = 1,
            uint32_t exchanges = 1) {
  int pipe_ends[2];
  BATON_CHECK(pipe(pipe_ends) == 0);
  const FileDescriptor begin(pipe_ends[0]), say(pipe_ends[1]);
  const pid_t child = fork();
  BATON_CHECK(child >= 0);
  if (child == 0) run(begin.get());
  native::Stepper stepper(child);
  BATON_CHECK(write(say.get(), "b", 1) == 1);
  const uintptr_t mark = native::CodeOf(&Mark);
  const auto step_through = [&](Cost& cost) {
    BATON_CHECK(stepper.RunTo({mark}) == mark);
    uintptr_t place = mark;
    do {
      ++cost.places[place];
      if (IsOurs(place)) cost.instructions += 1.0 / messages;
      BATON_CHECK(stepper.Step(1));
      place = stepper.position();
    } while (place != mark);
  };
  Cost cheapest;
  for (uint32_t i = 0; i < exchanges; ++i) {
    Cost cost;
    for (uint32_t part = 0; part < parts; ++part) step_through(cost);
    if (i == 0 || cost.instructions < cheapest.instructions) cheapest = std::move(cost);
  }
  stepper.Detach();
  BATON_CHECK(waitpid(child, nullptr, 0) == child);
  cheapest.stores = StoresIn(cheapest, messages);
  return cheapest;
}

// The functions and libraries that they are in, most first, for who has to find what costs more
// than it did.
std::string Places(const Cost& cost, uint32_t messages) {
  std::map<std::string, uint64_t> functions;
  for (const auto& [place, count] : cost.places) functions[native::FunctionAt(place)] += count;
  std::vector<std::pair<uint64_t, std::string>> sorted;
  for (const auto& [function, count] : functions) sorted.emplace_back(count, function);
  std::sort(sorted.rbegin(), sorted.rend());
  std::string text = "; a message's:";
  for (const auto& [count, function] : sorted) {
    absl::StrAppend(&text, "\n  ", static_cast<double>(count) / messages, " ", function);
  }
  return text;
}

void ExpectRecorded(const Cost& cost, uint32_t batch, uint32_t messages, const Recorded& recorded) {
  constexpr double kTight = 1.02;
  std::printf(
      "%u a transaction: %.2f instructions each, recorded %.2f; %.2f stores, recorded %.2f\n",
      batch, cost.instructions, recorded.instructions, cost.stores, recorded.stores);
  EXPECT_LE(cost.instructions, recorded.instructions * kTight)
      << "more than recorded" << Places(cost, messages);
  EXPECT_GE(cost.instructions, recorded.instructions / kTight)
      << "less than recorded, so record it" << Places(cost, messages);
  EXPECT_LE(cost.stores, recorded.stores * kTight) << "more stores than recorded";
  EXPECT_GE(cost.stores, recorded.stores / kTight) << "fewer stores than recorded, so record it";
}

void ExpectRecorded(Exchange exchange, uint32_t batch, uint32_t messages,
                    const Recorded& recorded) {
  const auto run = [&](int begin) {
    ExchangeBetweenMarks(begin, exchange, batch, messages / batch);
  };
  ExpectRecorded(CostOf(run, messages), batch, messages, recorded);
}

// Where they are to change, the record changes here and in RESULTS.md.
TEST(MessageCost, shouldExecuteAsManyInstructionsForAWriteAsAreRecorded) {
  // A step then takes no more than two switches of context.
  harness::StayHere();
  ExpectRecorded(&InlineBaton::Write, 1, 16, kWrite);
  ExpectRecorded(&InlineBaton::Write, 32, 32, kWriteOf32);
}

TEST(MessageCost, shouldExecuteAsManyInstructionsForASendAndItsAnswerAsAreRecorded) {
  harness::StayHere();
  ExpectRecorded(&InlineBaton::Ask, 1, 16, kAsk);
  ExpectRecorded(&InlineBaton::Ask, 32, 32, kAskOf32);
}

// A SEND and the receive that its answer takes, to both completions.
TEST(MessageCost, shouldExecuteAsManyInstructionsInANativeDriverAsAreRecorded) {
  harness::StayHere();
  ExpectRecorded(CostOf(DriveBetweenMarks, NativeAdoption::kDepth), 1, NativeAdoption::kDepth,
                 kNativeDriver);
}

using StartEcho = absl::StatusOr<std::unique_ptr<NativeEcho>> (*)();

void ExpectEcho(StartEcho start, uint32_t batch, bool own_turns, const Recorded& recorded) {
  constexpr uint32_t kTimes = 4;
  const auto run = [=](int begin) {
    EchoBetweenMarks(start().value(), begin, batch, kTimes, own_turns);
  };
  ExpectRecorded(CostOf(run, batch, own_turns ? 2 : 1, kTimes), batch, batch, recorded);
}

// A message and its answer, all of a native worker: library, driver and queues of mlx5's format.
TEST(MessageCost, shouldExecuteAsManyInstructionsInANativeWorkerAsAreRecorded) {
  harness::StayHere();
  ExpectEcho(&NativeEcho::Start, 1, false, kEcho);
  ExpectEcho(&NativeEcho::Start, 1, true, kEchoInTwoTurns);
  ExpectEcho(&NativeEcho::Start, 32, false, kEchoOf32);
}

// The same on the same queues, with nothing of Baton but their driver.
TEST(MessageCost, shouldExecuteAsManyInstructionsInARawLoopAsAreRecorded) {
  harness::StayHere();
  ExpectEcho(&NativeEcho::StartRaw, 1, false, kRawEcho);
  ExpectEcho(&NativeEcho::StartRaw, 1, true, kRawEchoInTwoTurns);
  ExpectEcho(&NativeEcho::StartRaw, 32, false, kRawEchoOf32);
}

#endif

}  // namespace
}  // namespace baton::bench

// A message costs Baton what is recorded here: instructions of engine and worker library, which
// depend on no load, and no allocation.
//
// Engine and worker take turns on one thread, in a child that is stepped from one mark to the next.
// Only instructions of this program count: what a system call, a clock or a copy of the C library
// takes depends on the machine. The device is the null device, whose instructions count, too.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/base/check.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/keeper/engine.h"
#include "tests/bench/null_device.h"
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
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace baton::bench {
namespace {

constexpr uint64_t kWorkerId = 1;
constexpr uint32_t kDepth = 64;
constexpr uint32_t kMessageBytes = 64;
constexpr int kMostTurns = 1000;

class Quiet final : public keeper::EngineListener {
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
    keeper::EngineOptions options;
    options.nanoseconds = [] { return uint64_t{1'000'000'000}; };
    engine_ = keeper::Engine::Create(&driver_, &device_, &listener_, options).value();
    engine_->AddWorker(0, kWorkerId, std::move(engine_wake));
    engine_->SetReady(0);
    BATON_CHECK(engine_->Listen({"127.0.0.1", 1}).ok());
    device_.AddRequests(1);
    WorkerOptions worker;
    worker.commit_mode = CommitMode::kManual;
    worker_ = std::make_unique<WorkerImpl>(worker, static_cast<Service*>(this));
    worker_->Connected(std::move(session));
    auto arena = std::make_shared<const arena::Arena>(
        arena::Arena::Attach(Copy(driver_.worker_log_fd()), Copy(driver_.driver_log_fd()),
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
  std::unique_ptr<keeper::Engine> engine_;
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

struct Cost {
  double instructions = 0;               // of a message
  std::map<uintptr_t, uint64_t> places;  // how often each instruction was executed, others' too
};

// A step then takes no more than two switches of context.
void StayHere() {
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(sched_getcpu(), &here);
  BATON_CHECK(sched_setaffinity(0, sizeof(here), &here) == 0);
}

Cost CostOf(Exchange exchange, uint32_t batch, uint32_t messages) {
  int pipe_ends[2];
  BATON_CHECK(pipe(pipe_ends) == 0);
  const FileDescriptor begin(pipe_ends[0]), say(pipe_ends[1]);
  const pid_t child = fork();
  BATON_CHECK(child >= 0);
  if (child == 0) ExchangeBetweenMarks(begin.get(), exchange, batch, messages / batch);
  native::Stepper stepper(child);
  BATON_CHECK(write(say.get(), "b", 1) == 1);
  const uintptr_t mark = native::CodeOf(&Mark);
  BATON_CHECK(stepper.RunTo({mark}) == mark);
  Cost cost;
  uintptr_t place = mark;
  do {
    ++cost.places[place];
    if (IsOurs(place)) cost.instructions += 1.0 / messages;
    BATON_CHECK(stepper.Step(1));
    place = stepper.position();
  } while (place != mark);
  stepper.Detach();
  BATON_CHECK(waitpid(child, nullptr, 0) == child);
  return cost;
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

void ExpectRecorded(Exchange exchange, uint32_t batch, uint32_t messages, double recorded) {
  constexpr double kTight = 1.02;
  const Cost cost = CostOf(exchange, batch, messages);
  std::printf("%u a transaction: %.2f instructions each, recorded %.2f\n", batch, cost.instructions,
              recorded);
  EXPECT_LE(cost.instructions, recorded * kTight) << "more than recorded" << Places(cost, messages);
  EXPECT_GE(cost.instructions, recorded / kTight)
      << "less than recorded, so record it" << Places(cost, messages);
}

// Where they are to change, the record changes here and in RESULTS.md.
TEST(MessageCost, shouldExecuteAsManyInstructionsForAWriteAsAreRecorded) {
  StayHere();
  ExpectRecorded(&InlineBaton::Write, 1, 16, 2964.5);
  ExpectRecorded(&InlineBaton::Write, 32, 32, 743.5);
}

TEST(MessageCost, shouldExecuteAsManyInstructionsForASendAndItsAnswerAsAreRecorded) {
  StayHere();
  ExpectRecorded(&InlineBaton::Ask, 1, 16, 3747.5);
  ExpectRecorded(&InlineBaton::Ask, 32, 32, 1353.5);
}

#endif

}  // namespace
}  // namespace baton::bench

// What the wire between two NICs of one machine costs: SENDs of 64 bytes there and back between two
// processes, over TCP and through memory, in turns. Prints the round trip in microseconds.
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/lib/verbs/nic_process.h"
#include "tests/lib/verbs/verbs_harness.h"

namespace baton::bench {
namespace {

using verbs::testing::Buffer;
using verbs::testing::kAllAccess;
using verbs::testing::Side;

constexpr uint32_t kBytes = 64;
constexpr uint32_t kMessagesInTurn = 2000;
constexpr uint32_t kReceives = 32;
constexpr uint32_t kWarmUp = 500;  // the change to memory is among them

enum Wire : int { kTcp, kMemory, kWires };

// What the two processes share.
struct Common {
  std::atomic<uint16_t> ports[kWires];
  std::atomic<int> turn;  // the wire that is measured; kWires: the end
  std::atomic<bool> ready;
};

std::unique_ptr<verbs::Device> Open(Wire wire, bool nic_process) {
  verbs::soft::SoftDeviceOptions options;
  if (wire == kTcp) options.max_memory_wires = 0;
  return nic_process ? verbs::testing::OpenWithNic(nullptr, options).value()
                     : verbs::soft::CreateSoftDevice(options).value();
}

class End {
 public:
  End(Wire wire, bool nic_process) : side_(Open(wire, nic_process)) {
    for (uint32_t i = 0; i < kReceives; ++i) PostReceive();
  }

  void Listen(Common* common, Wire wire) {
    listener_ = side_.device->Listen({"127.0.0.1", 0}, 8).value();
    common->ports[wire].store(listener_->address().port);
    Await(verbs::CmEventType::kConnectRequest);
    side_.id = std::move(side_.events.front().new_id);
    side_.events.clear();
    BATON_CHECK(side_.id->Accept(side_.queue_pair.get(), {}).ok());
    Await(verbs::CmEventType::kEstablished);
  }
  void Connect(uint16_t port) {
    side_.id = side_.device->Connect({"127.0.0.1", port}, side_.queue_pair.get(), {}).value();
    Await(verbs::CmEventType::kEstablished);
  }

  void Send() {
    BATON_CHECK(verbs::testing::PostSend(*side_.queue_pair,
                                         verbs::testing::Request(verbs::Opcode::kSend, 1),
                                         {buffer_.Sge(0, kBytes)})
                    .ok());
  }
  // One turn. Returns how many messages came.
  uint32_t Take() {
    uint32_t received = 0;
    side_.device->Progress();
    verbs::Completion completions[8];
    const auto size = static_cast<size_t>(side_.queue->Poll(absl::MakeSpan(completions)).value());
    for (const verbs::Completion& completion : absl::MakeSpan(completions).first(size)) {
      BATON_CHECK(completion.status == verbs::CompletionStatus::kSuccess);
      if (completion.wr_id == 1) continue;
      ++received;
      PostReceive();
    }
    return received;
  }

 private:
  void PostReceive() {
    BATON_CHECK(
        verbs::testing::PostReceive(*side_.queue_pair, 0, {buffer_.Sge(kBytes, kBytes)}).ok());
  }
  void Await(verbs::CmEventType type) {
    while (side_.events.empty()) side_.Turn();
    BATON_CHECK(side_.events.front().type == type);
    if (type != verbs::CmEventType::kConnectRequest) side_.events.clear();
  }

  Side side_;
  Buffer buffer_{side_.device.get(), 4096, kAllAccess};
  std::unique_ptr<verbs::Listener> listener_;
};

[[noreturn]] void Echo(Common* common, bool nic_process) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::unique_ptr<End> ends[kWires];
  for (const Wire wire : {kTcp, kMemory}) {
    ends[wire] = std::make_unique<End>(wire, nic_process);
    ends[wire]->Listen(common, wire);
  }
  common->ready.store(true);
  for (int wire; (wire = common->turn.load(std::memory_order_acquire)) != kWires;) {
    const uint32_t received = ends[wire]->Take();
    for (uint32_t i = 0; i < received; ++i) ends[wire]->Send();
    if (received == 0) sched_yield();
  }
  _exit(0);
}

void PingPong(End* end, uint32_t count, std::vector<uint64_t>* round_trips) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t start = MonotonicNanoseconds();
    end->Send();
    while (end->Take() == 0) sched_yield();
    round_trips->push_back(MonotonicNanoseconds() - start);
  }
}

void Print(const char* name, std::vector<uint64_t>* round_trips) {
  std::sort(round_trips->begin(), round_trips->end());
  const auto at = [&](double quantile) {
    const auto index = static_cast<size_t>(quantile * static_cast<double>(round_trips->size()));
    return static_cast<double>((*round_trips)[index]) / 1000;
  };
  std::printf("%-8s %8zu round trips  p50 %8.2f us  p99 %8.2f us\n", name, round_trips->size(),
              at(0.5), at(0.99));
}

// `nic_process`: the NICs are processes of their own, and not of their users.
void Run(uint32_t turns, bool nic_process) {
  void* const shared =
      mmap(nullptr, sizeof(Common), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  BATON_CHECK(shared != MAP_FAILED);
  auto* const common = new (shared) Common();
  const pid_t child = fork();
  BATON_CHECK(child >= 0);
  if (child == 0) Echo(common, nic_process);
  std::unique_ptr<End> ends[kWires];
  std::vector<uint64_t> round_trips[kWires];
  const auto turn_all = [&ends] {
    for (const auto& end : ends) {
      if (end != nullptr) end->Take();
    }
    sched_yield();
  };
  for (const Wire wire : {kTcp, kMemory}) {
    while (common->ports[wire].load() == 0) turn_all();
    ends[wire] = std::make_unique<End>(wire, nic_process);
    ends[wire]->Connect(common->ports[wire].load());
  }
  while (!common->ready.load()) turn_all();
  for (uint32_t turn = 0; turn < turns; ++turn) {
    for (const Wire wire : {kTcp, kMemory}) {
      common->turn.store(wire, std::memory_order_release);
      std::vector<uint64_t> ignored;
      PingPong(ends[wire].get(), kWarmUp, &ignored);
      PingPong(ends[wire].get(), kMessagesInTurn, &round_trips[wire]);
    }
  }
  common->turn.store(kWires);
  waitpid(child, nullptr, 0);
  Print("TCP", &round_trips[kTcp]);
  Print("memory", &round_trips[kMemory]);
}

}  // namespace
}  // namespace baton::bench

// wire_bench [TURNS] [processes]
int main(int argc, char** argv) {
  const int turns = argc > 1 ? std::atoi(argv[1]) : 10;
  const bool processes = argc > 2 && std::string_view(argv[2]) == "processes";
  baton::bench::Run(static_cast<uint32_t>(std::max(turns, 1)), processes);
  return 0;
}

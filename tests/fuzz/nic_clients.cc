// Hostile clients of a NIC beside one that is correct.
#include <array>
#include <memory>

#include "lib/base/check.h"
#include "lib/nic/nic.h"
#include "tests/fuzz/honest_client.h"
#include "tests/fuzz/hostile_client.h"
#include "tests/fuzz/hostile_memory.h"
#include "tests/fuzz/program.h"
#include "tests/fuzz/shared_reads.h"
#include "tests/lib/nic/loopback_link.h"

namespace baton::fuzz {
namespace {

constexpr int kMaxSteps = 64;
constexpr uint32_t kInputsOfNic = 1000;
constexpr uint32_t kMaxTurnsInStep = 4;
constexpr int kMaxTurns = 1000;
constexpr uint64_t kMaxReadsInTurn = 1'000'000;  // of the hostile clients' memory

// Turns the NIC, which does no more in a turn than it may.
void Turn(nic::Nic* nic) {
  const uint64_t before = SharedReads::seen();
  nic->Progress();
  BATON_CHECK(SharedReads::seen() < before + kMaxReadsInTurn);
}

// The NIC and its correct client stay for many inputs: what hostile clients leave there would show
// in a later one, and making them takes as long as an input.
struct Victims {
  Victims() : nic(*nic::Nic::Make(Options(), {})), honest(nic.get()) {}
  static verbs::soft::SoftDeviceOptions Options() {
    verbs::soft::SoftDeviceOptions options;
    options.seed = 1;
    return nic::WithLoopback(options);
  }

  const std::unique_ptr<nic::Nic> nic;
  HonestClient honest;
};

}  // namespace

void NicClients(const uint8_t* data, size_t size) {
  static HostileMemory memory;
  static std::unique_ptr<Victims> victims;
  static uint32_t inputs = 0;
  if (inputs++ % kInputsOfNic == 0) victims = std::make_unique<Victims>();
  nic::Nic* const nic = victims->nic.get();
  HonestClient* const honest = &victims->honest;
  Program program(data, size);
  memory.Clear();
  std::array<std::unique_ptr<HostileClient>, 2> hostile;
  hostile[0] = std::make_unique<HostileClient>(nic, honest->victim(), &memory, &program);
  for (int step = 0; step < kMaxSteps && !program.empty(); ++step) {
    const uint8_t what = program.Byte();
    if (what < 200) {
      hostile[0]->Step();
    } else if (what < 225) {
      if (hostile[1] == nullptr) {
        hostile[1] = std::make_unique<HostileClient>(nic, honest->victim(), &memory, &program);
      }
      hostile[1]->Step();
    } else if (what < 230) {
      hostile[1].reset();
    } else if (what < 240) {
      (void)nic->PrepareToWait();
    } else {
      honest->Send();
    }
    for (uint32_t turn = what % kMaxTurnsInStep; turn > 0; --turn) Turn(nic);
  }
  honest->Send();
  honest->Check();
  memory.Check();
  hostile = {};
  for (int turn = 0; nic->contexts() > 1; ++turn) {
    BATON_CHECK(turn < kMaxTurns);  // what is closed ends
    Turn(nic);
  }
  SharedReads::Forget();
}

}  // namespace baton::fuzz

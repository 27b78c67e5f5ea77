// Owners of an EchoService that are killed at a chosen instruction, one after the other.
#ifndef TESTS_NATIVE_STEPPED_OWNERS_H_
#define TESTS_NATIVE_STEPPED_OWNERS_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "tests/native/checking_peer.h"
#include "tests/native/echo_service.h"
#include "tests/native/stepper.h"

namespace baton::native {

// The functions to run to.
uintptr_t StartOfRecovery();  // LocalDriver::MakeSuccessor
uintptr_t StartOfTurn();      // EchoOwner::Turn
uintptr_t StartOfPoll();      // CompletionMover::PollCompletions
uintptr_t StartOfCommit();    // CommitApplier::ApplyNext
uintptr_t StartOfPost();      // of sends, with their doorbell: the device's own

class SteppedOwners {
 public:
  // `window`: the peer's.
  SteppedOwners(EchoService* service, const CheckingPeer* peer, const EchoOptions& options,
                uint32_t window);

  // The next owner, which has executed nothing yet.
  Stepper& Begin();
  Stepper& owner() { return *owner_; }
  // Runs it until the device has told it what became of everything that its predecessor left, it
  // has answered messages, and is at the start of a turn with messages on all connections to
  // answer.
  absl::Status RunToWork();
  // Runs it until the device has told it the same, and it is at the start of a turn, whether or not
  // it has answered messages. What its recovery has found is complete then.
  absl::Status RunToSettled();
  void Kill();
  void Release();  // the last one: it goes on by itself

  // Both count over all owners for which RunToWork or RunToSettled was called.
  uint64_t sends_found_posted() const { return sends_found_posted_; }
  uint64_t sends_never_posted() const { return sends_never_posted_; }

 private:
  static constexpr size_t kStandbys = 3;

  absl::Status Advance(uintptr_t function);
  bool Settled() const;
  void AwaitMessages() const;

  EchoService* const service_;
  const CheckingPeer* const peer_;
  const uint32_t connections_;
  const uint64_t all_windows_;
  size_t next_ = 0;
  std::optional<Stepper> owner_;
  uint64_t sends_found_posted_ = 0, sends_never_posted_ = 0;
};

}  // namespace baton::native

#endif  // TESTS_NATIVE_STEPPED_OWNERS_H_

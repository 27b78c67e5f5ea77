#include "tests/native/stepped_owners.h"

#include <chrono>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/driver/commit_applier.h"
#include "lib/driver/completion_mover.h"
#include "lib/driver/request_list.h"
#include "lib/native/local_driver.h"
#include "lib/verbs/rdma/provider.h"
#include "tests/harness/processors.h"
#include "tests/harness/wait_until.h"
#include "tests/native/echo_service.h"
#include "tests/native/native_environment.h"

namespace baton::native {
namespace {

constexpr std::chrono::nanoseconds kPatience = std::chrono::seconds(30);
// A turn without messages is taken after it; that is as well, only one later.
constexpr uint64_t kMessagesNs = 100'000'000;
constexpr timespec kLook = {0, 50'000};

}  // namespace

uintptr_t StartOfRecovery() { return CodeOf(&LocalDriver::MakeSuccessor); }
uintptr_t StartOfTurn() { return CodeOf(&EchoOwner::Turn); }
uintptr_t StartOfPoll() { return CodeOf(&driver::CompletionMover::PollCompletions); }
uintptr_t StartOfCommit() { return CodeOf(&driver::CommitApplier::ApplyNext); }
uintptr_t StartOfPost() {
  return IsSoftUnderTest() ? CodeOf(&driver::RequestList::WriteSends)
                           : CodeOf(&verbs::rdma::PostAndRing);
}

SteppedOwners::SteppedOwners(EchoService* service, const CheckingPeer* peer,
                             const EchoOptions& options, uint32_t window)
    : service_(service),
      peer_(peer),
      connections_(options.connections),
      all_windows_(uint64_t{options.connections} * window) {
  // A step then takes no more than two switches of context.
  harness::StayHere();
}

Stepper& SteppedOwners::Begin() {
  while (service_->children() < next_ + 1 + kStandbys) service_->Fork();
  service_->record().recovery = {};
  service_->record().turns = 0;
  owner_.emplace(service_->pid(next_));
  service_->Begin(next_);
  return *owner_;
}

void SteppedOwners::Kill() {
  owner_.reset();
  service_->Kill(next_++);
}

void SteppedOwners::Release() {
  owner_->Detach();
  owner_.reset();
}

absl::Status SteppedOwners::Advance(uintptr_t function) {
  if (owner_->RunTo({function}) != 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("owner ", next_, " does not come to ",
                                          FunctionAt(function), ": ", service_->record().failure,
                                          peer_->record().failure));
}

bool SteppedOwners::Settled() const {
  arena::Arena& arena = service_->arena();
  for (uint32_t i = 0; i < connections_; ++i) {
    const arena::MarkerCursors& markers = arena.connection(i).send_markers;
    if (markers.begun != markers.completed) return false;
  }
  for (uint32_t i = 0; i < arena::kSpares; ++i) {
    if (arena.spare(0, i).owner != 0) return false;
  }
  // The record is of the end of a turn.
  return service_->record().turns != 0;
}

// The peer has had all replies, and has sent all that it may.
void SteppedOwners::AwaitMessages() const {
  const uint64_t deadline = MonotonicNanoseconds() + kMessagesNs;
  uint64_t answered = 0;
  for (uint32_t i = 0; i < connections_; ++i) {
    answered += service_->arena().connection(i).send.posted;
  }
  while (peer_->record().sent < answered + all_windows_ && MonotonicNanoseconds() < deadline) {
    nanosleep(&kLook, nullptr);
  }
}

absl::Status SteppedOwners::RunToSettled() {
  const uint64_t deadline = MonotonicNanoseconds() + harness::Patient(kPatience).count();
  do {
    if (MonotonicNanoseconds() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("owner ", next_, " does not get to know what became of all requests"));
    }
    BATON_RETURN_IF_ERROR(Advance(StartOfTurn()));
  } while (!Settled());
  sends_found_posted_ += service_->record().recovery.sends_found_posted;
  sends_never_posted_ += service_->record().recovery.sends_never_posted;
  return absl::OkStatus();
}

absl::Status SteppedOwners::RunToWork() {
  const uint64_t answered = service_->record().answered;
  BATON_RETURN_IF_ERROR(RunToSettled());
  const uint64_t deadline = MonotonicNanoseconds() + harness::Patient(kPatience).count();
  while (service_->record().answered == answered) {
    if (MonotonicNanoseconds() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("owner ", next_, " gets no message: ", service_->record().failure,
                       peer_->record().failure));
    }
    BATON_RETURN_IF_ERROR(Advance(StartOfTurn()));
  }
  AwaitMessages();
  return absl::OkStatus();
}

}  // namespace baton::native

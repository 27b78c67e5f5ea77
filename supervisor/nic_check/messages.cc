#include "supervisor/nic_check/checked_device.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "supervisor/nic_check/nic_check.h"

namespace baton::nic_check {
namespace {

using verbs::Completion;
using verbs::CompletionStatus;
using verbs::Opcode;
using verbs::ScatterGather;
using verbs::SendRequest;

constexpr uint64_t kChain = 3;  // at most so many requests are posted together

// A request's places are chosen by its number modulo kPlaces. There are more than outstanding
// requests.
constexpr uint64_t kPlaces = 128;
constexpr size_t kPlaceBytes = 64;
constexpr size_t kAreaBytes = kPlaces * kPlaceBytes;
constexpr size_t kSources = 8192;  // after the registered memory that other checks use
constexpr size_t kCells = kSources + kAreaBytes;
constexpr size_t kReceived = kCells + kAreaBytes;
constexpr size_t kRead = kReceived + kAreaBytes;
constexpr size_t kReadFrom = kRead + kAreaBytes;

// Requests are numbered from 1, and their kinds follow each other.
struct Kind {
  Opcode opcode;
  bool inline_data;
  uint32_t length;
};
constexpr std::array<Kind, 7> kKinds = {{
    {Opcode::kSend, true, 60},  // two slots
    {Opcode::kSendWithImmediate, false, 63},
    {Opcode::kWrite, true, 64},  // two slots
    {Opcode::kFetchAndAdd, false, 8},
    {Opcode::kWrite, false, 64},  // two slots
    {Opcode::kSendWithImmediate, true, 20},
    {Opcode::kRead, false, 64},  // two slots
}};
constexpr std::array<uint64_t, 3> kSends = {0, 1, 5};  // indices of the kinds that take a receive

const Kind& KindOf(uint64_t request) { return kKinds[(request - 1) % kKinds.size()]; }
// Returns the number of the request that takes receive `receive`. Both count from 1.
uint64_t SenderOf(uint64_t receive) {
  return (receive - 1) / kSends.size() * kKinds.size() + kSends[(receive - 1) % kSends.size()] + 1;
}
// Returns how many of the first `requests` requests take a receive.
uint64_t ReceivesOf(uint64_t requests) {
  uint64_t receives = requests / kKinds.size() * kSends.size();
  while (SenderOf(receives + 1) <= requests) ++receives;
  return receives;
}
uint64_t AddsOf(uint64_t requests) { return (requests + 3) / kKinds.size(); }
uint8_t ByteOf(uint64_t request, size_t i) {
  return static_cast<uint8_t>(request * 37 + (request >> 8) + i * 11);
}

struct Journal : Trail {
  uint64_t tried, posted;                                    // numbers of requests, like `noted`
  uint64_t receives_tried, receives_posted, receives_noted;  // receives
  uint64_t repeated;                                         // completions that were reported again
  uint64_t found;   // requests and receives that were queued, but not recorded as posted
  uint64_t missed;  // those that were tried, but not queued
  Completion sent, received;
  char why[160];  // why it is broken
};

// Where a driver stops, and waits to be killed, because a kill at a random instant seldom comes
// between a post and its record.
struct Stop {
  enum class Where : uint8_t { kNowhere, kBeforeTheRecord };
  Where where = Where::kNowhere;
  uint32_t posts = 0;  // posts before the one at which it stops
};

// The drivers that follow each other share these.
struct Succession {
  CheckedDevice* device = nullptr;
  Journal* journal = nullptr;
  uint64_t* word = nullptr;  // of the atomics
  Belief belief = Belief::kLastQueued;
};

// One of the drivers that follow each other.
class Messenger {
 public:
  Messenger(const Succession& succession, const Ends& ends, const Stop& stop)
      : device_(succession.device),
        word_(succession.word),
        belief_(succession.belief),
        journal_(succession.journal),
        stop_(stop),
        sender_(*ends.first),
        receiver_(*ends.second) {}

  // If `may_end`, returns when all posted requests have completed.
  absl::Status Run(bool may_end) {
    BATON_RETURN_IF_ERROR(TakeOver());
    journal_->begun = true;
    const uint64_t patience = device_->options().patience_ns();
    uint64_t last_ns = MonotonicNanoseconds();
    while (!may_end || journal_->noted < journal_->posted ||
           journal_->receives_noted < ReceivesOf(journal_->posted)) {
      BATON_ASSIGN_OR_RETURN(const bool took, Poll());
      if (took) last_ns = MonotonicNanoseconds();
      if (journal_->is_broken) return absl::InternalError(journal_->why);
      if (!may_end) BATON_RETURN_IF_ERROR(Post());
      if (MonotonicNanoseconds() - last_ns > patience) {
        return absl::DeadlineExceededError("what was posted does not complete");
      }
    }
    return absl::OkStatus();
  }

 private:
  // If the dead driver took a completion and did not note it, it is in the journal, or comes again.
  absl::Status TakeOver() {
    receiver_.TakeOver();
    sender_.TakeOver();
    if (journal_->received.wr_id == journal_->receives_noted + 1) NoteReceived();
    if (journal_->sent.wr_id == journal_->noted + 1) NoteSent();
    BATON_ASSIGN_OR_RETURN(const auto receive, receiver_.receives().LastQueued());
    BATON_ASSIGN_OR_RETURN(const auto request, sender_.sends().LastQueued());
    Settle(receive.value_or(journal_->receives_noted), journal_->receives_tried,
           &journal_->receives_posted);
    Settle(request.value_or(journal_->noted), journal_->tried, &journal_->posted);
    return absl::OkStatus();
  }

  // According to the queue, requests up to `queued` were posted. Requests up to `tried` may have
  // been.
  void Settle(uint64_t queued, uint64_t tried, uint64_t* posted) {
    if (queued < *posted || queued > tried) {
      return Break(absl::StrCat("the queue says that ", queued, " are queued, of ", *posted,
                                " that were posted and ", tried, " that were tried"));
    }
    journal_->found += queued - *posted;
    journal_->missed += tried - queued;
    if (belief_ == Belief::kLastQueued) *posted = queued;
    if (belief_ == Belief::kEverything) *posted = tried;
  }

  void Break(const std::string& why) {
    if (journal_->is_broken) return;
    std::strncpy(journal_->why, why.c_str(), sizeof(journal_->why) - 1);
    journal_->is_broken = true;
  }

  uint8_t* PlaceOf(size_t area, uint64_t number) const {
    return device_->bytes() + area + number % kPlaces * kPlaceBytes;
  }
  void Compare(const uint8_t* bytes, uint64_t request, size_t length) {
    for (size_t i = 0; i < length; ++i) {
      if (bytes[i] == ByteOf(request, i)) continue;
      return Break(absl::StrCat("byte ", i, " of request ", request, " is not what was sent"));
    }
  }

  absl::StatusOr<bool> Poll() {
    BATON_ASSIGN_OR_RETURN(const int received,
                           receiver_.completions().Take({&journal_->received, 1}));
    if (received == 1) {
      Expect(journal_->received.wr_id, journal_->receives_noted, &may_repeat_receive_,
             [this] { NoteReceived(); });
    }
    BATON_ASSIGN_OR_RETURN(const int sent, sender_.completions().Take({&journal_->sent, 1}));
    if (sent == 1) {
      Expect(journal_->sent.wr_id, journal_->noted, &may_repeat_send_, [this] { NoteSent(); });
    }
    return received + sent > 0;
  }

  // The first completion may be one that the dead driver had noted, but not consumed.
  template <typename Note>
  void Expect(uint64_t wr_id, uint64_t noted, bool* may_repeat, const Note& note) {
    if (wr_id == noted + 1) {
      note();
    } else if (*may_repeat && wr_id == noted) {
      ++journal_->repeated;
    } else {
      Break(absl::StrCat("request ", wr_id, " completed after ", noted));
    }
    *may_repeat = false;
  }

  void NoteSent() {
    const uint64_t request = journal_->sent.wr_id;
    if (journal_->sent.status != CompletionStatus::kSuccess) {
      Break(absl::StrCat("request ", request, " ended with status ",
                         static_cast<int>(journal_->sent.status)));
    }
    if (KindOf(request).opcode == Opcode::kRead) Compare(PlaceOf(kRead, request), 0, kPlaceBytes);
    journal_->noted = request;
  }

  // When a receive has completed, all data that was written before it has arrived.
  void NoteReceived() {
    const uint64_t receive = journal_->received.wr_id;
    const uint64_t request = SenderOf(receive);
    const Kind& kind = KindOf(request);
    const bool immediate = kind.opcode == Opcode::kSendWithImmediate;
    const Completion& got = journal_->received;
    if (got.status != CompletionStatus::kSuccess || got.byte_len != kind.length ||
        got.has_immediate != immediate ||
        (immediate && got.immediate != static_cast<uint32_t>(request))) {
      Break(absl::StrCat("receive ", receive, " has status ", static_cast<int>(got.status), ", ",
                         got.byte_len, " bytes and immediate ", got.immediate,
                         ", and is for request ", request));
    }
    Compare(PlaceOf(kReceived, receive), request, kind.length);
    for (uint64_t i = receive == 1 ? 1 : SenderOf(receive - 1) + 1; i < request; ++i) {
      if (KindOf(i).opcode == Opcode::kWrite) Compare(PlaceOf(kCells, i), i, KindOf(i).length);
    }
    journal_->receives_noted = receive;
  }

  // Posts receives first, so that no message finds the receiver not ready.
  absl::Status Post() {
    while (journal_->receives_posted - journal_->receives_noted < kRequests) {
      BATON_RETURN_IF_ERROR(PostReceive(journal_->receives_posted + 1));
    }
    const uint64_t chain = 1 + journal_->posted % kChain;
    const uint64_t end = journal_->posted + chain;
    if (end - journal_->noted > kRequests || ReceivesOf(end) > journal_->receives_posted) {
      return absl::OkStatus();
    }
    std::vector<SendRequest> requests;
    std::array<std::array<ScatterGather, kLimits.scatter_gather>, kChain> sges;
    for (uint64_t i = 0; i < chain; ++i) {
      requests.push_back(Make(journal_->posted + 1 + i, sges[i]));
    }
    journal_->tried = end;
    const bool stops = stop_.where != Stop::Where::kNowhere && stop_.posts-- == 0;
    if (stops && stop_.where == Stop::Where::kBeforeTheRecord) AwaitDeath();
    size_t posted = 0;
    BATON_RETURN_IF_ERROR(sender_.sends().Post(requests, &posted));
    if (stops) AwaitDeath();
    std::atomic_signal_fence(std::memory_order_seq_cst);
    journal_->posted = end;
    return absl::OkStatus();
  }

  [[noreturn]] static void AwaitDeath() {
    for (;;) pause();
  }

  absl::Status PostReceive(uint64_t receive) {
    uint8_t* const place = PlaceOf(kReceived, receive);
    const ScatterGather sges[] = {device_->SgeOf(place, 20),
                                  device_->SgeOf(place + 20, kPlaceBytes - 20)};
    const verbs::ReceiveRequest request = {receive, sges};
    journal_->receives_tried = receive;
    size_t posted = 0;
    BATON_RETURN_IF_ERROR(receiver_.receives().Post({&request, 1}, &posted));
    std::atomic_signal_fence(std::memory_order_seq_cst);
    journal_->receives_posted = receive;
    return absl::OkStatus();
  }

  SendRequest Make(uint64_t number, std::array<ScatterGather, kLimits.scatter_gather>& sges) {
    SendRequest request = device_->AddOne(number, word_);
    const Kind& kind = KindOf(number);
    if (kind.opcode == Opcode::kFetchAndAdd) return request;
    request.opcode = kind.opcode;
    request.inline_data = kind.inline_data;
    request.immediate = static_cast<uint32_t>(number);
    uint8_t* const local = PlaceOf(kind.opcode == Opcode::kRead ? kRead : kSources, number);
    const uint8_t* const remote =
        kind.opcode == Opcode::kRead ? device_->bytes() + kReadFrom : PlaceOf(kCells, number);
    request.remote_address = reinterpret_cast<uintptr_t>(remote);
    if (kind.opcode != Opcode::kRead) {
      for (size_t i = 0; i < kind.length; ++i) local[i] = ByteOf(number, i);
    }
    sges[0] = device_->SgeOf(local, 7);
    sges[1] = device_->SgeOf(local + 7, 9);
    sges[2] = device_->SgeOf(local + 16, kind.length - 16);
    request.sges = sges;
    return request;
  }

  CheckedDevice* const device_;
  uint64_t* const word_;
  const Belief belief_;
  Journal* const journal_;
  Stop stop_;
  CheckedQueues sender_;
  CheckedQueues receiver_;
  bool may_repeat_send_ = true;
  bool may_repeat_receive_ = true;
};

}  // namespace

absl::StatusOr<std::string> KilledMessengersAreFollowedExactly(CheckedDevice* device,
                                                               Belief belief) {
  BATON_ASSIGN_OR_RETURN(const Ends ends, device->Connect(device->domain()));
  uint64_t* const word = device->NewWord();
  void* const memory = device->shared().Allocate(sizeof(Journal), alignof(Journal));
  if (memory == nullptr) return absl::ResourceExhaustedError("no shared memory is left");
  auto* const journal = new (memory) Journal();
  for (size_t i = 0; i < kPlaceBytes; ++i) device->bytes()[kReadFrom + i] = ByteOf(0, i);
  const Succession succession = {
      .device = device, .journal = journal, .word = word, .belief = belief};
  const auto run = [&](bool may_end, const Stop& stop) {
    return Messenger(succession, ends, stop).Run(may_end);
  };
  BATON_RETURN_IF_ERROR(KillDrivers(device, journal, [&](uint64_t random) {
    return run(/*may_end=*/false,
               {static_cast<Stop::Where>(random % 3), static_cast<uint32_t>(random / 3 % 4)});
  }));
  if (journal->is_broken) return absl::InternalError(journal->why);
  BATON_RETURN_IF_ERROR(run(/*may_end=*/true, {}));
  const uint64_t added = Load(word);
  if (added != AddsOf(journal->posted)) {
    return absl::InternalError(absl::StrCat(added, " fetch-and-adds were executed, of ",
                                            AddsOf(journal->posted), " that were posted"));
  }
  return absl::StrCat(device->options().kills, " drivers were killed: ", journal->posted,
                      " requests and ", journal->receives_noted,
                      " messages arrived once, in order and whole; of those that a driver was "
                      "killed over, the queues said that ",
                      journal->found, " were queued, and ", journal->missed, " were not");
}

}  // namespace baton::nic_check

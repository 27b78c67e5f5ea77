#include "supervisor/nic_check/nic_check.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "supervisor/nic_check/checked_device.h"

namespace baton::nic_check {

// ---------------------------------------------------------------- processes

absl::StatusOr<pid_t> Fork(const std::function<absl::Status()>& run) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  _exit(getppid() == parent && run().ok() ? 0 : 1);
}

absl::Status AwaitSuccess(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return ErrnoStatus(errno, "waitpid");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the forked process has failed (wait status ", status, ")"));
}

absl::Status Kill(pid_t child) {
  int status = 0;
  if (kill(child, SIGKILL) != 0 || waitpid(child, &status, 0) != child) {
    return ErrnoStatus(errno, "cannot kill a driver");
  }
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("a driver had ended by itself (wait status ", status, ")"));
}

void PassTime(uint64_t nanoseconds) {
  const uint64_t end = MonotonicNanoseconds() + nanoseconds;
  while (MonotonicNanoseconds() < end) continue;
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Make(size_t bytes) {
  FileDescriptor fd(memfd_create("nic-check", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot make a memfd of ", bytes, " bytes"));
  }
  void* const begin = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (begin == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("cannot map ", bytes, " bytes"));
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(std::move(fd), static_cast<uint8_t*>(begin), bytes));
}

SharedMemory::~SharedMemory() { munmap(begin_, bytes_); }

void* SharedMemory::Allocate(size_t bytes, size_t alignment) {
  const size_t at = (used_ + alignment - 1) & ~(alignment - 1);
  if (bytes > bytes_ || at > bytes_ - bytes) return nullptr;
  used_ = at + bytes;
  return begin_ + at;
}

namespace {

using verbs::Completion;
using verbs::CompletionStatus;
using verbs::SendRequest;
using verbs::mlx5::LibraryQueuePair;
using verbs::mlx5::LoadRecord;
using Seen = absl::StatusOr<std::string>;

constexpr uint64_t kQuietNs = 20'000'000;  // nothing more may happen in this time

absl::Status ExpectCount(const uint64_t* word, uint64_t expected) {
  if (Load(word) == expected) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(Load(word), " requests were executed, of ", expected, " that were posted"));
}

// ---------------------------------------------------------------- doorbells

Seen OneRingIsEnough(CheckedDevice* device) {
  BATON_ASSIGN_OR_RETURN(const Ends ends, device->Connect(device->domain()));
  CheckedQueues queues(*ends.first);
  uint64_t* const word = device->NewWord();
  std::vector<SendRequest> requests;
  for (uint64_t i = 0; i < 8; ++i) requests.push_back(device->AddOne(i, word));
  size_t posted = 0;
  BATON_RETURN_IF_ERROR(queues.sends().Post(requests, &posted));
  for (uint64_t i = 0; i < requests.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const Completion completion, device->Next(&queues));
    if (completion.wr_id != i) {
      return absl::InternalError(absl::StrCat("completion ", i, " is that of ", completion.wr_id));
    }
  }
  BATON_RETURN_IF_ERROR(ExpectCount(word, requests.size()));
  return "8 requests were executed after one ring";
}

// An error names what has completed although nothing was outstanding.
absl::Status ExpectQuiet(CheckedQueues* queues) {
  Completion completion;
  const uint64_t end = MonotonicNanoseconds() + kQuietNs;
  while (MonotonicNanoseconds() < end) {
    BATON_ASSIGN_OR_RETURN(const int count, queues->completions().Take({&completion, 1}));
    if (count == 0) continue;
    return absl::InternalError(absl::StrCat("request ", completion.wr_id, " completed once more"));
  }
  return absl::OkStatus();
}

Seen RingingAgainIsHarmless(CheckedDevice* device) {
  BATON_ASSIGN_OR_RETURN(const Ends ends, device->Connect(device->domain()));
  CheckedQueues queues(*ends.first);
  uint64_t* const word = device->NewWord();
  for (uint64_t i = 0; i < 20; ++i) {
    BATON_RETURN_IF_ERROR(device->AddOnceMore(&queues, i, word));
    for (int again = 0; again < 3; ++again) queues.sends().RingAgain();
  }
  BATON_RETURN_IF_ERROR(ExpectQuiet(&queues));
  BATON_RETURN_IF_ERROR(ExpectCount(word, 20));
  return "60 rings of what was executed before changed nothing";
}

// The device may execute such a request by itself or after the heir's ring. Both are right:
// mlx5.md, "What a killed driver leaves".
Seen WhatIsNotRungIsExecutedOnce(CheckedDevice* device) {
  BATON_ASSIGN_OR_RETURN(const Ends ends, device->Connect(device->domain()));
  SilentDoorbell silent;
  verbs::mlx5::SendQueue killed(ends.first->sends(), ends.first->number(), kLimits, &silent);
  CheckedQueues heir(*ends.first);
  uint64_t* const word = device->NewWord();
  int before_the_ring = 0;
  constexpr int kRounds = 10;
  for (uint64_t i = 0; i < kRounds; ++i) {
    const SendRequest request = device->AddOne(i, word);
    size_t posted = 0;
    BATON_RETURN_IF_ERROR(killed.Post({&request, 1}, &posted));
    PassTime(kQuietNs);
    before_the_ring += Load(word) == i + 1 ? 1 : 0;
    heir.TakeOver();
    BATON_ASSIGN_OR_RETURN(const Completion completion, device->Next(&heir));
    if (completion.wr_id != i) return absl::InternalError("another request completed");
    BATON_RETURN_IF_ERROR(ExpectCount(word, i + 1));
  }
  BATON_RETURN_IF_ERROR(ExpectQuiet(&heir));
  return absl::StrCat("of ", kRounds, " requests that were recorded and not rung, ",
                      before_the_ring, " were executed within ", kQuietNs / 1'000'000,
                      " ms, the others by their heir's ring");
}

Seen RegistersSurviveAFork(CheckedDevice* device) {
  BATON_ASSIGN_OR_RETURN(const Ends ends, device->Connect(device->domain()));
  uint64_t* const word = device->NewWord();
  BATON_ASSIGN_OR_RETURN(const pid_t child, Fork([&] {
                           CheckedQueues queues(*ends.first);
                           return device->AddOnceMore(&queues, 0, word);
                         }));
  BATON_RETURN_IF_ERROR(AwaitSuccess(child));
  CheckedQueues queues(*ends.first);
  queues.TakeOver();
  BATON_RETURN_IF_ERROR(device->AddOnceMore(&queues, 1, word));
  return "a forked process posted, rang and polled, and its parent went on";
}

// Otherwise the drivers of two shards would ring one register, each in its own process.
Seen DomainsHaveRegistersOfTheirOwn(CheckedDevice* device) {
  BATON_ASSIGN_OR_RETURN(const Ends ours, device->Connect(device->domain()));
  BATON_ASSIGN_OR_RETURN(const Ends others, device->Connect(device->domain()));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<verbs::mlx5::LibraryDomain> domain,
                         device->MakeDomain());
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<LibraryQueuePair> elsewhere,
                         LibraryQueuePair::Make(*domain, {1, 1, kLimits, 1, nullptr}));
  if (elsewhere->send_register() == ours.first->send_register()) {
    return absl::InternalError("queue pairs of two thread domains have one register");
  }
  if (others.first->send_register() != ours.first->send_register()) {
    return absl::InternalError("queue pairs of one thread domain have two registers");
  }
  return "queue pairs of one thread domain have one register, of two have two";
}

// ---------------------------------------------------------------- deaths

struct Journal : Trail {
  uint64_t posted;    // requests; the queue may be ahead
  uint64_t repeated;  // completions that were reported again
  Completion taken;
};

// A driver of queue pair `made` that posts and polls as fast as it can, from the point where its
// predecessor was killed. If `may_end`, it ends when all posted requests have completed.
absl::Status Drive(CheckedDevice* device, const LibraryQueuePair& made, const uint64_t* word,
                   bool may_end, Journal* journal) {
  CheckedQueues queues(made);
  queues.TakeOver();
  // Each request is one slot.
  journal->posted +=
      static_cast<uint16_t>(queues.sends().queued() - static_cast<uint16_t>(journal->posted));
  const auto note = [journal] {
    journal->noted = journal->taken.wr_id;
    if (journal->taken.status != CompletionStatus::kSuccess) journal->is_broken = true;
  };
  if (journal->taken.wr_id == journal->noted + 1) note();  // the dead driver had taken it
  bool may_repeat = true;
  journal->begun = true;
  uint64_t last_ns = MonotonicNanoseconds();
  const uint64_t patience = device->options().patience_ns();
  while (!may_end || journal->noted < journal->posted) {
    BATON_ASSIGN_OR_RETURN(const int count, queues.completions().Take({&journal->taken, 1}));
    if (count == 1) {
      last_ns = MonotonicNanoseconds();
      if (journal->taken.wr_id == journal->noted + 1) {
        note();
      } else if (std::exchange(may_repeat, false) && journal->taken.wr_id == journal->noted) {
        ++journal->repeated;
      } else {
        journal->is_broken = true;
      }
      may_repeat = false;
    } else if (!may_end && journal->posted - journal->noted < kRequests) {
      BATON_RETURN_IF_ERROR(device->Post(&queues, device->AddOne(journal->posted + 1, word)));
      ++journal->posted;
    } else if (MonotonicNanoseconds() - last_ns > patience) {
      return absl::DeadlineExceededError("what was posted does not complete");
    }
  }
  return absl::OkStatus();
}

Seen KilledDriversAreFollowedExactly(CheckedDevice* device) {
  BATON_ASSIGN_OR_RETURN(const Ends ends, device->Connect(device->domain()));
  uint64_t* const word = device->NewWord();
  void* const memory = device->shared().Allocate(sizeof(Journal), alignof(Journal));
  if (memory == nullptr) return absl::ResourceExhaustedError("no shared memory is left");
  auto* const journal = new (memory) Journal();
  BATON_RETURN_IF_ERROR(KillDrivers(device, journal, [&](uint64_t /*random*/) {
    return Drive(device, *ends.first, word, /*may_end=*/false, journal);
  }));
  BATON_RETURN_IF_ERROR(Drive(device, *ends.first, word, /*may_end=*/true, journal));
  BATON_RETURN_IF_ERROR(ExpectCount(word, journal->posted));
  if (journal->is_broken || journal->noted != journal->posted) {
    return absl::InternalError(absl::StrCat("of ", journal->posted, " requests ", journal->noted,
                                            " were told in their order"));
  }
  return absl::StrCat(device->options().kills, " drivers were killed: ", journal->posted,
                      " requests were executed once and told in order, ", journal->repeated,
                      " of them twice");
}

// ---------------------------------------------------------------- events

// Takes all events that are there. Waits for the first one within the patience.
absl::Status AwaitEvent(CheckedDevice* device, ibv_comp_channel* channel) {
  pollfd entry = {channel->fd, POLLIN, 0};
  if (poll(&entry, 1, static_cast<int>(device->options().patience.count())) != 1) {
    return absl::DeadlineExceededError(
        absl::StrCat("no event within ", device->options().patience.count(), " ms"));
  }
  while (poll(&entry, 1, 0) == 1) {
    ibv_cq* told = nullptr;
    void* ignored = nullptr;
    if (ibv_get_cq_event(channel, &told, &ignored) != 0) return ErrnoStatus(errno, "get_cq_event");
    ibv_ack_cq_events(told, 1);
  }
  return absl::OkStatus();
}

Seen EachArmMakesAnEvent(CheckedDevice* device, const Ends& ends, ibv_comp_channel* channel) {
  uint64_t* const word = device->NewWord();
  uint64_t* const armed = device->NewWord();
  std::mt19937_64 random(device->options().seed);
  uint64_t wr_id = 0;
  for (uint32_t kill_number = 0; kill_number < device->options().kills; ++kill_number) {
    const uint64_t before = Load(armed);
    BATON_ASSIGN_OR_RETURN(const pid_t killed, Fork([&]() -> absl::Status {
                             CheckedQueues queues(*ends.first);
                             queues.TakeOver();
                             queues.completions().RequestNotification();
                             std::atomic_ref(*armed).store(before + 1, std::memory_order_release);
                             for (;;) pause();
                           }));
    // Half of the drivers are killed after they have armed, the others at any instant.
    if (kill_number % 2 == 0) {
      device->Eventually([&] { return Load(armed) != before; });
    } else {
      PassTime(random() % kLatestKillNs);
    }
    BATON_RETURN_IF_ERROR(Kill(killed));
    CheckedQueues heir(*ends.first);
    heir.TakeOver();
    for (int event = 0; event < 3; ++event) {
      pollfd entry = {channel->fd, POLLIN, 0};
      if (poll(&entry, 1, 0) != 0)
        return absl::InternalError("an event came that nobody armed for");
      heir.completions().RequestNotification();
      BATON_RETURN_IF_ERROR(device->Post(&heir, device->AddOne(++wr_id, word)));
      BATON_RETURN_IF_ERROR(AwaitEvent(device, channel));
      BATON_RETURN_IF_ERROR(device->Next(&heir).status());
    }
  }
  return absl::StrCat(device->options().kills, " drivers were killed, ", Load(armed),
                      " of them when they had armed: ", wr_id,
                      " completions were waited for afterwards");
}

Seen ArmingWorks(CheckedDevice* device) {
  ibv_comp_channel* const channel = ibv_create_comp_channel(device->context());
  if (channel == nullptr) return ErrnoStatus(errno, "ibv_create_comp_channel");
  Seen seen;
  {
    absl::StatusOr<Ends> ends = device->Connect(device->domain(), channel);
    seen = ends.ok() ? EachArmMakesAnEvent(device, *ends, channel) : Seen(ends.status());
  }
  ibv_destroy_comp_channel(channel);
  return seen;
}

// ---------------------------------------------------------------- states

Seen AResetLeavesTheCompletionQueueAlone(CheckedDevice* device) {
  BATON_ASSIGN_OR_RETURN(const Ends ends, device->Connect(device->domain()));
  uint64_t* const word = device->NewWord();
  for (int use = 0; use < 3; ++use) {
    CheckedQueues queues(*ends.first);
    for (uint64_t i = 0; i < 130; ++i) {  // twice around the completion queue
      BATON_RETURN_IF_ERROR(device->AddOnceMore(&queues, i, word));
    }
    const uint32_t consumed = LoadRecord(ends.first->completion_queue().record);
    for (const LibraryQueuePair* const end : {ends.first.get(), ends.second.get()}) {
      ibv_qp_attr reset = {};
      reset.qp_state = IBV_QPS_RESET;
      const int error = ibv_modify_qp(end->get(), &reset, IBV_QP_STATE);
      if (error != 0) return ErrnoStatus(error, "ibv_modify_qp to RESET");
      verbs::mlx5::QueueCursors& cursors = *end->sends().cursors;
      cursors = {cursors.use + 1, 0, 0};
    }
    if (const uint32_t now = LoadRecord(ends.first->completion_queue().record); now != consumed) {
      return absl::InternalError(
          absl::StrCat("the consumer index was ", consumed, ", and is ", now, " after a reset"));
    }
    BATON_RETURN_IF_ERROR(device->Connect(ends));
  }
  return "3 uses of a queue pair, with resets between them";
}

Seen ErrorsAreTold(CheckedDevice* device) {
  BATON_ASSIGN_OR_RETURN(const Ends ends, device->Connect(device->domain()));
  CheckedQueues queues(*ends.first);
  uint64_t* const word = device->NewWord();
  SendRequest request = device->AddOne(0, word);
  request.rkey ^= 0x55;  // the same region with another key
  BATON_RETURN_IF_ERROR(device->Post(&queues, request));
  BATON_RETURN_IF_ERROR(device->Post(&queues, device->AddOne(1, word)));
  BATON_ASSIGN_OR_RETURN(const Completion failed, device->Next(&queues));
  BATON_ASSIGN_OR_RETURN(const Completion flushed, device->Next(&queues));
  BATON_RETURN_IF_ERROR(ExpectCount(word, 0));
  if (failed.wr_id != 0 || failed.status != CompletionStatus::kRemoteAccessError ||
      flushed.wr_id != 1 || flushed.status != CompletionStatus::kFlushError) {
    return absl::InternalError(absl::StrCat("an unknown key: request ", failed.wr_id,
                                            " ended with status ", static_cast<int>(failed.status),
                                            ", ", flushed.wr_id, " with ",
                                            static_cast<int>(flushed.status)));
  }
  return absl::StrCat("an unknown key fails its request (vendor's error ", failed.vendor_error,
                      "), and flushes the next");
}

struct Check {
  const char* name;
  Seen (*look)(CheckedDevice* device);
};
constexpr Check kChecks[] = {
    {"requests are what libmlx5 writes", &RequestsAreLibrarys},
    {"one ring is enough", &OneRingIsEnough},
    {"ringing again is harmless", &RingingAgainIsHarmless},
    {"what is not rung is executed once", &WhatIsNotRungIsExecutedOnce},
    {"registers survive a fork", &RegistersSurviveAFork},
    {"domains have registers of their own", &DomainsHaveRegistersOfTheirOwn},
    {"killed drivers are followed exactly", &KilledDriversAreFollowedExactly},
    {"each arm makes an event", &ArmingWorks},
    {"a reset leaves the completion queue alone", &AResetLeavesTheCompletionQueueAlone},
    {"errors are told", &ErrorsAreTold},
    {"messages of killed drivers arrive once",
     [](CheckedDevice* device) {
       return KilledMessengersAreFollowedExactly(device, Belief::kLastQueued);
     }},
};

}  // namespace

absl::StatusOr<std::vector<Finding>> CheckNic(ibv_context* context, const Options& options,
                                              SharedMemory* shared) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<CheckedDevice> device,
                         CheckedDevice::Make(context, options, shared));
  std::vector<Finding> findings;
  for (const Check& check : kChecks) {
    const Seen seen = check.look(device.get());
    findings.push_back({check.name, seen.ok(), seen.ok() ? *seen : seen.status().ToString()});
  }
  return findings;
}

}  // namespace baton::nic_check

#include "tests/bench/owned_side.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/bench/loopback.h"
#include "tests/bench/queue_owner.h"
#include "tests/harness/processors.h"
#include "tests/harness/quantile.h"

namespace baton::bench {
namespace {

constexpr uint64_t kPatienceNs = 10'000'000'000;

constexpr uint64_t kStartNs = 20'000'000'000;

// The owner's loop.
template <typename Meeting>
class Loop {
 public:
  Loop(QueueOwner* owner, Meeting* meeting) : owner_(*owner), meeting_(*meeting) {}

  absl::Status Run() {
    while (!owner_.established()) {
      BATON_RETURN_IF_ERROR(owner_.Establish());
      if (meeting_.stop.load()) return absl::OkStatus();
    }
    meeting_.established.store(true);
    while (!meeting_.stop.load(std::memory_order_relaxed)) {
      BATON_RETURN_IF_ERROR(meeting_.timed.load(std::memory_order_relaxed) ? TimedTurn() : Turn());
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Turn() {
    BATON_ASSIGN_OR_RETURN(const int work, owner_.Turn());
    return work > 0 ? absl::OkStatus() : owner_.Wait();
  }

  // Without a wait, because a worker's wait does part of what its next turn would do.
  absl::Status TimedTurn() {
    const uint64_t before = owner_.received();
    const uint64_t began = MonotonicNanoseconds();
    BATON_ASSIGN_OR_RETURN(const int work, owner_.Turn());
    const uint64_t took = MonotonicNanoseconds() - began;
    if (work > 0) {
      empty_ = 0;
      if (took > OwnedSide::kLongestTurnNs) return absl::OkStatus();
      meeting_.turns_ns.fetch_add(took, std::memory_order_relaxed);
      meeting_.messages.fetch_add(owner_.received() - before, std::memory_order_relaxed);
    } else if (++empty_ % kLooks == 0) {
      sched_yield();
    }
    return absl::OkStatus();
  }

  QueueOwner& owner_;
  Meeting& meeting_;
  int empty_ = 0;  // turns without anything to do, one after the other
};

absl::StatusOr<std::unique_ptr<QueueOwner>> Make(const OwnedSideOptions& options,
                                                 NicSockets sockets, QueuePairNumbers* numbers) {
  if (options.kind == OwnerKind::kLibrary) return StartLibraryOwner(std::move(sockets), numbers);
  const auto open = [&]() {
    return options.wire == Wire::kLoopback ? LoopbackDevice::Open(std::move(sockets), numbers)
                                           : OpenDevice(std::move(sockets));
  };
  if (options.kind == OwnerKind::kBrokered) return BrokeredOwner::Start(open);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device, open());
  if (options.kind == OwnerKind::kNative) return NativeOwner::Start(std::move(device));
  return RawOwner::Start(std::move(device));
}

}  // namespace

absl::StatusOr<std::unique_ptr<OwnerPeer>> OwnerPeer::Connect(
    std::unique_ptr<verbs::Device> device, uint16_t port,
    const std::function<absl::Status()>& give_up) {
  std::unique_ptr<OwnerPeer> peer(new OwnerPeer(std::move(device)));
  BATON_ASSIGN_OR_RETURN(peer->queues_, EchoQueues::Make(peer->device_.get()));
  BATON_ASSIGN_OR_RETURN(
      peer->id_, peer->device_->Connect({"127.0.0.1", port}, peer->queues_->queue_pair(), {}));
  const uint64_t deadline = MonotonicNanoseconds() + kPatienceNs;
  while (MonotonicNanoseconds() < deadline) {
    BATON_RETURN_IF_ERROR(give_up());
    peer->device_->Progress();
    verbs::CmEvent event;
    if (!peer->device_->NextEvent(&event)) continue;
    if (event.type == verbs::CmEventType::kEstablished) return peer;
    return absl::UnavailableError(absl::StrCat("not established: ", event.status.message()));
  }
  return absl::DeadlineExceededError("not established in time");
}

// The message begins with its number.
void OwnerPeer::Ask() {
  const auto place = static_cast<uint32_t>(sent_ % EchoQueues::kReceiveBuffers);
  const uint32_t buffer = EchoQueues::kReceiveBuffers + place;
  std::memcpy(queues_->buffer(buffer), &sent_, sizeof(sent_));
  sent_ns_[place] = MonotonicNanoseconds();
  ++sent_;
  queues_->Send(buffer);
}

absl::Status OwnerPeer::TakeAnswer(const verbs::Completion& receive, uint64_t now) {
  uint64_t number = 0;
  std::memcpy(&number, queues_->buffer(EchoQueues::BufferOf(receive)), sizeof(number));
  if (receive.byte_len != kEchoBytes || number != received_) {
    return absl::InternalError(absl::StrCat("answer ", received_, " is wrong: it has ",
                                            receive.byte_len, " bytes and number ", number));
  }
  const uint64_t took = now - sent_ns_[received_ % EchoQueues::kReceiveBuffers];
  took_ns_.push_back(static_cast<uint32_t>(std::min<uint64_t>(took, UINT32_MAX)));
  ++received_;
  queues_->Receive();
  return absl::OkStatus();
}

absl::StatusOr<Exchanged> OwnerPeer::Exchange(uint32_t count, uint32_t window, uint64_t pause_ns,
                                              const std::function<void()>& turn) {
  took_ns_.clear();
  took_ns_.reserve(count);
  slices_ns_.clear();
  const uint64_t first = sent_;
  const uint64_t last = sent_ + count;
  const uint64_t began = MonotonicNanoseconds();
  uint64_t heard = began, slice_began = began, slice_end = first + Exchanged::kSlice;
  for (uint32_t i = 0; i < std::min(window, count); ++i) Ask();
  BATON_RETURN_IF_ERROR(queues_->Flush());
  while (received_ < last) {
    turn();
    BATON_ASSIGN_OR_RETURN(const absl::Span<const verbs::Completion> taken, queues_->Poll());
    const uint64_t now = MonotonicNanoseconds();
    if (taken.empty()) {
      if (now - heard < kPatienceNs) continue;
      return absl::DeadlineExceededError(
          absl::StrCat("the owner has not answered message ", received_, " within 10 s"));
    }
    heard = now;
    for (const verbs::Completion& one : taken) {
      if (one.opcode != verbs::CompletionOpcode::kReceive) continue;
      BATON_RETURN_IF_ERROR(TakeAnswer(one, now));
      while (pause_ns > 0 && MonotonicNanoseconds() - now < pause_ns) turn();
      if (sent_ < last) Ask();
    }
    BATON_RETURN_IF_ERROR(queues_->Flush());
    if (received_ >= slice_end) {
      slices_ns_.push_back((now - slice_began) * Exchanged::kSlice /
                           (received_ - slice_end + Exchanged::kSlice));
      slice_began = now;
      slice_end = received_ + Exchanged::kSlice;
    }
  }
  return Summarize(MonotonicNanoseconds() - began);
}

absl::StatusOr<Exchanged> OwnerPeer::Summarize(uint64_t all_ns) {
  if (took_ns_.empty()) return absl::InternalError("no message was sent");
  Exchanged exchanged;
  exchanged.p50_us = *Quantile(took_ns_, 0.5) * 1e-3;
  exchanged.p99_us = *Quantile(took_ns_, 0.99) * 1e-3;
  const std::optional<uint64_t> slice_ns = Quantile(slices_ns_, 0.5);
  exchanged.per_second =
      slice_ns.has_value()
          ? Exchanged::kSlice * 1e9 / static_cast<double>(*slice_ns)
          : static_cast<double>(took_ns_.size()) * 1e9 / static_cast<double>(all_ns);
  return exchanged;
}

const char* NameOf(OwnerKind kind) {
  switch (kind) {
    case OwnerKind::kRaw:
      return "raw";
    case OwnerKind::kLibrary:
      return "libmlx5";
    case OwnerKind::kNative:
      return "native";
    case OwnerKind::kBrokered:
      return "brokered";
  }
  return "";
}

struct OwnedSide::Meeting {
  QueuePairNumbers numbers;
  std::atomic<uint32_t> port{0};  // 0: the owner does not listen yet
  std::atomic<bool> established{false};
  // Ours, which the owner reads in each turn.
  alignas(64) std::atomic<bool> stop{false};
  std::atomic<bool> timed{false};  // the owner measures its turns
  // The owner's: of turns that were measured.
  alignas(64) std::atomic<uint64_t> turns_ns{0};
  std::atomic<uint64_t> messages{0};
};

absl::StatusOr<std::unique_ptr<OwnedSide>> OwnedSide::Start(const OwnedSideOptions& options) {
  if (options.kind == OwnerKind::kLibrary && options.wire != Wire::kLoopback) {
    return absl::InvalidArgumentError("libmlx5 has no connection manager here: loopback alone");
  }
  std::unique_ptr<OwnedSide> side(new OwnedSide(options));
  const absl::Status opened = side->Open();
  if (opened.ok()) return side;
  return absl::Status(opened.code(), absl::StrCat(NameOf(options.kind), ": ", opened.message()));
}

// The NIC's thread answers what objects ask for that end.
OwnedSide::~OwnedSide() {
  if (nic_ != nullptr) {
    nic_->Stop();
    nic_->Resume();
  }
  if (owner_ > 0) {
    meeting_->stop.store(true);
    while (waitpid(owner_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  peer_.reset();
  if (meeting_ != nullptr) munmap(meeting_, sizeof(Meeting));
}

absl::Status OwnedSide::Open() {
  void* const page = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (page == MAP_FAILED) return ErrnoStatus(errno, "mmap");
  meeting_ = new (page) Meeting();
  BATON_ASSIGN_OR_RETURN(NicClient owner, MakeNicClient());
  BATON_RETURN_IF_ERROR(Fork(&owner));
  BATON_ASSIGN_OR_RETURN(NicClient peer, MakeNicClient());
  std::vector<NicSockets> clients;
  clients.push_back(std::move(owner.nic));
  clients.push_back(std::move(peer.nic));
  BATON_ASSIGN_OR_RETURN(nic_, ThreadedNic::Start(std::move(clients)));
  const uint64_t deadline = MonotonicNanoseconds() + kStartNs;
  const auto give_up = [&]() {
    if (MonotonicNanoseconds() > deadline) return absl::DeadlineExceededError("not ready in time");
    return CheckOwner();
  };
  // On one NIC the owner waits for us instead.
  while (options_.wire != Wire::kLoopback && meeting_->port.load() == 0) {
    BATON_RETURN_IF_ERROR(give_up());
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device,
                         OpenPeerDevice(std::move(peer.client)));
  BATON_ASSIGN_OR_RETURN(
      peer_,
      OwnerPeer::Connect(std::move(device), static_cast<uint16_t>(meeting_->port.load()), give_up));
  while (!meeting_->established.load()) {
    BATON_RETURN_IF_ERROR(give_up());
    peer_->device().Progress();  // its last word is still to be sent
  }
  nic_->Stop();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<verbs::Device>> OwnedSide::OpenPeerDevice(NicSockets sockets) {
  if (options_.wire == Wire::kLoopback) {
    return LoopbackDevice::Open(std::move(sockets), &meeting_->numbers);
  }
  verbs::soft::SoftDeviceOptions options;
  if (options_.wire == Wire::kTcp) options.max_memory_wires = 0;
  return verbs::soft::CreateSoftDevice(options);
}

absl::Status OwnedSide::Fork(NicClient* owner) {
  std::fflush(nullptr);
  owner_ = fork();
  if (owner_ < 0) return ErrnoStatus(errno, "fork");
  if (owner_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    owner->nic = {};
    RunOwner(std::move(owner->client));
  }
  owner->client = {};
  return absl::OkStatus();
}

// It ends in order: libibverbs finds its device in a directory that goes then.
void OwnedSide::RunOwner(NicSockets sockets) {
  const absl::Status status = Own(std::move(sockets));
  if (!status.ok()) {
    std::fprintf(stderr, "the %s owner: %s\n", NameOf(options_.kind), MessageOf(status).data());
  }
  std::exit(status.ok() ? 0 : 1);
}

absl::Status OwnedSide::Own(NicSockets sockets) {
  harness::RunOnProcessor(options_.processor);
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<QueueOwner> owner,
                         Make(options_, std::move(sockets), &meeting_->numbers));
  meeting_->port.store(owner->port());
  return Loop(owner.get(), meeting_).Run();
}

absl::Status OwnedSide::CheckOwner() {
  if (waitpid(owner_, nullptr, WNOHANG) == 0) return absl::OkStatus();
  owner_ = -1;
  return absl::UnavailableError("the owner's process has ended");
}

absl::StatusOr<Exchanged> OwnedSide::Exchange(uint32_t count, uint32_t window, uint64_t pause_ns) {
  if (options_.wire == Wire::kLoopback) {
    return peer_->Exchange(count, window, pause_ns, [this] { nic_->Execute(); });
  }
  return peer_->Exchange(count, window, pause_ns, [this] {
    nic_->Execute();
    peer_->device().Progress();
  });
}

absl::StatusOr<double> OwnedSide::MeasureTurns(uint32_t count, uint32_t window) {
  const uint64_t ns = meeting_->turns_ns.load();
  const uint64_t messages = meeting_->messages.load();
  meeting_->timed.store(true);
  const absl::Status exchanged = Exchange(count, window).status();
  meeting_->timed.store(false);
  BATON_RETURN_IF_ERROR(exchanged);
  const uint64_t measured = meeting_->messages.load() - messages;
  if (measured == 0) return absl::InternalError("no turn of the owner was measured");
  return static_cast<double>(meeting_->turns_ns.load() - ns) / static_cast<double>(measured);
}

}  // namespace baton::bench

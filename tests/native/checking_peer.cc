#include "tests/native/checking_peer.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/raw_connection.h"
#include "tests/harness/wait_until.h"
#include "tests/native/message.h"
#include "tests/native/native_environment.h"
#include "worker/examples/common/shared_memory.h"

namespace baton::native {
namespace {

constexpr std::chrono::nanoseconds kPatience = std::chrono::seconds(20);

class RawPeer final : public PeerConnection {
 public:
  explicit RawPeer(std::unique_ptr<bench::RawConnection> connection)
      : connection_(std::move(connection)) {}

  uint8_t* slab() const override { return connection_->slab(); }
  absl::Status Receive(uint32_t slot, size_t offset, uint32_t length) override {
    return connection_->Receive(slot, offset, length);
  }
  absl::Status Send(size_t offset, uint32_t length) override {
    return connection_->Send(offset, length);
  }
  absl::Status Flush() override { return connection_->Flush(); }
  absl::StatusOr<absl::Span<const uint32_t>> Poll() override {
    received_.clear();
    BATON_ASSIGN_OR_RETURN(const absl::Span<const ibv_wc> taken, connection_->Poll());
    for (const ibv_wc& completion : taken) {
      if (completion.opcode != IBV_WC_RECV) continue;
      received_.push_back(static_cast<uint32_t>(completion.wr_id));
    }
    return received_;
  }

 private:
  const std::unique_ptr<bench::RawConnection> connection_;
  std::vector<uint32_t> received_;
};

class SoftPeer final : public PeerConnection {
 public:
  static absl::StatusOr<std::unique_ptr<PeerConnection>> Connect(const std::string& host,
                                                                 uint16_t port);

  uint8_t* slab() const override { return memory_.base(); }
  absl::Status Receive(uint32_t slot, size_t offset, uint32_t length) override {
    const verbs::ScatterGather sge = SgeOf(offset, length);
    const verbs::ReceiveRequest request = {slot, {&sge, 1}};
    size_t posted = 0;
    return queue_pair_->PostReceive({&request, 1}, &posted);
  }
  absl::Status Send(size_t offset, uint32_t length) override {
    const verbs::ScatterGather sge = SgeOf(offset, length);
    verbs::SendRequest request;
    request.opcode = verbs::Opcode::kSend;
    request.sges = {&sge, 1};
    size_t posted = 0;
    return queue_pair_->PostSend({&request, 1}, &posted);
  }
  absl::Status Flush() override {
    device_->Progress();
    return absl::OkStatus();
  }
  absl::StatusOr<absl::Span<const uint32_t>> Poll() override;

 private:
  explicit SoftPeer(examples::SharedMemory memory) : memory_(std::move(memory)) {}

  verbs::ScatterGather SgeOf(size_t offset, uint32_t length) const {
    return {reinterpret_cast<uint64_t>(slab() + offset), length, region_->lkey()};
  }
  absl::Status Make();
  absl::Status AwaitEstablished();

  examples::SharedMemory memory_;
  std::unique_ptr<verbs::Device> device_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> completions_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::ConnectionId> id_;
  std::vector<uint32_t> received_;
};

absl::Status SoftPeer::Make() {
  BATON_ASSIGN_OR_RETURN(device_, verbs::soft::CreateSoftDevice({}));
  BATON_ASSIGN_OR_RETURN(region_,
                         device_->RegisterMemory(slab(), bench::kSlabBytes, verbs::kLocalWrite));
  BATON_ASSIGN_OR_RETURN(completions_, device_->CreateCompletionQueue(2 * bench::kSlots));
  verbs::QueuePairOptions options;
  options.send_queue = options.receive_queue = completions_.get();
  options.max_send_requests = options.max_receive_requests = bench::kSlots;
  BATON_ASSIGN_OR_RETURN(queue_pair_, device_->CreateQueuePair(options));
  for (uint32_t slot = 0; slot < bench::kSlots; ++slot) {
    BATON_RETURN_IF_ERROR(Receive(slot, bench::kReceiveOffset + slot * sizeof(bench::Message),
                                  sizeof(bench::Message)));
  }
  return absl::OkStatus();
}

absl::Status SoftPeer::AwaitEstablished() {
  const uint64_t deadline = MonotonicNanoseconds() + harness::Patient(kPatience).count();
  while (MonotonicNanoseconds() < deadline) {
    device_->Progress();
    verbs::CmEvent event;
    if (!device_->NextEvent(&event)) continue;
    if (event.type == verbs::CmEventType::kEstablished) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("not established: ", event.status.message()));
  }
  return absl::DeadlineExceededError("not established in time");
}

absl::StatusOr<std::unique_ptr<PeerConnection>> SoftPeer::Connect(const std::string& host,
                                                                  uint16_t port) {
  BATON_ASSIGN_OR_RETURN(examples::SharedMemory memory,
                         examples::SharedMemory::Allocate(bench::kSlabBytes));
  std::unique_ptr<SoftPeer> peer(new SoftPeer(std::move(memory)));
  BATON_RETURN_IF_ERROR(peer->Make());
  BATON_ASSIGN_OR_RETURN(peer->id_,
                         peer->device_->Connect({host, port}, peer->queue_pair_.get(), {}));
  BATON_RETURN_IF_ERROR(peer->AwaitEstablished());
  return peer;
}

absl::StatusOr<absl::Span<const uint32_t>> SoftPeer::Poll() {
  received_.clear();
  device_->Progress();
  std::array<verbs::Completion, 32> taken;
  BATON_ASSIGN_OR_RETURN(const int count, completions_->Poll(absl::MakeSpan(taken)));
  for (const verbs::Completion& one : absl::MakeSpan(taken).first(static_cast<size_t>(count))) {
    if (one.status != verbs::CompletionStatus::kSuccess) {
      return absl::InternalError(
          absl::StrCat("a request failed: ", std::string(CompletionStatusName(one.status))));
    }
    if (one.opcode == verbs::CompletionOpcode::kReceive) {
      received_.push_back(static_cast<uint32_t>(one.wr_id));
    }
  }
  return received_;
}

constexpr char kPeerArgument[] = "--be-the-peer";
// After such a silence one more message goes out: the replies to all may have been lost, which a
// reply to it tells. It changes no count if they are only late. So it is at the end, too: what is
// lost then need not be waited for.
constexpr uint64_t kProbeNs = 100'000'000;
constexpr std::chrono::nanoseconds kLastReplies = std::chrono::seconds(3);
constexpr std::chrono::nanoseconds kFinish = std::chrono::seconds(20);

static_assert(sizeof(Message) == sizeof(bench::Message));

// One connection and what is known of it.
class Numbered {
 public:
  Numbered(std::unique_ptr<PeerConnection> connection, uint64_t name, uint32_t window,
           PeerRecord* record)
      : connection_(std::move(connection)), name_(name), window_(window), record_(record) {}

  bool AllAnswered() const { return next_reply_ == next_number_; }

  absl::Status Turn(bool send) {
    const uint64_t first = next_number_;
    while (send && next_number_ - next_reply_ < window_) BATON_RETURN_IF_ERROR(SendNext());
    if (!AllAnswered() && next_number_ - next_reply_ < 2 * window_ &&
        MonotonicNanoseconds() - std::max(silent_since_, probed_) > kProbeNs) {
      probed_ = MonotonicNanoseconds();
      BATON_RETURN_IF_ERROR(SendNext());
    }
    BATON_RETURN_IF_ERROR(connection_->Flush());
    record_->sent += next_number_ - first;
    BATON_ASSIGN_OR_RETURN(const absl::Span<const uint32_t> received, connection_->Poll());
    for (const uint32_t slot : received) {
      OnReply(At(bench::kReceiveOffset, slot));
      BATON_RETURN_IF_ERROR(connection_->Receive(
          slot, bench::kReceiveOffset + slot * sizeof(Message), sizeof(Message)));
    }
    return connection_->Flush();
  }

  void CountMissing() { record_->lost += next_number_ - next_reply_; }

 private:
  Message& At(size_t offset, uint64_t slot) const {
    return reinterpret_cast<Message*>(connection_->slab() + offset)[slot];
  }

  absl::Status SendNext() {
    if (AllAnswered()) silent_since_ = MonotonicNanoseconds();
    const uint64_t slot = next_number_ % bench::kSlots;
    Message& message = At(bench::kSendOffset, slot);
    message = {};
    message.number = next_number_++;
    message.connection = name_;
    message.sum = SumOf(message);
    return connection_->Send(bench::kSendOffset + slot * sizeof(Message), sizeof(Message));
  }

  void OnReply(const Message& reply) {
    const uint64_t now = MonotonicNanoseconds();
    const uint64_t silence = now - std::exchange(silent_since_, now);
    record_->longest_silence_ns = std::max(record_->longest_silence_ns.load(), silence);
    ++record_->answered;
    if (reply.sum != SumOf(reply) || reply.connection != name_ || reply.number >= next_number_) {
      ++record_->torn;
      return;
    }
    if (reply.count != reply.number) ++record_->miscounted;
    if (reply.number < next_reply_) {
      if (missing_.erase(reply.number) == 0) {
        ++record_->repeated;
      } else {
        --record_->lost;
        ++record_->reordered;
      }
      return;
    }
    for (; next_reply_ < reply.number; ++next_reply_) {
      missing_.insert(next_reply_);
      ++record_->lost;
    }
    ++next_reply_;
  }

  const std::unique_ptr<PeerConnection> connection_;
  const uint64_t name_;
  const uint32_t window_;
  PeerRecord* const record_;
  uint64_t next_number_ = 0;
  uint64_t next_reply_ = 0;
  uint64_t silent_since_ = 0;
  uint64_t probed_ = 0;
  std::set<uint64_t> missing_;
};

absl::Status Talk(PeerRecord* record, const std::string& host, uint32_t connections,
                  uint32_t window) {
  while (record->port.load() == 0) sched_yield();
  std::vector<std::unique_ptr<Numbered>> all;
  for (uint32_t i = 0; i < connections; ++i) {
    auto connection = PeerConnection::Connect(host, record->port.load());
    BATON_RETURN_IF_ERROR(connection.status());
    all.push_back(std::make_unique<Numbered>(*std::move(connection), i, window, record));
    ++record->connected;
  }
  // Their owner may still be busy with the last one's arrival.
  uint64_t deadline = 0;
  for (;;) {
    const bool stop = record->stop.load();
    bool answered = true;
    for (const auto& one : all) {
      BATON_RETURN_IF_ERROR(one->Turn(!stop));
      answered = answered && one->AllAnswered();
    }
    if (stop && deadline == 0) {
      deadline = MonotonicNanoseconds() + harness::Patient(kLastReplies).count();
    }
    if (stop && (answered || MonotonicNanoseconds() > deadline)) break;
    sched_yield();
  }
  for (const auto& one : all) one->CountMissing();
  // The service would see the end of the connections.
  record->finished.store(true);
  for (;;) pause();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerConnection>> PeerConnection::Connect(const std::string& host,
                                                                        uint16_t port) {
  if (IsSoftUnderTest()) return SoftPeer::Connect(host, port);
  BATON_ASSIGN_OR_RETURN(auto connection, bench::RawConnection::Connect(host, port));
  return std::make_unique<RawPeer>(std::move(connection));
}

void CheckingPeer::RunIfPeer(int argc, char** argv) {
  if (argc != 6 || std::string_view(argv[1]) != kPeerArgument) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const SharedPage<PeerRecord> record(FileDescriptor(std::atoi(argv[2])));
  const absl::Status status = Talk(record.get(), argv[3], static_cast<uint32_t>(std::atoi(argv[4])),
                                   static_cast<uint32_t>(std::atoi(argv[5])));
  if (!status.ok()) {
    std::snprintf(record->failure, sizeof(record->failure), "%s", status.ToString().c_str());
  }
  _exit(status.ok() ? 0 : 1);
}

// Not forked alone: librdmacm keeps what it knows of devices in the process, and opens none twice.
CheckingPeer::CheckingPeer(const std::string& host, uint32_t connections, uint32_t window) {
  BATON_CHECK(window <= bench::kMaxEchoWindow);
  const std::string record = absl::StrCat(record_.fd());
  const std::string count = absl::StrCat(connections), most = absl::StrCat(window);
  process_ = fork();
  BATON_CHECK(process_ >= 0);
  if (process_ != 0) return;
  execl("/proc/self/exe", "checking-peer", kPeerArgument, record.c_str(), host.c_str(),
        count.c_str(), most.c_str(), nullptr);
  _exit(127);
}

CheckingPeer::~CheckingPeer() {
  if (process_ < 0) return;
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
}

bool CheckingPeer::Finish() {
  record_->stop.store(true);
  const uint64_t deadline = MonotonicNanoseconds() + harness::Patient(kFinish).count();
  while (!record_->finished.load()) {
    if (waitpid(process_, nullptr, WNOHANG) != 0) {
      process_ = -1;
      return true;  // its record says why
    }
    if (MonotonicNanoseconds() > deadline) return false;
    sched_yield();
  }
  return true;
}

}  // namespace baton::native

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/event_loop.h"
#include "lib/nic/memory_wire.h"
#include "lib/nic/rendezvous.h"
#include "lib/nic/wire.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/fuzz/program.h"
#include "tests/fuzz/wire_frames.h"

namespace baton::fuzz {
namespace {

using verbs::soft::FrameType;

constexpr uint32_t kSharedBytes = 300'000;  // more than a segment
constexpr uint32_t kPrivateBytes = 4096;    // receives go to its first half
constexpr uint32_t kDepth = 8;
constexpr int kMaxSteps = 200;
constexpr char kUntouched = 0x5c;

// A loopback address of this process alone: its ports are not used up by
// others' tests.
in_addr_t Host() { return htonl(0x7f100000u | (static_cast<uint32_t>(getpid()) & 0xfffff)); }

std::string HostText() {
  char text[INET_ADDRSTRLEN];
  const in_addr host = {Host()};
  return inet_ntop(AF_INET, &host, text, sizeof(text));
}

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = Host();
  return address;
}

// Leaves nothing in TIME_WAIT: thousands of them are made in a second.
FileDescriptor Socket() {
  FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  BATON_CHECK(static_cast<bool>(fd));
  const linger reset = {1, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  return fd;
}

verbs::soft::SoftDeviceOptions Options(Program* program) {
  verbs::soft::SoftDeviceOptions options;
  options.seed = 1;
  options.min_rnr_timer_us = 1;
  options.memory_wire_after = 0;
  // Its own faults, on top of what the peer does.
  using verbs::CompletionStatus;
  using verbs::soft::FaultKind;
  static const verbs::soft::FaultPlan kFaults[] = {
      {},
      {},
      {},
      {.seed = 1,
       .rules = {{.kind = FaultKind::kRnr, .probability = 0.2, .duration_us = 1},
                 {.kind = FaultKind::kDelay, .probability = 0.2, .duration_us = 1},
                 {.kind = FaultKind::kStall, .probability = 0.1, .duration_us = 1}}},
      {.seed = 2,
       .rules = {{.kind = FaultKind::kCut, .nth = 3},
                 {.kind = FaultKind::kRnr, .probability = 0.1}}},
      {.seed = 3,
       .rules = {{.kind = FaultKind::kError,
                  .nth = 2,
                  .status = CompletionStatus::kRemoteAccessError},
                 {.kind = FaultKind::kDelay, .probability = 0.3, .duration_us = 1}}},
      {.seed = 4,
       .rules = {{.kind = FaultKind::kRetry, .nth = 2},
                 {.kind = FaultKind::kStall, .probability = 0.2, .duration_us = 1}}},
      {.seed = 5, .rules = {{.kind = FaultKind::kDelay, .probability = 0.5, .duration_us = 1}}},
  };
  options.faults = kFaults[program->Below(std::size(kFaults))];
  return options;
}

class Victim : private nic::MemoryRequest::User {
 public:
  explicit Victim(Program* program)
      : program_(*program),
        moves_(program->left() % 2 == 0),
        frames_({Address(shared_.data()), kSharedBytes, shared_region_->rkey(),
                 private_region_->rkey()}) {
    MakeQueuePair();
  }

  void Run() {
    if (program_.Flag()) {
      BeAccepted();
    } else {
      Connect();
    }
    for (int step = 0; step < kMaxSteps && !program_.empty(); ++step) Step();
    Finish();
    CheckService();
  }

 private:
  static uint64_t Address(const uint8_t* at) { return reinterpret_cast<uint64_t>(at); }

  void MakeQueuePair() {
    queue_pair_ = device_->CreateQueuePair({queue_.get(), queue_.get(), kDepth, kDepth, 4}).value();
  }

  // ---- The raw peer connects, or is connected to.

  FileDescriptor Dial() {
    FileDescriptor fd = Socket();
    const sockaddr_in address = Loopback(listener_->address().port);
    const auto* const to = reinterpret_cast<const sockaddr*>(&address);
    // The machine may be out of ports for a while: other tests leave theirs in
    // TIME_WAIT.
    for (int attempt = 0; connect(fd.get(), to, sizeof(address)) != 0; ++attempt) {
      BATON_CHECK((errno == EADDRNOTAVAIL || errno == EINTR) && attempt < 1000);
      usleep(20'000);
    }
    return fd;
  }

  void BeAccepted() {
    peer_ = Dial();
    if (program_.Flag()) {
      Write(WireFrames::ConnectRequest());
      for (int i = 0; i < 3; ++i) Turn();
      if (program_.Flag()) Accept();
      if (program_.Flag()) Write(WireFrames::Management(FrameType::kReadyToUse));
      Turn();
    }
  }

  void Connect() {
    FileDescriptor listener = Socket();
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    BATON_CHECK(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    BATON_CHECK(listen(listener.get(), 1) == 0);
    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
    verbs::ConnectionParameters parameters;
    parameters.private_data = std::string(program_.Block(program_.Below(64)));
    auto id =
        device_->Connect({HostText(), ntohs(address.sin_port)}, queue_pair_.get(), parameters);
    if (!id.ok()) return;
    id_ = *std::move(id);
    peer_.Reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const linger reset = {1, 0};
    setsockopt(peer_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    Turn();
    if (program_.Flag()) {
      Write(WireFrames::Management(FrameType::kConnectReply));
      if (moves_) Move();
    }
    Turn();
  }

  // ---- Its frames go through memory, as the device offers.

  // Reads whole frames of a peer that keeps to the protocol, up to one of this
  // type; nothing if it ended before.
  std::string ReadUpTo(FrameType type) {
    std::string input;
    for (int turn = 0; turn < 1000; ++turn) {
      Turn();
      char byte;
      while (recv(peer_.get(), &byte, 1, MSG_DONTWAIT) == 1) {
        input.push_back(byte);
        verbs::soft::FrameHeader header;
        if (input.size() < sizeof(header)) continue;
        std::memcpy(&header, input.data(), sizeof(header));
        if (input.size() < sizeof(header) + header.length) continue;
        if (FrameType(header.type) == type) return input;
        frames_.Saw(input);
        input.clear();
      }
    }
    return "";
  }

  void Move() {
    const std::string frame = ReadUpTo(FrameType::kMemoryOffer);
    if (frame.empty()) return;
    verbs::soft::MemoryOffer offer;
    std::memcpy(&offer, frame.data() + sizeof(verbs::soft::FrameHeader), sizeof(offer));
    const auto request = nic::MemoryRequest::Make(loop_.get(), offer, this).value();
    for (int turn = 0; turn < 1000 && wire_ == nullptr; ++turn) {
      Turn();
      loop_->Progress();
    }
    if (wire_ == nullptr) return;
    std::unique_ptr<nic::MemoryWire> wire = std::move(wire_);
    Write(WireFrames::Management(FrameType::kMemoryReady));
    if (!ReadUpTo(FrameType::kMemoryReady).empty()) wire_ = std::move(wire);
  }

  void OnMemory(absl::StatusOr<FileDescriptor> memfd) override {
    if (memfd.ok()) wire_ = nic::MemoryWire::Map(memfd->get()).value();
  }

  // ---- What the device's user does.

  void Turn() {
    device_->Progress();
    verbs::CmEvent event;
    while (device_->NextEvent(&event)) {
      if (event.type == verbs::CmEventType::kConnectRequest && !id_) {
        id_ = std::move(event.new_id);
        requested_ = true;
      } else if (event.id != nullptr) {
        BATON_CHECK(event.id == id_.get());
      }
      event = {};
    }
    Poll();
  }

  void Poll() {
    verbs::Completion completions[16];
    for (;;) {
      const int count = queue_->Poll(absl::MakeSpan(completions)).value();
      for (int i = 0; i < count; ++i) {
        std::deque<uint64_t>& posted = (completions[i].wr_id & 1) ? receives_ : sends_;
        BATON_CHECK(!posted.empty() && posted.front() == completions[i].wr_id);
        posted.pop_front();
      }
      if (count < 16) return;
    }
  }

  void Accept() {
    if (!requested_ || !id_ || !queue_pair_) return;
    requested_ = false;
    verbs::ConnectionParameters parameters;
    parameters.private_data = std::string(program_.Block(program_.Byte()));
    id_->Accept(queue_pair_.get(), parameters).IgnoreError();
  }

  verbs::ScatterGather Sge(bool receive) {
    const uint32_t half = kPrivateBytes / 2;
    if (receive || program_.Flag()) {
      const uint32_t offset = program_.Below(64) * 16;
      // Beyond the end, or with a key of nothing, now and then.
      const uint32_t length = program_.Below(255) == 254 ? 2 * kPrivateBytes : program_.Byte();
      const uint32_t key = program_.Below(255) == 254 ? 12345 : private_region_->lkey();
      return {Address(private_.data()) + std::min(offset, half - 256), length, key};
    }
    if (!shared_region_) return {Address(shared_.data()), 8, 99};
    return {Address(shared_.data()), program_.Take<uint16_t>() * 5u, shared_region_->lkey()};
  }

  void PostReceive() {
    if (!queue_pair_) return;
    verbs::ScatterGather sges[4];
    const size_t count = program_.Below(5);
    for (size_t i = 0; i < count; ++i) sges[i] = Sge(true);
    const verbs::ReceiveRequest request = {next_++ << 1 | 1, {sges, count}};
    size_t posted = 0;
    queue_pair_->PostReceive({&request, 1}, &posted).IgnoreError();
    if (posted == 1) receives_.push_back(request.wr_id);
    Poll();  // in the error state it has completed, and the completion queue is
             // small
  }

  void PostSend() {
    if (!queue_pair_) return;
    verbs::ScatterGather sges[4];
    verbs::SendRequest request;
    request.opcode = verbs::Opcode(program_.Below(verbs::kOpcodeCount));
    size_t count = program_.Below(5);
    // Responses are written to where nothing else is checked.
    const bool reads = request.opcode == verbs::Opcode::kRead ||
                       request.opcode == verbs::Opcode::kCompareAndSwap ||
                       request.opcode == verbs::Opcode::kFetchAndAdd;
    for (size_t i = 0; i < count; ++i) sges[i] = Sge(reads);
    if (reads && request.opcode != verbs::Opcode::kRead) {
      count = 1;
      sges[0].length = 8;
    }
    request.wr_id = next_++ << 1;
    request.fence = program_.Flag();
    request.remote_address = program_.Take<uint16_t>();
    request.sges = {sges, count};
    size_t posted = 0;
    queue_pair_->PostSend({&request, 1}, &posted).IgnoreError();
    if (posted == 1) sends_.push_back(request.wr_id);
    Poll();
  }

  void UserStep() {
    switch (program_.Below(12)) {
      case 0:
      case 1:
      case 2:
        PostReceive();
        break;
      case 3:
      case 4:
        PostSend();
        break;
      case 5:
      case 6:
        Accept();
        break;
      case 7:
        if (requested_ && id_) {
          requested_ = false;
          id_->Reject(program_.Block(program_.Byte())).IgnoreError();
        }
        break;
      case 8:
        if (id_ && !requested_) id_->Disconnect().IgnoreError();
        break;
      case 9:
        if (queue_pair_) queue_pair_->SetError().IgnoreError();
        break;
      case 10:
        shared_region_.reset();
        break;
      default:
        // Anew, without what was there.
        id_.reset();
        requested_ = false;
        Poll();
        queue_pair_.reset();
        Poll();
        receives_.clear();
        sends_.clear();
        MakeQueuePair();
    }
  }

  // ---- What the peer does.

  // All of it, as long as the device takes it.
  void Write(std::string_view bytes) {
    for (int attempt = 0; attempt < 64 && !bytes.empty() && peer_; ++attempt) {
      errno = EAGAIN;
      const ssize_t sent = wire_ != nullptr ? WriteToMemory(bytes)
                                            : send(peer_.get(), bytes.data(), bytes.size(),
                                                   MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else if (errno != EAGAIN) {
        return;
      }
      if (!bytes.empty()) Turn();
    }
  }

  ssize_t WriteToMemory(std::string_view bytes) {
    const iovec iovecs[] = {{const_cast<char*>(bytes.data()), bytes.size()}};
    const ssize_t written = wire_->out().Write(iovecs, 1);
    BATON_CHECK(written >= 0);
    if (wire_->out().ReaderSleeps()) Wake();
    return written;
  }

  void Wake() {
    send(peer_.get(), &verbs::soft::kWakeByte, sizeof(verbs::soft::kWakeByte),
         MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // The device's wake-ups are read, too: it may not have more than a socket
  // holds.
  void DrainMemory() {
    char input[65536];
    const iovec iovecs[] = {{input, sizeof(input)}};
    const ssize_t got = wire_->in().Read(iovecs, 1);
    BATON_CHECK(got >= 0);
    frames_.Saw({input, static_cast<size_t>(got)});
    if (wire_->in().WriterWaits()) Wake();
    while (recv(peer_.get(), input, sizeof(input), MSG_DONTWAIT) > 0) {
    }
  }

  void Drain() {
    if (wire_ != nullptr) return DrainMemory();
    char input[65536];
    while (peer_) {
      const ssize_t got = recv(peer_.get(), input, sizeof(input), MSG_DONTWAIT);
      if (got <= 0) return;
      frames_.Saw({input, static_cast<size_t>(got)});
    }
  }

  void Step() {
    switch (program_.Below(12)) {
      case 0:
      case 1:
      case 2:
        Write(frames_.Next(program_));
        break;
      case 3:
      case 10:
      case 11:
        Turn();
        Drain();
        Write(frames_.Answer(program_));
        break;
      case 4: {  // in two pieces
        Drain();
        const std::string frame =
            program_.Flag() ? frames_.Next(program_) : frames_.Answer(program_);
        const size_t first = std::min<size_t>(program_.Byte(), frame.size());
        Write(std::string_view(frame).substr(0, first));
        Turn();
        UserStep();
        Write(std::string_view(frame).substr(first));
        break;
      }
      case 5:
        Write(program_.Block(program_.Byte()));
        break;
      case 6:
      case 7:
        UserStep();
        break;
      case 8:
        Turn();
        if (program_.Flag()) Drain();
        break;
      default:
        if (program_.Below(8) == 7) {
          peer_.Reset();
        } else {
          Turn();
        }
    }
  }

  // ---- The end.

  // What was posted has completed, once each; what no peer may write is as it
  // was.
  void Finish() {
    Turn();
    id_.reset();
    peer_.Reset();
    if (queue_pair_) {
      queue_pair_->SetError().IgnoreError();
      Poll();
      BATON_CHECK(sends_.empty() && receives_.empty());
    }
    Turn();
    for (size_t i = kPrivateBytes / 2 + 256; i < kPrivateBytes; ++i) {
      BATON_CHECK(private_[i] == kUntouched);
    }
  }

  // A correct peer is still served.
  void CheckService() {
    id_.reset();
    requested_ = false;
    frames_.Forget();
    wire_.reset();
    peer_ = Dial();
    Write(WireFrames::ConnectRequest());
    for (int turn = 0; turn < 1000 && !requested_; ++turn) Turn();
    BATON_CHECK(requested_);
    id_.reset();
    peer_.Reset();
    Turn();
  }

  Program& program_;
  const bool moves_;  // into memory, if it can
  std::unique_ptr<verbs::soft::EventLoop> loop_ = verbs::soft::EventLoop::Create().value();
  std::unique_ptr<nic::MemoryWire> wire_;
  std::unique_ptr<verbs::Device> device_ =
      verbs::soft::CreateSoftDevice(Options(&program_)).value();
  // Allocations of their own, whose ends AddressSanitizer watches.
  std::vector<uint8_t> shared_ = std::vector<uint8_t>(kSharedBytes);
  std::vector<uint8_t> private_ = std::vector<uint8_t>(kPrivateBytes, kUntouched);
  std::unique_ptr<verbs::MemoryRegion> shared_region_ =
      device_
          ->RegisterMemory(shared_.data(), kSharedBytes,
                           verbs::kLocalWrite | verbs::kRemoteWrite | verbs::kRemoteRead |
                               verbs::kRemoteAtomic | verbs::soft::kSoftRemoteInvalidate)
          .value();
  std::unique_ptr<verbs::MemoryRegion> private_region_ =
      device_->RegisterMemory(private_.data(), kPrivateBytes, verbs::kLocalWrite).value();
  std::unique_ptr<verbs::CompletionQueue> queue_ = device_->CreateCompletionQueue(64).value();
  std::unique_ptr<verbs::Listener> listener_ = device_->Listen({HostText(), 0}, 8).value();
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::ConnectionId> id_;  // goes before its queue pair
  bool requested_ = false;
  WireFrames frames_;
  FileDescriptor peer_;
  uint64_t next_ = 1;
  std::deque<uint64_t> sends_, receives_;  // without a completion yet
};

}  // namespace

void SoftWire(const uint8_t* data, size_t size) {
  Program program(data, size);
  Victim(&program).Run();
}

}  // namespace baton::fuzz

// ledger-baseline is the ledger without Baton, for comparison: one process owns device, queue pairs
// and accounts, and they die with it.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/process_limits.h"
#include "lib/base/status.h"
#include "lib/verbs/verbs.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/ballast.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/common/flags.h"
#include "worker/examples/common/shared_memory.h"
#include "worker/examples/ledger/ledger_account.h"

namespace baton::ledger {
namespace {

struct BaselineOptions {
  verbs::Address listen;
  uint32_t connections = 64;  // at once, at most
  uint32_t window = 32;       // receives posted for each
  uint32_t message_bytes = 64;
  uint16_t version = 1;
};

// Its clients connect anew and resume their accounts (ledger_protocol.h).
//
// It is as quick to take over as such a service can be: everything that needs no connection is made
// beforehand (device, registered and touched memory, a queue pair with its receives posted for
// every connection to come), and it listens as soon as the former process has gone.
class BaselineServer {
 public:
  static absl::StatusOr<std::unique_ptr<BaselineServer>> Create(
      std::unique_ptr<verbs::Device> device, const BaselineOptions& options);
  ~BaselineServer();

  // Waits until process `pid`, seen through `pidfd`, has ended.
  static absl::Status WaitForEnd(const FileDescriptor& pidfd);

  // Takes the port; while another process has it, tries again without a pause, for at most 10 s.
  absl::StatusOr<uint16_t> Listen();

  // Serves until Stop.
  absl::Status Run();
  void Stop();  // any thread, and signal handlers
  // Any thread, and signal handlers. From now on replies tell peers to go on elsewhere.
  void TellToMove() { moving_ = true; }

 private:
  struct Place;
  BaselineServer(std::unique_ptr<verbs::Device> device, const BaselineOptions& options,
                 examples::SharedMemory memory);

  absl::Status Prepare();
  absl::Status Renew(Place& place);
  absl::Status PostReceive(Place& place, uint32_t slot);
  absl::StatusOr<bool> Turn();             // returns whether it may sleep
  absl::StatusOr<bool> PollCompletions();  // returns whether there were any
  absl::Status HandleEvents();
  absl::Status OnConnectRequest(std::unique_ptr<verbs::ConnectionId> id);
  absl::Status OnRequest(Place& place, uint32_t slot, uint32_t length);
  uint64_t RequestOffset(const Place& place, uint32_t slot) const;
  uint64_t ReplyOffset(const Place& place, uint32_t slot) const;

  const BaselineOptions options_;
  const uint32_t reply_slots_;
  std::unique_ptr<verbs::Device> device_;
  examples::SharedMemory memory_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::vector<std::unique_ptr<Place>> places_;
  std::vector<Place*> free_;
  std::unique_ptr<verbs::Listener> listener_;
  FileDescriptor stop_event_;
  std::atomic<bool> stopped_ = false, moving_ = false;
};

constexpr uint64_t kListenNanoseconds = 10'000'000'000;
constexpr int kBacklog = 4096;

// wr_id: bit 63 receive; bits 40..62 incarnation of the place; 16..39 its index; 0..15 slot.
constexpr uint64_t kReceiveBit = uint64_t{1} << 63;
constexpr uint32_t kIncarnationMask = (1u << 23) - 1;
constexpr uint32_t kIndexMask = (1u << 24) - 1;
constexpr uint32_t kMaxWindow = 1u << 14;

// What serves one peer at a time.
struct BaselineServer::Place {
  explicit Place(uint32_t index) : index(index) {}

  const uint32_t index;
  uint32_t incarnation = 0;
  std::unique_ptr<verbs::QueuePair> queue_pair;
  std::unique_ptr<verbs::ConnectionId> id;  // after the queue pair, so destroyed before it
  LedgerAccount account;
  uint64_t replies = 0;

  uint64_t WorkRequestId(bool receive, uint32_t slot) const {
    return (receive ? kReceiveBit : 0) | uint64_t{incarnation & kIncarnationMask} << 40 |
           uint64_t{index} << 16 | slot;
  }
};

absl::StatusOr<std::unique_ptr<BaselineServer>> BaselineServer::Create(
    std::unique_ptr<verbs::Device> device, const BaselineOptions& options) {
  if (options.message_bytes < kMinMessageBytes || options.message_bytes > kMaxMessageBytes ||
      options.message_bytes % 8 != 0 || options.window == 0 || options.window > kMaxWindow ||
      options.connections == 0 || options.connections > kIndexMask) {
    return absl::InvalidArgumentError(
        "choose a message size from 64 bytes to 1 MiB that is a multiple of 8, and a window of 1 "
        "to 16384");
  }
  const uint64_t bytes =
      uint64_t{options.connections} * options.window * (options.message_bytes + 2 * kReplyBytes);
  BATON_ASSIGN_OR_RETURN(examples::SharedMemory memory,
                         examples::SharedMemory::Allocate((bytes + 4095) / 4096 * 4096));
  std::unique_ptr<BaselineServer> server(
      new BaselineServer(std::move(device), options, std::move(memory)));
  BATON_RETURN_IF_ERROR(server->Prepare());
  return server;
}

BaselineServer::BaselineServer(std::unique_ptr<verbs::Device> device,
                               const BaselineOptions& options, examples::SharedMemory memory)
    : options_(options),
      reply_slots_(2 * options.window),
      device_(std::move(device)),
      memory_(std::move(memory)) {}

BaselineServer::~BaselineServer() = default;

absl::Status BaselineServer::Prepare() {
  stop_event_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event_) return ErrnoStatus(errno, "cannot make an eventfd");
  BATON_ASSIGN_OR_RETURN(
      region_, device_->RegisterMemory(memory_.base(), memory_.bytes(), verbs::kLocalWrite));
  // Twice the room, because a place that is renewed leaves flushed completions behind.
  const uint64_t entries =
      uint64_t{2} * options_.connections * (options_.window + reply_slots_) + 64;
  BATON_ASSIGN_OR_RETURN(
      queue_, device_->CreateCompletionQueue(static_cast<uint32_t>(
                  std::min<uint64_t>(entries, device_->limits().max_completion_queue_entries))));
  for (uint32_t i = 0; i < options_.connections; ++i) {
    places_.push_back(std::make_unique<Place>(i));
    BATON_RETURN_IF_ERROR(Renew(*places_.back()));
    free_.push_back(places_.back().get());
  }
  return absl::OkStatus();
}

uint64_t BaselineServer::RequestOffset(const Place& place, uint32_t slot) const {
  return (uint64_t{place.index} * options_.window + slot) * options_.message_bytes;
}

uint64_t BaselineServer::ReplyOffset(const Place& place, uint32_t slot) const {
  return uint64_t{options_.connections} * options_.window * options_.message_bytes +
         (uint64_t{place.index} * reply_slots_ + slot) * kReplyBytes;
}

absl::Status BaselineServer::Renew(Place& place) {
  place.id.reset();
  place.queue_pair.reset();
  ++place.incarnation;
  place.account = LedgerAccount();
  place.replies = 0;
  verbs::QueuePairOptions options;
  options.send_queue = queue_.get();
  options.receive_queue = queue_.get();
  options.max_send_requests = reply_slots_;
  options.max_receive_requests = options_.window;
  BATON_ASSIGN_OR_RETURN(place.queue_pair, device_->CreateQueuePair(options));
  for (uint32_t slot = 0; slot < options_.window; ++slot) {
    BATON_RETURN_IF_ERROR(PostReceive(place, slot));
  }
  return absl::OkStatus();
}

absl::Status BaselineServer::PostReceive(Place& place, uint32_t slot) {
  const verbs::ScatterGather sge{
      reinterpret_cast<uint64_t>(memory_.base()) + RequestOffset(place, slot),
      options_.message_bytes, region_->lkey()};
  const verbs::ReceiveRequest request{place.WorkRequestId(true, slot), {&sge, 1}};
  size_t posted = 0;
  return place.queue_pair->PostReceive({&request, 1}, &posted);
}

absl::Status BaselineServer::WaitForEnd(const FileDescriptor& pidfd) {
  pollfd event = {pidfd.get(), POLLIN, 0};
  while (poll(&event, 1, -1) < 0) {
    if (errno != EINTR) return ErrnoStatus(errno, "cannot wait for the former process");
  }
  return absl::OkStatus();
}

absl::StatusOr<uint16_t> BaselineServer::Listen() {
  const uint64_t limit = MonotonicNanoseconds() + kListenNanoseconds;
  while (true) {
    absl::StatusOr<std::unique_ptr<verbs::Listener>> listener =
        device_->Listen(options_.listen, kBacklog);
    if (listener.ok()) {
      listener_ = *std::move(listener);
      return listener_->address().port;
    }
    if (!absl::IsAlreadyExists(listener.status()) || MonotonicNanoseconds() > limit) {
      return listener.status();
    }
    sched_yield();
  }
}

absl::Status BaselineServer::Run() {
  while (!stopped_) {
    BATON_ASSIGN_OR_RETURN(const bool may_sleep, Turn());
    if (!may_sleep) continue;
    pollfd events[] = {{device_->event_fd(), POLLIN, 0}, {stop_event_.get(), POLLIN, 0}};
    if (poll(events, 2, -1) < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "cannot wait for the device");
    }
  }
  return absl::OkStatus();
}

void BaselineServer::Stop() {
  stopped_ = true;
  const uint64_t one = 1;
  if (write(stop_event_.get(), &one, sizeof(one)) < 0) return;  // it is readable already
}

absl::StatusOr<bool> BaselineServer::Turn() {
  device_->Progress();
  BATON_RETURN_IF_ERROR(PollCompletions().status());
  BATON_RETURN_IF_ERROR(HandleEvents());
  device_->Progress();  // sends what was posted
  BATON_RETURN_IF_ERROR(queue_->RequestNotification());
  BATON_ASSIGN_OR_RETURN(const bool found, PollCompletions());
  return !found;
}

absl::StatusOr<bool> BaselineServer::PollCompletions() {
  std::array<verbs::Completion, 64> completions;
  for (bool found = false;;) {
    BATON_ASSIGN_OR_RETURN(const int count, queue_->Poll(absl::MakeSpan(completions)));
    if (count == 0) return found;
    found = true;
    for (int i = 0; i < count; ++i) {
      const verbs::Completion& completion = completions[i];
      Place& place = *places_.at((completion.wr_id >> 16) & kIndexMask);
      const uint32_t incarnation = (completion.wr_id >> 40) & kIncarnationMask;
      if (incarnation != (place.incarnation & kIncarnationMask) ||
          completion.status != verbs::CompletionStatus::kSuccess ||
          (completion.wr_id & kReceiveBit) == 0) {
        continue;  // errors end with the connection's disconnect
      }
      const absl::Status status = OnRequest(place, completion.wr_id & 0xffff, completion.byte_len);
      if (status.ok() || place.id == nullptr) continue;
      spdlog::error("connection {} is disconnected: {}", place.index,
                    std::string(status.message()));
      place.id->Disconnect().IgnoreError();  // it may have failed by itself
    }
  }
}

absl::Status BaselineServer::OnRequest(Place& place, uint32_t slot, uint32_t length) {
  BATON_ASSIGN_OR_RETURN(Reply reply,
                         place.account.Apply({memory_.base() + RequestOffset(place, slot),
                                              std::min(length, options_.message_bytes)},
                                             options_.version, ResumePolicy::kAllow));
  if (moving_) {
    reply.notice = kNoticeMoving;
    reply.check = Checksum({reinterpret_cast<const uint8_t*>(&reply), sizeof(reply)});
  }
  const auto reply_slot = static_cast<uint32_t>(place.replies++ % reply_slots_);
  uint8_t* buffer = memory_.base() + ReplyOffset(place, reply_slot);
  std::memcpy(buffer, &reply, sizeof(reply));
  BATON_RETURN_IF_ERROR(PostReceive(place, slot));
  const verbs::ScatterGather sge{reinterpret_cast<uint64_t>(buffer), kReplyBytes, region_->lkey()};
  verbs::SendRequest send;
  send.wr_id = place.WorkRequestId(false, reply_slot);
  send.sges = {&sge, 1};
  size_t posted = 0;
  return place.queue_pair->PostSend({&send, 1}, &posted);
}

absl::Status BaselineServer::HandleEvents() {
  verbs::CmEvent event;
  while (device_->NextEvent(&event)) {
    if (event.type == verbs::CmEventType::kConnectRequest) {
      BATON_RETURN_IF_ERROR(OnConnectRequest(std::move(event.new_id)));
    } else if (event.type != verbs::CmEventType::kEstablished) {
      Place& place = *static_cast<Place*>(event.id->context);
      BATON_RETURN_IF_ERROR(Renew(place));
      free_.push_back(&place);
    }
  }
  return absl::OkStatus();
}

absl::Status BaselineServer::OnConnectRequest(std::unique_ptr<verbs::ConnectionId> id) {
  if (free_.empty()) {
    spdlog::error("a connection is refused: all {} are in use; raise --connections",
                  options_.connections);
    id->Reject("all connections are in use").IgnoreError();
    return absl::OkStatus();
  }
  Place& place = *free_.back();
  const absl::Status status = id->Accept(place.queue_pair.get(), verbs::ConnectionParameters());
  if (!status.ok()) {
    spdlog::error("a connection could not be accepted: {}", std::string(status.message()));
    id.reset();
    return Renew(place);  // its queue pair may be used up
  }
  free_.pop_back();
  place.id = std::move(id);
  place.id->context = &place;
  return absl::OkStatus();
}

BaselineServer* g_server = nullptr;  // for the signal handler

struct Arguments {
  std::string listen;
  std::string device = "soft";
  int wait_for_pid = 0;
  int realtime_priority = 0;
  uint32_t ballast_mib = 0;
  BaselineOptions server;
};

void TakeSignals(BaselineServer* server) {
  g_server = server;
  struct sigaction action = {};
  action.sa_handler = [](int) { g_server->Stop(); };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  action.sa_handler = [](int) { g_server->TellToMove(); };
  sigaction(SIGUSR1, &action, nullptr);
}

void Tell(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

absl::Status Serve(Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(arguments.server.listen, examples::ParseAddress(arguments.listen));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device,
                         examples::OpenDevice(arguments.device));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<BaselineServer> server,
                         BaselineServer::Create(std::move(device), arguments.server));
  BATON_RETURN_IF_ERROR(examples::TakeBallast(arguments.ballast_mib));
  if (arguments.realtime_priority > 0) {
    BATON_RETURN_IF_ERROR(UseRealtimePriority(arguments.realtime_priority));
  }
  if (arguments.wait_for_pid > 0) {
    const FileDescriptor pidfd(
        static_cast<int>(syscall(SYS_pidfd_open, arguments.wait_for_pid, 0)));
    if (!pidfd && errno != ESRCH) {
      return ErrnoStatus(errno, absl::StrCat("cannot watch process ", arguments.wait_for_pid));
    }
    Tell("ledger-baseline warm");
    if (pidfd) BATON_RETURN_IF_ERROR(BaselineServer::WaitForEnd(pidfd));
  }
  BATON_ASSIGN_OR_RETURN(const uint16_t port, server->Listen());
  TakeSignals(server.get());
  Tell(absl::StrCat("ledger-baseline ready port=", port));
  absl::Status status = server->Run();
  signal(SIGUSR1, SIG_IGN);
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  return status;
}

int Main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_st("ledger-baseline"));
  Arguments arguments;
  examples::Flags flags(
      "The ledger on a device of its own, without Baton. Prints \"ledger-baseline warm\" when it "
      "waits for its predecessor, and \"ledger-baseline ready port=N\" when it listens. SIGUSR1: "
      "it tells its peers to go on elsewhere.");
  flags.Add("--listen", &arguments.listen, "HOST:PORT").Required();
  flags.Add("--device", &arguments.device, "soft, rdma, or rdma:NAME [soft]");
  flags.Add("--wait-for-pid", &arguments.wait_for_pid,
            "be warm, and listen as soon as this process has ended");
  flags.Add("--connections", &arguments.server.connections, "at once, at most [64]");
  flags.Add("--window", &arguments.server.window, "receives posted per connection [32]");
  flags.Add("--message-size", &arguments.server.message_bytes, "largest request in bytes [64]");
  flags.Add("--realtime-priority", &arguments.realtime_priority, "of the serving thread [0: none]");
  flags.Add("--ballast-mib", &arguments.ballast_mib, "memory to map and touch besides [0]");
  flags.Add("--reply-version", &arguments.server.version, "told in every reply [1]");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  const absl::Status status = Serve(arguments);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace
}  // namespace baton::ledger

int main(int argc, char** argv) { return baton::ledger::Main(argc, argv); }

#include "tests/bench/queue_owner.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "lib/base/status.h"
#include "lib/verbs/soft/soft_device.h"
#include "supervisor/driver/engine/engine.h"
#include "tests/lib/nic/loopback_link.h"

namespace baton::bench {

absl::StatusOr<NicClient> MakeNicClient() {
  NicClient made;
  for (FileDescriptor NicSockets::*const socket : {&NicSockets::objects, &NicSockets::ids}) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      return ErrnoStatus(errno, "socketpair");
    }
    (made.client.*socket).Reset(ends[0]);
    (made.nic.*socket).Reset(ends[1]);
  }
  return made;
}

absl::StatusOr<std::unique_ptr<verbs::Device>> OpenDevice(NicSockets sockets) {
  return verbs::soft::OpenSoftDevice(std::move(sockets.objects), std::move(sockets.ids));
}

absl::StatusOr<std::unique_ptr<ThreadedNic>> ThreadedNic::Start(std::vector<NicSockets> clients) {
  auto nic = std::make_unique<ThreadedNic>();
  BATON_ASSIGN_OR_RETURN(nic->nic_,
                         nic::Nic::Make(nic::WithLoopback(), [](const std::string& what) {
                           BATON_CHECK(what.empty());  // a client is wrong
                         }));
  for (NicSockets& client : clients) {
    BATON_RETURN_IF_ERROR(nic->nic_->Add(std::move(client.objects)));
    BATON_RETURN_IF_ERROR(nic->nic_->Add(std::move(client.ids)));
  }
  nic->Resume();
  return nic;
}

void ThreadedNic::Resume() {
  stop_.store(false);
  thread_ = std::thread([this] {
    while (!stop_.load()) nic_->Progress();
  });
}

void ThreadedNic::Stop() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::unique_ptr<EchoQueues>> EchoQueues::Make(verbs::Device* device) {
  std::unique_ptr<EchoQueues> queues(new EchoQueues());
  BATON_RETURN_IF_ERROR(queues->Open(device));
  return queues;
}

absl::Status EchoQueues::Open(verbs::Device* device) {
  BATON_RETURN_IF_ERROR(device->NameMemory(memory_.begin(), memory_.bytes(), memory_.fd()));
  BATON_ASSIGN_OR_RETURN(
      region_, device->RegisterMemory(memory_.begin(), memory_.bytes(), verbs::kLocalWrite));
  BATON_ASSIGN_OR_RETURN(completions_, device->CreateCompletionQueue(2 * kEchoDepth));
  verbs::QueuePairOptions options;
  options.send_queue = options.receive_queue = completions_.get();
  options.max_send_requests = options.max_receive_requests = kEchoDepth;
  BATON_ASSIGN_OR_RETURN(queue_pair_, device->CreateQueuePair(options));
  for (uint32_t i = 0; i < kEchoDepth; ++i) {
    receive_buffers_[i] = send_buffers_[i] = {0, kEchoBytes, region_->lkey()};
    receives_[i].sges = {&receive_buffers_[i], 1};
    sends_[i].sges = {&send_buffers_[i], 1};
  }
  for (uint32_t i = 0; i < kEchoDepth; ++i) Receive();
  return Flush();
}

absl::Status EchoQueues::Flush() {
  size_t posted = 0;
  if (receive_count_ > 0) {
    BATON_RETURN_IF_ERROR(queue_pair_->PostReceive({receives_.data(), receive_count_}, &posted));
    receive_count_ = 0;
  }
  if (send_count_ > 0) {
    BATON_RETURN_IF_ERROR(queue_pair_->PostSend({sends_.data(), send_count_}, &posted));
    send_count_ = 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const verbs::Completion>> EchoQueues::Poll() {
  BATON_ASSIGN_OR_RETURN(const int count, completions_->Poll(absl::MakeSpan(taken_)));
  const absl::Span<const verbs::Completion> taken(taken_.data(), static_cast<size_t>(count));
  for (const verbs::Completion& one : taken) {
    if (one.status == verbs::CompletionStatus::kSuccess) continue;
    return absl::InternalError(
        absl::StrCat("a request failed: ", std::string(verbs::CompletionStatusName(one.status))));
  }
  return taken;
}

absl::StatusOr<std::unique_ptr<RawOwner>> RawOwner::Start(std::unique_ptr<verbs::Device> device) {
  std::unique_ptr<RawOwner> owner(new RawOwner(std::move(device)));
  BATON_ASSIGN_OR_RETURN(owner->queues_, EchoQueues::Make(owner->device_.get()));
  BATON_ASSIGN_OR_RETURN(owner->listener_, owner->device_->Listen({"127.0.0.1", 0}, 1));
  return owner;
}

absl::Status RawOwner::Establish() {
  device_->Progress();
  verbs::CmEvent event;
  if (!device_->NextEvent(&event)) return absl::OkStatus();
  switch (event.type) {
    case verbs::CmEventType::kConnectRequest:
      id_ = std::move(event.new_id);
      return id_->Accept(queues_->queue_pair(), {});
    case verbs::CmEventType::kEstablished:
      established_ = true;
      return absl::OkStatus();
    default:
      return absl::UnavailableError(absl::StrCat("not established: ", event.status.message()));
  }
}

absl::StatusOr<int> RawOwner::Turn() {
  absl::Span<const verbs::Completion> taken = std::exchange(taken_, {});
  if (taken.empty()) {
    BATON_ASSIGN_OR_RETURN(taken, queues_->Poll());
    if (taken.empty()) return 0;
  }
  for (const verbs::Completion& one : taken) {
    if (one.opcode == verbs::CompletionOpcode::kSend) {
      ++answered_;
      continue;
    }
    ++received_;
    queues_->Receive();
    queues_->Send(EchoQueues::BufferOf(one));
  }
  BATON_RETURN_IF_ERROR(queues_->Flush());
  return static_cast<int>(taken.size());
}

absl::Status RawOwner::Wait() {
  return PollingWait([this]() -> absl::StatusOr<bool> {
    BATON_ASSIGN_OR_RETURN(taken_, queues_->Poll());
    return !taken_.empty();
  });
}

namespace {

constexpr int kStartMs = 60'000;

class Listener final : public driver_process::EngineListener {
 public:
  void OnEvent(std::string_view, const std::string&, uint64_t, int, int) override {}
  void OnFenced(uint64_t) override {}
  void OnDeviceLost(const absl::Status&) override {}
};

// Serves until nobody has the other end of `life` any more.
absl::Status RunEngine(const BrokeredOwner::Open& open, arena::Arena* arena, FileDescriptor wake,
                       FileDescriptor life) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<verbs::Device> device, open());
  Listener listener;
  driver_process::EngineOptions options;
  options.yield_microseconds = EchoWorkerOptions().yield_microseconds;
  BATON_ASSIGN_OR_RETURN(const auto engine,
                         driver_process::Engine::Create(arena, device.get(), &listener, options));
  engine->AddWorker(0, kEchoWorkerId, std::move(wake));
  engine->succession().SetReady(0);
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, engine->Listen({"127.0.0.1", 0}));
  engine->Start();
  if (write(life.get(), &address.port, sizeof(address.port)) != sizeof(address.port)) {
    return ErrnoStatus(errno, "write");
  }
  pollfd entry = {life.get(), POLLIN, 0};
  while (poll(&entry, 1, -1) < 0 && errno == EINTR) {
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<BrokeredOwner>> BrokeredOwner::Start(const Open& open) {
  std::unique_ptr<BrokeredOwner> owner(new BrokeredOwner());
  BATON_RETURN_IF_ERROR(owner->Make(open));
  return owner;
}

BrokeredOwner::~BrokeredOwner() {
  if (worker_ != nullptr) worker_->Die();
  life_.Reset();
  if (engine_ < 0) return;
  while (waitpid(engine_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::Status BrokeredOwner::Make(const Open& open) {
  BATON_ASSIGN_OR_RETURN(arena::Arena arena, arena::Arena::Create(ShapeOfOne(0), "echo"));
  FileDescriptor engine_wake, worker_wake;
  BATON_RETURN_IF_ERROR(MakeStreams(&engine_wake, &worker_wake));
  BATON_RETURN_IF_ERROR(StartEngine(open, &arena, std::move(engine_wake)));
  return StartWorker(arena, std::move(worker_wake));
}

absl::Status BrokeredOwner::StartEngine(const Open& open, arena::Arena* arena,
                                        FileDescriptor wake) {
  FileDescriptor its;
  BATON_RETURN_IF_ERROR(MakeStreams(&life_, &its));
  engine_ = fork();
  if (engine_ < 0) return ErrnoStatus(errno, "fork");
  if (engine_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    life_.Reset();
    const absl::Status status = RunEngine(open, arena, std::move(wake), std::move(its));
    if (!status.ok()) std::fprintf(stderr, "the engine: %s\n", MessageOf(status).data());
    _exit(status.ok() ? 0 : 1);
  }
  its.Reset();
  pollfd entry = {life_.get(), POLLIN, 0};
  if (poll(&entry, 1, kStartMs) == 1 && read(life_.get(), &port_, sizeof(port_)) == sizeof(port_)) {
    return absl::OkStatus();
  }
  return absl::UnavailableError("the engine's process does not come up");
}

absl::Status BrokeredOwner::StartWorker(const arena::Arena& arena, FileDescriptor wake) {
  FileDescriptor session;
  BATON_RETURN_IF_ERROR(MakeStreams(&keeper_, &session));
  BATON_ASSIGN_OR_RETURN(arena::Arena attached, MapAgain(arena));
  worker_ = std::make_unique<WorkerImpl>(EchoWorkerOptions(), &service_);
  worker_->Connected(std::move(session));
  return worker_->Start(std::make_shared<const arena::Arena>(std::move(attached)), std::move(wake),
                        kEchoWorkerId, 0);
}

}  // namespace baton::bench

namespace {
BatonNativeHost* g_host = nullptr;  // of the worker that is made next
}  // namespace

extern "C" BatonNativeHost* baton_native_host() { return g_host; }

namespace baton::bench {

absl::StatusOr<std::unique_ptr<NativeOwner>> NativeOwner::Start(
    std::unique_ptr<verbs::Device> device) {
  std::unique_ptr<NativeOwner> owner(new NativeOwner(std::move(device)));
  BATON_RETURN_IF_ERROR(owner->Open());
  BATON_RETURN_IF_ERROR(owner->AddWorker());
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, owner->engine_->Listen({"127.0.0.1", 0}));
  owner->port_ = address.port;
  return owner;
}

// The worker bids its keeper farewell, and waits for no answer where that is gone.
NativeOwner::~NativeOwner() { keeper_.Reset(); }

absl::Status NativeOwner::Open() {
  BATON_ASSIGN_OR_RETURN(arena::Arena arena, arena::Arena::Create(ShapeOfOne(1), "echo"));
  arena_.emplace(std::move(arena));
  BATON_ASSIGN_OR_RETURN(engine_,
                         driver_process::NativeEngine::Create(&*arena_, device_.get(), this, {}));
  return absl::OkStatus();
}

absl::Status NativeOwner::AddWorker() {
  driver_process::NativeInheritance inheritance = engine_->InheritanceOf(0, kEchoWorkerId);
  inheritance.watch_deaths = false;
  FileDescriptor session;
  BATON_RETURN_IF_ERROR(MakeStreams(&keeper_, &session));
  BATON_ASSIGN_OR_RETURN(driver_, driver_process::NativeDriver::Create(std::move(inheritance)));
  arena_->ClearWorker(0);
  arena::StoreRelease(arena_->worker(0).thread_locks[0].futex, static_cast<uint32_t>(getpid()));
  worker_ = std::make_unique<WorkerImpl>(EchoWorkerOptions(), &service_);
  g_host = driver_->host();
  BATON_RETURN_IF_ERROR(worker_->FindNativeHost());
  worker_->Connected(std::move(session));
  FileDescriptor wake, keepers_wake;
  BATON_RETURN_IF_ERROR(MakeStreams(&wake, &keepers_wake));
  BATON_ASSIGN_OR_RETURN(arena::Arena arena, MapAgain(*arena_));
  BATON_RETURN_IF_ERROR(worker_->Start(std::make_shared<const arena::Arena>(std::move(arena)),
                                       std::move(wake), kEchoWorkerId, 0));
  engine_->AddWorker(0, kEchoWorkerId, std::move(keepers_wake), {},
                     driver_process::Standing::kFirst);
  engine_->succession().SetReady(0);
  return absl::OkStatus();
}

absl::Status NativeOwner::Establish() {
  engine_->Turn();
  return worker_->Poll().status();
}

}  // namespace baton::bench

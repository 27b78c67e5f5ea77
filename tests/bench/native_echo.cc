#include "tests/bench/native_echo.h"

#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <utility>

#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/bench/protocol.h"

namespace {
BatonNativeHost* g_host = nullptr;  // of the worker that is made next
}  // namespace

extern "C" BatonNativeHost* baton_native_host() { return g_host; }

namespace baton::bench {
namespace {

constexpr uint64_t kPatienceNs = 60'000'000'000;
constexpr uint64_t kWorkerId = 1;
// Turns of the NIC and of the peer without effect, after which nothing more comes.
constexpr int kIdleTurns = 64;

absl::Status MakePair(int type, FileDescriptor* one, FileDescriptor* other) {
  int pair[2];
  if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  one->Reset(pair[0]);
  other->Reset(pair[1]);
  return absl::OkStatus();
}

FileDescriptor Copy(int fd) { return FileDescriptor(dup(fd)); }

arena::Shape ShapeOfOne() {
  arena::Shape shape = {};
  shape.shards = shape.connections = shape.workers = shape.pooled_queue_pairs = 1;
  shape.send_queue_depth = shape.receive_queue_depth = NativeEcho::kDepth;
  shape.connection_state_bytes = shape.shard_state_bytes = 64;
  shape.buffer_bytes = 1 << 16;
  shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
  return shape;
}

}  // namespace

// ---------------------------------------------------------------- the NIC

absl::StatusOr<std::unique_ptr<ThreadedNic>> ThreadedNic::Start() {
  auto nic = std::make_unique<ThreadedNic>();
  BATON_ASSIGN_OR_RETURN(nic->nic_, nic::Nic::Make({}, [](const std::string& what) {
                           BATON_CHECK(what.empty());  // a client is wrong
                         }));
  FileDescriptor objects, ids;
  BATON_RETURN_IF_ERROR(MakePair(SOCK_SEQPACKET, &objects, &nic->objects_));
  BATON_RETURN_IF_ERROR(MakePair(SOCK_SEQPACKET, &ids, &nic->ids_));
  BATON_RETURN_IF_ERROR(nic->nic_->Add(std::move(objects)));
  BATON_RETURN_IF_ERROR(nic->nic_->Add(std::move(ids)));
  nic->thread_ = std::thread([raw = nic.get()] {
    while (!raw->stop_.load()) raw->nic_->Progress();
  });
  return nic;
}

absl::StatusOr<std::unique_ptr<verbs::Device>> ThreadedNic::OpenDevice() {
  return verbs::soft::OpenSoftDevice(std::move(objects_), std::move(ids_));
}

void ThreadedNic::Stop() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

// ---------------------------------------------------------------- the worker

absl::StatusOr<std::unique_ptr<NativeEcho>> NativeEcho::Start() {
  auto echo = std::make_unique<NativeEcho>();
  BATON_RETURN_IF_ERROR(echo->Open());
  BATON_RETURN_IF_ERROR(echo->AddWorker());
  BATON_RETURN_IF_ERROR(echo->Establish());
  echo->nic_->Stop();
  return echo;
}

// The NIC is gone when the device is destroyed, and answers none of its calls.
NativeEcho::~NativeEcho() { worker_->Die(); }

absl::Status NativeEcho::Open() {
  BATON_ASSIGN_OR_RETURN(nic_, ThreadedNic::Start());
  BATON_ASSIGN_OR_RETURN(device_, nic_->OpenDevice());
  BATON_ASSIGN_OR_RETURN(arena::Arena arena, arena::Arena::Create(ShapeOfOne(), "echo"));
  arena_.emplace(std::move(arena));
  BATON_ASSIGN_OR_RETURN(engine_, keeper::NativeEngine::Create(&*arena_, device_.get(), {}));
  engine_->SetListener(this);
  return absl::OkStatus();
}

absl::Status NativeEcho::AddWorker() {
  keeper::NativeInheritance inheritance = engine_->InheritanceOf(0, kWorkerId);
  inheritance.watch_deaths = false;
  FileDescriptor session;
  BATON_RETURN_IF_ERROR(MakePair(SOCK_STREAM, &keeper_, &session));
  BATON_ASSIGN_OR_RETURN(driver_, keeper::NativeDriver::Create(std::move(inheritance)));
  arena_->ClearWorker(0);
  arena::StoreRelease(arena_->worker(0).thread_locks[0].futex, static_cast<uint32_t>(getpid()));
  WorkerOptions options;
  options.control_stream = false;
  worker_ = std::make_unique<WorkerImpl>(options, static_cast<Service*>(this));
  g_host = driver_->host();
  BATON_RETURN_IF_ERROR(worker_->FindNativeDriver());
  worker_->Connected(std::move(session));
  FileDescriptor wake, keepers_wake;
  BATON_RETURN_IF_ERROR(MakePair(SOCK_STREAM, &wake, &keepers_wake));
  auto arena = arena::Arena::Attach(Copy(arena_->worker_log_fd()), Copy(arena_->driver_log_fd()),
                                    Copy(arena_->buffers_fd()));
  BATON_RETURN_IF_ERROR(arena.status());
  BATON_RETURN_IF_ERROR(worker_->Start(std::make_shared<const arena::Arena>(*std::move(arena)),
                                       std::move(wake), kWorkerId, 0));
  engine_->AddWorker(0, kWorkerId, std::move(keepers_wake), {}, keeper::Standing::kFirst);
  engine_->SetReady(0);
  return absl::OkStatus();
}

absl::Status NativeEcho::Establish() {
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, engine_->Listen({"127.0.0.1", 0}));
  auto peer = std::async(std::launch::async, [address] {
    return native::PeerConnection::Connect(address.host, address.port);
  });
  const uint64_t deadline = MonotonicNanoseconds() + kPatienceNs;
  while (!established_) {
    engine_->Turn();
    BATON_RETURN_IF_ERROR(worker_->Poll().status());
    if (peer_ != nullptr) {
      BATON_RETURN_IF_ERROR(peer_->Poll().status());  // its last word is still to be sent
    } else if (peer.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
      BATON_ASSIGN_OR_RETURN(peer_, peer.get());
    }
    if (MonotonicNanoseconds() > deadline) return absl::DeadlineExceededError("no connection");
  }
  return absl::OkStatus();
}

void NativeEcho::OnCompletion(Shard& shard, const Completion& completion) {
  BATON_CHECK(completion.status == verbs::CompletionStatus::kSuccess);
  Connection& connection = *completion.connection;
  const auto buffer_of = [](uint64_t sequence) {
    return Buffer{sequence % (2 * kDepth) * kMessageBytes, kMessageBytes};
  };
  const auto receive = [&] {
    const Buffer buffer = buffer_of(connection.next_receive());
    BATON_CHECK(shard.Receive(connection, {&buffer, 1}).ok());
  };
  switch (completion.kind) {
    case Completion::Kind::kConnectRequest:
      for (uint32_t i = 0; i < kDepth; ++i) receive();
      BATON_CHECK(shard.Accept(connection).ok());
      break;
    case Completion::Kind::kEstablished:
      established_ = true;
      break;
    case Completion::Kind::kReceive: {
      ++received_;
      receive();
      const Buffer answer = buffer_of(completion.sequence);
      SendWork work;
      work.buffers = {&answer, 1};
      BATON_CHECK(shard.Send(connection, work).ok());
      break;
    }
    case Completion::Kind::kSend:
      ++answered_;
      break;
    default:
      BATON_CHECK(false);  // the connection has ended
  }
}

// ---------------------------------------------------------------- messages

// TCP of the loopback device delivers in the call that sends, or soon.
void NativeEcho::Settle() {
  for (int idle = 0; idle < kIdleTurns; ++idle) {
    sched_yield();  // to the kernel's thread that delivers where the processor is busy
    if (nic_->Progress()) idle = 0;
    const auto slots = peer_->Poll();
    BATON_CHECK(slots.ok());
    for (const uint32_t slot : *slots) {
      idle = 0;
      ++peer_received_;
      BATON_CHECK(
          peer_->Receive(slot, kReceiveOffset + slot * sizeof(Message), sizeof(Message)).ok());
    }
  }
}

void NativeEcho::Ask(uint32_t messages) {
  for (uint32_t i = 0; i < messages; ++i) {
    BATON_CHECK(peer_->Send(kSendOffset + i * sizeof(Message), sizeof(Message)).ok());
  }
  BATON_CHECK(peer_->Flush().ok());
  Settle();
}

void NativeEcho::Turn() {
  const absl::StatusOr<int> work = worker_->Poll();
  BATON_CHECK(work.ok() && *work > 0);
}

void NativeEcho::Answer(uint32_t messages) {
  const uint64_t wanted = peer_received_ + messages;
  Settle();
  BATON_CHECK(peer_received_ == wanted);
}

}  // namespace baton::bench

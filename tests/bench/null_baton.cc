#include "tests/bench/null_baton.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "supervisor/driver/engine/engine.h"
#include "tests/bench/null_device.h"
#include "tests/harness/processors.h"

namespace baton::bench {
namespace {

constexpr int kStartMs = 60'000;

class Listener final : public driver_process::EngineListener {
 public:
  void OnEvent(std::string_view kind, const std::string& message, uint64_t, int, int) override {
    if (kind == "connection") return;
    std::fprintf(stderr, "null: %.*s: %s\n", static_cast<int>(kind.size()), kind.data(),
                 message.c_str());
  }
  void OnFenced(uint64_t) override {}
  void OnDeviceLost(const absl::Status&) override {}
};

// Grants and revokes as a keeper does for a worker that waits for each answer.
class Granter {
 public:
  Granter(driver_process::Engine* engine, uint64_t bytes)
      : engine_(*engine), bytes_(bytes), thread_([this] { Run(); }) {}
  ~Granter() {
    stop_.store(true);
    thread_.join();
  }

  static absl::Status Once(driver_process::Engine& engine, uint64_t bytes) {
    absl::StatusOr<uint32_t> grant;
    std::promise<absl::Status> registered, revoked;
    engine.Run([&] {
      grant = engine.ReserveGrant(0, bytes, verbs::kRemoteRead);
      if (!grant.ok()) return registered.set_value(grant.status());
      engine.RegisterGrant(*grant, [&](const absl::Status& done) { registered.set_value(done); });
    });
    BATON_RETURN_IF_ERROR(registered.get_future().get());
    engine.Run([&] {
      engine.RevokeGrant(*grant, [&](const absl::Status& done) { revoked.set_value(done); });
    });
    return revoked.get_future().get();
  }

 private:
  void Run() {
    absl::Status status;
    while (status.ok() && !stop_.load()) status = Once(engine_, bytes_);
    if (!status.ok()) std::fprintf(stderr, "null: a grant: %s\n", MessageOf(status).data());
  }

  driver_process::Engine& engine_;
  const uint64_t bytes_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Until nobody has the other end of `life` any more.
absl::Status Run(arena::Arena* arena, FileDescriptor wake, const NullEngineOptions& options,
                 int life) {
  NullDevice device(options.has_peer ? NullPeerKind::kThread : NullPeerKind::kNone, options.grants);
  Listener listener;
  driver_process::EngineOptions engine_options;
  engine_options.yield_microseconds = options.yield_microseconds;
  BATON_ASSIGN_OR_RETURN(const auto engine,
                         driver_process::Engine::Create(arena, &device, &listener, engine_options));
  engine->AddWorker(0, options.worker_id, std::move(wake));
  engine->succession().SetReady(0);
  BATON_RETURN_IF_ERROR(engine->Listen({"127.0.0.1", 1}).status());
  device.AddRequests(arena->shape().connections);
  engine->Start();
  if (options.processor >= 0) engine->Run([&] { harness::RunOnProcessor(options.processor); });
  std::optional<Granter> granter;
  if (options.grants) {
    const uint64_t bytes = arena->shape().buffer_bytes;
    BATON_RETURN_IF_ERROR(Granter::Once(*engine, bytes));  // it may be more than may be locked
    granter.emplace(engine.get(), bytes);
  }
  char byte = 0;
  if (write(life, &byte, 1) != 1) return ErrnoStatus(errno, "write");
  while (read(life, &byte, 1) < 0 && errno == EINTR) {
  }
  granter.reset();
  engine->Stop();
  return absl::OkStatus();
}

constexpr uint64_t kWorkerId = 1;
constexpr uint32_t kMessageBytes = 64;
constexpr uint64_t kStartNs = 60'000'000'000;

arena::Shape ShapeOf(const NullBatonOptions& options) {
  arena::Shape shape = {};
  shape.shards = 1;
  shape.connections = options.connections;
  shape.send_queue_depth = shape.receive_queue_depth = options.queue_depth;
  shape.connection_state_bytes = shape.shard_state_bytes = 64;
  shape.workers = 1;
  shape.buffer_bytes = options.buffer_bytes;
  shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
  return shape;
}

uint32_t NanosecondsSince(uint64_t began) {
  return static_cast<uint32_t>(std::min<uint64_t>(MonotonicNanoseconds() - began, UINT32_MAX));
}

FileDescriptor Copy(int fd) { return FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

absl::Status MakePair(FileDescriptor* ours, FileDescriptor* theirs) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  ours->Reset(pair[0]);
  theirs->Reset(pair[1]);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<NullEngine>> NullEngine::Start(arena::Arena* arena,
                                                              FileDescriptor wake,
                                                              const NullEngineOptions& options) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  FileDescriptor ours(pair[0]), its(pair[1]);
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ours.Reset();
    const absl::Status status = Run(arena, std::move(wake), options, its.get());
    if (!status.ok()) std::fprintf(stderr, "null: the engine: %s\n", MessageOf(status).data());
    _exit(status.ok() ? 0 : 1);
  }
  its.Reset();
  std::unique_ptr<NullEngine> engine(new NullEngine(pid, std::move(ours)));
  pollfd entry = {engine->life_.get(), POLLIN, 0};
  char byte = 0;
  if (poll(&entry, 1, kStartMs) != 1 || read(engine->life_.get(), &byte, 1) != 1) {
    kill(pid, SIGKILL);
    return absl::UnavailableError("the engine's process does not come up");
  }
  return engine;
}

NullEngine::~NullEngine() {
  life_.Reset();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::StatusOr<std::unique_ptr<NullBaton>> NullBaton::Start(const NullBatonOptions& options) {
  std::unique_ptr<NullBaton> baton(new NullBaton(options));
  BATON_RETURN_IF_ERROR(baton->CreateParts());
  BATON_RETURN_IF_ERROR(baton->EstablishAll());
  return baton;
}

NullBaton::~NullBaton() {
  if (worker_) worker_->Die();
  worker_.reset();
}

absl::Status NullBaton::CreateParts() {
  BATON_ASSIGN_OR_RETURN(arena::Arena driver, arena::Arena::Create(ShapeOf(options_), "null"));
  FileDescriptor session, engine_wake, worker_wake;
  BATON_RETURN_IF_ERROR(MakePair(&keeper_, &session));
  BATON_RETURN_IF_ERROR(MakePair(&engine_wake, &worker_wake));
  NullEngineOptions engine;
  engine.worker_id = kWorkerId;
  engine.yield_microseconds = options_.yield_microseconds;
  engine.has_peer = options_.has_peer;
  engine.processor = options_.engine_processor;
  engine.grants = options_.grants;
  BATON_ASSIGN_OR_RETURN(engine_, NullEngine::Start(&driver, std::move(engine_wake), engine));
  // A mapping of its own, as a worker's process has.
  BATON_ASSIGN_OR_RETURN(arena::Arena arena, arena::Arena::Map(Copy(driver.worker_log_fd()),
                                                               Copy(driver.driver_log_fd()),
                                                               Copy(driver.buffers_fd())));
  WorkerOptions options;
  options.commit_mode = CommitMode::kManual;
  options.yield_microseconds = options_.yield_microseconds;
  worker_ = std::make_unique<WorkerImpl>(options, static_cast<Service*>(this));
  worker_->Connected(std::move(session));
  return worker_->Start(std::make_shared<const arena::Arena>(std::move(arena)),
                        std::move(worker_wake), kWorkerId, 0);
}

absl::Status NullBaton::EstablishAll() {
  const uint64_t deadline = MonotonicNanoseconds() + kStartNs;
  while (connections_.size() < options_.connections) {
    BATON_RETURN_IF_ERROR(worker_->Poll().status());
    if (shard_ != nullptr) BATON_RETURN_IF_ERROR(shard_->Commit());
    if (MonotonicNanoseconds() > deadline) {
      return absl::DeadlineExceededError("the connections do not come up");
    }
  }
  return absl::OkStatus();
}

absl::Status NullBaton::Turn() {
  BATON_ASSIGN_OR_RETURN(const int work, worker_->Poll());
  return work == 0 ? worker_->Wait(-1) : absl::OkStatus();
}

absl::Status NullBaton::StageBatch(uint32_t batch, uint32_t active) {
  const Buffer buffer{0, kMessageBytes};
  SendWork work;
  work.opcode = verbs::Opcode::kWrite;
  work.buffers = {&buffer, 1};
  work.rkey = 1;
  for (uint32_t i = 0; i < batch; ++i) {
    BATON_RETURN_IF_ERROR(shard_->Send(*connections_[next_], work));
    if (++next_ == active) next_ = 0;
  }
  return shard_->Commit();
}

absl::Status NullBaton::StageMessage() {
  const Buffer buffer{0, kMessageBytes};
  BATON_RETURN_IF_ERROR(shard_->Receive(*connections_[0], {&buffer, 1}));
  SendWork work;
  work.buffers = {&buffer, 1};
  BATON_RETURN_IF_ERROR(shard_->Send(*connections_[0], work));
  return shard_->Commit();
}

absl::Status NullBaton::RoundTrip() {
  const uint64_t wanted = completed_ + 1;
  BATON_RETURN_IF_ERROR(options_.has_peer ? StageMessage() : StageBatch(1, 1));
  while (completed_ < wanted) BATON_RETURN_IF_ERROR(Turn());
  return absl::OkStatus();
}

absl::Status NullBaton::RoundTrips(uint32_t count, std::vector<uint32_t>* took_ns) {
  took_ns->reserve(took_ns->size() + count);
  next_ = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t began = MonotonicNanoseconds();
    BATON_RETURN_IF_ERROR(RoundTrip());
    took_ns->push_back(NanosecondsSince(began));
  }
  return absl::OkStatus();
}

absl::Status NullBaton::PacedRoundTrips(uint32_t count, uint32_t interval_us,
                                        std::vector<uint32_t>* took_ns) {
  took_ns->reserve(took_ns->size() + count);
  next_ = 0;
  uint64_t due = MonotonicNanoseconds();
  for (uint32_t i = 0; i < count; ++i) {
    due += uint64_t{interval_us} * 1000;
    uint64_t began = due;
    if (MonotonicNanoseconds() < due) {
      const timespec until = {static_cast<time_t>(due / 1'000'000'000),
                              static_cast<long>(due % 1'000'000'000)};
      clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
      began = MonotonicNanoseconds();
    }
    BATON_RETURN_IF_ERROR(RoundTrip());
    took_ns->push_back(NanosecondsSince(began));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> NullBaton::Stream(uint32_t count, uint32_t batch, uint32_t active,
                                         uint32_t window) {
  const uint64_t first = completed_;
  const uint64_t last = completed_ + count / batch * batch;
  uint64_t released = first;
  next_ = 0;
  const uint64_t began = MonotonicNanoseconds();
  while (completed_ < last) {
    while (released < last && released - completed_ + batch <= window) {
      BATON_RETURN_IF_ERROR(StageBatch(batch, active));
      released += batch;
    }
    BATON_RETURN_IF_ERROR(Turn());
  }
  return static_cast<double>(MonotonicNanoseconds() - began) * 1e-9;
}

// ---------------------------------------------------------------- service

absl::Status NullBaton::OnAdopt(Shard& shard) {
  shard_ = &shard;
  return absl::OkStatus();
}

void NullBaton::OnCompletion(Shard& shard, const Completion& completion) {
  switch (completion.kind) {
    case Completion::Kind::kSend:
      completed_ += options_.has_peer ? 0 : 1;
      break;
    case Completion::Kind::kReceive:
      ++completed_;
      break;
    case Completion::Kind::kConnectRequest:
      (void)shard.Accept(*completion.connection);
      break;
    case Completion::Kind::kEstablished:
      connections_.push_back(completion.connection);
      break;
    default:
      break;
  }
}

}  // namespace baton::bench

#include "tests/bench/null_engine.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "supervisor/driver/engine/engine.h"
#include "tests/bench/null_device.h"
#include "tests/bench/ping_pong.h"

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
  if (options.processor >= 0) engine->Run([&] { RunOnProcessor(options.processor); });
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

}  // namespace baton::bench

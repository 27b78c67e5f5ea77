// The ledger in a process that hangs on demand: a thread for each of its workers, each attached on
// its own, and each hangs alone while the others go on.
//
// Prints "ledger attached version=1 worker=N port=N thread=N" for each thread, then, when it may be
// given shards, "ledger ready …". Commands are lines on standard input, ended by the number of a
// thread:
//   serve        with --await-command, now may shards be given to it
//   spin, block  its next completion's handler never returns: it runs on, or waits for ever
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/common/flags.h"
#include "worker/examples/ledger/ledger_service.h"
#include "worker/worker.h"

namespace baton::ledger {
namespace {

enum class Hang { kNone, kSpin, kBlock };

struct Arguments {
  std::string socket, service, listen, name;
  uint32_t threads = 1;
  bool await_command = false;
  std::string hang_in;
  LedgerServiceOptions ledger;
};

[[noreturn]] void HangNow(Hang how) {
  if (how == Hang::kBlock) {
    int never_written[2];
    char byte;
    if (pipe(never_written) == 0) (void)!read(never_written[0], &byte, 1);
  }
  for (std::atomic<uint64_t> turns{0};;) turns.fetch_add(1);
}

class HangingLedger final : public LedgerService {
 public:
  HangingLedger(const LedgerServiceOptions& options, bool hangs_in_adopt)
      : LedgerService(options), hangs_in_adopt_(hangs_in_adopt) {}

  absl::Status OnAdopt(Shard& shard) override {
    if (hangs_in_adopt_) HangNow(Hang::kSpin);
    return LedgerService::OnAdopt(shard);
  }
  // In the middle of a transaction: something is staged and nothing committed.
  void OnCompletion(Shard& shard, const Completion& completion) override {
    LedgerService::OnCompletion(shard, completion);
    const Hang how = next.load();
    if (how != Hang::kNone) HangNow(how);
  }

  std::atomic<Hang> next{Hang::kNone};

 private:
  const bool hangs_in_adopt_;
};

class ServingThread {
 public:
  ServingThread(const Arguments& arguments, uint32_t index)
      : arguments_(arguments),
        index_(index),
        service_(arguments.ledger, arguments.hang_in == "adopt"),
        may_serve_(!arguments.await_command),
        thread_([this] { Run(); }) {}

  void Obey(const std::string& command) {
    if (command == "serve") {
      may_serve_.store(true);
      may_serve_.notify_one();
    }
    if (command == "spin") service_.next.store(Hang::kSpin);
    if (command == "block") service_.next.store(Hang::kBlock);
  }

 private:
  void Run() {
    const absl::Status status = Serve();
    std::fprintf(stderr, "thread %u ends: %s\n", index_, std::string(MessageOf(status)).c_str());
    _exit(status.ok() ? 0 : 1);
  }

  absl::Status Serve() {
    WorkerOptions options;
    options.socket = arguments_.socket;
    options.service = arguments_.service;
    options.name = absl::StrCat(arguments_.name, ".", index_);
    options.version = "v1";
    options.reads_state_version_min = kAccountStateVersion;
    options.reads_state_version_max = kAccountStateVersion;
    options.writes_state_version = kAccountStateVersion;
    BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker,
                           Worker::Attach(options, &service_));
    BATON_RETURN_IF_ERROR(service_.Fit(worker->capacity()));
    BATON_ASSIGN_OR_RETURN(const verbs::Address address, examples::ParseAddress(arguments_.listen));
    BATON_ASSIGN_OR_RETURN(const uint16_t port, worker->Listen(address.host, address.port));
    Tell("attached", *worker, port);
    may_serve_.wait(false);
    BATON_RETURN_IF_ERROR(worker->Ready());
    Tell("ready", *worker, port);
    if (arguments_.hang_in == "start") HangNow(Hang::kSpin);
    return worker->Run();
  }

  void Tell(const char* what, const Worker& worker, uint16_t port) const {
    const std::string line = absl::StrCat("ledger ", what, " version=1 worker=", worker.id(),
                                          " port=", port, " thread=", index_, "\n");
    (void)!write(STDOUT_FILENO, line.data(), line.size());
  }

  const Arguments& arguments_;
  const uint32_t index_;
  HangingLedger service_;
  std::atomic<bool> may_serve_;
  std::thread thread_;
};

int Main(int argc, char** argv) {
  Arguments arguments;
  examples::Flags flags("A ledger that hangs on demand.");
  flags.Add("--socket", &arguments.socket).Required();
  flags.Add("--service", &arguments.service).Required();
  flags.Add("--listen", &arguments.listen).Required();
  flags.Add("--name", &arguments.name);
  flags.Add("--window", &arguments.ledger.window);
  flags.Add("--message-size", &arguments.ledger.message_bytes);
  flags.Add("--threads", &arguments.threads);
  flags.Switch("--await-command", &arguments.await_command, "serve only when told so");
  flags.Add("--hang-in", &arguments.hang_in,
            "adopt: when it is given a shard; start: when it may be given one");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;

  std::deque<ServingThread> threads;
  for (uint32_t i = 0; i < arguments.threads; ++i) threads.emplace_back(arguments, i);
  std::string command;
  for (uint32_t thread = 0; std::cin >> command >> thread;) threads.at(thread).Obey(command);
  _exit(0);  // who commands us has gone
}

}  // namespace
}  // namespace baton::ledger

int main(int argc, char** argv) { return baton::ledger::Main(argc, argv); }

// bench-raw-server: what Baton is compared with, a server of one connection on raw verbs.
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/raw_connection.h"
#include "tests/harness/processors.h"
#include "worker/examples/common/flags.h"
#include "worker/examples/common/shared_memory.h"

namespace baton::bench {

// This shows what any broker costs. The server is in a process of its own. The process that has the
// queue pair tells it of completions, and is told what to post. There is nothing between the two
// but a ring each way; nothing is checked, and nothing outlives anybody.
//
// Serves `connection`, which is to be accepted; both sides poll and yield, until they rest. Returns
// with an error alone. The other process ends with this one. It is to be called while the process
// has no other thread.
absl::Status ServeThroughRelay(RawConnection& connection);

namespace {

struct Entry {
  uint64_t offset = 0;
  uint64_t remote_address = 0;
  uint32_t length = 0;
  uint32_t rkey = 0;
  uint32_t slot = 0;    // of a receive
  uint32_t opcode = 0;  // ibv_wc_opcode; to be posted: a Request
  uint32_t op = 0;      // of a kRemote
};

enum class Request : uint32_t { kReceive, kSend, kRemote };

// From one process to the other. It cannot be full: there are no more requests than slots.
class Ring {
 public:
  void Push(const Entry& entry) {
    entries_[tail_.load(std::memory_order_relaxed) % kEntries] = entry;
    tail_.fetch_add(1, std::memory_order_release);
  }
  bool Pop(Entry* entry) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    *entry = entries_[head % kEntries];
    head_.store(head + 1, std::memory_order_relaxed);
    return true;
  }

 private:
  static constexpr uint64_t kEntries = 1024;
  static_assert(kEntries >= 4 * kSlots);

  alignas(64) std::atomic<uint64_t> tail_{0};
  alignas(64) std::atomic<uint64_t> head_{0};
  alignas(64) std::array<Entry, kEntries> entries_;
};

struct Shared {
  Ring completions;
  Ring requests;
  alignas(64) std::atomic<uint64_t> handled{0};  // completions: what they ask for is in `requests`
  std::atomic<bool> resting{true};
};

// The server's end.
class RelayedQueue final : public Queue {
 public:
  explicit RelayedQueue(Ring* requests) : requests_(*requests) {}

  absl::Status Receive(uint32_t slot, size_t offset, uint32_t length) override {
    return Push({offset, 0, length, 0, slot, static_cast<uint32_t>(Request::kReceive), 0});
  }
  absl::Status Send(size_t offset, uint32_t length) override {
    return Push({offset, 0, length, 0, 0, static_cast<uint32_t>(Request::kSend), 0});
  }
  absl::Status Remote(Op op, size_t offset, uint32_t length, uint64_t remote_address,
                      uint32_t rkey) override {
    return Push({offset, remote_address, length, rkey, 0, static_cast<uint32_t>(Request::kRemote),
                 static_cast<uint32_t>(op)});
  }

 private:
  absl::Status Push(const Entry& entry) {
    requests_.Push(entry);
    return absl::OkStatus();
  }

  Ring& requests_;
};

template <typename Look>
void Await(const Look& look) {
  for (uint32_t looks = 0; !look();) harness::PauseOrYield(++looks);
}

absl::Status ServeRelayed(Shared& shared, uint8_t* slab, int wake) {
  RelayedQueue queue(&shared.requests);
  BenchServer server(slab, &queue);
  BATON_RETURN_IF_ERROR(server.Start());
  shared.handled.store(1, std::memory_order_release);
  for (;;) {
    Entry done;
    if (!shared.completions.Pop(&done)) {
      if (server.resting()) {
        eventfd_t value;
        if (eventfd_read(wake, &value) != 0 && errno != EINTR) return ErrnoStatus(errno, "read");
        continue;
      }
      Await([&] { return shared.completions.Pop(&done); });
    }
    const auto opcode = ibv_wc_opcode(done.opcode);
    BATON_RETURN_IF_ERROR(opcode == IBV_WC_RECV   ? server.OnReceived(done.slot)
                          : opcode == IBV_WC_SEND ? server.OnSent()
                                                  : server.OnRemoteDone());
    shared.resting.store(server.resting(), std::memory_order_relaxed);
    shared.handled.fetch_add(1, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
}

// The end of who has the queue pair.
class Relay {
 public:
  Relay(RawConnection* connection, Shared* shared, int wake)
      : connection_(*connection), shared_(*shared), wake_(wake) {}

  // Posts what the server has asked for. Returns whether it had.
  absl::StatusOr<bool> Post() {
    Entry entry;
    bool any = false;
    for (; shared_.requests.Pop(&entry); any = true) BATON_RETURN_IF_ERROR(PostOne(entry));
    if (any) BATON_RETURN_IF_ERROR(connection_.Flush());
    return any;
  }

  absl::Status Run() {
    uint32_t looks = 0;
    for (;;) {
      const bool idle = shared_.handled.load(std::memory_order_acquire) == told_ &&
                        shared_.resting.load(std::memory_order_relaxed);
      BATON_ASSIGN_OR_RETURN(const bool posted, Post());
      BATON_ASSIGN_OR_RETURN(absl::Span<const ibv_wc> taken, connection_.Poll());
      if (taken.empty() && idle && !posted) {
        BATON_ASSIGN_OR_RETURN(taken, connection_.Await());
      }
      for (const ibv_wc& done : taken) Tell(done);
      if (!taken.empty()) WakeServer();
      if (posted || !taken.empty()) {
        looks = 0;
      } else {
        harness::PauseOrYield(++looks);
      }
    }
  }

 private:
  absl::Status PostOne(const Entry& entry) {
    switch (Request(entry.opcode)) {
      case Request::kReceive:
        return connection_.Receive(entry.slot, entry.offset, entry.length);
      case Request::kSend:
        return connection_.Send(entry.offset, entry.length);
      case Request::kRemote:
        return connection_.Remote(Op(entry.op), entry.offset, entry.length, entry.remote_address,
                                  entry.rkey);
    }
    return absl::InternalError("no such request");
  }

  void Tell(const ibv_wc& done) {
    Entry entry;
    entry.opcode = static_cast<uint32_t>(done.opcode);
    entry.slot = static_cast<uint32_t>(done.wr_id);
    shared_.completions.Push(entry);
    ++told_;
  }

  // Its last look before it sleeps is Serve's.
  void WakeServer() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (shared_.resting.load(std::memory_order_relaxed)) eventfd_write(wake_, 1);
  }

  RawConnection& connection_;
  Shared& shared_;
  const int wake_;
  uint64_t told_ = 1;  // the first is that the server has started
};

struct Options {
  std::string host;
  bool polls = false;
  bool relays = false;
};

absl::Status Handle(BenchServer& server, const ibv_wc& done) {
  if (done.opcode == IBV_WC_RECV) return server.OnReceived(static_cast<uint32_t>(done.wr_id));
  return done.opcode == IBV_WC_SEND ? server.OnSent() : server.OnRemoteDone();
}

absl::Status Serve(const Options& options) {
  BATON_ASSIGN_OR_RETURN(const auto listener, RawListener::Create(options.host));
  std::printf("bench server ready port=%u\n", unsigned{listener->port()});
  std::fflush(stdout);
  BATON_ASSIGN_OR_RETURN(CmId request, listener->NextRequest());
  BATON_ASSIGN_OR_RETURN(const auto connection, RawConnection::Take(std::move(request)));
  if (options.relays) return ServeThroughRelay(*connection);
  BenchServer server(connection->slab(), connection.get());
  BATON_RETURN_IF_ERROR(server.Start());
  BATON_RETURN_IF_ERROR(connection->Flush());
  BATON_RETURN_IF_ERROR(connection->Accept());
  for (;;) {
    BATON_ASSIGN_OR_RETURN(absl::Span<const ibv_wc> taken, connection->Poll());
    if (taken.empty() && options.polls && !server.resting()) {
      sched_yield();
      continue;
    }
    if (taken.empty()) {
      BATON_ASSIGN_OR_RETURN(taken, connection->Await());
    }
    for (const ibv_wc& done : taken) BATON_RETURN_IF_ERROR(Handle(server, done));
    BATON_RETURN_IF_ERROR(connection->Flush());
  }
}

int Main(int argc, char** argv) {
  Options options;
  examples::Flags flags(
      "The server that `./run bench rdma` compares Baton with: raw verbs, one connection.");
  flags.Add("--host", &options.host, "IPv4 address of the device").Required();
  flags.Switch("--poll", &options.polls, "poll and yield, instead of waiting for events");
  flags.Switch("--relay", &options.relays,
               "in two processes: one polls and posts, the other serves");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  const absl::Status status = Serve(options);
  std::fprintf(stderr, "bench-raw-server: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace

absl::Status ServeThroughRelay(RawConnection& connection) {
  BATON_ASSIGN_OR_RETURN(const examples::SharedMemory memory,
                         examples::SharedMemory::Allocate(sizeof(Shared)));
  Shared& shared = *new (memory.base()) Shared;
  const FileDescriptor wake(eventfd(0, EFD_CLOEXEC));
  if (!wake) return ErrnoStatus(errno, "eventfd");
  std::signal(SIGCHLD, [](int) { _exit(1); });  // it has said why
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    const absl::Status status = ServeRelayed(shared, connection.slab(), wake.get());
    std::fprintf(stderr, "bench-raw-server: %s\n", std::string(status.message()).c_str());
    _exit(1);
  }
  Relay relay(&connection, &shared, wake.get());
  Await([&] { return shared.handled.load(std::memory_order_acquire) == 1; });
  BATON_RETURN_IF_ERROR(relay.Post().status());
  BATON_RETURN_IF_ERROR(connection.Accept());
  return relay.Run();
}

}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }

// bench-raw-echo: a server of many connections on raw verbs, which sends back what it is sent. It
// makes each connection's queue pair when it is asked for the connection, as such servers do.
#include <poll.h>
#include <sched.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/bench/raw_connection.h"
#include "worker/examples/common/flags.h"

namespace baton::bench {
namespace {

constexpr int kBacklog = 128;
// One that polls does so until nothing has come for so long: other servers are measured then.
constexpr uint64_t kRestAfterNs = 20'000'000;
constexpr uint32_t kTurnsPerLookForEvents = 32;

struct Options {
  std::string host;
  bool polls = false;
  uint32_t max_connections = 1;
};

class EchoServer {
 public:
  explicit EchoServer(const Options& options) : options_(options) {}

  absl::Status Listen() {
    BATON_ASSIGN_OR_RETURN(channel_, OpenEventChannel());
    BATON_ASSIGN_OR_RETURN(listener_, MakeId(channel_.get()));
    BATON_ASSIGN_OR_RETURN(sockaddr_in address, AddressOf(options_.host, 0));
    if (rdma_bind_addr(listener_.get(), reinterpret_cast<sockaddr*>(&address)) != 0) {
      return ErrnoStatus(errno, "rdma_bind_addr");
    }
    if (rdma_listen(listener_.get(), kBacklog) != 0) return ErrnoStatus(errno, "rdma_listen");
    BATON_ASSIGN_OR_RETURN(group_, RawGroup::Create(listener_->verbs, options_.max_connections));
    return absl::OkStatus();
  }
  unsigned port() const { return ntohs(rdma_get_src_port(listener_.get())); }

  absl::Status Serve() {
    uint64_t rest_at = 0;
    for (uint32_t turn = 0;; ++turn) {
      BATON_ASSIGN_OR_RETURN(const bool any, AnswerAll());
      if (any && options_.polls) rest_at = MonotonicNanoseconds() + kRestAfterNs;
      if (any) continue;
      if (MonotonicNanoseconds() < rest_at) {
        if (turn % kTurnsPerLookForEvents == 0) BATON_RETURN_IF_ERROR(TakeEvents());
        sched_yield();
        continue;
      }
      BATON_RETURN_IF_ERROR(Sleep());
    }
  }

 private:
  absl::StatusOr<bool> AnswerAll() {
    BATON_ASSIGN_OR_RETURN(const absl::Span<const RawGroup::Done> taken, group_->Poll());
    for (const RawGroup::Done& done : taken) {
      if (!done.received) continue;
      std::memcpy(group_->sent(done.connection, done.slot),
                  group_->received(done.connection, done.slot), kEchoBytes);
      BATON_RETURN_IF_ERROR(group_->Receive(done.connection, done.slot));
      BATON_RETURN_IF_ERROR(group_->Send(done.connection, done.slot));
    }
    return !taken.empty();
  }

  absl::Status Sleep() {
    BATON_RETURN_IF_ERROR(group_->RequestNotification());
    BATON_ASSIGN_OR_RETURN(const bool any, AnswerAll());
    if (any) return absl::OkStatus();
    pollfd fds[] = {{group_->completion_fd(), POLLIN, 0}, {channel_->fd, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    return fds[1].revents != 0 ? TakeEvents() : absl::OkStatus();
  }

  absl::Status TakeEvents() {
    for (;;) {
      BATON_ASSIGN_OR_RETURN(CmEventPointer event, NextEvent(channel_.get()));
      if (event == nullptr) return absl::OkStatus();
      rdma_cm_id* const id = event->id;
      const rdma_cm_event_type type = event->event;
      event.reset();
      if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
        BATON_RETURN_IF_ERROR(Accept(CmId(id)));
      } else if (type != RDMA_CM_EVENT_ESTABLISHED) {
        group_->Remove(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(id->context)));
      }
    }
  }

  absl::Status Accept(CmId request) {
    rdma_cm_id* const id = request.get();
    BATON_RETURN_IF_ERROR(group_->Add(std::move(request)).status());
    rdma_conn_param parameters = ConnectionParameters();
    return rdma_accept(id, &parameters) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "rdma_accept");
  }

  const Options options_;
  EventChannel channel_;
  CmId listener_;
  std::unique_ptr<RawGroup> group_;
};

absl::Status Serve(const Options& options) {
  EchoServer server(options);
  BATON_RETURN_IF_ERROR(server.Listen());
  std::printf("bench server ready port=%u\n", server.port());
  std::fflush(stdout);
  return server.Serve();
}

int Main(int argc, char** argv) {
  Options options;
  examples::Flags flags(
      "The server that `./run bench connections` compares Baton with: raw verbs.");
  flags.Add("--host", &options.host, "IPv4 address of the device").Required();
  flags.Add("--max-connections", &options.max_connections, "at once [1]");
  flags.Switch("--poll", &options.polls, "poll and yield, instead of waiting for events");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  const absl::Status status = Serve(options);
  std::fprintf(stderr, "bench-raw-echo: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }

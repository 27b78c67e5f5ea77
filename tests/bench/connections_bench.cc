// Many connections of which few are busy, on a real RDMA device: how fast they are made, and what
// those that are idle cost the others; Baton, brokered and native, beside raw verbs. `./run bench
// connections` starts it.
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
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
#include "lib/base/status.h"
#include "tests/bench/raw_connection.h"
#include "tests/bench/server.h"
#include "tests/bench/suite.h"
#include "worker/examples/common/flags.h"

namespace baton::bench {

// The client: many connections to one server, over raw verbs. Thread-compatible.
class EchoClient {
 public:
  static absl::StatusOr<std::unique_ptr<EchoClient>> Create(const std::string& host, uint16_t port,
                                                            uint32_t max_connections);

  // Until there are `total`; `under_way` of them are connecting at a time.
  absl::Status Connect(uint32_t total, uint32_t under_way);
  // `count` messages and back, one under way, in turns over the first `active` connections.
  absl::StatusOr<Timing> Echo(uint32_t count, uint32_t active);

 private:
  EchoClient(std::string host, uint16_t port, uint32_t max_connections, EventChannel channel)
      : host_(std::move(host)),
        port_(port),
        max_connections_(max_connections),
        channel_(std::move(channel)) {}

  absl::Status BeginOne();
  // Takes one step of one that is connecting.
  absl::Status TakeEvent(uint32_t* established);
  absl::Status Ask(rdma_cm_id* id);
  absl::Status Exchange(uint32_t connection, uint64_t number);

  const std::string host_;
  const uint16_t port_;
  const uint32_t max_connections_;
  EventChannel channel_;
  std::unique_ptr<RawGroup> group_;  // made when the first address is resolved
};

namespace {

constexpr int kStepTimeoutMs = 10'000;

constexpr uint32_t kActive = 4;
constexpr uint32_t kEchoes = 2000;
constexpr uint32_t kUnderWay = 16;
constexpr uint32_t kFewestForRate = 100;  // of those that a rate of connections is told of

struct Options {
  SuiteOptions suite;
  ServerOptions server;
  std::vector<uint32_t> connections = {1, 16, 256, 4096};

  uint32_t most() const { return *std::max_element(connections.begin(), connections.end()); }
  uint32_t fewest() const { return *std::min_element(connections.begin(), connections.end()); }
};

std::string EchoName(uint32_t connections, SideName side) {
  return absl::StrCat("echo_", connections, "_", NameOf(side));
}
std::string ConnectName(uint32_t connections, SideName side) {
  return absl::StrCat("connect_", connections, "_", NameOf(side));
}

void Compare(const Options& options, Suite* suite) {
  for (const SideName side : kSides) {
    suite->Compare(
        {absl::StrCat("echo_", options.most(), "_to_", options.fewest(), "_", NameOf(side)),
         EchoName(options.most(), side), EchoName(options.fewest(), side), Better::kLess});
  }
  for (const SideName side : {SideName::kBrokered, SideName::kNative}) {
    for (const uint32_t connections : options.connections) {
      suite->Compare({EchoName(connections, side) + "_to_polling", EchoName(connections, side),
                      EchoName(connections, SideName::kPolling), Better::kLess});
    }
    for (const uint32_t connections : options.connections) {
      if (connections < kFewestForRate) continue;
      // It looks for connections when it sleeps: as one that listens does.
      suite->Compare({ConnectName(connections, side) + "_to_events", ConnectName(connections, side),
                      ConnectName(connections, SideName::kEvents), Better::kMore});
    }
  }
}

void Draw(const Options& options, Suite* suite) {
  Plot plot{"idle", "64 bytes and back on 4 of many connections", "connections", "us, p50", {}};
  for (const SideName side : kSides) {
    Line line{NameOf(side), {}};
    for (const uint32_t n : options.connections) line.points.emplace_back(n, EchoName(n, side));
    plot.lines.push_back(std::move(line));
  }
  suite->Draw(std::move(plot));
}

class Connections {
 public:
  Connections(const Options& options, Suite* suite) : options_(options), suite_(*suite) {
    Compare(options, suite);
    Draw(options, suite);
  }

  absl::Status Run() {
    return suite_.Run([this](Round& round) {
      for (size_t i = 0; i < kSides.size(); ++i) {
        const SideName side = kSides[(i + round.number()) % kSides.size()];  // none always first
        const absl::Status status = Measure(side, round);
        if (!status.ok()) {
          return absl::Status(status.code(),
                              absl::StrCat(NameOf(side), ": ", std::string(status.message())));
        }
      }
      return absl::OkStatus();
    });
  }

 private:
  // Measures a new server, which has not had any connection before.
  absl::Status Measure(SideName side, Round& round) {
    BATON_ASSIGN_OR_RETURN(const auto server, Server::Start(side, options_.server));
    BATON_ASSIGN_OR_RETURN(const auto client, EchoClient::Create(options_.server.host,
                                                                 server->port(), options_.most()));
    uint32_t before = 0;
    for (const uint32_t connections : options_.connections) {
      absl::Status status = MeasureOne(*client, side, before, connections, round);
      if (!status.ok()) {
        server->DumpLogs();
        return status;
      }
      before = connections;
    }
    return absl::OkStatus();
  }

  absl::Status MeasureOne(EchoClient& client, SideName side, uint32_t before, uint32_t connections,
                          Round& round) {
    const uint64_t began = MonotonicNanoseconds();
    BATON_RETURN_IF_ERROR(client.Connect(connections, kUnderWay));
    const double seconds = static_cast<double>(MonotonicNanoseconds() - began) * 1e-9;
    if (connections >= kFewestForRate) {
      round.Set(ConnectName(connections, side), (connections - before) / seconds, "per second");
    }
    const uint32_t active = std::min(kActive, connections);
    const uint32_t count = suite_.Scaled(kEchoes, 2 * active);
    BATON_RETURN_IF_ERROR(client.Echo(std::max(active, count / 10), active).status());
    BATON_ASSIGN_OR_RETURN(const Timing timing, client.Echo(count, active));
    const std::string figure = EchoName(connections, side);
    round.Set(figure, timing.p50_us, "us, p50");
    round.Set(figure + "_p99", timing.p99_us, "us");
    std::fprintf(stderr, "connections: %-22s %8.1f us, made in %.3f s\n", figure.c_str(),
                 timing.p50_us, seconds);
    return absl::OkStatus();
  }

  const Options& options_;
  Suite& suite_;
};

absl::Status RunAndReport(Options options) {
  std::sort(options.connections.begin(), options.connections.end());
  options.server.max_connections = options.most();
  options.server.queue_depth = kEchoDepth;
  options.server.raw_arguments = {"--max-connections", absl::StrCat(options.most())};
  Suite suite("connections", options.suite);
  BATON_RETURN_IF_ERROR(Connections(options, &suite).Run());
  return suite.Report();
}

int Main(int argc, char** argv) {
  Options options;
  options.server.raw_program = "bench-raw-echo";
  options.server.worker_program = "bench-echo-worker";
  examples::Flags flags(
      "Making many connections over RDMA, and messages on a few of them: workers of Baton beside "
      "raw verbs.");
  AddSuiteOptions(flags, &options.suite);
  flags.Add("--device", &options.server.device, "rdma, or rdma:NAME [rdma]");
  flags.Add("--address", &options.server.host, "IPv4 address of the device").Required();
  flags.Add("--connections", &options.connections, "numbers of them [1,16,256,4096]")
      .SplitAtCommas()
      .Within(1, 8000);
  flags.Add("--bin", &options.server.binary_directory, "where the programs are [$BATON_BIN]");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  return ExitCode("connections", RunAndReport(options));
}

}  // namespace

absl::StatusOr<std::unique_ptr<EchoClient>> EchoClient::Create(const std::string& host,
                                                               uint16_t port,
                                                               uint32_t max_connections) {
  BATON_ASSIGN_OR_RETURN(EventChannel channel, OpenEventChannel());
  return std::unique_ptr<EchoClient>(
      new EchoClient(host, port, max_connections, std::move(channel)));
}

absl::Status EchoClient::Connect(uint32_t total, uint32_t under_way) {
  uint32_t established = group_ == nullptr ? 0 : group_->size();
  uint32_t begun = established;
  while (established < total) {
    for (; begun < std::min(total, established + under_way); ++begun) {
      BATON_RETURN_IF_ERROR(BeginOne());
    }
    BATON_RETURN_IF_ERROR(TakeEvent(&established));
  }
  return absl::OkStatus();
}

absl::Status EchoClient::BeginOne() {
  BATON_ASSIGN_OR_RETURN(CmId id, MakeId(channel_.get()));
  BATON_ASSIGN_OR_RETURN(sockaddr_in address, AddressOf(host_, port_));
  if (rdma_resolve_addr(id.get(), nullptr, reinterpret_cast<sockaddr*>(&address), kStepTimeoutMs) !=
      0) {
    return ErrnoStatus(errno, absl::StrCat("rdma_resolve_addr of ", host_));
  }
  (void)id.release();  // its events have it, until the group does
  return absl::OkStatus();
}

absl::Status EchoClient::TakeEvent(uint32_t* established) {
  pollfd fd = {channel_->fd, POLLIN, 0};
  if (poll(&fd, 1, kStepTimeoutMs) == 0) {
    return absl::DeadlineExceededError(absl::StrCat(
        "no step of a connection within ", kStepTimeoutMs, " ms, with ", *established, " made"));
  }
  BATON_ASSIGN_OR_RETURN(CmEventPointer event, NextEvent(channel_.get()));
  if (event == nullptr) return absl::OkStatus();
  rdma_cm_id* const id = event->id;
  const rdma_cm_event_type type = event->event;
  const int status = event->status;
  event.reset();
  switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (rdma_resolve_route(id, kStepTimeoutMs) == 0) return absl::OkStatus();
      return ErrnoStatus(errno, "rdma_resolve_route");
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      return Ask(id);
    case RDMA_CM_EVENT_ESTABLISHED:
      ++*established;
      return absl::OkStatus();
    default:
      return absl::UnavailableError(absl::StrCat("connection ", *established, ": ",
                                                 rdma_event_str(type), ", status ", status));
  }
}

absl::Status EchoClient::Ask(rdma_cm_id* id) {
  if (group_ == nullptr) {
    BATON_ASSIGN_OR_RETURN(group_, RawGroup::Create(id->verbs, max_connections_));
  }
  BATON_RETURN_IF_ERROR(group_->Add(CmId(id)).status());
  rdma_conn_param parameters = ConnectionParameters();
  return rdma_connect(id, &parameters) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "rdma_connect");
}

absl::StatusOr<Timing> EchoClient::Echo(uint32_t count, uint32_t active) {
  std::vector<uint32_t> took_ns;
  took_ns.reserve(count);
  const uint64_t began = MonotonicNanoseconds();
  uint64_t last = began;
  for (uint32_t i = 0; i < count; ++i) {
    BATON_RETURN_IF_ERROR(Exchange(i % active, i));
    const uint64_t now = MonotonicNanoseconds();
    took_ns.push_back(static_cast<uint32_t>(std::min<uint64_t>(now - last, UINT32_MAX)));
    last = now;
  }
  return TimingOf(last - began, took_ns);
}

// Until our send has completed, too: its slot is used again.
absl::Status EchoClient::Exchange(uint32_t connection, uint64_t number) {
  constexpr uint32_t kSlot = 0;
  std::memset(group_->sent(connection, kSlot), static_cast<int>(number & 0xff), kEchoBytes);
  std::memcpy(group_->sent(connection, kSlot), &number, sizeof(number));
  BATON_RETURN_IF_ERROR(group_->Send(connection, kSlot));
  bool sent = false, received = false;
  while (!sent || !received) {
    BATON_ASSIGN_OR_RETURN(const absl::Span<const RawGroup::Done> taken, group_->Poll());
    if (taken.empty()) sched_yield();
    for (const RawGroup::Done& done : taken) {
      if (done.connection != connection || (done.received ? received : sent)) {
        return absl::InternalError(absl::StrCat("a completion of connection ", done.connection,
                                                " while ", connection, " is asked"));
      }
      if (!done.received) {
        sent = true;
        continue;
      }
      received = true;
      if (std::memcmp(group_->received(connection, done.slot), group_->sent(connection, kSlot),
                      kEchoBytes) != 0) {
        return absl::InternalError(absl::StrCat("message ", number, " came back another one"));
      }
      BATON_RETURN_IF_ERROR(group_->Receive(connection, done.slot));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }

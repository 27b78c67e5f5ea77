// The data path of Baton on a real RDMA device, brokered and native, beside raw verbs: in one run,
// on one device, in turns. `./run bench rdma` starts it.
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/raw_connection.h"
#include "tests/bench/server.h"
#include "tests/bench/suite.h"
#include "worker/examples/common/flags.h"

namespace baton::bench {
namespace {

// ---- A server of each kind, our connection with it, and what it is asked for.

// The figure that a workload is there for.
enum class Figure : uint8_t {
  kLatency,    // of one at a time
  kRate,       // messages per second
  kBandwidth,  // bytes per second
};

// `count` operations one after the other, `window` of them under way.
struct Workload {
  const char* name;
  Op op;
  uint32_t size;
  uint32_t window;
  uint32_t count;
  Figure figure;
};
constexpr std::array<Workload, 13> kWorkloads = {{
    {"echo_64B", Op::kEcho, 64, 1, 4000, Figure::kLatency},
    {"write_64B", Op::kWrite, 64, 1, 4000, Figure::kLatency},
    {"read_64B", Op::kRead, 64, 1, 2000, Figure::kLatency},
    {"fetch_add", Op::kFetchAdd, kAtomicBytes, 1, 2000, Figure::kLatency},
    {"messages_batch_8", Op::kEcho, 64, 8, 12000, Figure::kRate},
    {"messages_batch_32", Op::kEcho, 64, 32, 16000, Figure::kRate},
    {"messages_batch_64", Op::kEcho, 64, 64, 16000, Figure::kRate},
    {"write_4KiB", Op::kWrite, 4096, 16, 8000, Figure::kBandwidth},
    {"write_64KiB", Op::kWrite, 65536, 16, 1000, Figure::kBandwidth},
    {"write_1MiB", Op::kWrite, 1048576, 16, 64, Figure::kBandwidth},
    {"read_4KiB", Op::kRead, 4096, 16, 4000, Figure::kBandwidth},
    {"read_64KiB", Op::kRead, 65536, 16, 500, Figure::kBandwidth},
    {"read_1MiB", Op::kRead, 1048576, 16, 32, Figure::kBandwidth},
}};

// The benchmark's client: raw verbs, towards one server at a time.
class Client {
 public:
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& host, uint16_t port);

  // `count` messages of 64 bytes and back, `window` of them under way. Polls, and yields when it
  // finds nothing.
  absl::StatusOr<Timing> Echo(uint32_t count, uint32_t window);
  // The server writes into our memory, or reads it, or adds to it, which does not involve us:
  // sleeps until it has.
  absl::StatusOr<Timing> Remote(Op op, uint32_t count, uint32_t window, uint32_t size);
  // A server that polls stops doing so.
  absl::Status Rest();

 private:
  explicit Client(std::unique_ptr<RawConnection> connection) : connection_(std::move(connection)) {}

  absl::Status Stage(Message request);
  absl::StatusOr<Message> Await();
  absl::Status CheckRemote(const Message& request, const Message& reply) const;
  absl::Status TakeReply(const ibv_wc& done);

  std::unique_ptr<RawConnection> connection_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  std::array<uint64_t, kSlots> sent_ns_ = {};  // by sequence number
  std::vector<uint32_t> took_ns_;
  Message last_;
};

class Side {
 public:
  static absl::StatusOr<std::unique_ptr<Side>> Start(SideName name, const ServerOptions& options);

  Client& client() { return *client_; }
  const Server& server() const { return *server_; }

 private:
  Side(std::unique_ptr<Server> server, std::unique_ptr<Client> client)
      : server_(std::move(server)), client_(std::move(client)) {}

  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& host, uint16_t port) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<RawConnection> connection,
                         RawConnection::Connect(host, port));
  return std::unique_ptr<Client>(new Client(std::move(connection)));
}

absl::Status Client::Stage(Message request) {
  request.sequence = sent_;
  const size_t offset = kSendOffset + sent_ % kSlots * sizeof(Message);
  std::memcpy(connection_->slab() + offset, &request, sizeof(request));
  sent_ns_[sent_ % kSlots] = MonotonicNanoseconds();
  ++sent_;
  return connection_->Send(offset, sizeof(Message));
}

// Into last_; the receive is staged again.
absl::Status Client::TakeReply(const ibv_wc& done) {
  const auto slot = static_cast<uint32_t>(done.wr_id);
  const size_t offset = kReceiveOffset + slot * sizeof(Message);
  std::memcpy(&last_, connection_->slab() + offset, sizeof(last_));
  if (done.byte_len != sizeof(Message) || last_.sequence != received_ || last_.failed != 0) {
    return absl::InternalError(absl::StrCat("reply ", received_, " is wrong: sequence number ",
                                            last_.sequence, ", failed: ", last_.failed));
  }
  ++received_;
  return connection_->Receive(slot, offset, sizeof(Message));
}

absl::StatusOr<Timing> Client::Echo(uint32_t count, uint32_t window) {
  if (window == 0 || window > kMaxEchoWindow) return absl::InvalidArgumentError("window");
  Message request;
  request.op = static_cast<uint32_t>(Op::kEcho);
  took_ns_.clear();
  took_ns_.reserve(count);
  const uint64_t last = sent_ + count;
  const uint64_t began = MonotonicNanoseconds();
  for (uint32_t i = 0; i < std::min(window, count); ++i) BATON_RETURN_IF_ERROR(Stage(request));
  BATON_RETURN_IF_ERROR(connection_->Flush());
  while (received_ < last) {
    BATON_ASSIGN_OR_RETURN(const absl::Span<const ibv_wc> taken, connection_->Poll());
    if (taken.empty()) {
      sched_yield();
      continue;
    }
    const uint64_t now = MonotonicNanoseconds();
    for (const ibv_wc& done : taken) {
      if (done.opcode != IBV_WC_RECV) continue;
      const uint64_t took = now - sent_ns_[received_ % kSlots];
      took_ns_.push_back(static_cast<uint32_t>(std::min<uint64_t>(took, UINT32_MAX)));
      BATON_RETURN_IF_ERROR(TakeReply(done));
      if (sent_ < last) BATON_RETURN_IF_ERROR(Stage(request));
    }
    BATON_RETURN_IF_ERROR(connection_->Flush());
  }
  return TimingOf(MonotonicNanoseconds() - began, took_ns_);
}

// The reply to the one request that is open.
absl::StatusOr<Message> Client::Await() {
  BATON_RETURN_IF_ERROR(connection_->Flush());
  while (received_ < sent_) {
    BATON_ASSIGN_OR_RETURN(const absl::Span<const ibv_wc> taken, connection_->Await());
    for (const ibv_wc& done : taken) {
      if (done.opcode == IBV_WC_RECV) BATON_RETURN_IF_ERROR(TakeReply(done));
    }
    BATON_RETURN_IF_ERROR(connection_->Flush());
  }
  return last_;
}

absl::StatusOr<Timing> Client::Remote(Op op, uint32_t count, uint32_t window, uint32_t size) {
  Message request;
  request.op = static_cast<uint32_t>(op);
  request.count = count;
  request.window = window;
  request.size = size;
  request.remote_address = connection_->payload_address();
  request.rkey = connection_->rkey();
  request.sequence = sent_;  // as Stage sets it
  uint8_t* const payload = connection_->slab() + kPayloadOffset;
  std::memset(payload, op == Op::kRead ? static_cast<int>(sent_ & 0x7f) + 1 : 0, size);
  BATON_RETURN_IF_ERROR(Stage(request));
  BATON_ASSIGN_OR_RETURN(const Message reply, Await());
  BATON_RETURN_IF_ERROR(CheckRemote(request, reply));
  return Timing{static_cast<double>(reply.total_ns) * 1e-9, reply.p50_ns * 1e-3,
                reply.p99_ns * 1e-3, reply.p999_ns * 1e-3};
}

absl::Status Client::CheckRemote(const Message& request, const Message& reply) const {
  const uint8_t* const payload = connection_->slab() + kPayloadOffset;
  const auto byte = static_cast<uint8_t>(request.sequence & 0xff);
  uint64_t sum = 0;
  switch (Op(request.op)) {
    case Op::kWrite:
      if (payload[0] == byte && payload[request.size - 1] == byte) return absl::OkStatus();
      return absl::InternalError("what was to be written is not there");
    case Op::kRead:
      if (reply.last_byte == (request.sequence & 0x7f) + 1) return absl::OkStatus();
      return absl::InternalError("what was to be read was not");
    default:
      std::memcpy(&sum, payload, sizeof(sum));
      if (sum == request.count) return absl::OkStatus();
      return absl::InternalError(
          absl::StrCat(request.count, " times 1 was to be added, and the sum is ", sum));
  }
}

absl::Status Client::Rest() {
  Message request;
  request.op = static_cast<uint32_t>(Op::kRest);
  BATON_RETURN_IF_ERROR(Stage(request));
  return Await().status();
}

absl::StatusOr<std::unique_ptr<Side>> Side::Start(SideName name, const ServerOptions& options) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Start(name, options));
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options.host, server->port());
  if (!client.ok()) {
    server->DumpLogs();
    return client.status();
  }
  return std::unique_ptr<Side>(new Side(std::move(server), *std::move(client)));
}

constexpr uint32_t kMaxConnections = 4;
constexpr std::array<SideName, 5> kCompared = {SideName::kPolling, SideName::kEvents,
                                               SideName::kBrokered, SideName::kNative,
                                               SideName::kRelayed};

struct Options {
  SuiteOptions suite;
  ServerOptions server;
  std::vector<std::string> only;
  std::vector<std::string> reference;
};

std::string FigureOf(const Workload& workload, SideName side) {
  return absl::StrCat(workload.name, "_", NameOf(side));
}

// What is asked of Baton, to what raw verbs do in the same round.
struct Goal {
  const char* workload;
  SideName side;
  SideName to;
  double bar;
};
constexpr std::array<Goal, 9> kGoals = {{
    {"write_64B", SideName::kBrokered, SideName::kPolling, 1.15},
    {"echo_64B", SideName::kBrokered, SideName::kEvents, 0.8},
    {"echo_64B", SideName::kBrokered, SideName::kPolling, 2.5},
    {"write_64KiB", SideName::kBrokered, SideName::kPolling, 0.95},
    {"write_4KiB", SideName::kBrokered, SideName::kPolling, 0.9},
    {"echo_64B", SideName::kNative, SideName::kPolling, 1.05},
    {"messages_batch_32", SideName::kNative, SideName::kPolling, 0.95},
    {"write_64KiB", SideName::kNative, SideName::kPolling, 0.95},
    {"write_4KiB", SideName::kNative, SideName::kPolling, 0.95},
}};

double BarOf(const Workload& workload, SideName side, SideName to) {
  for (const Goal& goal : kGoals) {
    if (std::string_view(goal.workload) == workload.name && goal.side == side && goal.to == to) {
      return goal.bar;
    }
  }
  return 0;
}

bool IsWanted(const std::vector<std::string>& only, const Workload& workload) {
  return only.empty() || std::find(only.begin(), only.end(), workload.name) != only.end();
}

void CompareSides(const std::vector<std::string>& only, Suite* suite) {
  for (const SideName side : {SideName::kBrokered, SideName::kNative}) {
    for (const SideName to : {SideName::kPolling, SideName::kEvents}) {
      for (const Workload& workload : kWorkloads) {
        if (!IsWanted(only, workload)) continue;
        suite->Compare({absl::StrCat(FigureOf(workload, side), "_to_", NameOf(to)),
                        FigureOf(workload, side), FigureOf(workload, to),
                        workload.figure == Figure::kLatency ? Better::kLess : Better::kMore,
                        BarOf(workload, side, to)});
      }
    }
  }
}

// What Baton adds to what any broker costs there, and what that is.
void CompareWithRelay(const std::vector<std::string>& only, Suite* suite) {
  for (const Workload& workload : kWorkloads) {
    if (!IsWanted(only, workload)) continue;
    const Better better = workload.figure == Figure::kLatency ? Better::kLess : Better::kMore;
    const std::string relayed = FigureOf(workload, SideName::kRelayed);
    suite->Compare(
        {relayed + "_to_polling", relayed, FigureOf(workload, SideName::kPolling), better});
    const std::string brokered = FigureOf(workload, SideName::kBrokered);
    suite->Compare({brokered + "_to_relayed", brokered, relayed, better});
  }
}

void DrawSides(Suite* suite) {
  Plot rates{"batches", "Messages of 64 bytes and back", "under way", "messages per second", {}};
  Plot writes{"writes", "WRITE, 16 under way", "bytes", "MB/s", {}};
  Plot reads{"reads", "READ, 16 under way", "bytes", "MB/s", {}};
  for (const SideName side : kCompared) {
    Line rate{NameOf(side), {}}, write{NameOf(side), {}}, read{NameOf(side), {}};
    for (const Workload& workload : kWorkloads) {
      const std::string figure = FigureOf(workload, side);
      if (workload.figure == Figure::kRate) rate.points.emplace_back(workload.window, figure);
      if (workload.figure != Figure::kBandwidth) continue;
      (workload.op == Op::kRead ? read : write).points.emplace_back(workload.size, figure);
    }
    rates.lines.push_back(rate);
    writes.lines.push_back(write);
    reads.lines.push_back(read);
  }
  for (Plot* plot : {&rates, &writes, &reads}) suite->Draw(std::move(*plot));
}

class Benchmark {
 public:
  Benchmark(const Options& options, Suite* suite) : options_(options), suite_(*suite) {
    CompareSides(options.only, suite);
    CompareWithRelay(options.only, suite);
    DrawSides(suite);
  }

  absl::Status Run() {
    BATON_RETURN_IF_ERROR(Start());
    absl::Status status = suite_.Run([this](Round& round) { return Measure(round); });
    if (!status.ok()) {
      for (const auto& side : sides_) side->server().DumpLogs();
    }
    return status;
  }

 private:
  absl::Status Start() {
    for (const SideName name : kCompared) {
      auto& side = sides_[static_cast<size_t>(name)];
      BATON_ASSIGN_OR_RETURN(side, Side::Start(name, options_.server));
      BATON_RETURN_IF_ERROR(side->client().Rest());
    }
    return absl::OkStatus();
  }

  absl::Status Measure(Round& round) {
    for (size_t i = 0; i < kWorkloads.size(); ++i) {
      if (!IsWanted(options_.only, kWorkloads[i])) continue;
      for (size_t j = 0; j < kCompared.size(); ++j) {
        const SideName side =
            kCompared[(i + j + round.number()) % kCompared.size()];  // none always first
        BATON_RETURN_IF_ERROR(MeasureOne(kWorkloads[i], side, round));
      }
    }
    return SetReferences(round);
  }

  absl::Status MeasureOne(const Workload& workload, SideName name, Round& round) {
    Side& side = *sides_[static_cast<size_t>(name)];
    const uint32_t count = suite_.Scaled(workload.count, 2 * workload.window);
    BATON_RETURN_IF_ERROR(Do(workload, side, std::max(workload.window, count / 10)).status());
    const Cost before = ReadCost(side.server().processes());
    BATON_ASSIGN_OR_RETURN(const Timing timing, Do(workload, side, count));
    const Cost cost = ReadCost(side.server().processes()) - before;
    BATON_RETURN_IF_ERROR(side.client().Rest());
    const std::string figure = FigureOf(workload, name);
    const double per_second = count / timing.seconds;
    switch (workload.figure) {
      case Figure::kLatency:
        round.Set(figure, timing.p50_us, "us, p50");
        round.Set(figure + "_p99", timing.p99_us, "us");
        round.Set(figure + "_p99.9", timing.p999_us, "us");
        break;
      case Figure::kRate:
        round.Set(figure, per_second, "per second");
        break;
      case Figure::kBandwidth:
        round.Set(figure, per_second * workload.size * 1e-6, "MB/s");
        break;
    }
    // Microseconds an operation are seconds a million.
    round.Set(figure + "_cpu", cost.running_us / count, "s of the server's processors per million");
    round.Set(figure + "_wait", cost.waiting_us / count, "s of waiting for one per million");
    round.Set(figure + "_sleeps", cost.sleeps / count, "per operation");
    return absl::OkStatus();
  }

  static absl::StatusOr<Timing> Do(const Workload& workload, Side& side, uint32_t count) {
    return workload.op == Op::kEcho
               ? side.client().Echo(count, workload.window)
               : side.client().Remote(workload.op, count, workload.window, workload.size);
  }

  absl::Status SetReferences(Round& round) const {
    for (const std::string& text : options_.reference) {
      const size_t equals = text.find('=');
      double value = 0;
      if (equals == std::string::npos || !absl::SimpleAtod(text.substr(equals + 1), &value)) {
        return absl::InvalidArgumentError(absl::StrCat("--reference ", text, ": NAME=VALUE"));
      }
      round.Set(text.substr(0, equals), value, "");
    }
    return absl::OkStatus();
  }

  const Options& options_;
  Suite& suite_;
  std::array<std::unique_ptr<Side>, kCompared.size()> sides_;
};

int Main(int argc, char** argv) {
  Options options;
  options.server.raw_program = "bench-raw-server";
  options.server.worker_program = "bench-worker";
  options.server.max_connections = kMaxConnections;
  options.server.queue_depth = kSlots;
  examples::Flags flags(
      "Messages, writes, reads and atomics of a worker of Baton over RDMA, beside the same over "
      "raw "
      "verbs.");
  AddSuiteOptions(flags, &options.suite);
  flags.Add("--device", &options.server.device, "rdma, or rdma:NAME [rdma]");
  flags.Add("--address", &options.server.host, "IPv4 address of the device").Required();
  flags.Add("--only", &options.only, "workloads, of all");
  flags.Add("--reference", &options.reference, "NAME=VALUE, a figure to be shown beside");
  flags.Add("--worker-argument", &options.server.worker_arguments, "for bench-worker");
  flags.Add("--bin", &options.server.binary_directory, "where the programs are [$BATON_BIN]");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  Suite suite("rdma", options.suite);
  absl::Status status = Benchmark(options, &suite).Run();
  if (status.ok()) status = suite.Report();
  return ExitCode("rdma", status);
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }

// A server of each kind, our connection with it, and what it is asked for.
#ifndef TESTS_BENCH_SIDE_H_
#define TESTS_BENCH_SIDE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/protocol.h"
#include "tests/bench/raw_connection.h"
#include "tests/bench/server.h"
#include "tests/bench/timing.h"

namespace baton::bench {

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
inline constexpr std::array<Workload, 13> kWorkloads = {{
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

}  // namespace baton::bench

#endif  // TESTS_BENCH_SIDE_H_

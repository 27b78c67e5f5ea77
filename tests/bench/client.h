// The benchmark's client: raw verbs, towards one server at a time.
#ifndef TESTS_BENCH_CLIENT_H_
#define TESTS_BENCH_CLIENT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/protocol.h"
#include "tests/bench/raw_connection.h"
#include "tests/bench/timing.h"

namespace baton::bench {

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

}  // namespace baton::bench

#endif  // TESTS_BENCH_CLIENT_H_

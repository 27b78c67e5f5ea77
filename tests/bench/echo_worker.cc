// bench-echo-worker: a worker of Baton, brokered or native, that sends back what it is sent, on
// many connections.
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "lib/base/status.h"
#include "tests/bench/worker_main.h"
#include "worker/worker.h"

namespace baton::bench {
namespace {

constexpr uint32_t kEchoBytes = 64;

class Echo final : public Service {
 public:
  void OnCompletion(Shard& shard, const Completion& done) override {
    const absl::Status status = Handle(shard, done);
    if (status.ok()) return;
    std::fprintf(stderr, "bench-echo-worker: %s\n", std::string(status.message()).c_str());
    shard.Disconnect(*done.connection).IgnoreError();
  }

 private:
  absl::Status Handle(Shard& shard, const Completion& done) {
    Connection& connection = *done.connection;
    if (done.kind == Completion::Kind::kConnectRequest) {
      while (connection.receive_room() > 0) BATON_RETURN_IF_ERROR(Receive(shard, connection));
      return shard.Accept(connection);
    }
    const bool message =
        done.kind == Completion::Kind::kReceive && done.status == verbs::CompletionStatus::kSuccess;
    if (!message) return absl::OkStatus();
    const Buffer from = ReceiveBuffer(shard, connection, done.sequence);
    const Buffer to = SendBuffer(shard, connection, connection.next_send());
    uint8_t* const buffers = shard.worker().buffers().data();
    std::memcpy(buffers + to.offset, buffers + from.offset, kEchoBytes);
    BATON_RETURN_IF_ERROR(Receive(shard, connection));
    SendWork work;
    work.buffers = {&to, 1};
    return shard.Send(connection, work);
  }

  static absl::Status Receive(Shard& shard, Connection& connection) {
    const Buffer buffer = ReceiveBuffer(shard, connection, connection.next_receive());
    return shard.Receive(connection, {&buffer, 1});
  }

  // Twice the depth of each queue (Connection::next_send).
  static Buffer ReceiveBuffer(Shard& shard, const Connection& connection, uint64_t sequence) {
    const Capacity& capacity = shard.worker().capacity();
    const uint64_t ring = uint64_t{2} * capacity.receive_queue_depth;
    const uint64_t slots = ring + uint64_t{2} * capacity.send_queue_depth;
    return {(connection.index() * slots + sequence % ring) * kEchoBytes, kEchoBytes};
  }
  static Buffer SendBuffer(Shard& shard, const Connection& connection, uint64_t sequence) {
    const Capacity& capacity = shard.worker().capacity();
    const uint64_t ring = uint64_t{2} * capacity.send_queue_depth;
    const uint64_t before = uint64_t{2} * capacity.receive_queue_depth;
    return {(connection.index() * (before + ring) + before + sequence % ring) * kEchoBytes,
            kEchoBytes};
  }
};

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  baton::bench::Echo service;
  return baton::bench::ServeWorker(argc, argv, "bench-echo-worker",
                                   "The server of `./run bench connections` as a worker of Baton.",
                                   &service);
}

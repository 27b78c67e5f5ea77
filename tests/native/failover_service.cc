// The native service of the failover bar: answers each message, and says who answers.
#include <unistd.h>

#include <array>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "lib/base/status.h"
#include "tests/native/message.h"
#include "worker/examples/common/flags.h"
#include "worker/worker.h"

namespace baton::native {
namespace {

class Failover : public Service {
 public:
  absl::Status OnAdopt(Shard&) override {
    began_ns_ = FailoverClock();
    return absl::OkStatus();
  }

  void OnCompletion(Shard& shard, const Completion& done) override {
    using Kind = Completion::Kind;
    Connection& connection = *done.connection;
    if (done.kind == Kind::kConnectRequest) {
      for (uint32_t slot = 0; slot < kFailoverReceives; ++slot) Receive(shard, connection, slot);
      shard.Accept(connection).IgnoreError();
    } else if (done.kind == Kind::kReceive && done.status == verbs::CompletionStatus::kSuccess) {
      Answer(shard, connection, static_cast<uint32_t>(done.tag));
    }
  }

 private:
  // The buffers of a connection are those of the messages received, then those of the replies.
  static Buffer BufferOf(const Connection& connection, uint32_t number) {
    return {
        (uint64_t{connection.index()} * 2 * kFailoverReceives + number) * sizeof(FailoverMessage),
        sizeof(FailoverMessage)};
  }
  static void Receive(Shard& shard, Connection& connection, uint32_t slot) {
    const std::array buffer = {BufferOf(connection, slot)};
    if (!shard.Receive(connection, buffer, slot).ok()) shard.Disconnect(connection).IgnoreError();
  }
  void Answer(Shard& shard, Connection& connection, uint32_t slot) const {
    uint8_t* const base = shard.worker().buffers().data();
    FailoverMessage message;
    std::memcpy(&message, base + BufferOf(connection, slot).offset, sizeof(message));
    message.server = static_cast<uint64_t>(getpid());
    message.began_ns = began_ns_;
    message.received_ns = FailoverClock();
    const std::array reply = {BufferOf(connection, kFailoverReceives + slot)};
    std::memcpy(base + reply[0].offset, &message, sizeof(message));
    Receive(shard, connection, slot);
    if (!shard.Send(connection, {.buffers = reply}).ok())
      shard.Disconnect(connection).IgnoreError();
  }

  uint64_t began_ns_ = 0;
};

absl::Status Serve(const WorkerOptions& options, const std::string& listen) {
  const size_t colon = listen.find(':');
  Failover service;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Attach(options, &service));
  BATON_RETURN_IF_ERROR(worker
                            ->Listen(listen.substr(0, colon),
                                     static_cast<uint16_t>(std::stoi(listen.substr(colon + 1))))
                            .status());
  return worker->Run();
}

int Main(int argc, char** argv) {
  WorkerOptions options;
  std::string listen;
  examples::Flags flags("The native service of the failover bar.");
  flags.Add("--socket", &options.socket, "the service's socket").Required();
  flags.Add("--service", &options.service, "name of the service").Required();
  flags.Add("--listen", &listen, "HOST:PORT").Required();
  flags.Add("--yield-microseconds", &options.yield_microseconds,
            "how long it yields before it sleeps");
  flags.Add("--realtime-priority", &options.realtime_priority, "of the serving thread");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  const absl::Status status = Serve(options, listen);
  if (status.ok()) return 0;
  std::cerr << "failover-service: " << status << "\n";
  return 1;
}

}  // namespace
}  // namespace baton::native

int main(int argc, char** argv) { return baton::native::Main(argc, argv); }

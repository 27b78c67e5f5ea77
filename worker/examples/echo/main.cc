// The smallest worker: sends back what it receives, across upgrades and crashes.
#include <array>
#include <iostream>

#include "worker/worker.h"

class Echo : public baton::Service {
  static constexpr uint32_t kBytes = 4096, kWindow = 16;

  // Each buffer belongs to one request at a time, which carries its number as the tag.
  static baton::Buffer BufferOf(const baton::Connection& connection, uint64_t tag,
                                uint32_t length) {
    return {(uint64_t{connection.index()} * kWindow + tag) * kBytes, length};
  }
  static void Receive(baton::Shard& shard, baton::Connection& connection, uint64_t tag) {
    const std::array buffer = {BufferOf(connection, tag, kBytes)};
    if (!shard.Receive(connection, buffer, tag).ok()) shard.Disconnect(connection).IgnoreError();
  }

  void OnCompletion(baton::Shard& shard, const baton::Completion& done) override {
    using Kind = baton::Completion::Kind;
    baton::Connection& connection = *done.connection;
    if (done.kind == Kind::kConnectRequest) {
      for (uint64_t tag = 0; tag < kWindow; ++tag) Receive(shard, connection, tag);
      shard.Accept(connection).IgnoreError();
    } else if (done.status == baton::verbs::CompletionStatus::kSuccess) {
      const std::array reply = {BufferOf(connection, done.tag, done.byte_len)};
      if (done.kind == Kind::kReceive) {
        shard.Send(connection, {.buffers = reply, .tag = done.tag}).IgnoreError();
      } else if (done.kind == Kind::kSend) {
        Receive(shard, connection, done.tag);
      }
    }
  }  // The batch is committed after this: what was received, sent and posted again, or none of it.
};

int main(int argc, char** argv) {
  Echo echo;
  auto worker =
      baton::Worker::Attach({.socket = argc > 1 ? argv[1] : "", .service = "echo"}, &echo);
  auto status = worker.ok() ? (*worker)->Listen("0.0.0.0", 7471).status() : worker.status();
  if (status.ok()) status = (*worker)->Run();
  std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

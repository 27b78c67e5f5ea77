// Sends back what it receives, across upgrades and crashes. echo.c is the same in C.
#include <baton/baton.hpp>
#include <iostream>

class Echo : public baton::Service {
  static constexpr uint32_t kBytes = 4096, kWindow = 16;

  // Each buffer belongs to one request at a time, which carries its number as the tag.
  static baton::Buffer BufferOf(baton::Connection connection, uint64_t tag, uint32_t length) {
    return {(uint64_t{connection.index()} * kWindow + tag) * kBytes, length};
  }
  static void Receive(baton::Shard shard, baton::Connection connection, uint64_t tag) {
    if (!shard.Receive(connection, BufferOf(connection, tag, kBytes), tag).ok()) {
      shard.Disconnect(connection);
    }
  }

  void OnCompletion(baton::Shard shard, const baton::Completion& done) override {
    const baton::Connection connection = done.connection;
    if (done.kind == BATON_CONNECT_REQUEST) {
      for (uint64_t tag = 0; tag < kWindow; ++tag) Receive(shard, connection, tag);
      shard.Accept(connection);
    } else if (done.status == BATON_SUCCESS && done.kind == BATON_RECEIVE) {
      baton::SendWork reply;
      reply.buffers = BufferOf(connection, done.tag, done.byte_len);
      reply.tag = done.tag;
      shard.Send(connection, reply);
    } else if (done.status == BATON_SUCCESS && done.kind == BATON_SEND) {
      Receive(shard, connection, done.tag);
    }
  }  // The batch is committed after this: what was received, sent and posted again, or none of it.
};

int main(int argc, char** argv) {
  Echo echo;
  baton::Worker worker;
  baton::WorkerOptions options;
  options.socket = argc > 1 ? argv[1] : "";
  options.service = "echo";
  options.version = "c++";
  baton::Status status = worker.Attach(options, &echo);
  if (status.ok()) status = worker.Listen("0.0.0.0", 7471);
  if (status.ok()) status = worker.Run();
  if (!status.ok()) std::cerr << "echo: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}

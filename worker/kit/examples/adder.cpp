// Adds up the numbers that a peer sends, a coroutine for each connection. The total is its state,
// so upgrades and crashes do not change it.
#include <baton/coroutine.hpp>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

class Adder final : public baton::CoroutineService {
  static constexpr uint32_t kBytes = 64;  // of a message

 public:
  Adder() : CoroutineService({.commit_mode = BATON_COMMIT_EACH_COMPLETION}) {}

  uint8_t* buffers = nullptr;

 private:
  // A connection has a buffer for a request, and one for an answer.
  static baton::Buffer BufferOf(baton::Connection connection, int which, uint32_t length) {
    return {(uint64_t{connection.index()} * 2 + which) * kBytes, length};
  }

  baton::Status OnConnectRequest(baton::Shard shard, baton::Connection connection) override {
    const baton::Status posted = shard.Receive(connection, BufferOf(connection, 0, kBytes));
    return posted.ok() ? shard.Accept(connection) : posted;
  }

  baton::CoTask Serve(baton::CoConnection& connection) override {
    const baton::Connection one = connection.connection();
    uint64_t total = 0;
    const baton::View state = connection.state();
    if (state.size == sizeof(total)) std::memcpy(&total, state.data, sizeof(total));
    for (uint64_t tag = 0;; ++tag) {
      const baton::Completion message = co_await connection.Receive();
      const baton::Buffer request = BufferOf(one, 0, message.byte_len);
      const std::string text(reinterpret_cast<const char*>(buffers + request.offset),
                             request.length);
      total += std::strtoull(text.c_str(), nullptr, 10);
      const std::string answer = std::to_string(total);
      baton::SendWork reply;
      reply.buffers = BufferOf(one, 1, static_cast<uint32_t>(answer.size()));
      std::memcpy(buffers + reply.buffers.data()->offset, answer.data(), answer.size());
      reply.tag = tag;
      baton::Shard shard = connection.shard();
      // All of it is committed with the message, or none of it.
      baton::Status staged = shard.SetState(one, &total, sizeof(total), /*version=*/1);
      if (staged.ok()) staged = shard.Send(one, reply);
      if (staged.ok()) staged = shard.Receive(one, BufferOf(one, 0, kBytes));
      if (!staged.ok()) co_return staged;
    }
  }

  void OnFailure(baton::Connection, const baton::Status& error) override {
    std::cerr << "adder: " << error.message() << "\n";
  }
};

int main(int argc, char** argv) {
  Adder adder;
  baton::Worker worker;
  baton::WorkerOptions options;
  options.socket = argc > 1 ? argv[1] : "";
  options.service = argc > 2 ? argv[2] : "adder";
  options.version = argc > 3 ? argv[3] : "1";
  options.commit_mode = BATON_COMMIT_EACH_COMPLETION;
  options.reads_state_version_max = options.writes_state_version = 1;
  baton::Status status = worker.Attach(options, &adder);
  if (status.ok()) {
    size_t length = 0;
    adder.buffers = worker.buffers(&length);
    status = worker.Listen("0.0.0.0", 7471);
  }
  if (status.ok()) status = worker.Run();
  if (!status.ok()) std::cerr << "adder: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}

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

  baton_capacity capacity = {};
  uint8_t* buffers = nullptr;

 private:
  // A connection has a buffer for requests, and behind it one for each answer that can be
  // outstanding: perhaps a dead worker's answer is still on its way.
  uint64_t FirstBuffer(baton::Connection connection) const {
    return connection.index() * (1 + uint64_t{2} * capacity.send_queue_depth);
  }
  baton::Buffer RequestBuffer(baton::Connection connection, uint32_t length) const {
    return {FirstBuffer(connection) * kBytes, length};
  }
  baton::Buffer AnswerBuffer(baton::Connection connection, uint32_t length) const {
    const uint64_t sends = uint64_t{2} * capacity.send_queue_depth;
    return {(FirstBuffer(connection) + 1 + connection.next_send() % sends) * kBytes, length};
  }

  baton::Status OnConnectRequest(baton::Shard shard, baton::Connection connection) override {
    const baton::Status posted = shard.Receive(connection, RequestBuffer(connection, kBytes));
    return posted.ok() ? shard.Accept(connection) : posted;
  }

  baton::CoTask Serve(baton::CoConnection& connection) override {
    const baton::Connection one = connection.connection();
    uint64_t total = 0;
    const baton::View state = connection.state();
    if (state.size == sizeof(total)) std::memcpy(&total, state.data, sizeof(total));
    for (;;) {
      const baton::Completion message = co_await connection.Receive();
      const baton::Buffer request = RequestBuffer(one, message.byte_len);
      const std::string text(reinterpret_cast<const char*>(buffers + request.offset),
                             request.length);
      total += std::strtoull(text.c_str(), nullptr, 10);
      const std::string answer = std::to_string(total);
      baton::SendWork reply;
      reply.buffers = AnswerBuffer(one, static_cast<uint32_t>(answer.size()));
      std::memcpy(buffers + reply.buffers.data()->offset, answer.data(), answer.size());
      baton::Shard shard = connection.shard();
      // All of it is committed with the message, or none of it.
      baton::Status staged = shard.SetState(one, &total, sizeof(total), /*version=*/1);
      if (staged.ok()) staged = shard.Send(one, reply);
      if (staged.ok()) staged = shard.Receive(one, RequestBuffer(one, kBytes));
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
    adder.capacity = worker.capacity();
    adder.buffers = worker.buffers(&length);
    status = worker.Listen("0.0.0.0", 7471);
  }
  if (status.ok()) status = worker.Run();
  if (!status.ok()) std::cerr << "adder: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}

// Adds up the numbers that each peer sends, and answers each with the total so far.
//   @NAME@ SOCKET PORT
//
// A transaction is committed after each completion: a number's total and its answer, or none of
// them. So a total counts each number once, whichever worker dies, and when.
#include <baton/baton.hpp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

class Adder : public baton::Service {
 public:
  void set_buffers(uint8_t* buffers) { buffers_ = buffers; }

 private:
  static constexpr uint32_t kFormat = 1;  // of a connection's state: one uint64_t, its total
  static constexpr uint32_t kBytes = 64, kWindow = 16;

  // Each request and each answer has a buffer of its own. An answer may not be written over the
  // request: if this worker dies before the commit, the next one reads the request again.
  static baton::Buffer RequestBuffer(baton::Connection connection, uint64_t tag, uint32_t length) {
    return {(uint64_t{connection.index()} * kWindow + tag) * 2 * kBytes, length};
  }
  static baton::Buffer AnswerBuffer(baton::Connection connection, uint64_t tag, uint32_t length) {
    return {RequestBuffer(connection, tag, 0).offset + kBytes, length};
  }
  // Returns what was committed last. A second message in the same transaction would not see the
  // first's, so there is none: BATON_COMMIT_EACH_COMPLETION.
  static uint64_t TotalOf(baton::Connection connection) {
    uint64_t total = 0;  // a new connection has no state
    const baton::View state = connection.state();
    if (state.size == sizeof(total)) std::memcpy(&total, state.data, sizeof(total));
    return total;
  }

  static baton::Status Receive(baton::Shard shard, baton::Connection connection, uint64_t tag) {
    return shard.Receive(connection, RequestBuffer(connection, tag, kBytes), tag);
  }

  baton::Status Answer(baton::Shard shard, const baton::Completion& done) {
    const baton::Buffer request = RequestBuffer(done.connection, done.tag, done.byte_len);
    const std::string number(reinterpret_cast<char*>(buffers_ + request.offset), request.length);
    const uint64_t total = TotalOf(done.connection) + std::strtoull(number.c_str(), nullptr, 10);
    const std::string text = std::to_string(total);
    const baton::Buffer answer =
        AnswerBuffer(done.connection, done.tag, static_cast<uint32_t>(text.size()));
    std::memcpy(buffers_ + answer.offset, text.data(), text.size());
    baton::SendWork work;
    work.buffers = answer;
    work.tag = done.tag;
    baton::Status status = shard.SetState(done.connection, &total, sizeof(total), kFormat);
    return status.ok() ? shard.Send(done.connection, work) : status;
  }

  baton::Status OnConnect(baton::Shard shard, baton::Connection connection) {
    baton::Status status;
    for (uint64_t tag = 0; status.ok() && tag < kWindow; ++tag) {
      status = Receive(shard, connection, tag);
    }
    return status.ok() ? shard.Accept(connection) : status;
  }

  void OnCompletion(baton::Shard shard, const baton::Completion& done) override {
    baton::Status status;
    if (done.kind == BATON_CONNECT_REQUEST) {
      status = OnConnect(shard, done.connection);
    } else if (done.status == BATON_SUCCESS && done.kind == BATON_RECEIVE) {
      status = Answer(shard, done);
    } else if (done.status == BATON_SUCCESS && done.kind == BATON_SEND) {
      status = Receive(shard, done.connection, done.tag);  // its answer's buffer is free, too
    }
    if (status.ok()) return;
    std::cerr << "@NAME@: " << status.message() << "\n";
    shard.Disconnect(done.connection);
  }

  uint8_t* buffers_ = nullptr;
};

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: @NAME@ SOCKET PORT\n";
    return 2;
  }
  Adder adder;
  baton::Worker worker;
  baton::WorkerOptions options;
  options.socket = argv[1];
  options.service = "@NAME@";
  options.version = "1";
  options.reads_state_version_min = options.reads_state_version_max = 1;
  options.writes_state_version = 1;
  options.commit_mode = BATON_COMMIT_EACH_COMPLETION;
  baton::Status status = worker.Attach(options, &adder);
  if (status.ok()) {
    size_t bytes = 0;
    adder.set_buffers(worker.buffers(&bytes));
    status = worker.Listen("0.0.0.0", static_cast<uint16_t>(std::atoi(argv[2])));
  }
  if (status.ok()) status = worker.Run();
  if (!status.ok()) std::cerr << "@NAME@: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}

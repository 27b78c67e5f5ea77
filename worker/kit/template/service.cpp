// Adds up the numbers that each peer sends, and answers each with the total so far.
//   @NAME@ SOCKET PORT
//
// A transaction is committed after each completion: a number's total, its answer and the receive
// that is posted again, or none of them. So a total counts each number once, whichever worker dies,
// and when.
//
// The connections of a shard share its receives (shared_receive_queue_depth of the service): one
// that is idle needs none.
#include <baton/baton.hpp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

class Adder : public baton::Service {
 public:
  // REQUIRES: the worker is attached.
  baton::Status Use(const baton::Worker& worker) {
    size_t bytes = 0;
    buffers_ = worker.buffers(&bytes);
    capacity_ = worker.capacity();
    if (capacity_.shared_receive_queue_depth != 0) return {};
    return {BATON_FAILED_PRECONDITION, "the service needs a shared_receive_queue_depth"};
  }

 private:
  static constexpr uint32_t kFormat = 1;  // of a connection's state: one uint64_t, its total
  static constexpr uint32_t kBytes = 64;  // of a message

  // Each request and each answer has a buffer of its own. An answer may not be written over the
  // request: if this worker dies before the commit, the next one reads the request again.
  //
  // The buffers of a shard's receives, one for each slot, are behind those of all answers.
  baton::Buffer RequestBuffer(baton::Shard shard, uint64_t slot, uint32_t length) const {
    const uint64_t answers = uint64_t{capacity_.connections} * 2 * capacity_.send_queue_depth;
    const uint64_t receives = uint64_t{shard.index()} * 2 * capacity_.shared_receive_queue_depth;
    return {(answers + receives + slot) * kBytes, length};
  }
  // Returns a part of the buffers for the next send. No other that is outstanding has it.
  baton::Buffer AnswerBuffer(baton::Connection connection, uint32_t length) const {
    const uint64_t sends = uint64_t{2} * capacity_.send_queue_depth;
    return {(connection.index() * sends + connection.next_send() % sends) * kBytes, length};
  }
  // Returns what was committed last. A second message in the same transaction would not see the
  // first's, so there is none: BATON_COMMIT_EACH_COMPLETION.
  static uint64_t TotalOf(baton::Connection connection) {
    uint64_t total = 0;  // a new connection has no state
    const baton::View state = connection.state();
    if (state.size == sizeof(total)) std::memcpy(&total, state.data, sizeof(total));
    return total;
  }

  // Receives outlive workers: the first owner posts all, each owner one for each that completed.
  baton::Status PostReceives(baton::Shard shard) const {
    baton::Status status;
    while (status.ok() && shard.shared_receive_room() > 0) {
      status = shard.ReceiveShared(RequestBuffer(shard, shard.next_shared_receive(), kBytes));
    }
    return status;
  }
  bool OnAdopt(baton::Shard shard) override { return PostReceives(shard).ok(); }

  baton::Status Answer(baton::Shard shard, const baton::Completion& done) {
    const baton::Buffer request = RequestBuffer(shard, done.sequence, done.byte_len);
    const std::string number(reinterpret_cast<char*>(buffers_ + request.offset), request.length);
    const uint64_t total = TotalOf(done.connection) + std::strtoull(number.c_str(), nullptr, 10);
    const std::string text = std::to_string(total);
    const auto length = static_cast<uint32_t>(text.size());
    const baton::Buffer answer = AnswerBuffer(done.connection, length);
    std::memcpy(buffers_ + answer.offset, text.data(), text.size());
    baton::SendWork work;
    work.buffers = answer;
    baton::Status status = shard.SetState(done.connection, &total, sizeof(total), kFormat);
    return status.ok() ? shard.Send(done.connection, work) : status;
  }

  void OnCompletion(baton::Shard shard, const baton::Completion& done) override {
    baton::Status status;
    if (done.kind == BATON_CONNECT_REQUEST) {
      status = shard.Accept(done.connection);
    } else if (done.kind == BATON_RECEIVE) {
      if (done.status == BATON_SUCCESS) status = Answer(shard, done);
      const baton::Status posted = PostReceives(shard);
      if (status.ok()) status = posted;
    }
    if (status.ok()) return;
    std::cerr << "@NAME@: " << status.message() << "\n";
    shard.Disconnect(done.connection);
  }

  uint8_t* buffers_ = nullptr;
  baton_capacity capacity_ = {};
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
  if (status.ok()) status = adder.Use(worker);
  if (status.ok()) {
    status = worker.Listen("0.0.0.0", static_cast<uint16_t>(std::atoi(argv[2])));
  }
  if (status.ok()) status = worker.Run();
  if (!status.ok()) std::cerr << "@NAME@: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}

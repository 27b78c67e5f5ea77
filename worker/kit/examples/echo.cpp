// Sends back what it receives, across upgrades and crashes. echo.c is the same in C.
//
// The connections of a shard share its receives (shared_receive_queue_depth of the service): one
// that is idle needs none.
#include <baton/baton.hpp>
#include <cstring>
#include <iostream>

class Echo : public baton::Service {
 public:
  baton_capacity capacity = {};
  uint8_t* buffers = nullptr;

 private:
  static constexpr uint32_t kBytes = 1024;

  // The buffers of a shard's receives, one for each slot, are behind those of all answers.
  baton::Buffer RequestBuffer(baton::Shard shard, uint64_t slot, uint32_t length) const {
    const uint64_t answers = uint64_t{capacity.connections} * 2 * capacity.send_queue_depth;
    const uint64_t receives = uint64_t{shard.index()} * 2 * capacity.shared_receive_queue_depth;
    return {(answers + receives + slot) * kBytes, length};
  }
  // Returns a part of the buffers for the next send. No other that is outstanding has it.
  baton::Buffer AnswerBuffer(baton::Connection connection, uint32_t length) const {
    const uint64_t sends = uint64_t{2} * capacity.send_queue_depth;
    return {(connection.index() * sends + connection.next_send() % sends) * kBytes, length};
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

  baton::Status Answer(baton::Shard shard, const baton::Completion& done) const {
    const baton::Buffer request = RequestBuffer(shard, done.sequence, done.byte_len);
    const baton::Buffer answer = AnswerBuffer(done.connection, done.byte_len);
    std::memcpy(buffers + answer.offset, buffers + request.offset, request.length);
    baton::SendWork work;
    work.buffers = answer;
    return shard.Send(done.connection, work);
  }

  void OnCompletion(baton::Shard shard, const baton::Completion& done) override {
    if (done.kind == BATON_CONNECT_REQUEST) {
      shard.Accept(done.connection);
    } else if (done.kind == BATON_RECEIVE) {
      if (done.status == BATON_SUCCESS && !Answer(shard, done).ok()) {
        shard.Disconnect(done.connection);
      }
      PostReceives(shard);
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
  if (status.ok()) {
    size_t length = 0;
    echo.buffers = worker.buffers(&length);
    echo.capacity = worker.capacity();
    status = echo.capacity.shared_receive_queue_depth != 0
                 ? worker.Listen("0.0.0.0", 7471)
                 : baton::Status(BATON_FAILED_PRECONDITION,
                                 "the service needs a shared_receive_queue_depth");
  }
  if (status.ok()) status = worker.Run();
  if (!status.ok()) std::cerr << "echo: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}

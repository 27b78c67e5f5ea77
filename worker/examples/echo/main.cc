// The smallest worker: sends back what it receives, across upgrades and crashes. The connections of
// a shard share its receives (shared_receive_queue_depth of the service): one that is idle needs
// none.
#include <algorithm>
#include <array>
#include <iostream>

#include "worker/worker.h"

class Echo : public baton::Service {
  static constexpr uint32_t kBytes = 1024;

  // The buffers of a shard's receives, one for each slot, are behind those of all answers.
  static baton::Buffer RequestBuffer(const baton::Shard& shard, uint64_t slot, uint32_t length) {
    const baton::Capacity& capacity = shard.worker().capacity();
    const uint64_t answers = uint64_t{capacity.connections} * 2 * capacity.send_queue_depth;
    const uint64_t receives = uint64_t{shard.index()} * 2 * capacity.shared_receive_queue_depth;
    return {(answers + receives + slot) * kBytes, length};
  }
  // Returns a part of the buffers for the next send. No other that is outstanding has it.
  static baton::Buffer AnswerBuffer(const baton::Shard& shard, const baton::Connection& connection,
                                    uint32_t length) {
    const uint64_t sends = uint64_t{2} * shard.worker().capacity().send_queue_depth;
    return {(connection.index() * sends + connection.next_send() % sends) * kBytes, length};
  }

  // Receives outlive workers: the first owner posts all, each owner one for each that completed.
  static absl::Status PostReceives(baton::Shard& shard) {
    absl::Status status;
    while (status.ok() && shard.shared_receive_room() > 0) {
      status = shard.ReceiveShared(
          std::array{RequestBuffer(shard, shard.next_shared_receive(), kBytes)});
    }
    return status;
  }
  absl::Status OnAdopt(baton::Shard& shard) override { return PostReceives(shard); }

  void OnCompletion(baton::Shard& shard, const baton::Completion& done) override {
    using Kind = baton::Completion::Kind;
    if (done.kind == Kind::kConnectRequest) shard.Accept(*done.connection).IgnoreError();
    if (done.kind != Kind::kReceive) return;
    if (done.status == baton::verbs::CompletionStatus::kSuccess) {
      const baton::Buffer request = RequestBuffer(shard, done.sequence, done.byte_len);
      const std::array answer = {AnswerBuffer(shard, *done.connection, done.byte_len)};
      uint8_t* const buffers = shard.worker().buffers().data();
      std::copy_n(buffers + request.offset, request.length, buffers + answer[0].offset);
      const absl::Status sent = shard.Send(*done.connection, {.buffers = answer});
      if (!sent.ok()) shard.Disconnect(*done.connection).IgnoreError();
    }
    PostReceives(shard).IgnoreError();
  }  // The batch is committed after this: what was received, sent and posted again, or none of it.
};

int main(int argc, char** argv) {
  Echo echo;
  auto worker =
      baton::Worker::Attach({.socket = argc > 1 ? argv[1] : "", .service = "echo"}, &echo);
  auto status = worker.status();
  if (status.ok() && (*worker)->capacity().shared_receive_queue_depth == 0) {
    status = absl::FailedPreconditionError("the service needs a shared_receive_queue_depth");
  }
  if (status.ok()) status = (*worker)->Listen("0.0.0.0", 7471).status();
  if (status.ok()) status = (*worker)->Run();
  std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

// bench-worker: the benchmark's server as a worker of Baton, brokered or native.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/worker_main.h"
#include "worker/worker.h"

namespace baton::bench {
namespace {

verbs::Opcode OpcodeOf(Op op) {
  switch (op) {
    case Op::kRead:
      return verbs::Opcode::kRead;
    case Op::kFetchAdd:
      return verbs::Opcode::kFetchAndAdd;
    default:
      return verbs::Opcode::kWrite;
  }
}

class BenchConnection final : public Queue {
 public:
  BenchConnection(Shard& shard, Connection& connection)
      : shard_(shard),
        connection_(connection),
        base_(connection.index() * kSlabBytes),
        server_(shard.worker().buffers().data() + base_, this) {}

  absl::Status Handle(const Completion& done) {
    if (done.kind == Completion::Kind::kReceive) {
      return server_.OnReceived(static_cast<uint32_t>(done.tag));
    }
    return done.opcode == verbs::CompletionOpcode::kSend ? server_.OnSent()
                                                         : server_.OnRemoteDone();
  }
  absl::Status Start() { return server_.Start(); }

  absl::Status Receive(uint32_t slot, size_t offset, uint32_t length) override {
    const Buffer buffer{base_ + offset, length};
    return shard_.Receive(connection_, {&buffer, 1}, slot);
  }
  absl::Status Send(size_t offset, uint32_t length) override {
    const Buffer buffer{base_ + offset, length};
    SendWork work;
    work.buffers = {&buffer, 1};
    return shard_.Send(connection_, work);
  }
  absl::Status Remote(Op op, size_t offset, uint32_t length, uint64_t remote_address,
                      uint32_t rkey) override {
    const Buffer buffer{base_ + offset, length};
    SendWork work;
    work.opcode = OpcodeOf(op);
    work.buffers = {&buffer, 1};
    work.remote_address = remote_address;
    work.rkey = rkey;
    work.compare_add = 1;
    return shard_.Send(connection_, work);
  }

 private:
  Shard& shard_;
  Connection& connection_;
  const uint64_t base_;
  BenchServer server_;
};

class Bench final : public Service {
 public:
  void OnCompletion(Shard& shard, const Completion& done) override {
    const absl::Status status = Handle(shard, done);
    if (status.ok()) return;
    std::fprintf(stderr, "bench-worker: %s\n", std::string(status.message()).c_str());
    shard.Disconnect(*done.connection).IgnoreError();
  }

 private:
  absl::Status Handle(Shard& shard, const Completion& done) {
    const uint32_t index = done.connection->index();
    switch (done.kind) {
      case Completion::Kind::kConnectRequest:
        if (index >= connections_.size()) connections_.resize(index + 1);
        connections_[index] = std::make_unique<BenchConnection>(shard, *done.connection);
        BATON_RETURN_IF_ERROR(connections_[index]->Start());
        return shard.Accept(*done.connection);
      case Completion::Kind::kSend:
      case Completion::Kind::kReceive:
        if (done.status != verbs::CompletionStatus::kSuccess) return absl::OkStatus();
        return connections_[index]->Handle(done);
      default:
        return absl::OkStatus();
    }
  }

  std::vector<std::unique_ptr<BenchConnection>> connections_;
};

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  baton::bench::Bench service;
  return baton::bench::ServeWorker(argc, argv, "bench-worker",
                                   "The server of `./run bench rdma` as a worker of Baton.",
                                   &service);
}

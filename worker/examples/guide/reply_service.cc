#include "worker/examples/guide/reply_service.h"

#include <algorithm>
#include <iostream>
#include <memory>

#include "lib/base/status.h"
#include "worker/examples/common/device_factory.h"
#include "worker/heap_grants.h"

namespace baton::guide {

void ReplyService::OnCompletion(Shard& shard, const Completion& done) {
  using Kind = Completion::Kind;
  Connection& connection = *done.connection;
  absl::Status status;
  if (done.kind == Kind::kConnectRequest) {
    for (uint64_t tag = 0; tag < kWindow && status.ok(); ++tag) {
      status = Receive(shard, connection, tag);
    }
    if (status.ok()) status = shard.Accept(connection);
  } else if (done.status != verbs::CompletionStatus::kSuccess) {
    return;  // the connection fails: its kDisconnected follows
  } else if (done.kind == Kind::kReceive) {
    status = Answer(shard, connection, MessageOf(shard, done), done.tag);
  } else if (done.kind == Kind::kSend) {
    status = Receive(shard, connection, done.tag);  // the reply has left: its buffers are free
  }
  if (status.ok()) return;
  std::cerr << "connection " << connection.index() << " is disconnected: " << status << std::endl;
  shard.Abandon();
  HeapGrants::RevokeLost(shard).IgnoreError();  // of a lease that was allocated for this message
  shard.Disconnect(connection).IgnoreError();
}

absl::Status ReplyService::Receive(Shard& shard, Connection& connection, uint64_t tag) {
  const Buffer buffer = {MessageOffset(connection, tag), kBytes};
  return shard.Receive(connection, {&buffer, 1}, tag);
}

std::string ReplyService::MessageOf(const Shard& shard, const Completion& done) {
  const uint8_t* const buffers = shard.worker().buffers().data();
  const uint8_t* const begin = buffers + MessageOffset(*done.connection, done.tag);
  return {begin, begin + done.byte_len};
}

absl::Status ReplyService::Answer(Shard& shard, Connection& connection, const std::string& message,
                                  uint64_t tag) {
  BATON_ASSIGN_OR_RETURN(const std::string reply, Reply(shard, connection, message));
  return SendText(shard, connection, reply, tag);
}

absl::Status ReplyService::SendText(Shard& shard, Connection& connection, std::string_view text,
                                    uint64_t tag) {
  const Buffer buffer = {ReplyOffset(connection, tag),
                         std::min(static_cast<uint32_t>(text.size()), kBytes)};
  std::copy_n(text.begin(), buffer.length, shard.worker().buffers().begin() + buffer.offset);
  return shard.Send(connection, {.buffers = {&buffer, 1}, .tag = tag});
}

namespace {

absl::Status TryServe(ReplyService& service, const WorkerOptions& options, int argc, char** argv) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Attach(options, &service));
  BATON_RETURN_IF_ERROR(service.Check(worker->capacity()));
  if (argc > 2) {
    BATON_ASSIGN_OR_RETURN(const verbs::Address address, examples::ParseAddress(argv[2]));
    BATON_RETURN_IF_ERROR(worker->Listen(address.host, address.port).status());
  }
  return worker->Run();
}

}  // namespace

int Serve(ReplyService& service, WorkerOptions options, int argc, char** argv) {
  if (argc > 1) options.socket = argv[1];
  const absl::Status status = TryServe(service, options, argc, argv);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}

}  // namespace baton::guide

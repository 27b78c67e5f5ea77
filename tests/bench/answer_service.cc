#include "tests/bench/answer_service.h"

#include "lib/base/check.h"

namespace baton::bench {

arena::Shape ShapeOfOne(uint32_t pooled_queue_pairs) {
  arena::Shape shape = {};
  shape.shards = shape.connections = shape.workers = 1;
  shape.pooled_queue_pairs = pooled_queue_pairs;
  shape.send_queue_depth = shape.receive_queue_depth = kEchoDepth;
  shape.connection_state_bytes = shape.shard_state_bytes = 64;
  shape.buffer_bytes = 1 << 16;
  shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
  return shape;
}

void AnswerService::OnCompletion(Shard& shard, const Completion& completion) {
  BATON_CHECK(completion.status == verbs::CompletionStatus::kSuccess);
  Connection& connection = *completion.connection;
  const auto buffer_of = [](uint64_t sequence) {
    return Buffer{sequence % (2 * kEchoDepth) * kEchoBytes, kEchoBytes};
  };
  const auto receive = [&] {
    const Buffer buffer = buffer_of(connection.next_receive());
    BATON_CHECK(shard.Receive(connection, {&buffer, 1}).ok());
  };
  switch (completion.kind) {
    case Completion::Kind::kConnectRequest:
      for (uint32_t i = 0; i < kEchoDepth; ++i) receive();
      BATON_CHECK(shard.Accept(connection).ok());
      break;
    case Completion::Kind::kEstablished:
      established_ = true;
      break;
    case Completion::Kind::kReceive: {
      ++received_;
      receive();
      const Buffer answer = buffer_of(completion.sequence);
      SendWork work;
      work.buffers = {&answer, 1};
      BATON_CHECK(shard.Send(connection, work).ok());
      break;
    }
    case Completion::Kind::kSend:
      ++answered_;
      break;
    default:
      BATON_CHECK(false);  // the connection has ended
  }
}

}  // namespace baton::bench

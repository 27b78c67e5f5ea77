// Chapter 9: a conversation as a coroutine. The first message of a peer is its name; the answers
// count its messages.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "worker/coroutine.h"
#include "worker/examples/common/device_factory.h"

namespace baton::guide {
namespace {

using Kind = Completion::Kind;

constexpr uint32_t kWindow = 16, kBytes = 256;

// The state of a connection: how far the conversation is.
struct Talk {
  uint64_t messages = 0;
  char name[24] = {};
};

Talk Load(absl::Span<const uint8_t> state) {
  Talk talk;  // of a new connection
  if (state.size() == sizeof(talk)) std::memcpy(&talk, state.data(), sizeof(talk));
  return talk;
}

class Talker final : public CoroutineService {
 public:
  Talker() : CoroutineService({.coroutines = 1024}) {}

 private:
  CoTask Serve(CoConnection& peer) override {
    Talk talk = Load(peer.state());  // where the coroutine before this one had come to
    if (talk.messages == 0) {
      const Completion first = co_await peer.Receive();
      TextOf(first).copy(talk.name, sizeof(talk.name) - 1);
      ++talk.messages;
      if (const absl::Status status = Answer(peer, first, talk); !status.ok()) co_return status;
    }
    for (;;) {
      const Completion next = co_await peer.Receive();
      if (TextOf(next) == "bye") co_return absl::OkStatus();  // the connection is disconnected
      ++talk.messages;
      if (const absl::Status status = Answer(peer, next, talk); !status.ok()) co_return status;
    }
  }

  // Stages the state with the answer: a successor starts behind both, or before both.
  static absl::Status Answer(CoConnection& peer, const Completion& message, const Talk& talk) {
    BATON_RETURN_IF_ERROR(peer.shard().SetState(
        peer.connection(), {reinterpret_cast<const uint8_t*>(&talk), sizeof(talk)}, 1));
    const std::string text = absl::StrCat(talk.messages, " from ", talk.name);
    const Buffer buffer = {Offset(peer.connection(), kWindow + message.tag),
                           static_cast<uint32_t>(text.size())};
    std::copy(text.begin(), text.end(), peer.shard().worker().buffers().begin() + buffer.offset);
    return peer.shard().Send(peer.connection(), {.buffers = {&buffer, 1}, .tag = message.tag});
  }

  absl::Status OnConnectRequest(Shard& shard, Connection& connection) override {
    for (uint64_t tag = 0; tag < kWindow; ++tag) {
      BATON_RETURN_IF_ERROR(Post(shard, connection, tag));
    }
    return shard.Accept(connection);
  }
  // The coroutine does not wait until an answer has left. Its buffers are free then.
  absl::Status OnUnawaited(Shard& shard, const Completion& done) override {
    if (done.kind != Kind::kSend || done.status != verbs::CompletionStatus::kSuccess) {
      return CoroutineService::OnUnawaited(shard, done);
    }
    return Post(shard, *done.connection, done.tag);
  }
  void OnFailure(Connection& connection, const absl::Status& error) override {
    std::cerr << "connection " << connection.index() << " is disconnected: " << error << std::endl;
  }

  // A connection has kWindow buffers for messages, and as many for answers.
  static uint64_t Offset(const Connection& connection, uint64_t index) {
    return (uint64_t{connection.index()} * 2 * kWindow + index) * kBytes;
  }
  static absl::Status Post(Shard& shard, Connection& connection, uint64_t tag) {
    const Buffer buffer = {Offset(connection, tag), kBytes};
    return shard.Receive(connection, {&buffer, 1}, tag);
  }
  static std::string TextOf(const Completion& message) {
    const auto buffers = message.connection->shard().worker().buffers();
    const auto begin = buffers.begin() + Offset(*message.connection, message.tag);
    return {begin, begin + message.byte_len};
  }
};

absl::Status Serve(const char* socket, const char* listen) {
  Talker talker;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker,
                         Worker::Attach({.socket = socket,
                                         .service = "counter",
                                         .reads_state_version_min = 1,
                                         .reads_state_version_max = 1,
                                         .writes_state_version = 1,
                                         .commit_mode = CommitMode::kAfterEachCompletion},
                                        &talker));
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, examples::ParseAddress(listen));
  BATON_RETURN_IF_ERROR(worker->Listen(address.host, address.port).status());
  return worker->Run();
}

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: coroutine SOCKET HOST:PORT" << std::endl;
    return 2;
  }
  const absl::Status status = baton::guide::Serve(argv[1], argv[2]);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}

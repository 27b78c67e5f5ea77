// A service of tests: reads a stream of numbered messages, and sends numbered answers. What it has
// read and sent is in the connection's state, so a lost, repeated or torn message is an error.
#ifndef TESTS_WORKER_COUNTED_STREAM_H_
#define TESTS_WORKER_COUNTED_STREAM_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/lib/stream/stream_messages.h"
#include "worker/heap.h"
#include "worker/heap_grants.h"
#include "worker/stream.h"
#include "worker/worker.h"

namespace baton::testing {

inline constexpr uint32_t kFormat = 1;

// The service keeps this of a connection.
struct Account {
  stream::StreamState ends;
  uint64_t messages;  // that were read
  uint64_t answers;   // that were sent
};

inline Account AccountOf(const Connection& connection) {
  Account account = {};
  std::memcpy(&account, connection.state().data(),
              std::min(connection.state().size(), sizeof(account)));
  return account;
}

class CountedStream {
 public:
  // Steps of a completion, after each of which an owner may end. Handle stops if `ends` says so.
  enum Step { kBegin, kRead, kReleased, kAnswered, kStored, kSteps };
  using Ends = std::function<bool(Step)>;

  // For OnAdopt. Frees memory that is no connection's ring: what poison has left, for example.
  static absl::Status Adopt(Shard& shard) {
    std::set<uint64_t> rings;
    for (Connection* connection : shard.connections()) {
      if (connection->state().empty()) continue;
      BATON_ASSIGN_OR_RETURN(const Stream stream, Stream::Load(*connection, connection->state()));
      rings.insert(stream.ring().memory.offset);
    }
    return HeapGrants::FreeLost(
        shard, [&](const Buffer& buffer) { return rings.contains(buffer.offset); });
  }

  // An error is the peer's end: Abandon, and disconnect it.
  static absl::Status Handle(Shard& shard, const Completion& completion, const Ends& ends) {
    using Kind = Completion::Kind;
    Connection& connection = *completion.connection;
    if (completion.kind == Kind::kConnectRequest) return Accept(shard, connection);
    if (connection.state().empty()) return absl::OkStatus();
    if (completion.kind == Kind::kReceive || completion.kind == Kind::kSend) {
      return Work(shard, completion, ends);
    }
    if (completion.kind == Kind::kEstablished) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const Stream stream, Stream::Load(connection, connection.state()));
    return Stream::CloseRing(shard, stream.ring());
  }

  static absl::Status Save(Shard& shard, Connection& connection, const Stream& stream,
                           uint64_t messages, uint64_t answers) {
    Account account = {{}, messages, answers};
    std::memcpy(&account.ends, stream.state().data(), Stream::kStateBytes);
    return shard.SetState(connection, {reinterpret_cast<const uint8_t*>(&account), sizeof(account)},
                          kFormat);
  }

 private:
  static absl::Status Accept(Shard& shard, Connection& connection) {
    BATON_ASSIGN_OR_RETURN(const StreamRing ring, Stream::OpenRing(shard, kRingBytes));
    const absl::StatusOr<Stream> stream = Stream::Accept(connection, ring, kWindow);
    if (stream.ok()) return Save(shard, connection, *stream, 0, 0);
    BATON_RETURN_IF_ERROR(Stream::CloseRing(shard, ring));
    return stream.status();
  }

  static absl::Status Work(Shard& shard, const Completion& completion, const Ends& ends) {
    Connection& connection = *completion.connection;
    BATON_ASSIGN_OR_RETURN(Stream stream, Stream::Load(connection, connection.state()));
    Account account = AccountOf(connection);
    if (ends(kBegin)) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const Stream::Event event, stream.OnCompletion(completion));
    if (ends(kRead)) return absl::OkStatus();
    if (event.kind == Stream::Event::Kind::kMessage) {
      BATON_RETURN_IF_ERROR(Check(shard, event, account.messages));
      ++account.messages;
      BATON_RETURN_IF_ERROR(stream.Release(event));
    }
    if (ends(kReleased)) return absl::OkStatus();
    while ((account.answers + 1) * kMessagesPerAnswer <= account.messages) {
      const absl::Status sent =
          stream.SendCopy(MessageOf(account.answers, LengthOf(account.answers)));
      if (absl::IsResourceExhausted(sent)) break;  // an event with credit comes
      BATON_RETURN_IF_ERROR(sent);
      ++account.answers;
    }
    if (ends(kAnswered)) return absl::OkStatus();
    BATON_RETURN_IF_ERROR(Save(shard, connection, stream, account.messages, account.answers));
    (void)ends(kStored);
    return absl::OkStatus();
  }

  static absl::Status Check(Shard& shard, const Stream::Event& event, uint64_t number) {
    const uint8_t* const at = shard.heap().At(event.message);
    const std::vector<uint8_t> message(at, at + event.message.length);
    if (message == MessageOf(number, LengthOf(number))) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("message ", number, " of ", message.size(), " bytes is another, or torn"));
  }
};

}  // namespace baton::testing

#endif  // TESTS_WORKER_COUNTED_STREAM_H_

// Chapter 5, second part: passes what it receives on to another service, over a connection that it
// makes itself. Each amount arrives there once.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/guide/reply_service.h"

namespace baton::guide {
namespace {

constexpr uint64_t kUpstreamTag = 1;
constexpr uint8_t kUpstreamMark = 1;  // state of the connection upstream; others have none

struct ChainState {         // of a shard
  uint64_t received = 0;    // from peers
  uint64_t owed = 0;        // of that, not sent upstream yet
  uint64_t unfinished = 0;  // completions of the message upstream that have not come
  uint64_t counted = 0;     // as the last answer says
};

ChainState Load(const Shard& shard) {
  ChainState chain;
  if (!shard.state().empty()) std::memcpy(&chain, shard.state().data(), sizeof(chain));
  return chain;
}

absl::Status Save(Shard& shard, const ChainState& chain) {
  return shard.SetShardState({reinterpret_cast<const uint8_t*>(&chain), sizeof(chain)}, 1);
}

class Chain final : public ReplyService {
 public:
  explicit Chain(verbs::Address upstream) : address_(std::move(upstream)) {}

 private:
  struct Upstream {
    Connection* connection = nullptr;
    bool asked = false;
  };

  absl::Status OnAdopt(Shard& shard) override {
    upstreams_[shard.index()] = {};
    for (Connection* connection : shard.connections()) {
      if (!connection->state().empty()) upstreams_[shard.index()].connection = connection;
    }
    return Connect(shard);
  }

  // The outcome arrives as a completion at the worker that owns the shard then.
  absl::Status Connect(Shard& shard) {
    Upstream& upstream = upstreams_[shard.index()];
    if (upstream.connection != nullptr || std::exchange(upstream.asked, true)) {
      return absl::OkStatus();
    }
    return shard.worker()
        .Connect(shard, address_.host, address_.port, /*private_data=*/"", kUpstreamTag)
        .status();
  }

  absl::StatusOr<std::string> Reply(Shard& shard, Connection&,
                                    const std::string& message) override {
    uint64_t amount = 0;
    if (!absl::SimpleAtoi(message, &amount)) return absl::InvalidArgumentError("not a number");
    ChainState chain = Load(shard);
    chain.received += amount;
    chain.owed += amount;
    BATON_RETURN_IF_ERROR(Connect(shard));
    BATON_RETURN_IF_ERROR(Forward(shard, chain));
    return absl::StrCat(chain.counted, " of ", chain.received);
  }

  // Stages what is owed as one message, if none is outstanding. The peer's message, its answer, the
  // message upstream and the new state are one transaction.
  absl::Status Forward(Shard& shard, ChainState& chain) {
    Connection* const upstream = upstreams_[shard.index()].connection;
    if (upstream != nullptr && chain.unfinished == 0 && chain.owed != 0) {
      const std::string text = absl::StrCat(chain.owed);
      const Buffer message = {OwnBuffers(shard), static_cast<uint32_t>(text.size())};
      const Buffer answer = {OwnBuffers(shard) + kBytes, kBytes};
      text.copy(BytesAt(shard, message.offset), text.size());
      BATON_RETURN_IF_ERROR(shard.Receive(*upstream, {&answer, 1}));
      BATON_RETURN_IF_ERROR(shard.Send(*upstream, {.buffers = {&message, 1}}));
      chain.owed = 0;
      chain.unfinished = 2;
    }
    return Save(shard, chain);
  }

  void OnCompletion(Shard& shard, const Completion& done) override {
    using Kind = Completion::Kind;
    const bool outcome = done.kind == Kind::kEstablished || done.kind == Kind::kConnectFailed;
    const bool upstream =
        !done.connection->state().empty() || (outcome && done.tag == kUpstreamTag);
    if (!upstream) return ReplyService::OnCompletion(shard, done);
    const absl::Status status = OnUpstream(shard, done);
    if (!status.ok()) std::cerr << "upstream: " << status << std::endl;
  }

  absl::Status OnUpstream(Shard& shard, const Completion& done) {
    using Kind = Completion::Kind;
    Upstream& upstream = upstreams_[shard.index()];
    ChainState chain = Load(shard);
    if (done.kind == Kind::kEstablished) {
      // A former owner may have asked for one, too.
      if (upstream.connection != nullptr) return shard.Disconnect(*done.connection);
      upstream.connection = done.connection;
      BATON_RETURN_IF_ERROR(shard.SetState(*done.connection, {&kUpstreamMark, 1}, 1));
    } else if (done.kind == Kind::kConnectFailed || done.kind == Kind::kDisconnected) {
      // The next message connects again. Whether one that was outstanding has arrived is not known.
      if (upstream.connection == done.connection) upstream.connection = nullptr;
      upstream.asked = false;
      chain.unfinished = 0;
    } else if (done.status == verbs::CompletionStatus::kSuccess) {
      --chain.unfinished;  // the message has left, or its answer has come
      if (done.kind == Kind::kReceive) {
        const std::string answer(BytesAt(shard, OwnBuffers(shard) + kBytes), done.byte_len);
        chain.counted = std::strtoull(answer.c_str(), nullptr, 10);
      }
    }
    return Forward(shard, chain);
  }

  // For one message upstream and its answer.
  static uint64_t OwnBuffers(const Shard& shard) {
    return FreeBuffers(shard.worker()) + shard.index() * uint64_t{2} * kBytes;
  }
  static char* BytesAt(const Shard& shard, uint64_t offset) {
    return reinterpret_cast<char*>(shard.worker().buffers().data() + offset);
  }

  const verbs::Address address_;
  std::map<uint32_t, Upstream> upstreams_;  // by shard
};

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  const auto upstream = baton::examples::ParseAddress(argc > 3 ? argv[3] : "");
  if (!upstream.ok()) {
    std::cerr << "usage: chain SOCKET HOST:PORT UPSTREAM_HOST:PORT" << std::endl;
    return 2;
  }
  baton::guide::Chain chain(*upstream);
  return baton::guide::Serve(chain,
                             {.service = "chain",
                              .reads_state_version_min = 1,
                              .reads_state_version_max = 1,
                              .writes_state_version = 1,
                              .commit_mode = baton::CommitMode::kAfterEachCompletion},
                             argc, argv);
}

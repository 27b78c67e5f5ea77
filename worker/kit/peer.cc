// baton/peer.h, on top of stream::PeerStream.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/base/status.h"
#include "lib/stream/peer_stream.h"
#include "lib/stream/ring.h"
#include "lib/verbs/verbs.h"
#include "worker/kit/include/baton/peer.h"
#include "worker/kit/status_code.h"
#include "worker/kit/structures.h"

namespace {

using baton::kit::CopyOf;
using baton::kit::CopyTo;
using baton::kit::WhyUnusable;
using baton::stream::PeerStream;
using baton::verbs::Completion;
using baton::verbs::CompletionOpcode;

static_assert(BATON_PEER_GREETING_BYTES == sizeof(baton::stream::Greeting));

thread_local std::string last_error;

int Report(const absl::Status& status) {
  if (status.ok()) return BATON_OK;
  last_error = std::string(baton::MessageOf(status));
  return baton::CodeOf(status.code());
}

absl::Status Wrong(const char* field, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", why));
}

// The caller's queue pair.
class CallersQueuePair final : public baton::verbs::QueuePair {
 public:
  explicit CallersQueuePair(const baton_peer_options& options) : options_(options) {}

  uint32_t number() const override { return 0; }
  baton::verbs::QueuePairState state() const override {
    return baton::verbs::QueuePairState::kReadyToSend;
  }
  absl::Status PostSend(absl::Span<const baton::verbs::SendRequest> requests,
                        size_t* posted) override {
    for (const baton::verbs::SendRequest& request : requests) {
      baton_peer_write write = {};
      write.size = sizeof(write);
      write.wr_id = request.wr_id;
      if (!request.sges.empty()) {
        write.data = reinterpret_cast<const void*>(request.sges[0].address);
        write.length = request.sges[0].length;
      }
      write.immediate = request.immediate;
      write.remote_address = request.remote_address;
      write.rkey = request.rkey;
      BATON_RETURN_IF_ERROR(Check("post_write", options_.post_write(options_.context, &write)));
      ++*posted;
    }
    return absl::OkStatus();
  }
  absl::Status PostReceive(absl::Span<const baton::verbs::ReceiveRequest> requests,
                           size_t* posted) override {
    for (const baton::verbs::ReceiveRequest& request : requests) {
      receive_id = request.wr_id;
      BATON_RETURN_IF_ERROR(Check("post_receive", options_.post_receive(options_.context)));
      ++*posted;
    }
    return absl::OkStatus();
  }
  absl::Status SetError() override {
    return absl::UnimplementedError("the caller ends its connection");
  }

  uint64_t receive_id = 0;  // the stream gives all receives the same

 private:
  static absl::Status Check(const char* function, int result) {
    if (result == 0) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(function, " returned ", result));
  }

  const baton_peer_options options_;
};

absl::Status CheckOptions(const baton_peer_options& options) {
  if (options.post_receive == nullptr) return Wrong("post_receive", "is NULL");
  if (options.post_write == nullptr) return Wrong("post_write", "is NULL");
  return options.memory == nullptr ? Wrong("memory", "is NULL") : absl::OkStatus();
}

}  // namespace

struct baton_peer {
  explicit baton_peer(const baton_peer_options& options)
      : queue_pair(options),
        stream(&queue_pair,
               {static_cast<uint8_t*>(options.memory), options.ring_bytes, options.staging_bytes,
                /*lkey=*/0, options.rkey},
               {options.window, options.sends, options.max_message_bytes}) {}

  CallersQueuePair queue_pair;
  PeerStream stream;
};

const char* baton_peer_error(void) { return last_error.c_str(); }

int baton_peer_open(const baton_peer_options* options, baton_peer** peer) {
  *peer = nullptr;
  if (const char* const why = WhyUnusable(options)) return Report(Wrong("options", why));
  const baton_peer_options given = CopyOf(*options);
  absl::Status status = CheckOptions(given);
  if (!status.ok()) return Report(status);
  auto opened = std::make_unique<baton_peer>(given);
  status = opened->stream.Open();
  if (status.ok()) *peer = opened.release();
  return Report(status);
}

void baton_peer_close(baton_peer* peer) { delete peer; }

void baton_peer_greeting(const baton_peer* peer, uint8_t* greeting) {
  std::memcpy(greeting, peer->stream.Greeting().data(), BATON_PEER_GREETING_BYTES);
}

int baton_peer_begin(baton_peer* peer, const void* private_data, size_t length) {
  return Report(peer->stream.Begin({static_cast<const char*>(private_data), length}));
}

int baton_peer_send(baton_peer* peer, const void* message, size_t length) {
  return Report(peer->stream.Send({static_cast<const uint8_t*>(message), length}));
}

int baton_peer_sent(baton_peer* peer, uint64_t wr_id) {
  Completion done;
  done.wr_id = wr_id;
  done.opcode = CompletionOpcode::kWrite;
  return Report(peer->stream.OnCompletion(done).status());
}

int baton_peer_received(baton_peer* peer, uint32_t immediate, uint32_t byte_len,
                        baton_peer_event* event) {
  if (const char* const why = WhyUnusable(event)) return Report(Wrong("event", why));
  Completion done;
  done.wr_id = peer->queue_pair.receive_id;
  done.opcode = CompletionOpcode::kReceiveWithImmediate;
  done.has_immediate = true;
  done.immediate = immediate;
  done.byte_len = byte_len;
  const absl::StatusOr<PeerStream::Event> happened = peer->stream.OnCompletion(done);
  if (happened.ok()) {
    const bool has_message = happened->kind == PeerStream::Event::Kind::kMessage;
    CopyTo(baton_peer_event{sizeof(baton_peer_event), has_message, happened->has_credit,
                            happened->message.data(), happened->message.size(), happened->end},
           event);
  }
  return Report(happened.status());
}

int baton_peer_release(baton_peer* peer, const baton_peer_event* event) {
  if (const char* const why = WhyUnusable(event)) return Report(Wrong("event", why));
  PeerStream::Event given;
  given.kind = PeerStream::Event::Kind::kMessage;
  given.end = CopyOf(*event).end;
  return Report(peer->stream.Release(given));
}

#include "tests/harness/poison_peer.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/harness/wait_until.h"
#include "worker/examples/ledger/ledger_protocol.h"

namespace baton::harness {
namespace {

constexpr std::chrono::seconds kAnswer{30};
constexpr int kReceives = 32;

std::string Encode(uint64_t client, uint64_t sequence, uint64_t amount) {
  ledger::Request request = {};
  request.magic = ledger::kRequestMagic;
  request.protocol = ledger::kProtocol;
  request.client = client;
  request.sequence = sequence;
  request.amount = amount;
  request.length = sizeof(request);
  const auto* bytes = reinterpret_cast<const uint8_t*>(&request);
  request.check = ledger::Checksum({bytes, sizeof(request)});
  return {reinterpret_cast<const char*>(&request), sizeof(request)};
}

}  // namespace

absl::Status PoisonPeer::Turn(const char* what, std::chrono::milliseconds timeout,
                              const std::function<bool()>& done) {
  return WaitUntil(
      what,
      [&] {
        peer_.Turn();
        return done();
      },
      timeout);
}

absl::Status PoisonPeer::Connect(uint16_t port) {
  for (int i = 0; i < kReceives; ++i) peer_.Receive();
  peer_.Connect(port);
  return Turn("the poisoner's connection", kAnswer, [&] { return peer_.established; });
}

absl::Status PoisonPeer::Send(absl::Span<const uint64_t> amounts) {
  const size_t before = sequence_;
  for (const uint64_t amount : amounts) peer_.Send(Encode(client_, ++sequence_, amount));
  // On the wire, and received. A connection that ends meanwhile has had its effect.
  return Turn("the poisoner's requests to arrive", kAnswer,
              [&] { return peer_.sent.size() >= before + amounts.size() || peer_.disconnected; });
}

absl::Status PoisonPeer::WaitReplies(size_t count) {
  BATON_RETURN_IF_ERROR(
      Turn("replies to the poisoner", kAnswer, [&] { return peer_.received.size() >= count; }));
  for (; checked_ < peer_.received.size(); ++checked_) {
    ledger::Reply reply = {};
    const std::string& bytes = peer_.received[checked_];
    if (bytes.size() == sizeof(reply)) std::memcpy(&reply, bytes.data(), sizeof(reply));
    total_ += reply.amount;
    if (reply.client != client_ || reply.sequence != checked_ + 1 || reply.total != total_) {
      return absl::DataLossError(absl::StrCat("reply ", reply.sequence, " to client ", reply.client,
                                              " with total ", reply.total));
    }
    peer_.Receive();
  }
  return absl::OkStatus();
}

absl::Status PoisonPeer::WaitDisconnected(std::chrono::milliseconds timeout) {
  return Turn("the poisoned connection to end", timeout, [&] { return peer_.disconnected; });
}

}  // namespace baton::harness

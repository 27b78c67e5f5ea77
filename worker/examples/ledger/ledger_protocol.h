// The ledger's wire protocol, version 1.
//
// A peer keeps a ledger account by sending requests over one reliable connection; the service
// answers every request with one reply, in order. Both are single SEND messages. All integers are
// little-endian; every field is naturally aligned; `length` of a request is a multiple of 8.
//
// Request: 64 bytes of header, then padding up to the message size that both sides configured.
//   offset  0  magic            "LREQ"
//   offset  4  protocol         1
//   offset  6  flags            bit 0: resume (below); all others 0
//   offset  8  client           chosen by the peer, not 0, the same in every request of an account
//   offset 16  sequence         1, 2, 3, … within the account
//   offset 24  amount           what is added to the account's total, modulo 2^64
//   offset 32  resume_sequence  with flag resume, else 0
//   offset 40  resume_total     with flag resume, else 0
//   offset 48  length           of the whole message
//   offset 52  reserved         0
//   offset 56  check            Checksum of the whole message without these 8 bytes
//   offset 64  padding          any bytes; covered by `check`
//
// Reply: 64 bytes.
//   offset  0  magic            "LREP"
//   offset  4  protocol         1
//   offset  6  version          of the binary that applied the request (1 or 2)
//   offset  8  client           of the request, as the next two
//   offset 16  sequence
//   offset 24  amount
//   offset 32  total            of the account, with `amount` added
//   offset 40  request_check    `check` of the request
//   offset 48  notice           bit 0: moving (below); all others 0
//   offset 56  check            Checksum of the first 56 bytes
//
// Why a defect cannot hide: an account is {client, sequence, total}. An effect that is lost or
// applied twice changes the total of every later reply; a request that is lost, repeated or
// overtaken is not `sequence + 1`, and the service then applies nothing and disconnects, with the
// reason in its log; a reply on a wrong connection has a wrong client; a buffer that was used
// again too early has a wrong check.
//
// Resume: a service that keeps accounts in its process alone (the baseline without Baton) loses
// them with it. There a peer that connects anew sets `resume` in its first request, with the last
// sequence and total that it saw a reply for. Later requests were never answered, and the peer
// sends them again. The service on Baton refuses the flag, so no peer can paper over an account
// that was lost.
//
// Moving: a service without Baton that is about to end says so in its replies. A peer that has a
// connection to another one goes on there when what it has sent is answered.
#ifndef WORKER_EXAMPLES_LEDGER_LEDGER_PROTOCOL_H_
#define WORKER_EXAMPLES_LEDGER_LEDGER_PROTOCOL_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"

namespace baton::ledger {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kRequestMagic = 0x5145524c;  // "LREQ"
inline constexpr uint32_t kReplyMagic = 0x5045524c;    // "LREP"
inline constexpr uint16_t kProtocol = 1;
inline constexpr uint16_t kFlagResume = 1;
inline constexpr uint64_t kNoticeMoving = 1;

inline constexpr uint32_t kMinMessageBytes = 64;
inline constexpr uint32_t kMaxMessageBytes = 1u << 20;
inline constexpr uint32_t kReplyBytes = 64;

struct Request {
  uint32_t magic;
  uint16_t protocol;
  uint16_t flags;
  uint64_t client;
  uint64_t sequence;
  uint64_t amount;
  uint64_t resume_sequence;
  uint64_t resume_total;
  uint32_t length;
  uint32_t reserved;
  uint64_t check;
};
static_assert(offsetof(Request, client) == 8);
static_assert(offsetof(Request, resume_sequence) == 32);
static_assert(offsetof(Request, length) == 48);
static_assert(offsetof(Request, check) == 56);
static_assert(sizeof(Request) == kMinMessageBytes);

struct Reply {
  uint32_t magic;
  uint16_t protocol;
  uint16_t version;
  uint64_t client;
  uint64_t sequence;
  uint64_t amount;
  uint64_t total;
  uint64_t request_check;
  uint64_t notice;
  uint64_t check;
};
static_assert(offsetof(Reply, version) == 6);
static_assert(offsetof(Reply, total) == 32);
static_assert(offsetof(Reply, check) == 56);
static_assert(sizeof(Reply) == kReplyBytes);

inline uint64_t ChecksumStep(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * 0x9fb21c651e98df25u;
  return sum ^ (sum >> 32);
}

// Returns the checksum of the message's 8-byte words in order, without the word at offset 56. It
// begins with the length, so a message and its prefix have different checksums. Needs a length of
// at least 64, a multiple of 8; the address need not be aligned.
inline uint64_t Checksum(absl::Span<const uint8_t> message) {
  uint64_t sum = 0x2545f4914f6cdd1du ^ message.size();
  for (size_t offset = 0; offset + 8 <= message.size(); offset += 8) {
    if (offset == offsetof(Request, check)) continue;
    uint64_t word;
    std::memcpy(&word, message.data() + offset, sizeof(word));
    sum = ChecksumStep(sum, word);
  }
  return sum;
}

}  // namespace baton::ledger

#endif  // WORKER_EXAMPLES_LEDGER_LEDGER_PROTOCOL_H_

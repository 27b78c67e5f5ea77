// Makes the requests of one ledger account and judges the replies. Does no I/O, so that tests can
// inject defects.
//
// A request is *intended* (it exists, and its time runs), then *sent*, then answered or lost. At
// most `window` requests are open, from the oldest one that is neither answered nor lost.
//
// Verdicts, each reply exactly one:
//   answered    the oldest open request, everything as it has to be;
//   reordered   a request that was overtaken by a later one's reply, or had been given up as lost
//               (answers it all the same, if it is still open);
//   duplicated  a request that was answered before;
//   corrupt     not a reply to anything that this account sent (check, client, amount, sequence);
// Besides, wrong_total: a reply that is otherwise in order has a total that this account cannot
// have, because an effect was lost or applied twice. Every later total is wrong, too, and is
// counted. lost: no reply within the time limit, or the connection ended for good before it.
#ifndef WORKER_EXAMPLES_PEER_REPLY_CHECKER_H_
#define WORKER_EXAMPLES_PEER_REPLY_CHECKER_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "worker/examples/ledger/ledger_protocol.h"

namespace baton::peer {

struct Defects {
  uint64_t lost = 0;
  uint64_t duplicated = 0;
  uint64_t reordered = 0;
  uint64_t corrupt = 0;
  uint64_t wrong_total = 0;

  uint64_t Sum() const { return lost + duplicated + reordered + corrupt + wrong_total; }
  void Add(const Defects& other);
};

class ReplyChecker {
 public:
  // `client` is not 0, and unique among all peers of a service. `window`: at least 1.
  ReplyChecker(uint64_t client, uint32_t window);

  // Returns whether one more request may be intended.
  bool HasRoom() const { return next_ - base_ < window_; }
  // Adds a request. REQUIRES: HasRoom().
  void Intend(uint64_t now);

  bool HasUnsent() const { return send_ < next_; }
  uint64_t unsent_sequence() const { return send_; }
  // Writes the oldest unsent request. REQUIRES: HasUnsent(). `message` is the whole message, with
  // its padding. Call MarkSent when the device has taken it.
  void WriteUnsent(absl::Span<uint8_t> message) const;
  void MarkSent();

  struct Verdict {
    bool answered = false;  // of an open request; if true, the fields below are set
    uint64_t sequence = 0;
    uint64_t latency = 0;  // since the request was intended, in nanoseconds
    uint16_t version = 0;
    bool moving = false;  // the service is about to end
    std::string defect;   // for people; empty: none
  };
  Verdict OnReply(absl::Span<const uint8_t> message, uint64_t now);

  // Gives up sent requests that are open for longer than `limit` nanoseconds. Returns how many.
  uint32_t Expire(uint64_t now, uint64_t limit);
  // Gives up all open requests, because the connection has ended for good. Returns how many.
  uint32_t GiveUp();
  // For a connection that was lost together with the account and is made anew: all open requests
  // are sent again, the first one as a resume.
  void Rewind();

  uint32_t open() const { return open_; }
  bool HasUnderWay() const { return open_ > next_ - send_; }  // sent, and not answered
  uint64_t next_sequence() const { return next_; }
  const Defects& defects() const { return defects_; }

 private:
  enum class State : uint8_t { kFree, kOpen, kAnswered };
  struct Entry {
    uint64_t amount = 0;
    uint64_t total_after = 0;  // of the account, if each request up to this one was applied once
    uint64_t intended = 0;
    mutable uint64_t check = 0;  // of the message that was written last
    State state = State::kFree;
  };

  Entry& At(uint64_t sequence) { return entries_[sequence % entries_.size()]; }
  const Entry& At(uint64_t sequence) const { return entries_[sequence % entries_.size()]; }
  std::string FindCorruption(absl::Span<const uint8_t> message, ledger::Reply* reply) const;
  void Lose(uint64_t sequence);
  void AdvanceBase();

  const uint64_t client_;
  const uint32_t window_;
  std::vector<Entry> entries_;
  uint64_t base_ = 1;        // the oldest open request, or next_
  uint64_t send_ = 1;        // the oldest unsent request, or next_
  uint64_t next_ = 1;        // the next to be intended
  uint64_t base_total_ = 0;  // of the account before base_
  uint64_t next_total_ = 0;  // of the account before next_
  bool resume_ = false;      // the next message sent resumes the account
  uint32_t open_ = 0;
  std::set<uint64_t> given_up_;  // the latest sequences lost, at most kRememberLost
  Defects defects_;
};

}  // namespace baton::peer

#endif  // WORKER_EXAMPLES_PEER_REPLY_CHECKER_H_

#include "worker/examples/peer/reply_checker.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"

namespace baton::peer {
namespace {

constexpr size_t kRememberLost = 1024;

// Amounts differ between requests and accounts, and use all 64 bits, so that no two mistakes in a
// total cancel each other.
uint64_t AmountOf(uint64_t client, uint64_t sequence) {
  return ledger::ChecksumStep(ledger::ChecksumStep(client, sequence), 0x5bd1e995);
}

}  // namespace

void Defects::Add(const Defects& other) {
  lost += other.lost;
  duplicated += other.duplicated;
  reordered += other.reordered;
  corrupt += other.corrupt;
  wrong_total += other.wrong_total;
}

ReplyChecker::ReplyChecker(uint64_t client, uint32_t window)
    : client_(client), window_(window), entries_(window) {}

void ReplyChecker::Intend(uint64_t now) {
  BATON_CHECK(HasRoom());
  Entry& entry = At(next_);
  entry.amount = AmountOf(client_, next_);
  next_total_ += entry.amount;
  entry.total_after = next_total_;
  entry.intended = now;
  entry.check = 0;
  entry.state = State::kOpen;
  ++next_;
  ++open_;
}

void ReplyChecker::WriteUnsent(absl::Span<uint8_t> message) const {
  BATON_CHECK(HasUnsent() && message.size() >= sizeof(ledger::Request));
  const Entry& entry = At(send_);
  ledger::Request request{};
  request.magic = ledger::kRequestMagic;
  request.protocol = ledger::kProtocol;
  request.client = client_;
  request.sequence = send_;
  request.amount = entry.amount;
  request.length = static_cast<uint32_t>(message.size());
  if (resume_) {
    request.flags = ledger::kFlagResume;
    request.resume_sequence = send_ - 1;
    request.resume_total = base_total_;
  }
  std::memcpy(message.data(), &request, sizeof(request));
  for (size_t offset = sizeof(request); offset + 8 <= message.size(); offset += 8) {
    const uint64_t word = entry.amount + offset;
    std::memcpy(message.data() + offset, &word, sizeof(word));
  }
  entry.check = ledger::Checksum(message);
  std::memcpy(message.data() + offsetof(ledger::Request, check), &entry.check, sizeof(entry.check));
}

void ReplyChecker::MarkSent() {
  resume_ = false;
  ++send_;
}

std::string ReplyChecker::FindCorruption(absl::Span<const uint8_t> message,
                                         ledger::Reply* reply) const {
  if (message.size() != sizeof(*reply)) {
    return absl::StrCat("a reply of ", message.size(), " bytes");
  }
  std::memcpy(reply, message.data(), sizeof(*reply));
  if (reply->magic != ledger::kReplyMagic || reply->protocol != ledger::kProtocol) {
    return "a message that is no reply";
  }
  if (reply->check != ledger::Checksum(message)) {
    return absl::StrCat("a reply that calls itself ", reply->sequence, " with a wrong check");
  }
  if (reply->client != client_) {
    return absl::StrCat("a reply to another client, ", reply->client);
  }
  if (reply->sequence == 0 || reply->sequence >= send_) {
    return absl::StrCat("a reply to request ", reply->sequence, ", which was never sent");
  }
  if (reply->sequence < base_) return {};  // the request that it echoes is forgotten
  const Entry& entry = At(reply->sequence);
  if (reply->amount != entry.amount || reply->request_check != entry.check) {
    return absl::StrCat("a reply to request ", reply->sequence, " that echoes another request");
  }
  return {};
}

ReplyChecker::Verdict ReplyChecker::OnReply(absl::Span<const uint8_t> message, uint64_t now) {
  Verdict verdict;
  ledger::Reply reply;
  verdict.defect = FindCorruption(message, &reply);
  if (!verdict.defect.empty()) {
    ++defects_.corrupt;
    return verdict;
  }
  if (reply.sequence < base_ || At(reply.sequence).state != State::kOpen) {
    if (given_up_.erase(reply.sequence) > 0) {
      ++defects_.reordered;
      verdict.defect = absl::StrCat("reply ", reply.sequence, " came after it was given up");
    } else {
      ++defects_.duplicated;
      verdict.defect = absl::StrCat("reply ", reply.sequence, " came again");
    }
    return verdict;
  }
  Entry& entry = At(reply.sequence);
  // Overtaken requests stay open until their own reply comes or their time is over.
  for (uint64_t later = reply.sequence + 1; later < next_; ++later) {
    if (At(later).state != State::kAnswered) continue;
    ++defects_.reordered;
    verdict.defect = absl::StrCat("reply ", reply.sequence, " came after reply ", later);
    break;
  }
  if (reply.total != entry.total_after) {
    ++defects_.wrong_total;
    verdict.defect = absl::StrCat("reply ", reply.sequence, " has total ", reply.total,
                                  " instead of ", entry.total_after);
  }
  verdict.answered = true;
  verdict.sequence = reply.sequence;
  verdict.latency = now > entry.intended ? now - entry.intended : 0;
  verdict.version = reply.version;
  verdict.moving = (reply.notice & ledger::kNoticeMoving) != 0;
  entry.state = State::kAnswered;
  --open_;
  AdvanceBase();
  return verdict;
}

void ReplyChecker::AdvanceBase() {
  while (base_ < next_ && At(base_).state != State::kOpen) {
    base_total_ = At(base_).total_after;
    At(base_).state = State::kFree;
    ++base_;
  }
}

void ReplyChecker::Lose(uint64_t sequence) {
  At(sequence).state = State::kAnswered;
  --open_;
  ++defects_.lost;
  given_up_.insert(sequence);
  if (given_up_.size() > kRememberLost) given_up_.erase(given_up_.begin());
}

uint32_t ReplyChecker::Expire(uint64_t now, uint64_t limit) {
  uint32_t lost = 0;
  // Unsent requests wait for a connection and cannot be lost.
  for (uint64_t sequence = base_; sequence < send_; ++sequence) {
    const Entry& entry = At(sequence);
    if (entry.state != State::kOpen || now < entry.intended + limit) continue;
    Lose(sequence);
    ++lost;
  }
  AdvanceBase();
  return lost;
}

uint32_t ReplyChecker::GiveUp() {
  uint32_t lost = 0;
  for (uint64_t sequence = base_; sequence < next_; ++sequence) {
    if (At(sequence).state != State::kOpen) continue;
    Lose(sequence);
    ++lost;
  }
  send_ = next_;
  AdvanceBase();
  return lost;
}

void ReplyChecker::Rewind() {
  // A request whose reply overtook others is sent again with them, because the account restarts
  // before both.
  for (uint64_t sequence = base_; sequence < next_; ++sequence) {
    if (At(sequence).state == State::kOpen) continue;
    At(sequence).state = State::kOpen;
    ++open_;
  }
  send_ = base_;
  resume_ = base_ > 1;
}

}  // namespace baton::peer

#include "tests/simulation/client.h"

#include "absl/strings/str_cat.h"
#include "tests/simulation/protocol.h"

namespace baton::simulation {

void Client::Step(bool faults) {
  Dice& dice = context_->dice;
  if (state_ == State::kIdle) {
    if (passive_ || !device_->listening()) return;
    id_ = uint64_t{index_ + 1} << 32 | ++incarnations_;
    sequence_ = total_ = 0;
    open_.clear();
    wire_ = device_->Request(this, {reinterpret_cast<const char*>(&id_), sizeof(id_)});
    state_ = State::kAsking;
    context_->Note("peer: connect", id_);
    return;
  }
  if (faults && dice.OneIn(200)) return Leave();
  if (state_ != State::kEstablished || open_.size() >= window_ || expected_ == 0) return;
  if (expected_ != ~uint64_t{0}) --expected_;
  const bool poison = faults && poisons_ && dice.OneIn(30);
  const uint64_t amount = poison ? kPoisonAmount : dice.Below(kPoisonAmount);
  if (poison) checker_->OnPoison(id_);
  total_ += amount;
  open_.push_back({++sequence_, total_});
  Message message;
  message.bytes = Encode(Request{id_, sequence_, amount, 0});
  if (dice.OneIn(4)) {
    message.opcode = verbs::Opcode::kSendWithImmediate;
    message.immediate = static_cast<uint32_t>(amount);
  }
  context_->Note("peer: request", id_, sequence_);
  wire_->to_us.push_back(std::move(message));
}

void Client::OnRequest(Wire* wire) {
  id_ = uint64_t{index_ + 1} << 32 | ++incarnations_;
  sequence_ = total_ = 0;
  wire->answer_data.assign(reinterpret_cast<const char*>(&id_), sizeof(id_));
  wire_ = wire;
  state_ = State::kEstablished;
  context_->Note("peer: accepts", id_);
}

void Client::Expect(uint64_t replies) { expected_ = replies; }

void Client::Leave() {
  context_->Note("peer: leaves", id_);
  wire_->peer_closed = wire_->peer_left = true;
  Ended("");
}

void Client::Ended(const char*) {
  if (!open_.empty()) lost_replies_ = true;
  if (expected_ != ~uint64_t{0}) expected_ += open_.size();
  open_.clear();
  state_ = State::kIdle;
  wire_ = nullptr;
}

void Client::OnAccepted(std::string_view private_data) {
  if (private_data != absl::StrCat("for ", id_)) {
    context_->Break(absl::StrCat("client ", index_, " was accepted with another's private data"));
  }
  context_->Note("peer: accepted", id_);
  state_ = State::kEstablished;
}

void Client::OnRejected(std::string_view private_data) {
  context_->Note("peer: rejected", id_);
  const bool full = private_data == "baton: no connection slot is free";
  if (!full && !checker_->Excused(id_)) {
    context_->Break(absl::StrCat(
        "P7: client ", id_, " was rejected and nobody decided so: ", std::string(private_data)));
  }
  Ended("rejected");
}

void Client::OnDisconnected() {
  context_->Note("peer: disconnected", id_);
  if (!wire_->broken && !checker_->Excused(id_)) {
    context_->Break(absl::StrCat("P7: client ", id_, " was disconnected and nobody decided so"));
  }
  Ended("disconnected");
}

void Client::OnMessage(const Message& message) {
  Reply reply;
  if (!Decode(message.bytes, &reply) || reply.client != id_) {
    return context_->Break(absl::StrCat("P4: client ", id_, " got what is no reply to it"));
  }
  if (open_.empty() || reply.sequence != open_.front().sequence ||
      reply.total != open_.front().total) {
    return context_->Break(absl::StrCat("P1: client ", id_, " got reply ", reply.sequence,
                                        " with total ", reply.total, " and expected ",
                                        open_.empty() ? 0 : open_.front().sequence, " with ",
                                        open_.empty() ? 0 : open_.front().total));
  }
  context_->Note("peer: reply", id_, reply.sequence, reply.shard_count);
  open_.pop_front();
  ++replies_;
  checker_->OnReply(reply.shard, reply.shard_count);
}

std::string Client::Describe() const {
  return absl::StrCat("client ", id_, " state ", static_cast<int>(state_), " open ", open_.size(),
                      " still to ask ", expected_);
}

}  // namespace baton::simulation

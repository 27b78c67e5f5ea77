#include "worker/examples/pingd/ping_position.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::pingd {
namespace {

// Returns the check of all fields before it.
uint64_t StateCheck(const PositionState& state) {
  uint64_t sum = 0x6c62272e07bb0142u;
  std::array<uint64_t, offsetof(PositionState, check) / sizeof(uint64_t)> words;
  std::memcpy(words.data(), &state, sizeof(words));
  for (const uint64_t word : words) {
    sum = (sum ^ word) * 0x9fb21c651e98df25u;
    sum ^= sum >> 32;
  }
  return sum;
}

bool Fits(Protocol protocol, Phase phase) {
  switch (phase) {
    case Phase::kAwaitSource:
    case Phase::kReading:
    case Phase::kAwaitSink:
    case Phase::kWriting:
      return protocol == Protocol::kRping;
    case Phase::kAwaitMessage:
    case Phase::kReplying:
      return protocol == Protocol::kRdmaClient;
    case Phase::kEnding:
      return protocol == Protocol::kRping || protocol == Protocol::kRdmaClient;
  }
  return false;
}

}  // namespace

std::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kAwaitSource:
      return "awaiting the source's address";
    case Phase::kReading:
      return "reading";
    case Phase::kAwaitSink:
      return "awaiting the sink's address";
    case Phase::kWriting:
      return "writing";
    case Phase::kAwaitMessage:
      return "awaiting the message";
    case Phase::kReplying:
      return "replying";
    case Phase::kEnding:
      return "ending";
  }
  return "unknown";
}

PingPosition PingPosition::Begin(Protocol protocol) {
  return {protocol, protocol == Protocol::kRping ? Phase::kAwaitSource : Phase::kAwaitMessage};
}

absl::StatusOr<PingPosition> PingPosition::Load(absl::Span<const uint8_t> state,
                                                uint32_t state_version) {
  if (state_version != kPositionStateVersion || state.size() != sizeof(PositionState)) {
    return absl::DataLossError(absl::StrCat("state of version ", state_version, " with ",
                                            state.size(), " bytes; this binary reads version ",
                                            kPositionStateVersion, " with ", sizeof(PositionState),
                                            ": start a binary that reads it"));
  }
  PositionState saved;
  std::memcpy(&saved, state.data(), sizeof(saved));
  PingPosition position(Protocol(saved.protocol), Phase(saved.phase));
  if (saved.magic != kPositionMagic || saved.check != StateCheck(saved) ||
      !Fits(position.protocol_, position.phase_)) {
    return absl::DataLossError("state with a wrong check: it is torn or not a position of pingd");
  }
  position.messages_ = saved.messages;
  position.data_bytes_ = saved.data_bytes;
  return position;
}

std::array<uint8_t, sizeof(PositionState)> PingPosition::Save() const {
  PositionState state{};
  state.magic = kPositionMagic;
  state.protocol = static_cast<uint8_t>(protocol_);
  state.phase = static_cast<uint8_t>(phase_);
  state.messages = messages_;
  state.data_bytes = data_bytes_;
  state.check = StateCheck(state);
  std::array<uint8_t, sizeof(PositionState)> bytes;
  std::memcpy(bytes.data(), &state, sizeof(state));
  return bytes;
}

absl::Status PingPosition::Expect(Phase phase, std::string_view what) const {
  if (phase_ == phase) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(std::string(what), " came while ",
                                                    std::string(PhaseName(phase_)), ", after ",
                                                    messages_, " messages of ours"));
}

Action PingPosition::SendAndGoTo(Phase phase) {
  phase_ = phase;
  ++messages_;
  return {Action::Kind::kSend};
}

absl::StatusOr<Action> PingPosition::OnMessage(absl::Span<const uint8_t> message,
                                               uint32_t max_data_bytes) {
  if (message.size() != kMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", message.size(), " bytes, all have ", kMessageBytes));
  }
  if (phase_ == Phase::kAwaitMessage) return SendAndGoTo(Phase::kReplying);
  Advertisement advertisement;
  std::memcpy(&advertisement, message.data(), sizeof(advertisement));
  advertisement = SwapBytes(advertisement);
  if (phase_ == Phase::kAwaitSource) return OnSource(advertisement, max_data_bytes);
  BATON_RETURN_IF_ERROR(Expect(Phase::kAwaitSink, "a message"));
  return OnSink(advertisement);
}

absl::StatusOr<Action> PingPosition::OnSource(const Advertisement& source,
                                              uint32_t max_data_bytes) {
  if (source.size == 0 || source.size > max_data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a source of ", source.size, " bytes: 1 to ",
                                                   max_data_bytes, " are served (--max-size)"));
  }
  phase_ = Phase::kReading;
  data_bytes_ = source.size;
  return Action{Action::Kind::kRead, source};
}

absl::StatusOr<Action> PingPosition::OnRead(absl::Span<const uint8_t> data) {
  BATON_RETURN_IF_ERROR(Expect(Phase::kReading, "the end of a READ"));
  // The text goes back with its NUL. rping's always has one; without a NUL all of the data goes
  // back.
  const auto end = std::find(data.begin(), data.end(), uint8_t{0});
  data_bytes_ = static_cast<uint32_t>(end - data.begin()) + (end == data.end() ? 0 : 1);
  return SendAndGoTo(Phase::kAwaitSink);
}

absl::StatusOr<Action> PingPosition::OnSink(const Advertisement& sink) {
  if (sink.size < data_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sink of ", sink.size, " bytes for ", data_bytes_, " of data"));
  }
  phase_ = Phase::kWriting;
  return Action{Action::Kind::kWrite, {sink.address, sink.rkey, data_bytes_}};
}

absl::StatusOr<Action> PingPosition::OnWritten() {
  BATON_RETURN_IF_ERROR(Expect(Phase::kWriting, "the end of a WRITE"));
  data_bytes_ = 0;
  return SendAndGoTo(Phase::kAwaitSource);
}

absl::StatusOr<Action> PingPosition::OnSent() {
  if (phase_ != Phase::kReplying) return Action{};
  End();
  return Action{Action::Kind::kDisconnect};
}

void PingPosition::End() {
  phase_ = Phase::kEnding;
  data_bytes_ = 0;
}

}  // namespace baton::pingd

// A service's own program that prints its application state for people. It is not trusted with
// more than whoever calls it has: it runs as that user, its time and its output are bounded, and
// that it fails is shown and fails nothing.
#ifndef SUPERVISOR_INSPECT_STATE_DECODER_H_
#define SUPERVISOR_INSPECT_STATE_DECODER_H_

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/inspect/arena_view.h"

namespace baton::inspect {

inline constexpr std::chrono::milliseconds kStateTimeout{2000};
inline constexpr size_t kMaxDecodedBytes = 64 << 10;

// Runs it with the state on its standard input, and BATON_STATE_KIND ("shard", "connection"),
// BATON_STATE_INDEX, BATON_STATE_VERSION, BATON_STATE_LENGTH and BATON_SERVICE in its environment.
// What it has printed: bytes that are not printable are '?'. An error says what it did instead.
absl::StatusOr<std::string> RunStateDecoder(const v1::StateDecoder& decoder,
                                            const std::string& service, const CommittedState& state,
                                            std::chrono::milliseconds timeout = kStateTimeout);

}  // namespace baton::inspect

#endif  // SUPERVISOR_INSPECT_STATE_DECODER_H_

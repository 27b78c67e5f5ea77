// Runs a service's own program, which prints application state for people. The program gets no
// rights beyond the caller's: it runs as the same user, and its time and output are bounded. Its
// failure is shown, and does not fail the inspection.
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

// Runs the program with the state on its standard input, and BATON_STATE_KIND ("shard",
// "connection"), BATON_STATE_INDEX, BATON_STATE_VERSION, BATON_STATE_LENGTH and BATON_SERVICE in
// its environment. Returns its output, with '?' for bytes that are not printable. An error says how
// the program failed.
absl::StatusOr<std::string> RunStateDecoder(const v1::StateDecoder& decoder,
                                            const std::string& service, const CommittedState& state,
                                            std::chrono::milliseconds timeout = kStateTimeout);

}  // namespace baton::inspect

#endif  // SUPERVISOR_INSPECT_STATE_DECODER_H_

#ifndef SUPERVISOR_CLI_CURE_H_
#define SUPERVISOR_CLI_CURE_H_

#include "absl/status/status.h"
#include "supervisor/cli/session.h"

namespace baton {

// `status`, with what the CLI knows besides of how to mend it.
absl::Status WithCure(Session* session, const absl::Status& status);

}  // namespace baton

#endif  // SUPERVISOR_CLI_CURE_H_

// The longer parts of what `baton inspect` prints: work requests and application state.
#ifndef SUPERVISOR_CLI_INSPECT_CONTENTS_H_
#define SUPERVISOR_CLI_INSPECT_CONTENTS_H_

#include <ostream>

#include "proto/baton/v1/inspect.pb.h"

namespace baton {

void PrintWorkRequests(std::ostream& out, const v1::Inspection& arena);
// Prints states as the decoder prints them, or in hexadecimal.
void PrintStates(std::ostream& out, const v1::Inspection& arena);

}  // namespace baton

#endif  // SUPERVISOR_CLI_INSPECT_CONTENTS_H_

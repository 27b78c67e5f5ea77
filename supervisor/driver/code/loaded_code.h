// The code of drivers (driver_code.h) in a process that `baton-driver` has forked.
#ifndef SUPERVISOR_DRIVER_CODE_LOADED_CODE_H_
#define SUPERVISOR_DRIVER_CODE_LOADED_CODE_H_

#include "absl/status/statusor.h"
#include "supervisor/driver/code/driver_code.h"

namespace baton::driver_process {

// Loads the open file, unless the process has it, or had it before it was forked. An error says why
// the file cannot be used.
absl::StatusOr<const BatonDriverCode*> LoadDriverCode(int descriptor);

// `baton-driver` calls this for code that is proven, so that no fork has to load it and the twenty
// libraries that it needs: that takes 15 to 30 ms. Code that is on probation is loaded in forks
// alone. An error is ignored: each fork meets it, too.
void PreloadDriverCode(int descriptor);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_CODE_LOADED_CODE_H_
